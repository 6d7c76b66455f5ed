//! Mistakes with memory of an arena, for compute-sanitizer to find, and programs without a mistake.
//!
//! ```sh
//! compute-sanitizer --leak-check full sanitizer overrun   # and correct, queued, freed, leak, forget
//! NVTX_INJECTION64_PATH=libnvtx_sim.so sanitizer leak     # the simulated tool, without a GPU
//! ```
//!
//! For the driver, all of an arena is one piece of memory, in which every access is fine. compute-sanitizer finds these
//! mistakes because arenas tell it of their blocks through NVTX.

use std::alloc::Layout;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use cuda_mem::kernel::{Image, Launch, Module};
use cuda_mem::ledger::Ledger;
use cuda_mem::memory::DirectResource;
use cuda_mem::{Arena, Device, MemoryPool, MemoryResource, Stream};
use cuda_mem_console::{DeviceOption, EXIT_CODES, say};

const KERNELS: &str = include_str!("../../tests/data/kernels.ptx");

/// 32-bit words of the blocks: 1000 bytes, of the 1024 that an arena takes for them.
const WORDS: usize = 250;

/// Makes one mistake with memory of an arena, or none, so that a tool can be seen to find it
#[derive(Debug, Parser)]
#[command(name = "sanitizer", after_help = EXIT_CODES)]
struct Args {
    /// What the program does
    #[arg(value_enum, default_value_t = Program::Correct)]
    program: Program,
    /// Where the arena's memory comes from
    #[arg(long, value_enum, default_value_t = Source::Own)]
    source: Source,
    #[command(flatten)]
    device: DeviceOption,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Program {
    /// No mistake: blocks of many sizes, used on two streams, and freed
    Correct,
    /// No mistake: blocks that are freed while kernels that use them are still queued
    Queued,
    /// A kernel writes one word behind a block
    Overrun,
    /// A kernel writes to a block that was freed
    Freed,
    /// A block is never freed
    Leak,
    /// A buffer is forgotten, and with it the context that it keeps
    Forget,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Source {
    /// What an arena takes by itself: mapped memory, and under a tool that of cuMemAlloc
    Own,
    /// Blocks of cuMemAlloc
    Direct,
    /// Blocks of a memory pool (cuMemAllocAsync)
    Pool,
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    let backend = cuda_mem_console::open()?;
    let device = args.device.of(&backend)?;
    let context = device.primary_context()?;
    let (stream, other) = (context.stream()?, context.stream()?);
    let module = context.load(&Image::ptx(KERNELS)?)?;
    let arena = arena(args.source, &device)?;
    // Mapped memory around the blocks, so that the mistakes stay within what the driver knows.
    drop(arena.alloc::<u8>(&stream, 1 << 20)?);
    match Ledger::nvtx_tool() {
        Ok(Some(tool)) => say!("the blocks are registered with {}", tool.display())?,
        Ok(None) => say!("no tool sees the blocks")?,
        Err(error) => say!("{error}")?,
    }
    let program = word(args.program);
    let memory = match args.source {
        Source::Own => "its own memory",
        Source::Direct => "blocks of cuMemAlloc",
        Source::Pool => "blocks of a pool",
    };
    say!("{program}, in an arena of {memory}, {}", backend.name())?;
    match args.program {
        Program::Correct => correct(&arena, &module, &stream, &other),
        Program::Queued => queued(&arena, &module, &stream),
        Program::Overrun => overrun(&arena, &module, &stream),
        Program::Freed => freed(&arena, &module, &stream),
        Program::Leak => leak(&arena, &stream),
        Program::Forget => forget(&arena, &stream),
    }?;
    say!("done")?;
    Ok(())
}

/// As it is written on the command line.
fn word(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn arena(source: Source, device: &Device) -> Result<Arena> {
    let builder = match source {
        Source::Own => Arena::builder(device),
        Source::Direct => Arena::builder_over(DirectResource::new(*device)),
        Source::Pool => Arena::builder_over(MemoryPool::builder(device).build()?),
    };
    Ok(builder.build()?)
}

fn correct(arena: &Arena, module: &Module, stream: &Stream, other: &Stream) -> Result<()> {
    let fill = module.function("fill")?;
    let mut kept = Vec::new();
    for nth in 0..400_usize {
        // Some cross a border between two pieces of the arena's memory.
        let words = [WORDS, 1, 64, 70_000, 9 << 20][nth % 5] + nth;
        let on = if nth % 3 == 0 { other } else { stream };
        let mut block = arena.alloc::<u32>(on, words)?;
        let launch = Launch::over(words, 256);
        // SAFETY: `fill` takes an address, a word, and the number of words, which the block has.
        unsafe { fill.launch(on, launch, (&mut block, nth as u32, words as u64)) }?;
        kept.push((nth as u32, block));
        if kept.len() > 12 {
            let (value, block) = kept.swap_remove(nth % 12);
            let words = block.to_vec()?;
            ensure!(words.iter().all(|word| *word == value), "block {value}");
        }
    }
    Ok(())
}

fn queued(arena: &Arena, module: &Module, stream: &Stream) -> Result<()> {
    let (spin, fill) = (module.function("spin")?, module.function("fill")?);
    for _ in 0..20 {
        let mut block = arena.alloc::<u32>(stream, WORDS)?;
        // SAFETY: `spin` takes a number of nanoseconds.
        unsafe { spin.launch(stream, Launch::over(1, 1), (5_000_000_u64,)) }?;
        // SAFETY: as in `correct`.
        unsafe {
            fill.launch(
                stream,
                Launch::over(WORDS, 256),
                (&mut block, 7, WORDS as u64),
            )
        }?;
        // Dropped here, in the order of the stream: before the kernel has begun.
    }
    Ok(stream.synchronize()?)
}

fn overrun(arena: &Arena, module: &Module, stream: &Stream) -> Result<()> {
    let mut block = arena.alloc::<u32>(stream, WORDS)?;
    say!("the block is {:#x}, {} bytes", block.as_raw(), WORDS * 4)?;
    let count = WORDS as u64 + 1;
    let fill = module.function("fill")?;
    // SAFETY: the word behind the block is memory of the arena that nothing uses.
    unsafe { fill.launch(stream, Launch::over(WORDS + 1, 256), (&mut block, 7, count)) }?;
    Ok(stream.synchronize()?)
}

fn freed(arena: &Arena, module: &Module, stream: &Stream) -> Result<()> {
    let block = arena.alloc::<u32>(stream, WORDS)?;
    let address = block.as_raw();
    say!("the block was {address:#x}, {} bytes", WORDS * 4)?;
    drop(block);
    let fill = module.function("fill")?;
    let launch = Launch::over(WORDS, 256);
    // SAFETY: the freed block is memory of the arena that nothing uses.
    unsafe { fill.launch(stream, launch, (address, 7, WORDS as u64)) }?;
    Ok(stream.synchronize()?)
}

fn leak(arena: &Arena, stream: &Stream) -> Result<()> {
    let layout = Layout::array::<u32>(WORDS)?;
    let address = arena.allocate(layout, stream)?;
    say!("the block is {address:#x}, {} bytes", layout.size())?;
    Ok(())
}

fn forget(arena: &Arena, stream: &Stream) -> Result<()> {
    let block = arena.alloc::<u32>(stream, WORDS)?;
    say!("the block is {:#x}, {} bytes", block.as_raw(), WORDS * 4)?;
    std::mem::forget(block);
    Ok(())
}
