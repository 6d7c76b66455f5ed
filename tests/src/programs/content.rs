//! The expected contents of memory.

use anyhow::{Result, ensure};

/// Runs of equal words; `None` marks words that have not been written.
#[derive(Clone, Debug, Default)]
pub(super) struct Content(Vec<(usize, Option<u32>)>);

impl Content {
    pub(super) fn whole(len: usize, word: Option<u32>) -> Self {
        let mut content = Self::default();
        content.push(len, word);
        content
    }

    /// Only parts of length `part` are written, which begin at `starts`.
    pub(super) fn parts(len: usize, starts: &[usize], part: usize, word: u32) -> Self {
        let mut content = Self::default();
        for start in starts {
            content.push(start - content.len(), None);
            content.push(part, Some(word));
        }
        content.push(len - content.len(), None);
        content
    }

    fn push(&mut self, len: usize, word: Option<u32>) {
        if len > 0 {
            self.0.push((len, word));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|run| run.0).sum()
    }

    /// New words, if any, are `word`.
    pub(super) fn resize(&mut self, len: usize, word: Option<u32>) {
        let mut left = len;
        for run in &mut self.0 {
            run.0 = run.0.min(left);
            left -= run.0;
        }
        self.0.retain(|run| run.0 > 0);
        self.push(left, word);
    }

    pub(super) fn append(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    pub(super) fn forget(&mut self) {
        *self = Self::whole(self.len(), None);
    }

    /// `len` words from `first` on.
    pub(super) fn part(&self, first: usize, len: usize) -> Self {
        let (mut part, mut at) = (Self::default(), 0);
        for (run, word) in &self.0 {
            let (start, end) = (at.max(first), (at + run).min(first + len));
            part.push(end.saturating_sub(start), *word);
            at += run;
        }
        part
    }

    /// Checks that these are the words.
    pub(super) fn check(&self, found: &[u32]) -> Result<()> {
        ensure!(
            found.len() == self.len(),
            "{} words instead of {}",
            found.len(),
            self.len()
        );
        let mut at = 0;
        for (run, word) in &self.0 {
            if let Some(word) = word
                && let Some(place) = found[at..at + run].iter().position(|it| it != word)
            {
                let wrong = found[at + place];
                anyhow::bail!("word {} is {wrong:#x} instead of {word:#x}", at + place);
            }
            at += run;
        }
        Ok(())
    }
}
