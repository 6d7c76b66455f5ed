//! What an arena's memory looks like, as files for PyTorch's memory viewer and for Perfetto.
//!
//! ```sh
//! cargo run --example snapshot --features export -- folder
//! ```
//!
//! Open `folder/snapshot.pickle` at <https://docs.pytorch.org/memory_viz>, or read it with
//! `python -m torch.cuda._memory_viz stats folder/snapshot.pickle`; open `folder/timeline.json` at <https://ui.perfetto.dev>.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use cuda_mem::ledger::Recorder;
use cuda_mem::{Arena, DeviceBuffer, Stream};
use cuda_mem_console::{DeviceOption, EXIT_CODES, say};

/// Writes a snapshot and a timeline of a small program's memory
#[derive(Debug, Parser)]
#[command(name = "snapshot", after_help = EXIT_CODES)]
struct Args {
    #[command(flatten)]
    device: DeviceOption,

    /// The folder for the files
    folder: PathBuf,
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    let backend = cuda_mem_console::open()?;
    let device = args.device.of(&backend)?;
    let context = device.primary_context()?;
    let streams = [context.stream()?, context.stream()?];

    let recorder = Recorder::ring(100_000);
    let arena = Arena::builder(&device).record(&recorder).build()?;
    let kept = work(&arena, &streams)?;
    // More than any device has.
    let refused = arena.alloc::<u8>(&streams[0], 900 << 30);

    let snapshot = arena.snapshot();
    let recording = recorder.recording();
    let create = |name: &str| create(&args.folder, name);
    snapshot.write_pickle(Some(&recording), create("snapshot.pickle")?)?;
    snapshot.write_json(Some(&recording), create("snapshot.json")?)?;
    recording.write_timeline(create("timeline.json")?)?;
    say!("{snapshot}")?;
    say!(
        "{} events, {} buffers kept",
        recording.entries().len(),
        kept.len()
    )?;
    say!("one request refused: {}", refused.is_err())
}

/// Layers that keep something and use something for a while.
fn work(arena: &Arena, streams: &[Stream; 2]) -> Result<Vec<DeviceBuffer<u8>>> {
    let mut kept = Vec::new();
    for layer in 1..=40 {
        let stream = &streams[layer % 2];
        kept.push(arena.alloc::<u8>(stream, layer * 100_000)?);
        let scratch = arena.alloc::<u8>(stream, 3_000_000)?;
        let index = arena.alloc::<u8>(stream, 500)?;
        scratch.free_after(streams)?;
        drop(index);
        if layer % 10 == 0 {
            kept.truncate(layer / 4);
            stream.synchronize()?;
        }
    }
    Ok(kept)
}

fn create(folder: &Path, name: &str) -> Result<File> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let path = folder.join(name);
    File::create(&path).with_context(|| format!("creating {}", path.display()))
}
