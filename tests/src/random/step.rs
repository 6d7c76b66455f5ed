//! The steps of a sequence, and how they are drawn.
//!
//! A step names pools, streams and blocks by any small number; what it means is that number modulo
//! what is there. So every part of a sequence is a sequence too, and a failing one can be shrunk.

use cuda_mem::{ReleaseThreshold, ReusePolicy};
use proptest::prelude::*;
use proptest::strategy::Union;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Blocks above this are lent and copied without touching all their bytes.
pub(super) const LARGE: usize = MIB;

/// The block that came last; blocks are counted from there.
const NEWEST: u8 = 0;

/// How a block ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Drop,
    Free,
    FreeOn(u8),
    FreeSync,
}

/// How a block goes to another stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lend {
    Guard,
    Leak,
}

/// What a pool is made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) policy: ReusePolicy,
    pub(super) threshold: ReleaseThreshold,
    pub(super) max_size: Option<u64>,
}

/// One operation of the public API.
#[derive(Clone, Debug)]
pub(super) enum Step {
    NewPool(Settings),
    DropPool(u8),
    SetPolicy(u8, ReusePolicy),
    SetThreshold(u8, ReleaseThreshold),
    Trim(u8, u64),
    ResetMarks(u8),
    Alloc {
        pool: u8,
        stream: u8,
        bytes: usize,
    },
    End(u8, End),
    /// Out of hand and back, on a stream that waits for the old one.
    Rehome(u8, u8),
    Lend(u8, u8, Lend),
    Fill(u8),
    Write(u8),
    Read(u8),
    /// A new block with the content of another.
    Copy {
        from: u8,
        stream: u8,
    },
    Wait {
        later: u8,
        earlier: u8,
    },
    Record(u8, u8),
    WaitEvent(u8, u8),
    Query(u8),
    Synchronise(u8),
    SynchroniseAll,
    Hold(u8),
    LetGo,
}

fn policy() -> impl Strategy<Value = ReusePolicy> {
    // One flag alone shows what it does: with all of them the driver takes the easiest way.
    prop_oneof![
        (0_u32..8).prop_map(ReusePolicy::from_bits_truncate),
        Just(ReusePolicy::FOLLOW_EVENT_DEPENDENCIES),
        Just(ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES),
    ]
}

fn threshold() -> impl Strategy<Value = ReleaseThreshold> {
    prop_oneof![
        4 => Just(ReleaseThreshold::Never),
        2 => Just(ReleaseThreshold::Bytes(0)),
        1 => (1_u64..128).prop_map(|mib| ReleaseThreshold::Bytes(mib << 20)),
    ]
}

/// Where a pool cannot grow, the driver has to wait or to refuse.
fn settings() -> impl Strategy<Value = Settings> {
    let max_size = prop_oneof![1 => Just(None), 1 => Just(Some(64 << 20))];
    (policy(), threshold(), max_size).prop_map(|(policy, threshold, max_size)| Settings {
        policy,
        threshold,
        max_size,
    })
}

/// Nothing, a few odd bytes, a page and its neighbours, and blocks that make a pool grow.
fn bytes() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0),
        6 => 1_usize..1500,
        4 => 4 * KIB - 2..4 * KIB + 3,
        2 => 32 * KIB..100 * KIB,
        2 => MIB..3 * MIB,
        7 => prop_oneof![Just(40 * MIB), Just(24 * MIB), 16 * MIB..64 * MIB],
    ]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        5 => Just(End::Drop),
        2 => Just(End::Free),
        3 => any::<u8>().prop_map(End::FreeOn),
        1 => Just(End::FreeSync),
    ]
}

/// A pool, and what is done with it and others.
pub(super) fn sequence(longest: usize) -> impl Strategy<Value = Vec<Step>> {
    let phrase = prop_oneof![
        12 => step().prop_map(|step| vec![step]),
        1 => hand_over(),
    ];
    let phrases = proptest::collection::vec(phrase, 1..longest);
    (settings(), phrases).prop_map(|(settings, phrases)| {
        let first = vec![Step::NewPool(settings)];
        [vec![first], phrases].concat().concat()
    })
}

/// A block is freed, and the next one of its size comes in another stream: what single steps seldom
/// come to.
fn hand_over() -> impl Strategy<Value = Vec<Step>> {
    let streams = (any::<u8>(), any::<u8>());
    let choices = (any::<bool>(), any::<bool>());
    (any::<u8>(), bytes(), streams, choices).prop_map(
        |(pool, bytes, (first, second), (held, waits))| {
            let alloc = |stream| Step::Alloc {
                pool,
                stream,
                bytes,
            };
            let wait = Step::Wait {
                later: second,
                earlier: first,
            };
            let steps = [
                (true, alloc(first)),
                (held, Step::Hold(first)),
                (true, Step::End(NEWEST, End::Drop)),
                (waits, wait),
                (true, alloc(second)),
            ];
            let wanted = steps.into_iter().filter(|(wanted, _)| *wanted);
            wanted.map(|(_, step)| step).collect()
        },
    )
}

/// One step. Shrinking goes towards the steps that come first.
fn step() -> impl Strategy<Value = Step> {
    let number = any::<u8>;
    let keep = prop_oneof![2 => Just(0), 1 => 0_u64..256 << 20];
    let lend = prop_oneof![2 => Just(Lend::Guard), 1 => Just(Lend::Leak)];
    Union::new_weighted(vec![
        (
            12,
            (number(), number(), bytes())
                .prop_map(|(pool, stream, bytes)| Step::Alloc {
                    pool,
                    stream,
                    bytes,
                })
                .boxed(),
        ),
        (
            10,
            (number(), end())
                .prop_map(|(block, end)| Step::End(block, end))
                .boxed(),
        ),
        (2, number().prop_map(Step::Synchronise).boxed()),
        (1, Just(Step::SynchroniseAll).boxed()),
        (3, number().prop_map(Step::Hold).boxed()),
        (1, Just(Step::LetGo).boxed()),
        (
            4,
            (number(), number())
                .prop_map(|(later, earlier)| Step::Wait { later, earlier })
                .boxed(),
        ),
        (
            1,
            (number(), number())
                .prop_map(|(event, stream)| Step::Record(event, stream))
                .boxed(),
        ),
        (
            1,
            (number(), number())
                .prop_map(|(stream, event)| Step::WaitEvent(stream, event))
                .boxed(),
        ),
        (1, number().prop_map(Step::Query).boxed()),
        (
            2,
            (number(), number(), lend)
                .prop_map(|(block, stream, lend)| Step::Lend(block, stream, lend))
                .boxed(),
        ),
        (1, number().prop_map(Step::Fill).boxed()),
        (1, number().prop_map(Step::Write).boxed()),
        (1, number().prop_map(Step::Read).boxed()),
        (
            1,
            (number(), number())
                .prop_map(|(from, stream)| Step::Copy { from, stream })
                .boxed(),
        ),
        (
            1,
            (number(), number())
                .prop_map(|(block, stream)| Step::Rehome(block, stream))
                .boxed(),
        ),
        (
            2,
            (number(), keep)
                .prop_map(|(pool, keep)| Step::Trim(pool, keep))
                .boxed(),
        ),
        (1, number().prop_map(Step::ResetMarks).boxed()),
        (
            1,
            (number(), policy())
                .prop_map(|(pool, policy)| Step::SetPolicy(pool, policy))
                .boxed(),
        ),
        (
            1,
            (number(), threshold())
                .prop_map(|(pool, threshold)| Step::SetThreshold(pool, threshold))
                .boxed(),
        ),
        (1, settings().prop_map(Step::NewPool).boxed()),
        (1, number().prop_map(Step::DropPool).boxed()),
    ])
}
