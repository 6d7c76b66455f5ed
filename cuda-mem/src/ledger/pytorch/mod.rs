//! Snapshots and recordings in the form of PyTorch's memory snapshots, for its viewer and its tools.

#![forbid(unsafe_code)]

mod file;
mod frames;
mod history;
#[cfg(test)]
mod tests;

use std::io::{self, BufWriter, Write};

use super::{MemorySnapshot, Recording};
use file::File;

impl MemorySnapshot {
    /// Writes the snapshot, with the events of a recording up to then, as PyTorch pickles its memory snapshots
    /// (`torch.cuda.memory._dump_snapshot`). The viewer at <https://docs.pytorch.org/memory_viz> opens the file, and
    /// `python -m torch.cuda._memory_viz stats`, `trace`, `trace_plot` and the rest read it. Needs the feature `export`.
    ///
    /// Give it the recording of the snapshot's own recorder, taken afterwards. The recorder should serve memory of one device
    /// only: an event does not say which device it is of, and all go to the snapshot's.
    ///
    /// | in the file | is |
    /// |---|---|
    /// | `segment_map`, `segment_unmap` | memory that an arena has gained or lost; of a pool, each block by itself |
    /// | `alloc` | an allocation, with the bytes asked for and the frames of its origin |
    /// | `free_requested`, `free_completed` | both at a free, unless the free is pending |
    /// | `oom` | a failed request. How much the device had free is not recorded: -1 |
    /// | device 0 | that device, or memory that belongs to none |
    ///
    /// What the recording and the snapshot do not agree on, because other threads were active, is freed at the end of the
    /// trace or missing in the segments, so that viewers can go back from the snapshot through the events. Memory that
    /// [sleeps](crate::Arena::sleep) stays in the segments. [`unlisted_bytes`](MemorySnapshot::unlisted_bytes) have no
    /// address, and are left out.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver};
    /// use cuda_mem::ledger::Recorder;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let recorder = Recorder::ring(100_000);
    /// let arena = Arena::builder(&device).record(&recorder).build()?;
    /// let buffer = arena.alloc::<f32>(&stream, 1000)?;
    ///
    /// let snapshot = arena.snapshot();
    /// let mut file = Vec::new(); // or a `File`
    /// snapshot.write_pickle(Some(&recorder.recording()), &mut file).expect("memory for it");
    /// # assert_eq!(file.last(), Some(&b'.'));
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn write_pickle(&self, trace: Option<&Recording>, out: impl Write) -> io::Result<()> {
        let mut out = BufWriter::new(out);
        let written = serde_pickle::to_writer(
            &mut out,
            &File::of(self, trace),
            serde_pickle::SerOptions::new(),
        );
        written.map_err(|error| match error {
            serde_pickle::Error::Io(error) => error,
            other => io::Error::other(other),
        })?;
        out.flush()
    }

    /// As [`write_pickle`](Self::write_pickle), in JSON, which newer viewers read too. Needs the feature `export`.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_json(&self, trace: Option<&Recording>, out: impl Write) -> io::Result<()> {
        let mut out = BufWriter::new(out);
        serde_json::to_writer(&mut out, &File::of(self, trace))?;
        out.flush()
    }
}
