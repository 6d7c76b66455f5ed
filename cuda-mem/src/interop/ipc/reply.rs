//! The answer to the sender of a buffer.

use std::collections::VecDeque;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Arc, Weak};

use super::{socket, wire};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::lock::Lock;
use crate::memory::buffer::{Loan, ReturnAttempt};
use crate::stream::deferred::{self, Deferred, Outcome};
use crate::stream::{Completion, Stream, epoch};

/// The kinds of the messages.
pub(super) const RETURNED: u8 = 17;
pub(super) const FAILED: u8 = 19;

/// Error texts are cut to this number of bytes.
const MOST_WORDS: usize = 1024;

/// The message that a buffer is given back.
pub(super) fn returned(number: u64) -> Vec<u8> {
    wire::seal(RETURNED, &number.to_le_bytes())
}

/// The message that a buffer could not be given back.
pub(super) fn failed(number: u64, words: &str) -> Vec<u8> {
    let mut end = words.len().min(MOST_WORDS);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    let body = [&number.to_le_bytes()[..], &words.as_bytes()[..end]].concat();
    wire::seal(FAILED, &body)
}

/// The socket of the answers of a channel.
#[derive(Debug)]
enum Through {
    /// The channel's, which takes it out under the lock before it is closed.
    Channel(RawFd),
    /// That of a channel that is gone, or a copy of it.
    Own(OwnedFd),
    /// The channel is closed. Only buffers whose sender expects no answer are left.
    Closed,
}

/// Sends the answers of a channel.
#[derive(Debug)]
struct Answers {
    socket: Through,
    /// Those that found too many messages unread at the other end. The channel is not closed for that: the other end would
    /// take it for the end of this process, and use the memory of buffers that are still in use here.
    unsent: VecDeque<Vec<u8>>,
    /// The queue of deferred releases has an entry that sends them.
    is_deferred: bool,
}

impl Answers {
    /// Sends what it can without waiting. Returns whether nothing is left. If it fails, the channel is closed in both
    /// directions, so that the other end does not wait for ever.
    fn send(&mut self) -> Result<bool> {
        let there = match &self.socket {
            // SAFETY: the channel is open: it takes the descriptor out under the lock before it is closed.
            Through::Channel(number) => unsafe { BorrowedFd::borrow_raw(*number) },
            Through::Own(socket) => socket.as_fd(),
            Through::Closed => {
                self.unsent.clear();
                return Ok(true);
            }
        };
        while let Some(answer) = self.unsent.front() {
            match socket::send_now(there, answer) {
                Ok(true) => drop(self.unsent.pop_front()),
                Ok(false) => return Ok(false),
                Err(error) => {
                    self.unsent.clear();
                    socket::shut_down(there);
                    return Err(error);
                }
            }
        }
        Ok(true)
    }
}

/// The answers of a channel, for objects that may outlive it. The socket stays open while one of them is left: the other
/// end would take its end for that of this process, and use the memory of buffers that are still in use here.
#[derive(Clone, Debug)]
struct Socket(Arc<Lock<Answers>>);

impl Socket {
    /// Sends an answer, or keeps it until there is space. Does not wait for the other end to read, because this may be a
    /// destructor.
    fn send(&self, answer: Vec<u8>) {
        let Some(mut answers) = self.0.lock_unless_forked() else {
            return;
        };
        answers.unsent.push_back(answer);
        // If it fails, the channel is closed.
        if let Ok(false) = answers.send()
            && !mem::replace(&mut answers.is_deferred, true)
        {
            drop(answers);
            deferred::defer(Box::new(Unsent(self.clone())));
        }
    }

    /// The channel ends. If anything is left that answers, it takes the socket from `socket`.
    fn outlive(&self, socket: impl FnOnce() -> Option<OwnedFd>) {
        // In a fork this is a copy.
        if let Some(mut answers) = self.0.lock_unless_forked() {
            answers.socket = match Arc::strong_count(&self.0) {
                1 => Through::Closed,
                _ => socket().map_or(Through::Closed, Through::Own),
            };
        }
    }
}

/// As [`Socket`], for buffers whose sender expects no answer: they do not keep the socket open.
#[derive(Debug)]
struct WeakSocket(Weak<Lock<Answers>>);

impl WeakSocket {
    fn send(&self, answer: Vec<u8>) {
        if let Some(answers) = self.0.upgrade() {
            Socket(answers).send(answer);
        }
    }

    /// Tells channels apart while something has the socket.
    fn identity(&self) -> usize {
        self.0.as_ptr().addr()
    }
}

/// The socket of a channel.
#[derive(Debug)]
pub(super) struct Open {
    answers: Socket,
    socket: ManuallyDrop<OwnedFd>,
}

impl Open {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let answers = Answers {
            socket: Through::Channel(socket.as_raw_fd()),
            unsent: VecDeque::new(),
            is_deferred: false,
        };
        Self {
            answers: Socket(Arc::new(Lock::new(answers))),
            socket: ManuallyDrop::new(socket),
        }
    }

    /// What [`Loan::channel`] is for buffers of this channel.
    pub(super) fn identity(&self) -> usize {
        Arc::as_ptr(&self.answers.0).addr()
    }

    /// Sends this answer and those that found no space before, without waiting. Returns whether nothing is left. If it fails,
    /// the channel is closed in both directions.
    pub(super) fn send_answers(&self, answer: Option<Vec<u8>>) -> Result<bool> {
        let mut answers = self.answers.0.lock()?;
        answers.unsent.extend(answer);
        answers.send()
    }

    /// Hands the socket out. Lent buffers are answered through a copy of it; not if this process has no descriptor left.
    pub(super) fn into_socket(self) -> OwnedFd {
        let open = ManuallyDrop::new(self);
        // SAFETY: `open` is not dropped, nor used again.
        let answers = unsafe { ptr::read(&raw const open.answers) };
        // SAFETY: as above.
        let socket = ManuallyDrop::into_inner(unsafe { ptr::read(&raw const open.socket) });
        answers.outlive(|| socket.try_clone().ok());
        socket
    }
}

impl AsFd for Open {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        self.answers.outlive(|| Some(socket));
    }
}

/// Who tells the sender of a buffer that it has ended.
#[derive(Debug)]
enum Answer {
    /// What releases the buffer, if somebody waits for it.
    Release,
    /// The same, because giving it back has failed.
    Failed(String),
    /// [`Channel::give_back`](super::Channel::give_back), or it was answered already.
    Caller,
    /// What releases the buffer, because giving it back was put off.
    Owed,
}

/// A buffer that was received through a channel: its number, and where to send the answer.
#[derive(Debug)]
pub(super) struct Received {
    number: u64,
    socket: WeakSocket,
    /// Whether the sender waits for an answer.
    is_lent: bool,
    /// Keeps the socket open until that answer is sent.
    kept: Lock<Option<Socket>>,
    answer: Lock<Answer>,
}

impl Received {
    pub(super) fn new(open: &Open, number: u64, is_lent: bool) -> Self {
        Self {
            number,
            socket: WeakSocket(Arc::downgrade(&open.answers.0)),
            is_lent,
            kept: Lock::new(is_lent.then(|| open.answers.clone())),
            answer: Lock::new(Answer::Release),
        }
    }

    pub(super) fn loan(&self) -> Loan {
        Loan {
            number: self.number,
            channel: self.socket.identity(),
        }
    }

    pub(super) fn note_return(&self, what: ReturnAttempt) {
        if let Some(mut answer) = self.answer.lock_unless_forked() {
            *answer = match what {
                ReturnAttempt::Begun => Answer::Caller,
                ReturnAttempt::PutOff => Answer::Owed,
                ReturnAttempt::Failed(words) => Answer::Failed(words),
            };
        }
    }

    /// The buffer is released in the order of `stream`, or is not because of `failure`. Answers a sender who would
    /// otherwise wait for ever, once the work in the stream is done.
    pub(super) fn end(self, stream: &Stream, failure: Option<&Error>) {
        let failure = match self.take_answer() {
            Answer::Caller => return,
            Answer::Failed(words) => {
                // If this fails too, the end of the work is unknown; the failure says so already.
                let _ = stream.as_ref().wait_unless_captured();
                Some(words)
            }
            Answer::Release if !self.is_lent => return,
            Answer::Release | Answer::Owed => failure.map(ToString::to_string),
        };
        if let Some(words) = failure {
            return self.socket.send(failed(self.number, &words));
        }
        // Marked here, because a later call may come from a thread that cannot mark it, or after more work.
        let freed = stream.completion().ok();
        // It never fails.
        let _ = deferred::release_or_defer(Box::new(PendingReturn {
            received: self,
            stream: stream.clone(),
            since: epoch::now(),
            freed,
        }));
    }

    /// The buffer is not released, because of `failure`, and never will be.
    pub(super) fn abandon(&self, failure: &Error) {
        let words = match self.take_answer() {
            Answer::Caller => None,
            Answer::Failed(words) => Some(words),
            Answer::Release if !self.is_lent => None,
            Answer::Release | Answer::Owed => Some(failure.to_string()),
        };
        if let Some(words) = words {
            self.socket.send(failed(self.number, &words));
        }
        // This is never dropped, and the other end is to learn when the channel is closed.
        let kept = self.kept.lock_unless_forked();
        drop(kept.and_then(|mut kept| kept.take()));
    }

    /// Whether [`end`](Self::end) waits for the stream.
    pub(super) fn waits_to_end(&self) -> bool {
        let answer = self.answer.lock_unless_forked();
        answer.is_some_and(|answer| matches!(*answer, Answer::Failed(_)))
    }

    fn take_answer(&self) -> Answer {
        match self.answer.lock_unless_forked() {
            Some(mut answer) => mem::replace(&mut *answer, Answer::Caller),
            None => Answer::Caller,
        }
    }
}

/// A buffer freed in stream order. The sender is told when the free is done.
struct PendingReturn {
    received: Received,
    stream: Stream,
    /// When it was freed.
    since: u64,
    /// The end of the free: the stream itself may never be without work again. `None` until it could be marked.
    freed: Option<Completion>,
}

impl PendingReturn {
    fn is_done(&mut self) -> Result<bool> {
        if self.freed.is_none() && self.stream.is_foreign() {
            return Ok(self.stream.context().progress().done() >= self.since);
        }
        let freed = match &self.freed {
            Some(freed) => freed,
            None => self.freed.insert(self.stream.completion()?),
        };
        freed.is_done()
    }
}

impl Deferred for PendingReturn {
    fn name(&self) -> &'static str {
        "received buffer"
    }

    fn try_release(&mut self) -> Outcome {
        let message = match self.is_done() {
            Ok(true) => returned(self.received.number),
            Ok(false) => return Outcome::NotYet,
            Err(error) if error.kind() == ErrorKind::Capturing => {
                // If the mark is part of a graph, it tells nothing.
                self.freed = None;
                return Outcome::NotYet;
            }
            Err(error) => failed(self.received.number, &error.to_string()),
        };
        self.received.socket.send(message);
        Outcome::Done
    }
}

/// The answers of a channel that found no space in it.
struct Unsent(Socket);

impl Deferred for Unsent {
    fn name(&self) -> &'static str {
        "answer about a received buffer"
    }

    fn try_release(&mut self) -> Outcome {
        if let Some(mut answers) = self.0.0.lock_unless_forked() {
            // If it fails, the channel is closed.
            if let Ok(false) = answers.send() {
                return Outcome::NotYet;
            }
            answers.is_deferred = false;
        }
        Outcome::Done
    }
}
