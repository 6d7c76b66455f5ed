//! What resources reserve while a log is replayed: the data, and its chart.

use serde::{Deserialize, Serialize};

use crate::{Axis, Chart, Error, Level, Result, Series, Unit, peaks};

/// More points are not kept: a picture does not show them.
const POINTS: u64 = 1200;

/// Bytes after an operation, where they change. Operations count from 1.
pub type Steps = Vec<(u64, u64)>;

/// Curves of one or more resources over the same log, as they are kept in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curves {
    /// The log's file name.
    pub trace: String,
    /// What the log was replayed on, such as `NVIDIA H200, CUDA 13.0`.
    pub device: String,
    /// The number of operations.
    pub operations: u64,
    /// Bytes alive.
    pub asked: Steps,
    /// One for each resource.
    pub resources: Vec<Curve>,
}

/// A resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curve {
    /// With its adaptors.
    pub name: String,
    /// Bytes that the resource holds; `null` if it does not count them.
    pub reserved: Option<Steps>,
}

/// The peaks of values after each of the operations.
pub fn thinned(values: impl ExactSizeIterator<Item = u64>) -> Steps {
    let stretch = (values.len() as u64).div_ceil(POINTS).max(1);
    let mut steps = peaks((1..).zip(values), |operation: u64| {
        (operation - 1) / stretch
    });
    steps.dedup_by_key(|step| step.1);
    steps
}

impl Curves {
    /// Adds the resources of `other`.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if it is of another log or part of a log, or of another device, or has a resource of
    /// the same name.
    pub fn join(&mut self, other: Self) -> Result<()> {
        let same = (&self.trace, &self.device, self.operations, &self.asked)
            == (&other.trace, &other.device, other.operations, &other.asked);
        if !same {
            return Err(Error::Input(format!(
                "{} on {} and {} on {} are not the same replay",
                self.trace, self.device, other.trace, other.device
            )));
        }
        for curve in other.resources {
            if self.resources.iter().any(|known| known.name == curve.name) {
                return Err(Error::Input(format!("{} is there twice", curve.name)));
            }
            self.resources.push(curve);
        }
        Ok(())
    }

    /// Keeps these resources, in this order. `NAME=LABEL` gives one another name.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if one is not there.
    pub fn select(&mut self, names: &[String]) -> Result<()> {
        let named = |name: &str| {
            self.resources
                .iter()
                .find(|curve| curve.name == name)
                .cloned()
        };
        let chosen = |text: &String| {
            // Adaptors have equals signs in their names.
            let labelled = || {
                let (name, label) = text.split_once('=')?;
                Some(Curve {
                    name: label.to_owned(),
                    ..named(name)?
                })
            };
            named(text).or_else(labelled).ok_or_else(|| {
                let known: Vec<_> = self
                    .resources
                    .iter()
                    .map(|curve| curve.name.as_str())
                    .collect();
                Error::Input(format!(
                    "there is no {text}; there are {}",
                    known.join(", ")
                ))
            })
        };
        self.resources = names.iter().map(chosen).collect::<Result<_>>()?;
        Ok(())
    }

    /// What is asked for as an area, a line for each resource, and `levels` to compare with.
    pub fn chart(&self, levels: Vec<Level>) -> Chart {
        let series = |name: &str, steps: &Steps| {
            let points = steps
                .iter()
                .map(|(operation, bytes)| (*operation as f64, *bytes as f64));
            // A replay begins with nothing, and its last value holds to the end.
            let mut points: Vec<_> = std::iter::once((0.0, 0.0)).chain(points).collect();
            let last = points.last().map_or(0.0, |point| point.1);
            points.push((self.operations as f64, last));
            Series::steps(name, points)
        };
        let counted = self
            .resources
            .iter()
            .filter_map(|curve| Some((&curve.name, curve.reserved.as_ref()?)));
        let lines = counted
            .map(|(name, reserved)| series(name, reserved))
            .collect();
        let uncounted = self
            .resources
            .iter()
            .filter(|curve| curve.reserved.is_none());
        let uncounted: Vec<&str> = uncounted.map(|curve| curve.name.as_str()).collect();
        let note = format!(
            "Without a line, because they do not count what they reserve: {}.",
            uncounted.join(", ")
        );
        Chart {
            subtitle: format!("{}. First pass on a new resource.", self.device),
            area: Some(series("asked for", &self.asked)),
            lines,
            levels,
            notes: if uncounted.is_empty() {
                Vec::new()
            } else {
                vec![note]
            },
            ..Chart::new(
                format!("Memory reserved while {} is replayed", self.trace),
                Axis::linear("operations: allocations and frees", Unit::Count),
                Axis::linear("memory", Unit::Bytes),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_peaks_and_changes_alone() {
        assert_eq!(
            thinned([5, 5, 7, 7, 2].into_iter()),
            [(1, 5), (3, 7), (5, 2)]
        );
        let mut values = vec![1; 1_000_000];
        values[123_456] = 99;
        let steps = thinned(values.into_iter());
        assert_eq!(steps.len(), 3);
        assert_eq!(steps[1].1, 99);
        assert!((1..=834).contains(&(123_457 - steps[1].0 + 1)), "{steps:?}");
    }

    fn curves(name: &str) -> Curves {
        Curves {
            trace: "log".to_owned(),
            device: "GPU".to_owned(),
            operations: 3,
            asked: vec![(1, 10)],
            resources: vec![Curve {
                name: name.to_owned(),
                reserved: Some(vec![(1, 32)]),
            }],
        }
    }

    #[test]
    fn only_curves_of_the_same_replay_are_joined() {
        let mut all = curves("pool");
        assert_eq!(all.join(curves("arena")), Ok(()));
        assert!(
            matches!(all.join(curves("arena")), Err(Error::Input(why)) if why.contains("arena"))
        );
        let other = Curves {
            asked: vec![(1, 11)],
            ..curves("direct")
        };
        assert!(all.join(other).is_err());
        assert_eq!(all.resources.len(), 2);
        assert_eq!(all.select(&["arena".to_owned()]), Ok(()));
        assert_eq!(all.resources, curves("arena").resources);
        assert!(all.select(&["pool".to_owned()]).is_err());
        assert_eq!(all.select(&["arena=the arena".to_owned()]), Ok(()));
        assert_eq!(all.resources, curves("the arena").resources);
    }

    #[test]
    fn the_longest_log_makes_a_small_file() -> Result<(), serde_json::Error> {
        // Every operation changes every curve.
        let values = || (0..1_000_000_u64).map(|index| (80 << 30) + index * 7919 % (1 << 33));
        let values: Vec<u64> = values().collect();
        let steps = || thinned(values.iter().copied());
        let resource = |index: usize| Curve {
            name: format!("resource {index}"),
            reserved: Some(steps()),
        };
        let all = Curves {
            operations: 1_000_000,
            asked: steps(),
            resources: (0..6).map(resource).collect(),
            ..curves("")
        };
        let text = serde_json::to_string(&all)?;
        assert!(text.len() < 200 << 10, "{}", text.len());
        assert_eq!(serde_json::from_str::<Curves>(&text)?, all);
        Ok(())
    }
}
