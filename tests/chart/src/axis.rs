//! Axes: from values to positions, and ticks whose labels fit.

use crate::number::{largest_unit, named, round};
use crate::{Error, Result};

/// What the numbers on an axis are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Labelled in B, KiB, MiB, GiB or TiB.
    Bytes,
    /// A number of things, which the axis's title names.
    Count,
    /// Labelled in ns, µs, ms or s.
    Nanoseconds,
    /// 10⁹ bytes a second.
    GigabytesPerSecond,
}

/// A direction of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    pub(crate) title: String,
    pub(crate) unit: Unit,
    logarithmic: bool,
}

impl Axis {
    /// From zero on.
    pub fn linear(title: impl Into<String>, unit: Unit) -> Self {
        Self {
            title: title.into(),
            unit,
            logarithmic: false,
        }
    }

    /// With ticks at powers of two for bytes, else at powers of ten.
    pub fn logarithmic(title: impl Into<String>, unit: Unit) -> Self {
        Self {
            logarithmic: true,
            ..Self::linear(title, unit)
        }
    }
}

/// Where a linear axis ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    AtHighestValue,
    AtTick,
}

/// A value that is marked, and its label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) value: f64,
    pub(crate) label: String,
}

/// An axis over a range of values.
#[derive(Clone, Debug)]
pub(crate) struct Ruler {
    /// The ends; of a logarithmic axis their natural logarithms.
    low: f64,
    high: f64,
    logarithmic: bool,
    pub(crate) ticks: Vec<Tick>,
}

/// More ticks are clutter, however long the axis.
const MOST_TICKS: usize = 9;

impl Ruler {
    /// Over `values`, with the densest ticks that `fits` accepts.
    pub(crate) fn new(
        axis: &Axis,
        values: impl IntoIterator<Item = f64>,
        end: End,
        fits: impl Fn(&Self) -> bool,
    ) -> Result<Self> {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            let placeable = value.is_finite() && value >= 0.0;
            if !placeable || (axis.logarithmic && value == 0.0) {
                return Err(Error::OffAxis(value));
            }
            least = least.min(value);
            most = most.max(value);
        }
        if least > most {
            return Err(Error::Empty);
        }
        let choices = if axis.logarithmic {
            logarithmic(axis.unit, least, most)
        } else {
            linear(axis.unit, most, end)
        };
        let first = choices
            .into_iter()
            .find(|ruler| ruler.ticks.len() <= MOST_TICKS && fits(ruler));
        first.ok_or(Error::OffAxis(most))
    }

    /// From 0 to 1 over the length of the axis.
    pub(crate) fn position(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.ln() } else { value };
        (value - self.low) / (self.high - self.low)
    }
}

/// From dense ticks to that at zero alone.
fn linear(unit: Unit, most: f64, end: End) -> Vec<Ruler> {
    let most = if most > 0.0 { most } else { 1.0 };
    let (size, name) = largest_unit(unit, most);
    let first = (most / size / 100.0).log10().floor() as i32;
    let steps = (first..first + 5).flat_map(|power| [1.0, 2.0, 5.0].map(|factor| (factor, power)));
    // A fraction of a thing is no tick.
    let steps = steps.filter(move |(_, power)| *power >= 0 || !name.is_empty());
    let rulers = steps.map(|(factor, power)| {
        // Divided, because a negative power of ten is not exact.
        let step = match power {
            0.. => factor * 10_f64.powi(power),
            _ => factor / 10_f64.powi(-power),
        };
        let steps = most / size / step;
        let count = match end {
            End::AtHighestValue => (steps + 1e-9).floor(),
            End::AtTick => (steps - 1e-9).ceil(),
        };
        let ticks = (0..=count as u64).map(|index| Tick {
            value: index as f64 * step * size,
            label: named(
                index as f64 * step,
                power.min(0).unsigned_abs() as usize,
                name,
            ),
        });
        Ruler {
            low: 0.0,
            high: match end {
                End::AtHighestValue => most,
                End::AtTick => count * step * size,
            },
            logarithmic: false,
            ticks: ticks.collect(),
        }
    });
    rulers.collect()
}

/// From dense ticks to none.
fn logarithmic(unit: Unit, least: f64, most: f64) -> Vec<Ruler> {
    // An axis is at least four powers of two or one of ten long: noise does not look like a trend.
    let (base, shortest) = match unit {
        Unit::Bytes => (2_f64, 4.0),
        _ => (10_f64, 1.0),
    };
    let [low, high] = [least, most].map(|value| value.ln() / base.ln());
    let short = (shortest - (high - low)).max(0.0) / 2.0;
    let margin = (high - low + 2.0 * short) * 0.08;
    let (low, high) = (low - short - margin, high + short + margin);

    let ruler = move |values: Vec<f64>| {
        let ticks = values.into_iter().map(|value| Tick {
            value,
            label: round(unit, value),
        });
        Ruler {
            low: low * base.ln(),
            high: high * base.ln(),
            logarithmic: true,
            ticks: ticks.collect(),
        }
    };
    let within = move |value: &f64| (low..=high).contains(&(value.ln() / base.ln()));
    let powers = move || low.ceil() as i32..=high.floor() as i32;
    let divided = [&[1.0, 2.0, 5.0][..], &[1.0, 3.0]].into_iter();
    let divided = divided.filter(move |_| base == 10.0).map(move |factors| {
        let powers = low.floor() as i32..=high.floor() as i32;
        let all =
            powers.flat_map(|power| factors.iter().map(move |factor| factor * base.powi(power)));
        all.filter(within).collect()
    });
    // A step of 2⁴ or 2⁸ is rounder than one of 2⁶.
    let strides = (1..32).filter(move |stride: &i32| base == 10.0 || stride.count_ones() == 1);
    let strides = strides.flat_map(move |stride| {
        // Most sizes that are measured are powers of four.
        let finest = if base == 10.0 || stride == 1 { 1 } else { 2 };
        let ways = (0..stride).step_by(finest).map(|phase| {
            let powers = powers().filter(|power| power.rem_euclid(stride) == phase);
            powers.collect::<Vec<_>>()
        });
        let mut ways: Vec<_> = ways.collect();
        // The more marks, the better; then the nearer to the middle.
        let aside = |powers: &[i32]| match powers {
            [first, .., last] => (f64::from(first + last) - low - high).abs(),
            _ => f64::INFINITY,
        };
        ways.sort_by(|a, b| b.len().cmp(&a.len()).then(aside(a).total_cmp(&aside(b))));
        let ways = ways.into_iter();
        ways.map(move |powers| powers.into_iter().map(|power| base.powi(power)).collect())
    });
    let none = std::iter::once(Vec::new());
    divided.chain(strides).chain(none).map(ruler).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, values: &[f64], end: End, most: usize) -> Vec<String> {
        let ruler = Ruler::new(axis, values.iter().copied(), end, |ruler| {
            ruler.ticks.len() <= most
        });
        let ticks = ruler.expect("the values can be placed").ticks;
        ticks.into_iter().map(|tick| tick.label).collect()
    }

    const GIB: f64 = 1_073_741_824.0;

    #[test]
    fn linear_ticks_are_round_and_carry_their_unit() {
        let bytes = Axis::linear("", Unit::Bytes);
        assert_eq!(
            labels(&bytes, &[19.3 * GIB], End::AtTick, 6),
            ["0 GiB", "5 GiB", "10 GiB", "15 GiB", "20 GiB"]
        );
        assert_eq!(
            labels(&bytes, &[1.1 * GIB], End::AtTick, 5),
            ["0.0 GiB", "0.5 GiB", "1.0 GiB", "1.5 GiB"]
        );
        assert_eq!(
            labels(&bytes, &[0.0], End::AtTick, 3),
            ["0.0 B", "0.5 B", "1.0 B"]
        );
        let count = Axis::linear("operations", Unit::Count);
        assert_eq!(
            labels(&count, &[71_623.0], End::AtHighestValue, 5),
            ["0", "20,000", "40,000", "60,000"]
        );
        assert_eq!(
            labels(&count, &[3.0], End::AtHighestValue, 9),
            ["0", "1", "2", "3"]
        );
    }

    #[test]
    fn logarithmic_ticks_are_powers() {
        let bytes = Axis::logarithmic("", Unit::Bytes);
        let sizes = [4096.0, 268_435_456.0];
        assert_eq!(
            labels(&bytes, &sizes, End::AtTick, 5),
            ["4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB"]
        );
        assert_eq!(
            labels(&bytes, &sizes, End::AtTick, 3),
            ["4 KiB", "1 MiB", "256 MiB"]
        );
        let time = Axis::logarithmic("", Unit::Nanoseconds);
        assert_eq!(
            labels(&time, &[3980.0, 108_347_580.0], End::AtTick, 5),
            ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms"]
        );
        assert_eq!(
            labels(&time, &[8000.0, 9000.0], End::AtTick, 5),
            ["5 µs", "10 µs", "20 µs"]
        );
    }

    #[test]
    fn positions_run_from_end_to_end() {
        let time = Axis::logarithmic("", Unit::Nanoseconds);
        let ruler = Ruler::new(&time, [1.0, 1e4], End::AtTick, |_| true).expect("positive numbers");
        let [low, middle, high] = [1.0, 1e2, 1e4].map(|value| ruler.position(value));
        assert!(
            0.0 < low && high < 1.0 && (middle - 0.5).abs() < 1e-9,
            "{low} {middle} {high}"
        );
        let count = Axis::linear("", Unit::Count);
        let ruler = Ruler::new(&count, [8.0], End::AtHighestValue, |_| true).expect("a number");
        assert_eq!(
            [0.0, 4.0, 8.0].map(|value| ruler.position(value)),
            [0.0, 0.5, 1.0]
        );
    }

    #[test]
    fn values_that_have_no_place_are_refused() {
        let new = |axis: &Axis, values: &[f64]| {
            Ruler::new(axis, values.iter().copied(), End::AtTick, |_| true).map(|ruler| ruler.ticks)
        };
        let logarithmic = Axis::logarithmic("", Unit::Bytes);
        assert_eq!(new(&logarithmic, &[]), Err(Error::Empty));
        assert_eq!(new(&logarithmic, &[4.0, 0.0]), Err(Error::OffAxis(0.0)));
        let linear = Axis::linear("", Unit::Bytes);
        assert_eq!(new(&linear, &[-1.0]), Err(Error::OffAxis(-1.0)));
        assert!(new(&linear, &[f64::NAN]).is_err());
        assert!(new(&linear, &[0.0]).is_ok());
    }
}
