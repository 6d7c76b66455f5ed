//! What programs did, so that it shows what they never came to.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, ensure};

use super::step::Step;

/// A kind of operation that was drawn so often was done once at least.
const OFTEN: u64 = 30;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    drawn: u64,
    /// Found what it needs.
    done: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    steps: BTreeMap<String, Count>,
    pub(super) blocks: u64,
    pub(super) refused: u64,
    /// Pieces of memory whose words were compared.
    pub(super) checked: u64,
    pub(super) launches: u64,
    pub(super) captures: u64,
    /// Captures of two buffers.
    pub(super) pairs: u64,
    /// Copies between two values.
    pub(super) copies: u64,
    pub(super) elsewhere: u64,
    pub(super) sleeps: u64,
    pub(super) moved: u64,
}

impl Tally {
    /// A step told of what it did, or found nothing to be done.
    pub(super) fn count(&mut self, step: &Step, has_told: bool) {
        let count = self.steps.entry(step.kind()).or_default();
        count.drawn += 1;
        count.done += u64::from(has_told);
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (kind, more) in &other.steps {
            let count = self.steps.entry(kind.clone()).or_default();
            count.drawn += more.drawn;
            count.done += more.done;
        }
        self.blocks += other.blocks;
        self.refused += other.refused;
        self.checked += other.checked;
        self.launches += other.launches;
        self.captures += other.captures;
        self.pairs += other.pairs;
        self.copies += other.copies;
        self.elsewhere += other.elsewhere;
        self.sleeps += other.sleeps;
        self.moved += other.moved;
    }

    /// Programs that never come to something show nothing of it.
    pub(super) fn check(&self) -> Result<()> {
        for (kind, count) in &self.steps {
            ensure!(
                count.done > 0 || count.drawn < OFTEN,
                "{kind} was drawn {} times, and never done",
                count.drawn
            );
        }
        let all = [
            self.refused,
            self.checked,
            self.launches,
            self.captures,
            self.pairs,
            self.copies,
            self.elsewhere,
            self.moved,
        ];
        ensure!(
            all.iter().all(|count| *count > 0),
            "some way was never taken: {self}"
        );
        Ok(())
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drawn: u64 = self.steps.values().map(|count| count.drawn).sum();
        let done: u64 = self.steps.values().map(|count| count.done).sum();
        write!(
            f,
            "{drawn} steps of {} kinds, {done} of them done; {} blocks, {} refused, {} moved; {} copies; {} captures, {} of \
             two buffers, {} launches; {} sleeps; {} uses of another thread's own stream; {} places compared",
            self.steps.len(),
            self.blocks,
            self.refused,
            self.moved,
            self.copies,
            self.captures,
            self.pairs,
            self.launches,
            self.sleeps,
            self.elsewhere,
            self.checked
        )
    }
}
