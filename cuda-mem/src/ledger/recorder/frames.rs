//! Lists of frames, each kept once.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::base::lock::Lock;
use crate::base::report;

/// They are kept as long as the recorder. A program that runs the same code again and again has far fewer.
const MOST_LISTS: usize = 100_000;

/// Appends the frames of the calling thread.
type Source = Box<dyn Fn(&mut String) + Send + Sync>;

#[derive(Default)]
pub(super) struct Frames {
    source: OnceLock<Source>,
    lists: Lock<Lists>,
}

/// Numbers from 1.
#[derive(Default)]
struct Lists {
    numbers: HashMap<Arc<str>, u32>,
    by_number: Vec<Arc<str>>,
}

impl Frames {
    pub(super) fn set_source(&self, source: Source) {
        let _ = self.source.set(source);
    }

    /// The number of the calling thread's list; 0 if the source knows none. `None` without a source.
    #[inline]
    pub(super) fn current(&self) -> Option<u32> {
        self.source.get().map(|source| self.ask(source))
    }

    #[cold]
    fn ask(&self, source: &Source) -> u32 {
        // An allocation must not be lost to a source that panics.
        let asked = report::caught(|| {
            let mut frames = String::new();
            source(&mut frames);
            frames
        });
        let frames = asked.unwrap_or_default();
        if frames.is_empty() {
            return 0;
        }
        let Some(mut lists) = self.lists.lock_unless_forked() else {
            return 0;
        };
        if let Some(number) = lists.numbers.get(frames.as_str()) {
            return *number;
        }
        if lists.by_number.len() >= MOST_LISTS {
            return 0;
        }
        let frames = Arc::<str>::from(frames);
        lists.by_number.push(Arc::clone(&frames));
        let number = u32::try_from(lists.by_number.len()).unwrap_or(0);
        lists.numbers.insert(frames, number);
        number
    }

    pub(super) fn list(&self, number: u32) -> Option<Arc<str>> {
        let index = (number as usize).checked_sub(1)?;
        let lists = self.lists.lock_unless_forked()?;
        lists.by_number.get(index).cloned()
    }
}
