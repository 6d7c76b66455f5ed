//! Lines, and fewer points for them.

/// How a line goes from point to point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Steps,
    Straight,
}

/// A named line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) shape: Shape,
}

impl Series {
    /// Each value holds until the next point. The points are in the order of their first numbers.
    pub fn steps(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points,
            shape: Shape::Steps,
        }
    }

    /// A straight line from each point to the next.
    pub fn straight(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            shape: Shape::Straight,
            ..Self::steps(name, points)
        }
    }
}

/// One point for each run of points in the same column: where it begins, and the highest value in it.
/// A peak is never lost.
///
/// ```
/// let points = [(0, 5), (1, 9), (2, 3), (3, 4)];
/// assert_eq!(cuda_mem_chart::peaks(points, |x| x / 2), [(0, 9), (2, 4)]);
/// ```
pub fn peaks<X: Copy, Y: Copy + PartialOrd, C: PartialEq>(
    points: impl IntoIterator<Item = (X, Y)>,
    column: impl Fn(X) -> C,
) -> Vec<(X, Y)> {
    let mut kept: Vec<(X, Y)> = Vec::new();
    for (x, y) in points {
        match kept.last_mut() {
            Some(last) if column(last.0) == column(x) => {
                if y > last.1 {
                    last.1 = y;
                }
            }
            _ => kept.push((x, y)),
        }
    }
    kept
}
