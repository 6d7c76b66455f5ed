//! A file for the lines of a recorder, which may be compressed.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_mem::base::is_forked;
use cuda_mem::{Error, ErrorKind};
use flate2::Compression;
use flate2::write::GzEncoder;

#[derive(Debug)]
enum Out {
    Plain(File),
    Packed(Box<GzEncoder<File>>),
    Ended,
}

/// Where a log is written, until it is ended.
#[derive(Clone, Debug)]
pub(crate) struct LogFile(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    out: Mutex<Out>,
    /// The process that created the file.
    process: u32,
}

impl Shared {
    /// Whether this is a copy that a fork made, also before the driver was initialised.
    fn is_inherited(&self) -> bool {
        is_forked() || std::process::id() != self.process
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What a packed log has collected is the parent's to write.
        if self.is_inherited() {
            let out = self.out.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::replace(out, Out::Ended));
        }
    }
}

/// The name of a device's log: that of device 0 as it is, others with their number before the endings.
fn path_of(path: &Path, device: usize) -> PathBuf {
    if device == 0 {
        return path.to_owned();
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, endings) = name.split_once('.').unwrap_or((&name, ""));
    let dot = if endings.is_empty() { "" } else { "." };
    path.with_file_name(format!("{stem}-device{device}{dot}{endings}"))
}

impl LogFile {
    pub(crate) fn of_device(path: &Path, device: usize) -> Result<Self, Error> {
        Self::create(&path_of(path, device))
    }

    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let is_packed = path.extension().is_some_and(|ending| ending == "gz");
        let file = File::create(path).map_err(|error| {
            let text = format!("creating the log, {}: {error}", path.display());
            Error::new(ErrorKind::System, text)
        })?;
        let out = if is_packed {
            Out::Packed(Box::new(GzEncoder::new(file, Compression::fast())))
        } else {
            Out::Plain(file)
        };
        Ok(Self(Arc::new(Shared {
            out: Mutex::new(out),
            process: std::process::id(),
        })))
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.0.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the file is another process's to complete.
    pub(crate) fn is_inherited(&self) -> bool {
        self.0.is_inherited()
    }

    /// Completes the file. Later lines are lost.
    pub(crate) fn end(&self) -> Result<(), Error> {
        let ended = match std::mem::replace(&mut *self.out(), Out::Ended) {
            Out::Packed(packed) => packed.finish().map(drop),
            Out::Plain(mut file) => file.flush(),
            Out::Ended => Ok(()),
        };
        ended.map_err(|error| Error::new(ErrorKind::System, format!("writing the log: {error}")))
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *self.out() {
            Out::Plain(file) => file.write(bytes),
            Out::Packed(packed) => packed.write(bytes),
            Out::Ended => Err(io::Error::other("the log is complete")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut *self.out() {
            Out::Plain(file) => file.flush(),
            Out::Packed(packed) => packed.flush(),
            Out::Ended => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_devices_have_their_number_in_the_name() {
        let path = Path::new("/logs/run.csv.gz");
        assert_eq!(path_of(path, 0), path);
        assert_eq!(path_of(path, 2), Path::new("/logs/run-device2.csv.gz"));
        assert_eq!(path_of(Path::new("run"), 1), Path::new("run-device1"));
    }
}
