//! Tracks which lent buffers were given back. Several threads may wait, each for one buffer. One thread at a time reads
//! the channel, without the lock, and stores messages for the others. When it has its own answer, the next thread
//! reads.

use std::collections::HashMap;
use std::sync::{Condvar, PoisonError};

use crate::base::error::Result;
use crate::base::lock::Lock;

/// A message that the other process is done with a buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Return {
    /// The number of the buffer.
    pub(super) number: u64,
    /// The other process's error text, if it failed.
    pub(super) failure: Option<String>,
}

/// Part of a channel.
#[derive(Debug, Default)]
pub(super) struct Returns {
    state: Lock<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The buffers on loan, and the message for each if it has come. Messages for other buffers are not kept, so a peer
    /// cannot make this grow.
    lent: HashMap<u64, Option<Return>>,
    /// A thread is reading the channel.
    is_read: bool,
}

/// Ends this thread's turn to read, also when reading failed or panicked.
struct Turn<'a>(&'a Returns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(mut state) = self.0.state.lock_unless_forked() {
            state.is_read = false;
        }
        // All of them: one may have its message now, and any other one can read next.
        self.0.changed.notify_all();
    }
}

impl Returns {
    /// Keeps the message for this buffer from now on.
    pub(super) fn expect(&self, number: u64) -> Result<()> {
        self.state.lock()?.lent.insert(number, None);
        Ok(())
    }

    /// No thread waits for this buffer any more.
    pub(super) fn forget(&self, number: u64) {
        if let Some(mut state) = self.state.lock_unless_forked() {
            state.lent.remove(&number);
        }
    }

    /// Waits for the message for this buffer, which is expected. `read` waits for the next message of the channel; its
    /// error goes to one of the waiting threads, and the others continue.
    pub(super) fn wait(
        &self,
        number: u64,
        mut read: impl FnMut() -> Result<Return>,
    ) -> Result<Return> {
        let mut state = self.state.lock()?;
        loop {
            if let Some(found) = state.lent.get_mut(&number).and_then(Option::take) {
                return Ok(found);
            }
            if state.is_read {
                let woken = self.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_read = true;
            drop(state);
            let turn = Turn(self);
            self.keep(read()?)?;
            drop(turn);
            state = self.state.lock()?;
        }
    }

    /// For a thread that cannot send this buffer, which is expected, because the channel is full. `wait` waits for space. It
    /// is told whether it should also wait for the next message, and read it: if others are on loan, and no thread reads.
    pub(super) fn wait_for_space(
        &self,
        number: u64,
        wait: impl FnOnce(bool) -> Result<Option<Return>>,
    ) -> Result<()> {
        let mut state = self.state.lock()?;
        let mut lent = state.lent.iter();
        let reads =
            !state.is_read && lent.any(|(other, answer)| *other != number && answer.is_none());
        state.is_read |= reads;
        drop(state);
        let turn = reads.then(|| Turn(self));
        if let Some(found) = wait(reads)? {
            self.keep(found)?;
        }
        drop(turn);
        Ok(())
    }

    /// Stores a message for the thread that waits for it.
    fn keep(&self, found: Return) -> Result<()> {
        if let Some(place) = self.state.lock()?.lent.get_mut(&found.number) {
            *place = Some(found);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::base::error::{Error, ErrorKind};

    /// Only a hang takes as long.
    const LIMIT: Duration = Duration::from_secs(10);

    fn given_back(number: u64) -> Return {
        Return {
            number,
            failure: None,
        }
    }

    /// Several threads read one queue, as they do a socket.
    fn read(queue: &Mutex<Receiver<u64>>) -> Result<Return> {
        let queue = queue.try_lock().expect("two threads read at a time");
        match queue.recv() {
            Ok(0) => Err(Error::invalid("something else".to_owned())),
            Ok(number) => Ok(given_back(number)),
            Err(_) => Err(Error::new(ErrorKind::PeerGone, "closed")),
        }
    }

    /// One thread for each of the buffers 1, 2, 3, 4. `steps` sends messages and is told of ends.
    fn four_wait(steps: impl FnOnce(Sender<u64>, &Receiver<(u64, Result<Return>)>)) {
        let returns = Returns::default();
        let (sender, queue) = channel();
        let queue = Mutex::new(queue);
        let (tell, told) = channel();
        thread::scope(|scope| {
            for number in 1..=4 {
                returns.expect(number).expect("not a fork");
                let (returns, queue, tell) = (&returns, &queue, tell.clone());
                scope.spawn(move || {
                    let answer = returns.wait(number, || read(queue));
                    tell.send((number, answer)).expect("the test listens");
                });
            }
            steps(sender, &told);
        });
        assert!(!returns.state.lock().expect("not a fork").is_read);
    }

    #[test]
    fn each_thread_gets_its_own_message_in_any_order() {
        for order in [[1, 2, 3, 4], [4, 3, 2, 1], [2, 4, 1, 3]] {
            four_wait(|sender, told| {
                for number in order {
                    // Of a buffer that is not lent.
                    sender.send(99).expect("open");
                    sender.send(number).expect("open");
                    let (ended, answer) = told.recv_timeout(LIMIT).expect("it waits for ever");
                    assert_eq!(ended, number);
                    assert_eq!(answer.expect("a message"), given_back(number));
                }
            });
        }
    }

    #[test]
    fn one_thread_is_told_of_what_is_wrong_and_the_others_go_on() {
        four_wait(|sender, told| {
            sender.send(0).expect("open");
            let (first, answer) = told.recv_timeout(LIMIT).expect("it waits for ever");
            answer.expect_err("something else came");
            for number in (1..=4).filter(|number| *number != first) {
                sender.send(number).expect("open");
                let (ended, answer) = told.recv_timeout(LIMIT).expect("it waits for ever");
                assert_eq!(ended, number);
                answer.expect("a message");
            }
        });
    }

    #[test]
    fn all_threads_are_told_of_the_end() {
        four_wait(|sender, told| {
            sender.send(2).expect("open");
            let (ended, answer) = told.recv_timeout(LIMIT).expect("it waits for ever");
            assert_eq!(ended, 2);
            answer.expect("a message");
            drop(sender);
            for _ in 0..3 {
                let (_, answer) = told.recv_timeout(LIMIT).expect("it waits for ever");
                answer.expect_err("closed");
            }
        });
    }

    #[test]
    fn what_waits_for_space_reads_if_others_are_lent_and_nothing_reads() {
        let returns = Returns::default();
        returns.expect(1).expect("not a fork");
        let told = |expected, found: Option<u64>| {
            let wait = |reads| {
                assert_eq!(reads, expected);
                Ok(found.map(given_back))
            };
            returns.wait_for_space(1, wait).expect("no failure");
        };
        told(false, None);
        returns.expect(2).expect("not a fork");
        told(true, None);
        let fails = |_| Err(Error::invalid("something else".to_owned()));
        returns.wait_for_space(1, fails).expect_err("it fails");
        told(true, Some(2));
        told(false, None);
        returns.expect(3).expect("not a fork");
        let read = || {
            told(false, None);
            Ok(given_back(3))
        };
        returns.wait(3, read).expect("its message");
        let none = || panic!("it is there already");
        returns.wait(2, none).expect("its message");
    }

    #[test]
    fn a_message_that_comes_before_the_wait_is_kept_if_the_buffer_is_lent() {
        let returns = Returns::default();
        returns.expect(1).expect("not a fork");
        returns.expect(2).expect("not a fork");
        let mut numbers = [7, 2, 1].into_iter();
        let next = || Ok(given_back(numbers.next().expect("it reads too far")));
        returns.wait(1, next).expect("the third message");
        let none = || panic!("it is there already");
        returns.wait(2, none).expect("the second message");
        returns.forget(1);
        returns.forget(2);
        let state = returns.state.lock().expect("not a fork");
        assert!(state.lent.is_empty(), "nothing is left over");
    }
}
