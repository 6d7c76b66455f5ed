//! Numbers as labels.

use crate::Unit;

/// From the smallest on: how many make one of it, and its name.
type Units = &'static [(f64, &'static str)];

const BYTES: Units = &[
    (1.0, "B"),
    (1024.0, "KiB"),
    (1_048_576.0, "MiB"),
    (1_073_741_824.0, "GiB"),
    (1_099_511_627_776.0, "TiB"),
];
const TIME: Units = &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")];
const RATE: Units = &[(1.0, "GB/s")];
const COUNT: Units = &[(1.0, "")];

/// The largest unit that `value` has at least one of, else the smallest.
pub(crate) fn largest_unit(unit: Unit, value: f64) -> (f64, &'static str) {
    let units = match unit {
        Unit::Bytes => BYTES,
        Unit::Nanoseconds => TIME,
        Unit::GigabytesPerSecond => RATE,
        Unit::Count => COUNT,
    };
    // A power of ten that was computed may be a little below the unit.
    let reached = units
        .iter()
        .rev()
        .find(|(size, _)| value >= size * (1.0 - 1e-9));
    *reached.unwrap_or(&units[0])
}

/// With its unit, and as many digits as a round number needs.
pub(crate) fn round(unit: Unit, value: f64) -> String {
    let (size, name) = largest_unit(unit, value);
    let value = value / size;
    let decimals = if value < 1.0 {
        (-value.log10() - 1e-9).ceil()
    } else {
        0.0
    };
    named(value, decimals as usize, name)
}

/// With its unit and three digits: `19.1 GiB`.
pub(crate) fn measured(unit: Unit, value: f64) -> String {
    let (size, name) = largest_unit(unit, value);
    let value = value / size;
    let whole = name == "B" || name.is_empty();
    let decimals = match value {
        _ if whole => 0,
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    named(value, decimals, name)
}

/// `20,000.5 GiB`.
pub(crate) fn named(value: f64, decimals: usize, unit: &str) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let space = if unit.is_empty() { "" } else { " " };
    format!("{grouped}{fraction}{space}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_carry_their_unit() {
        assert_eq!(round(Unit::Bytes, 65_536.0), "64 KiB");
        assert_eq!(round(Unit::Bytes, 1_048_576.0), "1 MiB");
        assert_eq!(round(Unit::Nanoseconds, 1e5), "100 µs");
        assert_eq!(
            round(Unit::Nanoseconds, 1000.0_f64.powi(3) * 0.999_999_999_99),
            "1 s"
        );
        assert_eq!(round(Unit::GigabytesPerSecond, 1000.0), "1,000 GB/s");
        assert_eq!(round(Unit::GigabytesPerSecond, 0.1), "0.1 GB/s");
        assert_eq!(round(Unit::GigabytesPerSecond, 0.05), "0.05 GB/s");
        assert_eq!(round(Unit::Count, 1_234_567.0), "1,234,567");
        assert_eq!(measured(Unit::Bytes, 19.14 * 1_073_741_824.0), "19.1 GiB");
        assert_eq!(measured(Unit::Bytes, 512.0), "512 B");
        assert_eq!(measured(Unit::Bytes, 5.0 * 1_048_576.0), "5.00 MiB");
    }
}
