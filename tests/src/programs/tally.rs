//! Counts of what programs did, to find operations that never happen.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, ensure};

use super::step::Step;

/// A kind of operation drawn this often must have been done at least once.
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
    pub(super) foreign: u64,
    pub(super) sleeps: u64,
    pub(super) moved: u64,
}

impl Tally {
    /// Counts a step. `was_done` is false if it found nothing to do.
    pub(super) fn count(&mut self, step: &Step, was_done: bool) {
        let count = self.steps.entry(step.kind()).or_default();
        count.drawn += 1;
        count.done += u64::from(was_done);
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
        self.foreign += other.foreign;
        self.sleeps += other.sleeps;
        self.moved += other.moved;
    }

    /// Checks that every kind of operation was done.
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
            self.foreign,
            self.moved,
        ];
        ensure!(
            all.iter().all(|count| *count > 0),
            "some count is zero: {self}"
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
             two buffers, {} launches; {} sleeps; {} uses of another thread's stream; {} places compared",
            self.steps.len(),
            self.blocks,
            self.refused,
            self.moved,
            self.copies,
            self.captures,
            self.pairs,
            self.launches,
            self.sleeps,
            self.foreign,
            self.checked
        )
    }
}
