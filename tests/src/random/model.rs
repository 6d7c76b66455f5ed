//! What a pool may do: the invariants, and the state that they are judged by.

use anyhow::{Result, ensure};
use cuda_mem::{PoolStats, ReleaseThreshold, ReusePolicy};

use super::order::{Order, Past, Point};
use super::step::Settings;

/// A range that was freed, and that no synchronise of the host has seen yet.
#[derive(Clone, Copy, Debug)]
struct Freed {
    start: u64,
    end: u64,
    point: Point,
    past: Past,
    /// The driver may have seen it done: while `ALLOW_OPPORTUNISTIC` was on, or by a host function
    /// behind it. What it has seen once is anybody's, also after the flag was taken away.
    may_be_seen: bool,
}

/// How often memory was handed out again before the host had seen its free, and why it could be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reuses {
    /// To the stream that freed it.
    pub(super) own: u64,
    /// Behind a wait that the program made.
    pub(super) followed: u64,
    /// The driver saw the free done.
    pub(super) seen: u64,
    /// The driver made the stream wait.
    pub(super) waited: u64,
}

/// How this driver counts, asked at the beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grain {
    /// What a block of one byte counts as.
    pub(super) used: u64,
    /// How much room it takes.
    pub(super) room: u64,
}

/// What a step may do to the bytes that a pool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing lets them fall.
    None,
    /// The host may have seen frees: they may fall if the threshold wants it.
    Synchronise,
    /// A trim that keeps this much.
    Trim(u64),
    /// A pool could not grow: the driver may have taken back what any pool keeps (R80, R91), and an
    /// attempt that it gave up may have left a high mark (seen on an H200).
    Pressure,
    /// A host function has run: the driver may count that as having seen the frees before it (an
    /// H200 does).
    HostFunction,
}

/// One pool, as it must be.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) policy: ReusePolicy,
    pub(super) threshold: ReleaseThreshold,
    pub(super) max_size: Option<u64>,
    /// The bytes asked for by each live block.
    live: Vec<u64>,
    freed: Vec<Freed>,
    grain: Grain,
    stats: PoolStats,
    pub(super) reuses: Reuses,
}

impl Model {
    pub(super) fn new(settings: Settings, grain: Grain) -> Self {
        Self {
            policy: settings.policy,
            threshold: settings.threshold,
            max_size: settings.max_size,
            live: Vec::new(),
            freed: Vec::new(),
            grain,
            stats: PoolStats::default(),
            reuses: Reuses::default(),
        }
    }

    /// A block was handed out on `stream`. Invariant 8: where it overlaps memory that was freed,
    /// there is a reason why this stream may have it. Returns whether it has to wait behind the
    /// gate, and tells `order` of the waits that the driver made.
    pub(super) fn allocated(
        &mut self,
        order: &mut Order,
        stream: usize,
        start: u64,
        bytes: u64,
    ) -> Result<bool> {
        let end = start + bytes;
        let mut behind_gate = false;
        let mut rest = Vec::new();
        if self.policy.contains(ReusePolicy::ALLOW_OPPORTUNISTIC) {
            for freed in &mut self.freed {
                freed.may_be_seen |= !order.is_behind_gate(&freed.past);
            }
        }
        for freed in std::mem::take(&mut self.freed) {
            if order.is_synchronised(freed.point) {
                continue;
            }
            if freed.end <= start || end <= freed.start {
                rest.push(freed);
                continue;
            }
            let held = order.is_behind_gate(&freed.past);
            let ordered = order.follows(stream, freed.point);
            let own = freed.point.stream == stream;
            let followed = self.policy.contains(ReusePolicy::FOLLOW_EVENT_DEPENDENCIES) && ordered;
            let waits = self
                .policy
                .contains(ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES);
            ensure!(
                own || followed || freed.may_be_seen || waits,
                "invariant 8: {start:#x}..{end:#x} on stream {stream} overlaps {:#x}..{:#x}, freed \
                 on stream {}; policy {:?}, ordered after the free: {ordered}, the free is held: {held}",
                freed.start,
                freed.end,
                freed.point.stream,
                self.policy
            );
            let reuses = &mut self.reuses;
            match () {
                () if own => reuses.own += 1,
                () if followed => reuses.followed += 1,
                () if freed.may_be_seen => reuses.seen += 1,
                () => {
                    reuses.waited += 1;
                    order.driver_waits(stream, &freed.past);
                }
            }
            behind_gate |= held;
            let behind = start + bytes.next_multiple_of(self.grain.room);
            let pieces = [(freed.start, start), (behind, freed.end)];
            rest.extend(pieces.into_iter().filter(|(start, end)| start < end).map(
                |(start, end)| Freed {
                    start,
                    end,
                    ..freed
                },
            ));
        }
        self.freed = rest;
        let others = self.freed.iter().any(|freed| freed.point.stream != stream);
        if self
            .policy
            .contains(ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES)
            && (others || behind_gate)
        {
            order.driver_may_wait(stream);
        }
        self.live.push(bytes);
        Ok(behind_gate)
    }

    /// An allocation was refused because memory is out: only where the pool cannot grow, and
    /// something is in the way.
    pub(super) fn refused(&self, bytes: u64) -> Result<()> {
        let fits = self.max_size.is_none_or(|max| bytes <= max);
        ensure!(
            !fits || self.max_size.is_some() && !(self.live.is_empty() && self.freed.is_empty()),
            "{bytes} bytes were refused, and nothing is in the way"
        );
        Ok(())
    }

    /// A block was freed in `stream`.
    pub(super) fn freed(&mut self, order: &mut Order, stream: usize, start: u64, bytes: u64) {
        let at = self.live.iter().position(|live| *live == bytes);
        self.live
            .swap_remove(at.expect("what is freed was allocated"));
        let point = order.submit(stream);
        self.freed.push(Freed {
            start,
            end: start + bytes.next_multiple_of(self.grain.room),
            point,
            past: order.past(stream),
            may_be_seen: false,
        });
    }

    /// A host function ran in `stream`, behind everything there.
    pub(super) fn host_function_ran(&mut self, order: &Order, stream: usize) {
        for freed in &mut self.freed {
            freed.may_be_seen |= order.follows(stream, freed.point);
        }
    }

    /// Whether nothing lives, and the host has seen every free.
    pub(super) fn is_at_rest(&self, order: &Order) -> bool {
        self.live.is_empty() && (self.freed.iter()).all(|freed| order.is_synchronised(freed.point))
    }

    /// The marks were set back.
    pub(super) fn reset_marks(&mut self) {
        self.stats.used.high = self.stats.used.current;
        self.stats.reserved.high = self.stats.reserved.current;
    }

    /// The numbers after a step; invariants 1 to 4 and 7.
    pub(super) fn check(&mut self, now: PoolStats, effect: Effect, order: &Order) -> Result<()> {
        let asked: u64 = self.live.iter().sum();
        let rounded: u64 = self
            .live
            .iter()
            .map(|bytes| bytes.next_multiple_of(self.grain.used))
            .sum();
        ensure!(
            (asked..=rounded).contains(&now.used.current),
            "invariant 1: {now}, and {asked} bytes are live ({rounded} when rounded)"
        );
        ensure!(
            now.reserved.current >= now.used.current,
            "invariant 2: {now}"
        );
        let before = std::mem::replace(&mut self.stats, now);
        // A step allocates once at most, so no mark can pass unseen between two steps.
        for (name, before, now) in [
            ("used", before.used, now.used),
            ("reserved", before.reserved, now.reserved),
        ] {
            let high = before.high.max(now.current);
            ensure!(
                now.high == high || (effect == Effect::Pressure && now.high > high),
                "invariants 2 and 7: {name} {now:?}, its high mark should be {high}"
            );
        }
        self.check_reserved(before.reserved.current, now.reserved.current, effect, order)
    }

    fn check_reserved(&self, before: u64, now: u64, effect: Effect, order: &Order) -> Result<()> {
        match effect {
            Effect::Pressure => {}
            Effect::None => ensure!(now >= before, "R33: reserved fell from {before} to {now}"),
            Effect::Synchronise | Effect::HostFunction => {
                let may_fall = match self.threshold {
                    ReleaseThreshold::Never => false,
                    ReleaseThreshold::Bytes(bytes) => before > bytes,
                };
                ensure!(
                    may_fall || now >= before,
                    "invariant 4: reserved fell from {before} to {now}, threshold {}",
                    self.threshold
                );
            }
            Effect::Trim(keep) => {
                ensure!(
                    now <= before && now >= before.min(keep),
                    "R36: {before} became {now}, keep {keep}"
                );
                ensure!(
                    keep > 0 || !self.is_at_rest(order) || now == 0,
                    "invariant 3: {now} bytes are left, and nothing lives"
                );
            }
        }
        Ok(())
    }

    /// Forgets frees that the host has seen: they bind nobody any more.
    pub(super) fn forget_synchronised(&mut self, order: &Order) {
        self.freed
            .retain(|freed| !order.is_synchronised(freed.point));
    }
}

impl std::ops::AddAssign for Reuses {
    fn add_assign(&mut self, other: Self) {
        self.own += other.own;
        self.followed += other.followed;
        self.seen += other.seen;
        self.waited += other.waited;
    }
}

mod tests {
    use super::*;
    use crate::environment::Environment;

    const NEVER: ReleaseThreshold = ReleaseThreshold::Never;

    fn settings(policy: ReusePolicy, threshold: ReleaseThreshold) -> Settings {
        Settings {
            policy,
            threshold,
            max_size: None,
        }
    }

    const GRAIN: Grain = Grain { used: 1, room: 512 };

    /// A pool whose only block was freed on stream 0; stream 1 gets the same memory.
    fn reuse_on_stream_1(policy: ReusePolicy, before: impl FnOnce(&mut Order)) -> Result<bool> {
        let (mut order, mut model) = (Order::default(), Model::new(settings(policy, NEVER), GRAIN));
        model.allocated(&mut order, 0, 4096, 1000)?;
        order.hold(0);
        model.freed(&mut order, 0, 4096, 1000);
        before(&mut order);
        model.allocated(&mut order, 1, 4096, 100)
    }

    #[apply(case_of_harness)]
    fn reuse_needs_a_reason(_: &Environment) -> Result<()> {
        let held = |_: &mut Order| {};
        let waits = |order: &mut Order| order.join(1, 0);
        let done = |order: &mut Order| order.let_go();
        let seen = |order: &mut Order| {
            order.let_go();
            order.synchronise(0);
        };
        assert!(reuse_on_stream_1(ReusePolicy::NONE, held).is_err());
        assert!(reuse_on_stream_1(ReusePolicy::NONE, waits).is_err());
        assert!(reuse_on_stream_1(ReusePolicy::NONE, done).is_err());
        assert!(matches!(
            reuse_on_stream_1(ReusePolicy::NONE, seen),
            Ok(false)
        ));
        let follow = ReusePolicy::FOLLOW_EVENT_DEPENDENCIES;
        assert!(reuse_on_stream_1(follow, held).is_err());
        assert!(matches!(reuse_on_stream_1(follow, waits), Ok(true)));
        assert!(reuse_on_stream_1(follow, done).is_err());
        let look = ReusePolicy::ALLOW_OPPORTUNISTIC;
        assert!(reuse_on_stream_1(look, held).is_err());
        assert!(reuse_on_stream_1(look, waits).is_err());
        assert!(matches!(reuse_on_stream_1(look, done), Ok(false)));
        let wait = ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES;
        assert!(matches!(reuse_on_stream_1(wait, held), Ok(true)));
        Ok(())
    }

    #[apply(case_of_harness)]
    fn a_part_that_was_reused_leaves_the_rest(_: &Environment) -> Result<()> {
        for (start, fine) in [(512, false), (1024, true), (1536, true), (2048, false)] {
            let mut order = Order::default();
            let mut model = Model::new(settings(ReusePolicy::NONE, NEVER), GRAIN);
            model.allocated(&mut order, 0, 0, 4096)?;
            model.freed(&mut order, 0, 0, 4096);
            model.allocated(&mut order, 0, 1024, 1000)?;
            model.freed(&mut order, 1, 1024, 1000);
            let outcome = model.allocated(&mut order, 1, start, 1);
            assert_eq!(outcome.is_ok(), fine, "{start}: {outcome:?}");
        }
        Ok(())
    }

    fn stats(used: u64, reserved: u64) -> PoolStats {
        let mut stats = PoolStats::default();
        stats.used.current = used;
        stats.used.high = used;
        stats.reserved.current = reserved;
        stats.reserved.high = reserved;
        stats
    }

    /// A pool with one block of 100 bytes, and 4096 bytes reserved.
    fn one_block(threshold: ReleaseThreshold) -> Result<(Order, Model)> {
        let mut order = Order::default();
        let mut model = Model::new(settings(ReusePolicy::NONE, threshold), GRAIN);
        model.allocated(&mut order, 0, 512, 100)?;
        model.check(stats(100, 4096), Effect::None, &order)?;
        Ok((order, model))
    }

    #[apply(case_of_harness)]
    fn wrong_numbers_are_found(_: &Environment) -> Result<()> {
        for wrong in [stats(99, 4096), stats(101, 4096), stats(100, 99)] {
            let (order, mut model) = one_block(NEVER)?;
            assert!(model.check(wrong, Effect::None, &order).is_err(), "{wrong}");
        }
        let (order, mut model) = one_block(NEVER)?;
        let mut high = stats(100, 4096);
        high.used.high = 101;
        assert!(model.check(high, Effect::None, &order).is_err());
        Ok(())
    }

    #[apply(case_of_harness)]
    fn reserved_falls_for_a_reason_only(_: &Environment) -> Result<()> {
        let mut less = stats(100, 2048);
        less.reserved.high = 4096;
        for (threshold, effect, fine) in [
            (NEVER, Effect::None, false),
            (NEVER, Effect::Synchronise, false),
            (ReleaseThreshold::Bytes(0), Effect::None, false),
            (ReleaseThreshold::Bytes(0), Effect::Synchronise, true),
            (ReleaseThreshold::Bytes(4096), Effect::Synchronise, false),
            (NEVER, Effect::Trim(0), true),
            (NEVER, Effect::Trim(2048), true),
            (NEVER, Effect::Trim(2049), false),
        ] {
            let (order, mut model) = one_block(threshold)?;
            let outcome = model.check(less, effect, &order);
            assert_eq!(outcome.is_ok(), fine, "{threshold} {effect:?}: {outcome:?}");
        }
        Ok(())
    }

    #[apply(case_of_harness)]
    fn a_trim_leaves_nothing_when_every_free_was_seen(_: &Environment) -> Result<()> {
        let (mut order, mut model) = one_block(NEVER)?;
        model.freed(&mut order, 0, 512, 100);
        let mut left = stats(0, 4096);
        left.used.high = 100;
        model.check(left, Effect::Trim(0), &order)?;
        order.synchronise(0);
        assert!(model.check(left, Effect::Trim(0), &order).is_err());
        Ok(())
    }
}
