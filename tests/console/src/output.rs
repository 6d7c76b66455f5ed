//! Output that can fail: a full disk or a reader that left is an error here and no panic.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Output that could not be written.
#[derive(Debug)]
pub struct Unwritable {
    what: String,
    source: io::Error,
}

impl Unwritable {
    /// `what` could not be written.
    #[must_use]
    pub fn new(what: impl Into<String>, source: io::Error) -> Self {
        Self {
            what: what.into(),
            source,
        }
    }

    /// Whether the reader left before the end, which is its right.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        self.source.kind() == io::ErrorKind::BrokenPipe
    }
}

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be written: {}", self.what, self.source)
    }
}

// No source: the text has it.
impl std::error::Error for Unwritable {}

/// A file that is opened before the work and written after it.
///
/// A file that is there already keeps its content until then, and one that is never written is not left
/// behind.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    file: File,
    is_unwritten: bool,
}

impl OutputFile {
    /// Opens or creates the file.
    ///
    /// # Errors
    ///
    /// [`Unwritable`], with the file's name.
    pub fn open(path: &Path) -> Result<Self, Unwritable> {
        let open = |is_new| {
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .create_new(is_new)
                .open(path)
        };
        let (file, is_unwritten) = match open(true) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (open(false), false),
            new => (new, true),
        };
        Ok(Self {
            file: file.map_err(|error| Unwritable::new(path.display().to_string(), error))?,
            path: path.to_owned(),
            is_unwritten,
        })
    }

    /// Replaces the content.
    ///
    /// # Errors
    ///
    /// [`Unwritable`], with the file's name.
    pub fn write(mut self, content: &[u8]) -> Result<(), Unwritable> {
        self.is_unwritten = false;
        let is_regular = self.file.metadata().is_ok_and(|data| data.is_file());
        // Pipes and devices have no length.
        let emptied = if is_regular {
            self.file.set_len(0)
        } else {
            Ok(())
        };
        let written = emptied.and_then(|()| self.file.write_all(content));
        written.map_err(|error| Unwritable::new(self.path.display().to_string(), error))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_unwritten {
            // An empty file that stays is a blemish and no failure.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Writes text to standard output.
///
/// # Errors
///
/// [`Unwritable`].
pub fn print(text: &str) -> Result<(), Unwritable> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Unwritable::new("standard output", error))
}

/// Writes a line to standard output; [`say!`](crate::say) calls it.
///
/// # Errors
///
/// [`Unwritable`].
pub fn write_line(line: fmt::Arguments<'_>) -> anyhow::Result<()> {
    Ok(print(&format!("{line}\n"))?)
}

/// As `println!`, with a failure as a result instead of a panic.
#[macro_export]
macro_rules! say {
    ($($arguments:tt)*) => {
        $crate::write_line(::std::format_args!($($arguments)*))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_as_it_was_until_it_is_written() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("picture.svg");
        drop(OutputFile::open(&path).expect("opened"));
        assert!(!path.exists(), "nothing was written");
        std::fs::write(&path, "an older and longer picture").expect("written");
        let file = OutputFile::open(&path).expect("opened");
        let content = || std::fs::read_to_string(&path).expect("read");
        assert_eq!(content(), "an older and longer picture");
        file.write(b"new").expect("written");
        assert_eq!(content(), "new");
    }

    #[test]
    fn a_file_that_cannot_be_created_is_named() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let file = folder.path().join("absent/picture.svg");
        let error = OutputFile::open(&file)
            .expect_err("its folder is absent")
            .to_string();
        assert!(error.contains("absent/picture.svg"), "{error}");
        assert!(error.contains("No such file"), "{error}");
    }
}
