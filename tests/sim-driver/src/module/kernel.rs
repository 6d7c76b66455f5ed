//! The built-in kernels: those of the tests and examples. They are identified by name and parameters, and their
//! instructions are ignored.

use std::time::Duration;

use super::code::Entry;
use crate::memory::bytes;
use crate::system_allocated::Accessed;

/// Size of an element.
pub(super) const WORD: usize = 4;

/// The sanitizer's names for what kernels do to memory.
const READ: &str = "kernel read";
pub(super) const WRITE: &str = "kernel write";

/// The work of a built-in kernel, whatever its grid: each thread takes the next unprocessed element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuiltIn {
    /// Writes one word to every element.
    Fill { to: u64, value: u32, count: u64 },
    /// Copies words.
    Copy { to: u64, from: u64, count: u64 },
    /// Adds 32-bit floating-point numbers.
    Add {
        sum: u64,
        left: u64,
        right: u64,
        count: u64,
    },
    /// Runs for a time.
    Spin { nanoseconds: u64 },
    /// Replies to words that arrive while it runs.
    Answer {
        bell: u64,
        reply: u64,
        rounds: u64,
        patience: u64,
    },
}

/// Memory that a kernel accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// The sanitizer's name for it.
    pub(crate) what: &'static str,
    pub(crate) address: u64,
    pub(crate) len: usize,
}

impl BuiltIn {
    /// The work of a kernel with these arguments, if it is built in.
    pub(super) fn new(entry: &Entry, arguments: &[u8]) -> Option<Self> {
        let mut values = [0; 4];
        let places = &entry.parameters;
        for (value, place) in values.iter_mut().zip(places) {
            let mut bytes = [0; 8];
            let argument = arguments.get(place.offset..place.offset + place.size)?;
            bytes.get_mut(..place.size)?.copy_from_slice(argument);
            *value = u64::from_le_bytes(bytes);
        }
        let [a, b, c, d] = values;
        let sizes: Vec<usize> = places.iter().map(|place| place.size).collect();
        match (entry.name.to_bytes(), &sizes[..]) {
            (b"fill", [8, 4, 8]) => Some(Self::Fill {
                to: a,
                value: b as u32,
                count: c,
            }),
            (b"copy", [8, 8, 8]) => Some(Self::Copy {
                to: a,
                from: b,
                count: c,
            }),
            (b"add", [8, 8, 8, 8]) => Some(Self::Add {
                sum: a,
                left: b,
                right: c,
                count: d,
            }),
            (b"spin", [8]) => Some(Self::Spin { nanoseconds: a }),
            (b"answer", [8, 8, 8, 8]) => Some(Self::Answer {
                bell: a,
                reply: b,
                rounds: c,
                patience: d,
            }),
            _ => None,
        }
    }

    /// Its reads, then its writes; empty if there is nothing to do.
    pub(crate) fn uses(&self) -> Vec<Use> {
        let (read, write) = (READ, WRITE);
        let (uses, count) = match *self {
            Self::Fill { to, count, .. } => (vec![(write, to)], count),
            Self::Copy { to, from, count } => (vec![(read, from), (write, to)], count),
            Self::Add {
                sum,
                left,
                right,
                count,
            } => (vec![(read, left), (read, right), (write, sum)], count),
            Self::Spin { .. } => (Vec::new(), 0),
            Self::Answer { bell, reply, .. } => (vec![(read, bell), (write, reply)], 1),
        };
        // A length that overflows is replaced by one that exceeds any memory.
        let len = usize::try_from(count).ok();
        let len = len.and_then(|count| count.checked_mul(WORD));
        let len = len.unwrap_or(usize::MAX);
        uses.into_iter()
            .filter(|_| len > 0)
            .map(|(what, address)| Use { what, address, len })
            .collect()
    }

    /// The same for the queue, which keeps the memory mapped meanwhile.
    pub(crate) fn ranges(&self) -> [(u64, usize); 3] {
        let mut ranges = [(0, 0); 3];
        for (range, used) in ranges.iter_mut().zip(self.uses()) {
            *range = (used.address, used.len);
        }
        ranges
    }

    /// The same for the memory of the program.
    pub(crate) fn accessed(&self) -> Vec<Accessed> {
        let uses = self.uses().into_iter();
        let accessed = uses.map(|Use { what, address, len }| Accessed {
            address,
            len,
            writes: what == WRITE,
        });
        accessed.collect()
    }

    /// Runs the work. The addresses were checked at submission.
    pub(crate) fn run(self) {
        match self {
            Self::Fill { to, value, count } => bytes::fill(to, value, count as usize),
            Self::Copy { to, from, count } => bytes::copy(to, from, count as usize * WORD),
            Self::Add {
                sum,
                left,
                right,
                count,
            } => bytes::add(sum, left, right, count as usize),
            Self::Spin { nanoseconds } => std::thread::sleep(Duration::from_nanos(nanoseconds)),
            Self::Answer {
                bell,
                reply,
                rounds,
                patience,
            } => {
                let patience = Duration::from_nanos(patience);
                for round in 1..=rounds {
                    if !bytes::wait_for(bell, round as u32, patience) {
                        break;
                    }
                    bytes::tell(reply, round as u32);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ptx::parse;
    use super::*;

    fn entry(name: &str) -> Entry {
        let text = include_str!("../../data/kernels.ptx");
        let code = parse(text, (7, 0)).expect("understood");
        let mut entries = code.entries.into_iter();
        let entry = entries.find(|entry| entry.name.as_bytes() == name.as_bytes());
        entry.expect("there")
    }

    #[test]
    fn the_kernels_of_the_tests_are_those_that_run() {
        let words = |values: &[u64]| -> Vec<u8> {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect()
        };
        let fill = BuiltIn::new(&entry("fill"), &words(&[64, u64::MAX << 32 | 7, 3]));
        let expected = BuiltIn::Fill {
            to: 64,
            value: 7,
            count: 3,
        };
        assert_eq!(fill, Some(expected));
        let add = BuiltIn::new(&entry("add"), &words(&[64, 128, 192, 2])).expect("known");
        let uses: Vec<_> = add.uses().iter().map(|it| (it.what, it.address)).collect();
        let (read, write) = ("kernel read", "kernel write");
        assert_eq!(uses, [(read, 128), (read, 192), (write, 64)]);
        assert_eq!(add.ranges(), [(128, 8), (192, 8), (64, 8)]);
        let nothing = BuiltIn::new(&entry("copy"), &words(&[64, 128, 0])).expect("known");
        assert_eq!(nothing.uses(), []);
    }

    #[test]
    fn others_of_the_same_name_do_not() {
        let mut other = entry("spin");
        other.parameters.clear();
        assert_eq!(BuiltIn::new(&other, &[]), None);
        assert_eq!(BuiltIn::new(&entry("spin"), &[0; 4]), None);
    }
}
