//! Charts of this project, as SVG.
//!
//! A [`Chart`] is one panel: an area, lines, and horizontal levels with labels. A [`Grid`] is a table of
//! small panels that share their axes. Both keep every text outside the plots and apart from every other
//! text; widths of texts are estimated for the widest of the common sans-serif fonts, since the font is
//! the viewer's.
//!
//! ```
//! use cuda_mem_chart::{Axis, Chart, Series, Unit};
//!
//! # fn main() -> Result<(), cuda_mem_chart::Error> {
//! let chart = Chart {
//!     lines: vec![Series::steps("pool", vec![(0.0, 0.0), (10.0, 4096.0), (90.0, 1024.0)])],
//!     ..Chart::new("Reserved memory", Axis::linear("operations", Unit::Count), Axis::linear("", Unit::Bytes))
//! };
//! assert!(chart.svg()?.starts_with("<svg"));
//! # Ok(())
//! # }
//! ```

mod axis;
mod chart;
mod grid;
mod level;
mod number;
mod picture;
pub mod placement;
mod plot;
pub mod reserved;
mod series;
mod style;
mod text;

pub use axis::{Axis, Unit};
pub use chart::Chart;
pub use grid::{Column, Grid};
pub use level::Level;
pub use series::{Series, peaks};

/// Why a chart cannot be drawn.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No series has a point.
    #[error("there is nothing to draw")]
    Empty,
    /// A logarithmic axis shows positive numbers, and a linear one numbers that are not negative.
    #[error("{0} cannot be placed on its axis")]
    OffAxis(f64),
    /// A level is not `NAME=BYTES`.
    #[error("{0:?} is not NAME=BYTES, such as 'peak=19.1GiB'")]
    Level(String),
    /// A report or a file of curves does not have the expected content.
    #[error("{0}")]
    Input(String),
}

/// What this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
