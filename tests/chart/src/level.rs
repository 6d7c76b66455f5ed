//! Horizontal lines with a label.

use std::str::FromStr;

use parse_size::Config;

use crate::Error;

/// A value to compare with, such as the peak of another allocator.
///
/// Read from `NAME=BYTES`, with `GiB` for 2³⁰ bytes and `GB` for 10⁹. A `G` alone is refused: some mean the one
/// by it, and some the other.
///
/// ```
/// let level: cuda_mem_chart::Level = "PyTorch peak=1.5GiB".parse()?;
/// assert_eq!((level.name.as_str(), level.value), ("PyTorch peak", 1_610_612_736.0));
/// # Ok::<(), cuda_mem_chart::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// Stands at the right end of the line, before the value.
    pub name: String,
    /// In the unit of the vertical axis.
    pub value: f64,
}

impl FromStr for Level {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Level(text.to_owned());
        let (name, bytes) = text.rsplit_once('=').ok_or_else(wrong)?;
        let ambiguous = bytes
            .trim_end()
            .ends_with(|last: char| last.is_alphabetic() && last != 'B');
        let bytes = Config::new()
            .with_decimal()
            .parse_size(bytes)
            .map_err(|_| wrong())?;
        if ambiguous || name.trim().is_empty() {
            return Err(wrong());
        }
        Ok(Self {
            name: name.trim().to_owned(),
            value: bytes as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_name_and_bytes() {
        let value = |text: &str| text.parse().map(|level: Level| level.value);
        assert_eq!(value("RMM, pool=16GiB"), Ok(17_179_869_184.0));
        assert_eq!(value("PyTorch=17.031 GB"), Ok(17_031_000_000.0));
        assert_eq!(value("a=b=4096"), Ok(4096.0));
        for wrong in [
            "16GiB",
            "=16GiB",
            "peak=16G",
            "peak=",
            "peak=many",
            "peak=-1",
        ] {
            assert_eq!(value(wrong), Err(Error::Level(wrong.to_owned())));
        }
    }
}
