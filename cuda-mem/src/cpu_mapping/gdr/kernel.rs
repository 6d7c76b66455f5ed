//! What gdrcopy's kernel module reports under `/proc/driver/gdrdrv`.

use std::io;
use std::path::Path;

use crate::base::error::{Error, Result};

const FOLDER: &str = "/proc/driver/gdrdrv";

/// What gdrcopy's kernel module reports about itself. From
/// [`Gdr::kernel_info`](crate::cpu_mapping::Gdr::kernel_info).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GdrKernelInfo {
    /// Its version, such as `2.5`.
    pub version: Option<String>,
    /// Whether it was built for the driver's `opensource` or `proprietary` modules.
    pub flavour: Option<String>,
    /// Whether mappings outlive their memory.
    pub is_persistent: Option<bool>,
    /// All entries of `params`, in order and verbatim.
    pub parameters: Vec<(String, String)>,
    /// The current number of pins of device pages, of all processes. Only reported to root, by a module loaded with
    /// `dbg_enabled=1`.
    pub pinned: Option<i64>,
}

impl GdrKernelInfo {
    /// `None` if the module is absent or reports nothing.
    pub(super) fn read() -> Result<Option<Self>> {
        Self::read_from(Path::new(FOLDER))
    }

    fn read_from(folder: &Path) -> Result<Option<Self>> {
        let Some(params) = text(&folder.join("params"))? else {
            return Ok(None);
        };
        let count = text(&folder.join("nv_get_pages_refcount"))?;
        Ok(Some(Self::parse(&params, count.as_deref())))
    }

    /// Parses one `Name: value` per line, and the number of pins.
    fn parse(params: &str, count: Option<&str>) -> Self {
        let mut facts = Self {
            pinned: count.and_then(|count| count.trim().parse().ok()),
            ..Self::default()
        };
        for line in params.lines() {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let (name, value) = (name.trim(), value.trim().to_owned());
            match name {
                "Version" => facts.version = Some(value.clone()),
                "Built for NVIDIA driver flavor" => facts.flavour = Some(value.clone()),
                "Use persistent mapping" => facts.is_persistent = Some(value == "yes"),
                _ => {}
            }
            facts.parameters.push((name.to_owned(), value));
        }
        facts
    }
}

/// `None` if the file does not exist or cannot be accessed.
fn text(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(Error::system(
            "reading what gdrcopy's kernel module tells",
            error,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_names_and_values() {
        let params = "Version: 2.5\nBuilt for NVIDIA driver flavor: opensource\n\
                      Use persistent mapping: no\ndbg_enabled: 1\nnonsense\n";
        let facts = GdrKernelInfo::parse(params, Some("17\n"));
        assert_eq!(facts.version.as_deref(), Some("2.5"));
        assert_eq!(facts.flavour.as_deref(), Some("opensource"));
        assert_eq!((facts.is_persistent, facts.pinned), (Some(false), Some(17)));
        assert_eq!(facts.parameters.len(), 4);
        assert_eq!(
            facts.parameters[3],
            ("dbg_enabled".to_owned(), "1".to_owned())
        );
        assert_eq!(
            GdrKernelInfo::parse("", Some("many")),
            GdrKernelInfo::default()
        );
    }

    #[test]
    #[cfg(not(miri))] // Miri does not read files.
    fn a_module_that_is_not_there_tells_nothing() {
        let nowhere = Path::new("/nowhere/gdrdrv");
        assert_eq!(GdrKernelInfo::read_from(nowhere).expect("no error"), None);
    }

    #[test]
    #[cfg(not(miri))]
    fn the_count_is_there_only_sometimes() {
        let folder = std::env::temp_dir().join(format!("cuda-mem-gdrdrv-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("params"), "Use persistent mapping: yes\n").expect("a file");
        let facts = GdrKernelInfo::read_from(&folder)
            .expect("readable")
            .expect("there");
        assert_eq!((facts.is_persistent, facts.pinned), (Some(true), None));
        std::fs::write(folder.join("nv_get_pages_refcount"), "3\n").expect("a file");
        let facts = GdrKernelInfo::read_from(&folder)
            .expect("readable")
            .expect("there");
        assert_eq!(facts.pinned, Some(3));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
