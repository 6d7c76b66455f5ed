//! The pool and the arena with the workloads of the `README.md` beside this file, which other allocators run too.
//!
//! `cargo bench -p cuda-mem --bench rivals -- [--subject NAME] [--workload NAME] [--quick]` prints one line of JSON per
//! row; `-- --write-log FILE` writes the recorded training run in the format of the C++ programs.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/draws.rs"]
mod draws;
#[path = "../common/gpt2.rs"]
mod gpt2;
#[path = "../common/mix.rs"]
mod mix;
#[path = "../common/subjects.rs"]
mod subjects;
#[path = "../common/workloads/mod.rs"]
mod workloads;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use cuda_mem::{Context, DeviceBuffer, Stream};
use cuda_mem_trace::{Op, Trace};

use common::middle;
use mix::Allocator;
use subjects::{Block, Subject};
use workloads::{Options, Rival};

const SUBJECTS: [&str; 2] = ["pool", "arena"];

fn main() -> Result<()> {
    let trace = gpt2::read()?;
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == "--write-log").is_some() {
        let file = arguments.next().context("--write-log names a file")?;
        return write_log(&trace, Path::new(&file));
    }
    let options = Options::read(arguments, &SUBJECTS)?;
    let (driver, backend) = common::open()?;
    let device = driver.device(0)?;
    let context = device.primary_context()?;
    eprintln!(
        "{backend}, {}, CUDA {}, {}",
        device.name()?,
        driver.version(),
        common::cpu()
    );
    for subject in &options.subjects {
        let new = || {
            Ok(Ours {
                context: context.clone(),
                resource: Subject::new(subject, &device)?,
            })
        };
        workloads::run_all(subject, &options, &trace, &new)?;
    }
    Ok(())
}

/// Slots, operations and the peak of live bytes; then `a SLOT BYTES` or `f SLOT` for each operation.
fn write_log(trace: &Trace, file: &Path) -> Result<()> {
    let mut text = format!("{} {} {}\n", trace.slots, trace.ops.len(), trace.peak_bytes);
    for op in &trace.ops {
        match *op {
            Op::Allocate { slot, bytes, .. } => writeln!(text, "a {slot} {bytes}")?,
            Op::Free { slot, .. } => writeln!(text, "f {slot}")?,
        }
    }
    std::fs::write(file, text).with_context(|| file.display().to_string())
}

struct Ours {
    context: Context,
    resource: Subject,
}

impl Allocator for Ours {
    type Stream = Stream;
    type Block = Block;

    #[inline]
    fn allocate(&self, stream: &Stream, bytes: usize) -> Result<Block> {
        Allocator::allocate(&self.resource, stream, bytes)
    }

    #[inline]
    fn free(&self, stream: &Stream, block: Block) -> Result<()> {
        self.resource.free(stream, block)
    }
}

impl Rival for Ours {
    fn stream(&self) -> Result<Stream> {
        Ok(self.context.stream()?)
    }

    fn fill(&self, stream: &Stream, block: &mut Block) -> Result<()> {
        // SAFETY: the block was allocated on this stream with this length, and is freed on it later.
        let mut view = unsafe {
            DeviceBuffer::<u8>::borrow_raw(stream, block.address, block.layout.size(), ())
        };
        Ok(view.zero()?)
    }

    fn synchronize(&self, stream: &Stream) -> Result<()> {
        Ok(stream.synchronize()?)
    }

    fn reserved_peak(&self) -> Result<u64> {
        self.resource.peak_reserved()
    }
}
