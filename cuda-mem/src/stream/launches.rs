//! Launches and uploads of graphs, and waits for events beside them.
//!
//! If a thread makes a stream wait for an event while another thread launches or uploads a graph in that stream, and
//! the event is recorded again afterwards, the wait may be lost (R179, measured). So waits in a stream exclude
//! launches and uploads in it, and after the first launch or upload no event is used for a second wait. Graphs of
//! other libraries are not known.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, PoisonError};

use crate::base::error::Result;
use crate::base::lock::Lock;
use crate::stream::StreamRef;
use crate::stream::name::StreamName;

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
    streams: Lock<Vec<(StreamName, Use)>>,
    changed: Condvar,
}

/// What is going on in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Use {
    /// Threads that make it wait.
    waits: usize,
    /// A graph is launched or uploaded.
    is_launching: bool,
    /// Launches that wait for their turn. They go before new waits, which might never end otherwise.
    launches: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Wait,
    Launch,
}

/// A stream is made to wait, or a graph is launched in it, while this lives.
#[derive(Debug)]
pub(crate) struct Turn(StreamName, Kind);

/// The table of a stream.
fn turns(name: StreamName) -> &'static Turns {
    // Handles lie some hundred bytes apart.
    let address = name.stream;
    &TURNS[(address ^ address >> 6 ^ address >> 12) % TABLES]
}

impl Use {
    /// Whether it has begun.
    fn begin(&mut self, kind: Kind) -> bool {
        match kind {
            Kind::Wait if !self.is_launching && self.launches == 0 => {
                self.waits += 1;
                true
            }
            Kind::Launch if !self.is_launching && self.waits == 0 => {
                self.is_launching = true;
                true
            }
            _ => false,
        }
    }

    fn end(&mut self, kind: Kind) {
        match kind {
            Kind::Wait => self.waits -= 1,
            Kind::Launch => self.is_launching = false,
        }
    }
}

/// Whether this crate has launched or uploaded a graph in this process.
#[inline]
pub(crate) fn have_been() -> bool {
    HAVE_BEEN.load(Ordering::SeqCst)
}

/// No graph is launched or uploaded in the stream while the guard lives.
pub(crate) fn wait(stream: StreamRef<'_>) -> Result<Turn> {
    begin(stream.name(), Kind::Wait)
}

/// The stream is not made to wait for anything while the guard lives.
pub(crate) fn launch(stream: StreamRef<'_>) -> Result<Turn> {
    HAVE_BEEN.store(true, Ordering::SeqCst);
    begin(stream.name(), Kind::Launch)
}

/// The place of a stream in a table.
fn place(streams: &mut Vec<(StreamName, Use)>, name: StreamName) -> usize {
    let found = streams.iter().position(|(other, _)| *other == name);
    found.unwrap_or_else(|| {
        streams.push((name, Use::default()));
        streams.len() - 1
    })
}

fn begin(name: StreamName, kind: Kind) -> Result<Turn> {
    let turns = turns(name);
    let mut streams = turns.streams.lock()?;
    let mut at = place(&mut streams, name);
    let mut is_noted = false;
    while !streams[at].1.begin(kind) {
        if kind == Kind::Launch && !is_noted {
            streams[at].1.launches += 1;
            is_noted = true;
        }
        let woken = turns.changed.wait(streams);
        streams = woken.unwrap_or_else(PoisonError::into_inner);
        at = place(&mut streams, name);
    }
    if is_noted {
        streams[at].1.launches -= 1;
    }
    Ok(Turn(name, kind))
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turns = turns(self.0);
        let Some(mut streams) = turns.streams.lock_unless_forked() else {
            return;
        };
        let at = place(&mut streams, self.0);
        streams[at].1.end(self.1);
        if streams[at].1 == Use::default() {
            streams.swap_remove(at);
        }
        drop(streams);
        turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// No stream.
    fn name(stream: usize) -> StreamName {
        StreamName {
            context: 0x10,
            stream,
            thread: None,
        }
    }

    fn turn(name: StreamName, kind: Kind) -> Turn {
        begin(name, kind).expect("this is no fork")
    }

    fn is_listed(name: StreamName) -> bool {
        let streams = turns(name).streams.lock().expect("this is no fork");
        streams.iter().any(|(other, _)| *other == name)
    }

    #[test]
    fn a_launch_holds_up_its_own_stream_only() {
        let first = name(0x10);
        let mut others = (0x20..).step_by(0x10).map(name);
        let second = others.find(|other| std::ptr::eq(turns(*other), turns(first)));
        let second = second.expect("there are fewer tables than addresses");
        let own = StreamName {
            thread: Some(thread::current().id()),
            ..first
        };
        let launched = turn(first, Kind::Launch);
        // On this thread: it would wait for ever.
        let others = [second, second, own].map(|other| turn(other, Kind::Wait));
        assert!(is_listed(first) && is_listed(second) && is_listed(own));
        drop((others, launched));
        assert!(!is_listed(first) && !is_listed(second) && !is_listed(own));
    }

    #[test]
    fn a_launch_goes_before_later_waits() {
        let stream = name(0x7_0000);
        let (tell, told) = mpsc::channel();
        let waiting = turn(stream, Kind::Wait);
        let waits_for_turn = || {
            let streams = turns(stream).streams.lock().expect("this is no fork");
            let mut uses = streams.iter();
            uses.any(|(other, its)| *other == stream && its.launches == 1)
        };
        thread::scope(|scope| {
            let launches = tell.clone();
            scope.spawn(move || {
                let launched = turn(stream, Kind::Launch);
                launches.send("launch").expect("somebody listens");
                drop(launched);
            });
            while !waits_for_turn() {
                thread::sleep(Duration::from_millis(1));
            }
            scope.spawn(move || {
                let later = turn(stream, Kind::Wait);
                tell.send("wait").expect("somebody listens");
                drop(later);
            });
            thread::sleep(Duration::from_millis(20));
            assert!(told.try_recv().is_err(), "it did not wait for its turn");
            drop(waiting);
            let order = [told.recv(), told.recv()].map(|told| told.expect("it goes on"));
            assert_eq!(order, ["launch", "wait"]);
        });
        assert!(!is_listed(stream));
    }
}
