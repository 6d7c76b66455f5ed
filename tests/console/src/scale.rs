//! Numbers for people: one scale for bytes, one for times, everywhere.

use bytesize::ByteSize;

/// Bytes with the largest unit that fits: `512 B`, `64 KiB`, `12.7 GiB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    let text = ByteSize(bytes).display().iec().to_string();
    // Sizes are mostly powers of two, which need no decimals.
    text.replace(".0 ", " ")
}

/// A time with the unit that leaves the fewest digits, and three of them: `4.31 ns`, `12.5 µs`, `1.03 ms`.
#[must_use]
pub fn nanoseconds(ns: f64) -> String {
    const UNITS: [&str; 3] = ["ns", "µs", "ms"];
    let (mut value, mut unit) = (ns, 0);
    // What rounds to 1000 is one of the next unit.
    while value >= 999.5 && unit < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    let unit = UNITS.get(unit).copied().unwrap_or("s");
    format!("{value:.decimals$} {unit}")
}

/// A number of things, in groups of three digits: `71,623`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_largest_unit_that_fits() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (64 << 10, "64 KiB"),
            (13_594_206_920, "12.7 GiB"),
            (1 << 50, "1 PiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn times_have_three_digits() {
        for (ns, text) in [
            (0.0, "0.00 ns"),
            (4.312, "4.31 ns"),
            (43.0, "43.0 ns"),
            (836.4, "836 ns"),
            (999.6, "1.00 µs"),
            (12_480.0, "12.5 µs"),
            (1_034_514.0, "1.03 ms"),
            (2.5e9, "2.50 s"),
            (7.2e12, "7200 s"),
        ] {
            assert_eq!(nanoseconds(ns), text);
        }
    }

    #[test]
    fn counts_are_grouped() {
        for (number, text) in [
            (7, "7"),
            (999, "999"),
            (71_623, "71,623"),
            (1_000_000, "1,000,000"),
        ] {
            assert_eq!(count(number), text);
        }
    }
}
