//! Launches and uploads of graphs, and waits for events beside them.
//!
//! If a thread makes a stream wait for an event while another thread launches or uploads a graph in that stream, and
//! the event is recorded again afterwards, the wait may be lost (R179, measured). So waits in a stream exclude
//! launches and uploads in it, and after the first launch or upload no event is used for a second wait. Graphs of
//! other libraries are not known.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, PoisonError};

use cuda_driver_sys::CUstream;

use crate::base::error::Result;
use crate::base::lock::Lock;

/// Streams share these tables, so that threads with streams of their own seldom meet.
const TABLES: usize = 64;

static TURNS: [Turns; TABLES] = [const {
    Turns {
        streams: Lock::new(Vec::new()),
        changed: Condvar::new(),
    }
}; TABLES];

static HAVE_BEEN: AtomicBool = AtomicBool::new(false);

/// What is going on in some streams. By stream and not only by table: a launch may block until work of another stream is
/// done, which must not wait for it.
struct Turns {
    streams: Lock<Vec<(usize, Use)>>,
    changed: Condvar,
}

/// What is going on in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// It is made to wait, by so many threads.
    Waits(usize),
    /// A graph is launched or uploaded.
    Launch,
}

/// A stream is made to wait, or a graph is launched in it, while this lives.
#[derive(Debug)]
pub(crate) struct Turn(usize);

fn turns(address: usize) -> &'static Turns {
    // Handles lie some hundred bytes apart.
    &TURNS[(address ^ address >> 6 ^ address >> 12) % TABLES]
}

/// Whether this crate has launched or uploaded a graph in this process.
#[inline]
pub(crate) fn have_been() -> bool {
    HAVE_BEEN.load(Ordering::SeqCst)
}

/// No graph is launched or uploaded in the stream while the guard lives.
pub(crate) fn wait(stream: CUstream) -> Result<Turn> {
    begin(stream, |use_of_it| match use_of_it {
        None => Some(Use::Waits(1)),
        Some(Use::Waits(threads)) => Some(Use::Waits(threads + 1)),
        Some(Use::Launch) => None,
    })
}

/// The stream is not made to wait for anything while the guard lives.
pub(crate) fn launch(stream: CUstream) -> Result<Turn> {
    HAVE_BEEN.store(true, Ordering::SeqCst);
    begin(stream, |use_of_it| {
        use_of_it.is_none().then_some(Use::Launch)
    })
}

/// Waits until `next` has a use that goes with what is going on in the stream.
fn begin(stream: CUstream, next: impl Fn(Option<Use>) -> Option<Use>) -> Result<Turn> {
    let address = stream.addr();
    let turns = turns(address);
    let mut streams = turns.streams.lock()?;
    loop {
        let at = streams.iter().position(|(other, _)| *other == address);
        match (next(at.map(|at| streams[at].1)), at) {
            (Some(begun), Some(at)) => streams[at].1 = begun,
            (Some(begun), None) => streams.push((address, begun)),
            (None, _) => {
                let woken = turns.changed.wait(streams);
                streams = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
        }
        return Ok(Turn(address));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turns = turns(self.0);
        let Some(mut streams) = turns.streams.lock_unless_forked() else {
            return;
        };
        let Some(at) = streams.iter().position(|(other, _)| *other == self.0) else {
            return;
        };
        match &mut streams[at].1 {
            Use::Waits(threads) if *threads > 1 => *threads -= 1,
            _ => {
                streams.swap_remove(at);
                drop(streams);
                turns.changed.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::without_provenance_mut;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Addresses of no stream, which share a table.
    fn two_of_one_table() -> [usize; 2] {
        let first = 0x10;
        let mut others = (0x20..).step_by(0x10);
        let second = others.find(|other| std::ptr::eq(turns(*other), turns(first)));
        [
            first,
            second.expect("there are fewer tables than addresses"),
        ]
    }

    #[test]
    fn a_launch_holds_up_its_own_stream_only() {
        let [first, second] = two_of_one_table();
        let launched = launch(without_provenance_mut(first)).expect("this is no fork");
        // On this thread: it would wait for ever.
        let other = wait(without_provenance_mut(second)).expect("this is no fork");
        let again = wait(without_provenance_mut(second)).expect("waits go together");
        drop((other, again));
        drop(launched);
        assert!(turns(first).streams.lock().expect("no fork").is_empty());
    }

    #[test]
    fn a_wait_and_a_launch_in_one_stream_take_turns() {
        const STREAM: usize = 0x7_0000;
        let (tell, told) = mpsc::channel();
        let waiting = wait(without_provenance_mut(STREAM)).expect("this is no fork");
        thread::scope(|scope| {
            scope.spawn(move || {
                let launched = launch(without_provenance_mut(STREAM));
                tell.send(()).expect("somebody listens");
                drop(launched);
            });
            let early = told.recv_timeout(Duration::from_millis(20));
            early.expect_err("it did not wait for its turn");
            drop(waiting);
            told.recv().expect("it is launched");
        });
        let _free = wait(without_provenance_mut(STREAM)).expect("this is no fork");
    }
}
