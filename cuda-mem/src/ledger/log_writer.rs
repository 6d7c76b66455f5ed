//! Where the lines of a log go, until a write fails.

#![forbid(unsafe_code)]

use std::io::{self, Write};

use crate::base::error::{Error, Result};
use crate::base::report;

/// Writes lines below a header. A failure ends the log, and is returned once.
///
/// Only the process that made it writes. [`report::is_forked`] says nothing of forks before the driver was initialised, and
/// these can use the driver themselves.
pub(crate) struct LogWriter {
    process: u32,
    out: Box<dyn Write + Send>,
    header: &'static [u8],
    state: State,
}

enum State {
    /// Nothing has been written, not even the header.
    New,
    Begun,
    /// A write failed, and the error has not been returned yet.
    Failed(io::Error),
    Over,
}

impl LogWriter {
    pub(crate) fn new(out: Box<dyn Write + Send>, header: &'static [u8]) -> Self {
        Self {
            process: std::process::id(),
            out,
            header,
            state: State::New,
        }
    }

    /// Writes the lines that `append` appends to a buffer with room for `bytes`. Returns whether they are written.
    pub(crate) fn write(&mut self, bytes: usize, append: impl FnOnce(&mut Vec<u8>)) -> bool {
        if self.is_inherited() {
            return false;
        }
        let header = match self.state {
            State::New => self.header,
            State::Begun => &[],
            State::Failed(_) | State::Over => return false,
        };
        self.state = State::Begun;
        // An allocation must not be lost to a writer that panics.
        let written = report::caught(|| {
            let mut lines = Vec::with_capacity(header.len() + bytes);
            lines.extend_from_slice(header);
            append(&mut lines);
            self.out.write_all(&lines)?;
            self.out.flush()
        });
        let written = written.unwrap_or_else(|| Err(io::Error::other("the writer panicked")));
        match written {
            Ok(()) => true,
            Err(error) => {
                self.state = State::Failed(error);
                false
            }
        }
    }

    /// Whether it is a copy that a fork made.
    fn is_inherited(&self) -> bool {
        std::process::id() != self.process
    }

    /// Nothing more is written.
    pub(crate) fn close(&mut self) {
        self.state = State::Over;
    }

    /// Leaves the writer as it is, without running its destructor.
    pub(crate) fn forget(&mut self) {
        let out = std::mem::replace(&mut self.out, Box::new(io::sink()));
        std::mem::forget(out);
        self.close();
    }

    /// Returns a failure once; `what` was being done.
    pub(crate) fn finish(&mut self, what: &'static str) -> Result<()> {
        if !matches!(self.state, State::Failed(_)) {
            return Ok(());
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Failed(error) => Err(Error::system(what, error)),
            _ => Ok(()),
        }
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        // What the writer's destructor would write is the parent's.
        if self.is_inherited() {
            self.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Counts its handles.
    struct Counted(#[allow(dead_code)] Arc<()>);

    impl Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn another_process_writes_nothing_and_ends_nothing() {
        for is_inherited in [false, true] {
            let count = Arc::new(());
            let mut log = LogWriter::new(Box::new(Counted(Arc::clone(&count))), b"header");
            log.process ^= u32::from(is_inherited);
            assert_eq!(log.write(0, |_| {}), !is_inherited);
            log.finish("nothing").expect("no write failed");
            drop(log);
            assert_eq!(Arc::strong_count(&count), 1 + usize::from(is_inherited));
        }
    }
}
