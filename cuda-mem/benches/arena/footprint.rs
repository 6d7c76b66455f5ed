//! Memory held by the arena and by the driver's pool when streams are busy.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::Result;
use cuda_mem::arena::ArenaStats;
use cuda_mem::{Arena, Device, ErrorKind, MemoryPool, ReleaseThreshold, Resource, ReusePolicy};

use crate::busy::{CELLS, Cell, Done, Frees, Length, Sizes, Streams, Work, cells, coverage, run};

const METHOD: &str = "each program once over the driver's pool, which keeps what it has (release threshold: all), and \
     once over a new arena, with the same policy; at most 2 s each. Bytes of the most that was asked for and reserved; \
     the driver calls of the arena over its operations, growth among them";

const TIME: Duration = Duration::from_secs(2);

/// The memory that a subject held.
struct Held {
    done: Done,
    reserved: u64,
}

fn over_pool(device: &Device, cell: Cell, length: Length) -> Result<Held> {
    let pool = MemoryPool::builder(device)
        .reuse(cell.reuse)
        .release_threshold(ReleaseThreshold::Never)
        .build()?;
    let done = run(device, &Resource::from(pool.clone()), cell, length)?;
    Ok(Held {
        done,
        reserved: pool.stats()?.reserved.high,
    })
}

/// The memory that the arena held, and its statistics. `None` leaves the arena's slack at its default.
fn over_arena(
    device: &Device,
    cell: Cell,
    length: Length,
    slack: Option<f64>,
) -> Result<(Held, ArenaStats)> {
    let builder = Arena::builder(device).reuse(cell.reuse);
    let arena = match slack {
        Some(slack) => builder.slack(slack).build()?,
        None => builder.build()?,
    };
    let done = run(device, &Resource::from(arena.clone()), cell, length)?;
    let stats = arena.stats();
    let reserved = stats.reserved_peak;
    Ok((Held { done, reserved }, stats))
}

fn is_out_of_memory(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<cuda_mem::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::OutOfMemory)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Operations per thread for a cell.
fn operations(cell: Cell) -> usize {
    match cell.work {
        Work::Nothing | Work::Fill => (100_000 / cell.threads).min(20_000),
        Work::Kernel => (32_000 / cell.threads).clamp(2_000, 8_000),
    }
}

/// Measures the cells with these numbers, and prints a line for each.
pub(crate) fn measure(device: &Device, numbers: RangeInclusive<usize>) -> Result<()> {
    let (pairs, met) = coverage(CELLS);
    println!("\nfootprint: {METHOD}");
    println!("{CELLS} programs, in which {met} of {pairs} pairs of choices meet\n");
    println!(
        "cell  operations      asked       pool      arena  arena/pool  calls/op   pool s  arena s  program"
    );
    let mut worst = Vec::new();
    let asked = cells(CELLS).into_iter().enumerate();
    for (number, cell) in asked.filter(|(number, _)| numbers.contains(number)) {
        let length = Length {
            operations: operations(cell),
            time: TIME,
        };
        let (arena, stats) = over_arena(device, cell, length, None)?;
        let pool = match over_pool(device, cell, length) {
            Ok(pool) => pool,
            Err(error) if is_out_of_memory(&error) => {
                println!(
                    "{number:>4}  the pool runs out of memory, the arena has {:.0} MiB for {:.0}: {cell}",
                    mib(arena.reserved),
                    mib(arena.done.asked)
                );
                continue;
            }
            Err(error) => return Err(error),
        };
        let ratio = arena.reserved as f64 / pool.reserved as f64;
        println!(
            "{number:>4}  {:>10}  {:>5.0} MiB  {:>5.0} MiB  {:>5.0} MiB  {ratio:>10.2}  {:>8.4}  {:>7.2}  {:>7.2}  {cell}",
            arena.done.operations,
            mib(arena.done.asked),
            mib(pool.reserved),
            mib(arena.reserved),
            stats.driver_calls as f64 / arena.done.operations as f64,
            pool.done.seconds,
            arena.done.seconds,
        );
        if cell.forbids_reuse() {
            println!("      (in which nothing that was freed may be used again)");
        }
        worst.push((ratio, number));
    }
    worst.sort_by(|one, other| other.0.total_cmp(&one.0));
    let above = worst.iter().filter(|(ratio, _)| *ratio > 1.25);
    println!("\n{} of {} above 1.25", above.count(), worst.len());
    Ok(())
}

/// Bytes per stream that an arena may hold beyond its slack.
const A_STREAM: u64 = 2 << 20;

/// Runs the cells on arenas with this slack: a line for each that holds more than that.
pub(crate) fn slack(device: &Device, slack: f64, numbers: RangeInclusive<usize>) -> Result<()> {
    println!(
        "\nslack {slack}: each program over a new arena; listed if that held more than {slack} of its demand_peak and \
         {A_STREAM} bytes a stream, or 32 MiB\n"
    );
    println!(
        "cell     demand   reserved  reserved/demand  beyond slack   stranded  streams  program"
    );
    let (mut all, mut beyond) = (0, 0);
    let asked = cells(CELLS).into_iter().enumerate();
    for (number, cell) in asked.filter(|(number, _)| numbers.contains(number)) {
        let length = Length {
            operations: operations(cell),
            time: TIME / 2,
        };
        let (held, stats) = over_arena(device, cell, length, Some(slack))?;
        all += 1;
        let streams = A_STREAM * stats.streams;
        let most = (stats.demand_peak as f64 * slack) as u64 + streams;
        if held.reserved <= most.max(32 << 20) {
            continue;
        }
        beyond += 1;
        println!(
            "{number:>4}  {:>5.0} MiB  {:>5.0} MiB  {:>15.3}  {:>12}  {:>5.0} MiB  {:>7}  {cell}",
            mib(stats.demand_peak),
            mib(held.reserved),
            held.reserved as f64 / stats.demand_peak as f64,
            stats.beyond_slack,
            mib(stats.stranded),
            stats.streams,
        );
    }
    println!("\n{beyond} of {all} beyond a slack of {slack}");
    Ok(())
}

/// Cells that are checked for growth with the number of operations.
fn named() -> [(&'static str, Cell); 12] {
    let busy = Cell {
        threads: 4,
        streams: Streams::Own,
        sizes: Sizes::Wide,
        work: Work::Fill,
        frees: Frees::SameStream,
        waits: true,
        reuse: ReusePolicy::DRIVER_DEFAULT,
    };
    let turns = Cell {
        threads: 1,
        streams: Streams::Turns,
        sizes: Sizes::Middle,
        work: Work::Nothing,
        waits: false,
        ..busy
    };
    let mixed = Cell {
        sizes: Sizes::Mixed,
        waits: false,
        ..busy
    };
    let (internal, opportunistic, deterministic) = (
        ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES,
        ReusePolicy::ALLOW_OPPORTUNISTIC,
        ReusePolicy::DETERMINISTIC,
    );
    let with = |cell: Cell, reuse| Cell { reuse, ..cell };
    [
        ("busy", busy),
        ("busy, internal", with(busy, internal)),
        ("busy, opportunistic", with(busy, opportunistic)),
        ("busy, deterministic", with(busy, deterministic)),
        ("turns", turns),
        ("turns, opportunistic", with(turns, opportunistic)),
        ("turns, deterministic", with(turns, deterministic)),
        ("mixed", mixed),
        ("mixed, opportunistic", with(mixed, opportunistic)),
        (
            "four streams each",
            Cell {
                streams: Streams::Four,
                ..mixed
            },
        ),
        (
            "passing streams",
            Cell {
                streams: Streams::Passing,
                ..busy
            },
        ),
        (
            "freed by other threads",
            Cell {
                frees: Frees::OtherThread,
                ..busy
            },
        ),
    ]
}

/// Runs the named cells, and again ten times as long.
pub(crate) fn growth(device: &Device, operations: usize) -> Result<()> {
    println!("\ngrowth: {METHOD}");
    println!(
        "reserved over asked after {operations} operations a thread, and after ten times as many\n"
    );
    println!("    pool         arena          of the pool's change  calls/op  program");
    let (mut programs, mut grow) = (0, 0);
    for (name, cell) in named() {
        let length = |operations| Length {
            operations,
            time: Duration::from_secs(60),
        };
        let of = |held: &Held| held.reserved as f64 / held.done.asked as f64;
        let (short, long) = (length(operations), length(10 * operations));
        let pool = [short, long].map(|length| over_pool(device, cell, length));
        let arena = [short, long].map(|length| over_arena(device, cell, length, None));
        let [pool_short, pool_long] = pool;
        let [arena_short, arena_long] = arena;
        let (pool_short, pool_long) = (of(&pool_short?), of(&pool_long?));
        let (long, stats) = arena_long?;
        let (arena_short, arena_long) = (of(&arena_short?.0), of(&long));
        let change = arena_long / arena_short;
        let of_the_pools = change / (pool_long / pool_short);
        println!(
            "{pool_short:>5.2} {pool_long:>5.2}   {arena_short:>5.2} {arena_long:>5.2}   {of_the_pools:>10.2}   {:>18.4}  {name}",
            stats.driver_calls as f64 / long.done.operations as f64,
        );
        programs += 1;
        grow += usize::from(change > 1.05 && of_the_pools > 1.05);
    }
    println!(
        "\n{grow} of {programs} grow by more than 1.05, and by more than 1.05 of the pool's change"
    );
    Ok(())
}
