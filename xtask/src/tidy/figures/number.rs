//! Numbers as pages and reports write them, and their units.

use std::sync::LazyLock;

use regex::Regex;

/// Digits, with commas between thousands.
pub(super) const NUMBER: &str = r"[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?";

/// What makes a number a measurement. Longer ones first, as the first that fits is taken.
pub(super) const UNIT: &str = r"(?:(?:nanoseconds|microseconds|milliseconds|seconds|minutes|million|tests|[KMG]i?B/s|[kKMGT]i?B|ns|µs|us|ms|s)\b|%|×)";

/// A number with the unit that follows it somewhere in the same text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Number {
    pub(super) value: f64,
    pub(super) decimals: usize,
    pub(super) unit: Option<String>,
}

/// All numbers of a text, in order. Digits that are part of a name are none.
pub(super) fn numbers(text: &str) -> Vec<Number> {
    static TOKEN: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(&format!("(?<number>{NUMBER})|(?<unit>{UNIT})")).ok());
    let mut numbers: Vec<Number> = Vec::new();
    let tokens = TOKEN.iter().flat_map(|token| token.captures_iter(text));
    for token in tokens {
        if let Some(number) = token.name("number") {
            if !is_part_of_a_name(text, number.start()) {
                numbers.extend(Number::parse(number.as_str()));
            }
        } else if let Some(unit) = token.name("unit") {
            let waiting = numbers.iter_mut().rev();
            for number in waiting.take_while(|number| number.unit.is_none()) {
                number.unit = Some(unit.as_str().to_owned());
            }
        }
    }
    numbers
}

/// Whether the digits that begin there continue a word or another number: R42, h200, 2^63, 1.2.3.
pub(super) fn is_part_of_a_name(text: &str, start: usize) -> bool {
    let before = text[..start].chars().next_back();
    before.is_some_and(|c| c.is_alphanumeric() || "_^.".contains(c))
}

impl Number {
    fn parse(digits: &str) -> Option<Self> {
        Some(Self {
            value: digits.replace(',', "").parse().ok()?,
            decimals: digits.split_once('.').map_or(0, |(_, after)| after.len()),
            unit: None,
        })
    }

    /// Whether this is the value, rounded to the decimals that are shown. A value half-way between two
    /// may be shown as either.
    pub(super) fn shows(&self, value: f64) -> bool {
        let step = 10_f64.powi(-i32::try_from(self.decimals).unwrap_or(i32::MAX));
        (self.value - value).abs() <= step * (0.5 + 1e-6)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Dimension {
    Time,
    Bytes,
    Rate,
    Count,
}

/// How many of `to` one of `from` is.
pub(super) fn conversion(from: &str, to: &str) -> Result<f64, String> {
    let find =
        |unit: &str| size_of_unit(unit).ok_or_else(|| format!("the unit `{unit}` is unknown"));
    let ((kind, size), (wanted, step)) = (find(from)?, find(to)?);
    if kind == wanted {
        Ok(size / step)
    } else {
        Err(format!("`{from}` cannot become `{to}`"))
    }
}

fn size_of_unit(unit: &str) -> Option<(Dimension, f64)> {
    use Dimension::{Bytes, Count, Rate, Time};
    let binary = |power| 1024_f64.powi(power);
    Some(match unit {
        "ns" | "nanoseconds" => (Time, 1e-9),
        "µs" | "us" | "microseconds" => (Time, 1e-6),
        "ms" | "milliseconds" => (Time, 1e-3),
        "s" | "seconds" => (Time, 1.0),
        "minutes" => (Time, 60.0),
        "B" => (Bytes, 1.0),
        "KiB" => (Bytes, binary(1)),
        "MiB" => (Bytes, binary(2)),
        "GiB" => (Bytes, binary(3)),
        "TiB" => (Bytes, binary(4)),
        "kB" | "KB" => (Bytes, 1e3),
        "MB" => (Bytes, 1e6),
        "GB" => (Bytes, 1e9),
        "TB" => (Bytes, 1e12),
        "B/s" => (Rate, 1.0),
        "MB/s" => (Rate, 1e6),
        "GB/s" => (Rate, 1e9),
        "plain" | "×" | "tests" => (Count, 1.0),
        "%" => (Count, 0.01),
        "million" => (Count, 1e6),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(f64, usize, Option<String>)> {
        let all = numbers(text).into_iter();
        all.map(|n| (n.value, n.decimals, n.unit)).collect()
    }

    #[test]
    fn numbers_take_the_unit_that_follows() {
        let unit = |text: &str| Some(text.to_owned());
        assert_eq!(
            read("13.7 – 14.4 ns | 6.50, 1,370 µs | 0.998"),
            [
                (13.7, 1, unit("ns")),
                (14.4, 1, unit("ns")),
                (6.5, 2, unit("µs")),
                (1370.0, 0, unit("µs")),
                (0.998, 3, None),
            ]
        );
        assert_eq!(read("R42, h200, 2^63, v1.2"), [(2.0, 0, None)]);
    }

    #[test]
    fn a_number_shows_what_rounds_to_it() {
        let shows = |text: &str, value: f64| numbers(text)[0].shows(value);
        assert!(shows("632", 631.5) && shows("632", 632.49) && shows("632", 632.5));
        assert!(!shows("632", 632.6) && !shows("632", 631.4));
        assert!(shows("1.072", 1.071_95) && !shows("1.072", 1.0726));
        assert!(shows("602,265", 602_265.0));
    }

    #[test]
    fn units_are_converted_within_their_kind() {
        let close = |from, to, expected: f64| {
            let found = conversion(from, to).expect("both are known");
            assert!(
                (found / expected - 1.0).abs() < 1e-9,
                "{from} in {to}: {found}"
            );
        };
        close("ns", "µs", 1e-3);
        close("B", "MiB", 1.0 / 1_048_576.0);
        close("plain", "million", 1e-6);
        assert!(conversion("ns", "MiB").is_err());
        assert!(conversion("fathoms", "ns").is_err());
    }
}
