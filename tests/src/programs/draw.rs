//! How programs are drawn at random.

use cuda_mem::arena::SleepContents;
use cuda_mem::interop::CaptureMode;
use cuda_mem::{ReleaseThreshold, ReusePolicy};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::Union;

use super::step::{
    Adaptor, ArenaSpec, Base, Burst, End, GraphStep, Lend, Make, Move, NewStream, Program, Record,
    Resize, ResourceSpec, Scratch, Step,
};

/// The length of programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) bursts: usize,
    pub(super) threads: u8,
}

fn policy() -> impl Strategy<Value = ReusePolicy> {
    prop_oneof![
        2 => Just(ReusePolicy::DRIVER_DEFAULT),
        1 => (0_u32..8).prop_map(ReusePolicy::from_bits_truncate),
    ]
}

fn threshold() -> impl Strategy<Value = ReleaseThreshold> {
    prop_oneof![
        3 => Just(ReleaseThreshold::Never),
        1 => Just(ReleaseThreshold::Bytes(0)),
        1 => (1_u64..32).prop_map(|mib| ReleaseThreshold::Bytes(mib << 20)),
    ]
}

fn max() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![3 => Just(None), 1 => (2_u64..24).prop_map(|mib| Some(mib << 20))]
}

fn arena() -> impl Strategy<Value = ArenaSpec> {
    let slack = prop_oneof![Just(1.05), Just(1.0), Just(f64::INFINITY)];
    let initial = prop_oneof![9 => Just(0), 1 => 1_u64..4 << 20];
    let background = prop_oneof![15 => Just(false), 1 => Just(true)];
    let all = (
        policy(),
        slack,
        max(),
        threshold(),
        initial,
        background,
        any::<bool>(),
        any::<bool>(),
    );
    all.prop_map(
        |(policy, slack, max, threshold, initial, background, annotated, recorded)| ArenaSpec {
            policy,
            slack,
            max,
            threshold,
            initial,
            background,
            annotated,
            recorded,
        },
    )
}

fn resource() -> impl Strategy<Value = ResourceSpec> {
    let pool = (policy(), threshold(), max()).prop_map(|(policy, threshold, max)| Base::Pool {
        policy,
        threshold,
        max,
    });
    let base = prop_oneof![
        4 => pool,
        8 => arena().prop_map(Base::Arena),
        1 => Just(Base::DefaultPool),
        1 => Just(Base::ArenaOverPool),
        1 => Just(Base::ArenaOverDefault),
        1 => Just(Base::Direct),
        1 => Just(Base::Pinned),
        1 => Just(Base::Managed),
    ];
    let adaptor = prop_oneof![
        Just(Adaptor::Statistics),
        Just(Adaptor::Tracking),
        (8_u32..24, 0_u64..256).prop_map(|(log, more)| Adaptor::Limit((1 << log) + more)),
        (9_u32..14).prop_map(|log| Adaptor::Aligned(1 << log)),
        Just(Adaptor::Logging),
        Just(Adaptor::Recording),
        Just(Adaptor::FailureCallback),
        Just(Adaptor::Recovery),
        Just(Adaptor::Prefetch),
    ];
    (base, vec(adaptor, 0..4)).prop_map(|(base, adaptors)| ResourceSpec { base, adaptors })
}

/// Common sizes, as in most programs: otherwise no two values would have the same length.
const POPULAR: [usize; 4] = [1, 64, 100, 4096];

/// Elements of four bytes: most blocks are small, some take a page of an arena, a few make anything grow.
fn words() -> BoxedStrategy<usize> {
    prop_oneof![
        20 => proptest::sample::select(&POPULAR[..]),
        10 => 0_usize..200,
        6 => 200_usize..5000,
        3 => 60_000_usize..70_000,
        1 => 200_000_usize..1_500_000,
    ]
    .boxed()
}

/// Sizes that exceed the limits.
fn large_words() -> BoxedStrategy<usize> {
    prop_oneof![1 => words(), 2 => 1_000_000_usize..2_000_000].boxed()
}

fn make() -> impl Strategy<Value = Make> {
    prop_oneof![
        8 => Just(Make::Uninit),
        2 => Just(Make::Plain),
        2 => Just(Make::Zeroed),
        2 => Just(Make::From),
        4 => any::<bool>().prop_map(Make::Vec),
        1 => Just(Make::Scalar),
        1 => (8_u32..14).prop_map(|log| Make::Raw(1 << log)),
        1 => Just(Make::Current),
        1 => Just(Make::Managed),
        1 => Just(Make::Growable),
    ]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        5 => Just(End::Drop),
        2 => Just(End::Free),
        2 => any::<u8>().prop_map(End::FreeOn),
        2 => any::<u8>().prop_map(End::FreeAfter),
        1 => Just(End::FreeSync),
    ]
}

fn resize() -> impl Strategy<Value = Resize> {
    prop_oneof![
        Just(Resize::Value),
        Just(Resize::Zeroed),
        Just(Resize::Uninit),
        Just(Resize::Extend),
        any::<u8>().prop_map(Resize::ExtendFromBuffer),
        Just(Resize::Truncate),
        Just(Resize::Shrink),
        Just(Resize::Reserve),
    ]
}

fn record() -> impl Strategy<Value = Record> {
    let mode = prop_oneof![
        Just(CaptureMode::ThreadLocal),
        Just(CaptureMode::Global),
        Just(CaptureMode::Relaxed),
    ];
    let scratch = prop_oneof![
        Just(Scratch::Graph),
        any::<u8>().prop_map(Scratch::Pool),
        any::<u8>().prop_map(Scratch::PoolAlone),
    ];
    let adopt = || proptest::option::weighted(0.8, any::<u8>());
    let drop = proptest::option::weighted(0.3, any::<u8>());
    let flags = any::<[bool; 6]>();
    let all = (any::<u8>(), mode, scratch, adopt(), adopt(), drop, flags);
    all.prop_map(|(stream, mode, scratch, one, two, drop, flags)| {
        let [launch, copy_in, through, leave, auto_free, provoke] = flags;
        Record {
            stream,
            mode,
            scratch,
            adopt: [one, two],
            launch,
            copy_in,
            through,
            leave,
            auto_free,
            drop,
            provoke,
        }
    })
}

fn graph_step() -> impl Strategy<Value = GraphStep> {
    prop_oneof![
        5 => any::<u8>().prop_map(GraphStep::Launch),
        1 => any::<u8>().prop_map(GraphStep::Upload),
        2 => Just(GraphStep::Read),
        1 => Just(GraphStep::Write),
        1 => Just(GraphStep::ReadLeft),
        1 => Just(GraphStep::FreeLeft),
        1 => Just(GraphStep::TakeApart),
        1 => Just(GraphStep::Drop),
    ]
}

/// One operation. Shrinking goes towards those that come first.
fn step(words: &BoxedStrategy<usize>) -> impl Strategy<Value = Step> + use<> {
    let number = any::<u8>;
    let contents = prop_oneof![Just(SleepContents::Keep), Just(SleepContents::Discard)];
    let lend = prop_oneof![
        Just(Lend::Guard),
        Just(Lend::Read),
        Just(Lend::Leak),
        Just(Lend::Halves),
        Just(Lend::LeakHalf),
    ];
    let moved = prop_oneof![Just(Move::SetStream), Just(Move::Raw)];
    let stream = prop_oneof![
        3 => Just(NewStream::Own),
        1 => Just(NewStream::Legacy),
        1 => Just(NewStream::PerThread),
    ];
    let alloc =
        (number(), number(), words.clone(), make()).prop_map(|(resource, stream, words, make)| {
            Step::Alloc {
                resource,
                stream,
                words,
                make,
            }
        });
    let clone = (number(), number(), number());
    let clone = clone.prop_map(|(from, resource, stream)| Step::Clone {
        from,
        resource,
        stream,
    });
    let keep = prop_oneof![2 => Just(0), 1 => 0_u64..64 << 20];
    let tune = (number(), policy(), threshold()).prop_map(|(s, p, t)| Step::Tune(s, p, t));
    let sleep = (number(), contents, proptest::option::of(number()));
    let graph = (number(), graph_step()).prop_map(|(graph, step)| Step::Graph(graph, step));
    let pair = || (number(), number());
    Union::new_weighted(vec![
        (30, alloc.boxed()),
        (
            18,
            (number(), end()).prop_map(|(v, e)| Step::End(v, e)).boxed(),
        ),
        (6, number().prop_map(Step::Fill).boxed()),
        (2, number().prop_map(Step::Write).boxed()),
        (4, number().prop_map(Step::Read).boxed()),
        (
            3,
            pair()
                .prop_map(|(to, from)| Step::Copy { to, from })
                .boxed(),
        ),
        (2, clone.boxed()),
        (
            6,
            (number(), number(), lend)
                .prop_map(|(v, s, l)| Step::Lend(v, s, l))
                .boxed(),
        ),
        (
            4,
            (number(), number(), moved)
                .prop_map(|(v, s, m)| Step::Move(v, s, m))
                .boxed(),
        ),
        (
            5,
            (number(), words.clone(), resize())
                .prop_map(|(v, w, r)| Step::Resize(v, w, r))
                .boxed(),
        ),
        (1, pair().prop_map(|(v, s)| Step::LendHost(v, s)).boxed()),
        (1, number().prop_map(Step::TakeHost).boxed()),
        (6, number().prop_map(Step::Hold).boxed()),
        (2, Just(Step::ReleaseHeld).boxed()),
        (2, pair().prop_map(|(a, b)| Step::Wait(a, b)).boxed()),
        (1, pair().prop_map(|(e, s)| Step::RecordEvent(e, s)).boxed()),
        (1, pair().prop_map(|(s, e)| Step::WaitEvent(s, e)).boxed()),
        (1, number().prop_map(Step::Query).boxed()),
        (1, number().prop_map(Step::Synchronise).boxed()),
        (1, Just(Step::SynchroniseAll).boxed()),
        (3, stream.prop_map(Step::NewStream).boxed()),
        (2, number().prop_map(Step::DropStream).boxed()),
        (2, resource().prop_map(Step::NewResource).boxed()),
        (1, number().prop_map(Step::DropResource).boxed()),
        (
            3,
            (number(), keep).prop_map(|(s, k)| Step::Trim(s, k)).boxed(),
        ),
        (1, tune.boxed()),
        (1, sleep.prop_map(|(s, c, v)| Step::Sleep(s, c, v)).boxed()),
        (1, number().prop_map(Step::Scope).boxed()),
        (1, Just(Step::EndScope).boxed()),
        (4, record().prop_map(Step::Record).boxed()),
        (10, graph.boxed()),
    ])
}

/// Programs of this shape.
pub(super) fn program(shape: Shape) -> impl Strategy<Value = Program> {
    // Most operations run on the thread of the one before: waking another one costs time.
    let of = |words| {
        let burst = (0..shape.threads, vec(step(&words), 1..8));
        let burst = burst.prop_map(|(thread, steps)| Burst { thread, steps });
        (vec(resource(), 1..3), vec(burst, 1..shape.bursts))
    };
    let all = prop_oneof![19 => of(words()), 1 => of(large_words())];
    all.prop_map(|(resources, bursts)| Program { resources, bursts })
}
