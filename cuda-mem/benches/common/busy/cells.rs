//! Programs that differ in seven dimensions, and a sample that covers each pair of choices.

use std::fmt;

use cuda_mem::ReusePolicy;

use crate::draws::Draws;

/// The streams of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streams {
    /// One of its own.
    Own,
    /// One shared by all threads.
    Shared,
    /// Two of its own, alternating.
    Turns,
    /// Four of its own, at random.
    Four,
    /// One of its own, dropped and replaced after some operations.
    Passing,
}

/// Sizes of blocks, and how many of them a thread keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// 256 B to 16 KiB.
    Small,
    /// 256 B to 1 MiB.
    Mixed,
    /// 256 B to 16 MiB.
    Wide,
    /// 17 KB to 1 MB, uniform.
    Middle,
    /// 256 B to 16 KiB in the first half of the program, 1 MiB to 16 MiB in the second.
    SmallThenLarge,
}

/// Work on each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Nothing,
    /// A fill.
    Fill,
    /// A kernel of 10 to 200 microseconds.
    Kernel,
}

/// How a block is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frees {
    SameStream,
    /// On another stream, which waits for the block's stream.
    OtherStream,
    /// By another thread, on the block's stream.
    OtherThread,
}

/// A kind of program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) threads: usize,
    pub(crate) streams: Streams,
    pub(crate) sizes: Sizes,
    pub(crate) work: Work,
    pub(crate) frees: Frees,
    /// A thread waits for its stream every 64 operations.
    pub(crate) waits: bool,
    pub(crate) reuse: ReusePolicy,
}

const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
const STREAMS: [Streams; 5] = [
    Streams::Own,
    Streams::Shared,
    Streams::Turns,
    Streams::Four,
    Streams::Passing,
];
const SIZES: [Sizes; 5] = [
    Sizes::Small,
    Sizes::Mixed,
    Sizes::Wide,
    Sizes::Middle,
    Sizes::SmallThenLarge,
];
const WORK: [Work; 3] = [Work::Nothing, Work::Fill, Work::Kernel];
const FREES: [Frees; 3] = [Frees::SameStream, Frees::OtherStream, Frees::OtherThread];
const POLICIES: [ReusePolicy; 5] = [
    ReusePolicy::DRIVER_DEFAULT,
    ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES,
    ReusePolicy::ALLOW_OPPORTUNISTIC,
    ReusePolicy::DETERMINISTIC,
    ReusePolicy::NONE,
];

/// One choice per dimension.
type Choices = [usize; 7];
/// Number of choices per dimension.
const LEVELS: Choices = [
    THREADS.len(),
    STREAMS.len(),
    SIZES.len(),
    WORK.len(),
    FREES.len(),
    2,
    POLICIES.len(),
];

impl Cell {
    fn of(choices: Choices) -> Self {
        let [threads, streams, sizes, work, frees, waits, reuse] = choices;
        Self {
            threads: THREADS[threads],
            streams: STREAMS[streams],
            sizes: SIZES[sizes],
            work: WORK[work],
            frees: FREES[frees],
            waits: waits > 0,
            reuse: POLICIES[reuse],
        }
    }

    /// Whether the policy lets only the freeing stream reuse a block, and that stream never allocates: the program can
    /// only grow.
    pub(crate) fn forbids_reuse(&self) -> bool {
        self.reuse == ReusePolicy::NONE && self.frees == Frees::OtherStream && !self.waits
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            threads,
            streams,
            sizes,
            work,
            frees,
            ..
        } = self;
        let waits = if self.waits { "Every64" } else { "Never" };
        let reuse: String = match self.reuse {
            ReusePolicy::DRIVER_DEFAULT => "DRIVER_DEFAULT".to_owned(),
            ReusePolicy::DETERMINISTIC => "DETERMINISTIC".to_owned(),
            ReusePolicy::NONE => "NONE".to_owned(),
            other => other.iter_names().map(|(name, _)| name).collect(),
        };
        write!(
            f,
            "{threads:>2} {streams:?} {sizes:?} {work:?} {frees:?} {waits} {reuse}"
        )
    }
}

/// The pairs of choices in two dimensions that a cell covers.
fn pairs(choices: Choices) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    (0..choices.len()).flat_map(move |one| {
        (one + 1..choices.len()).map(move |other| (one, choices[one], other, choices[other]))
    })
}

/// This many cells cover all pairs of choices.
pub(crate) const CELLS: usize = 60;

/// Candidates drawn for each cell; the one with the most new pairs is taken.
const CANDIDATES: usize = 200;

/// The first `count` cells, always the same; early ones cover as many pairs of choices as possible. 60 cover all.
pub(crate) fn cells(count: usize) -> Vec<Cell> {
    let mut draws = Draws::new(1);
    let mut seen = std::collections::BTreeSet::new();
    let mut cells = Vec::new();
    while cells.len() < count {
        let candidates: Vec<Choices> = (0..CANDIDATES)
            .map(|_| LEVELS.map(|level| draws.next() as usize % level))
            .collect();
        let news = |choices: &Choices| pairs(*choices).filter(|pair| !seen.contains(pair)).count();
        let best = candidates
            .into_iter()
            .filter(|choices| !cells.contains(&Cell::of(*choices)))
            .max_by_key(news);
        if let Some(choices) = best {
            seen.extend(pairs(choices));
            cells.push(Cell::of(choices));
        }
    }
    cells
}

/// Number of all pairs of choices, and of those that these cells cover.
pub(crate) fn coverage(count: usize) -> (usize, usize) {
    let all = (0..LEVELS.len()).flat_map(|one| (one + 1..LEVELS.len()).map(move |two| (one, two)));
    let all: usize = all.map(|(one, two)| LEVELS[one] * LEVELS[two]).sum();
    let place = |cell: &Cell| -> Option<Choices> {
        Some([
            THREADS.iter().position(|other| *other == cell.threads)?,
            STREAMS.iter().position(|other| *other == cell.streams)?,
            SIZES.iter().position(|other| *other == cell.sizes)?,
            WORK.iter().position(|other| *other == cell.work)?,
            FREES.iter().position(|other| *other == cell.frees)?,
            usize::from(cell.waits),
            POLICIES.iter().position(|other| *other == cell.reuse)?,
        ])
    };
    let met: std::collections::BTreeSet<_> = cells(count)
        .iter()
        .filter_map(place)
        .flat_map(pairs)
        .collect();
    (all, met.len())
}
