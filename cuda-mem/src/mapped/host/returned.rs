//! Waiting for host memory in flight, in asynchronous programs.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll};

use super::in_flight::{HostMemory, InFlightBuffer, taken_back};
use crate::base::error::{Failed, Result};
use crate::stream::completion::Completion;

/// A future that returns memory to the host. From [`InFlightBuffer::returned`].
///
/// Its output is an error if the stream cannot be waited for, or reports a fault of earlier work; the memory is in the
/// error, still in flight.
#[must_use = "futures do nothing unless they are polled"]
pub struct Returned<H: HostMemory> {
    memory: Option<InFlightBuffer<H>>,
    /// Of the work that was submitted when the future was made, or why that cannot be waited for.
    completion: Option<Result<Completion>>,
}

impl<H: HostMemory> Returned<H> {
    pub(super) fn new(memory: InFlightBuffer<H>) -> Self {
        Self {
            completion: Some(memory.completion()),
            memory: Some(memory),
        }
    }
}

// It is never moved out of while it is pinned: the future inside can be moved.
impl<H: HostMemory> Unpin for Returned<H> {}

impl<H: HostMemory> Future for Returned<H> {
    type Output = Result<H, Failed<InFlightBuffer<H>>>;

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Self::Output> {
        let result = match self.completion.take() {
            Some(Ok(mut completion)) => match Pin::new(&mut completion).poll(task) {
                Poll::Ready(result) => result,
                Poll::Pending => {
                    self.completion = Some(Ok(completion));
                    return Poll::Pending;
                }
            },
            Some(Err(error)) => Err(error),
            None => Err(taken_back()),
        };
        Poll::Ready(match (self.memory.take(), result) {
            (Some(memory), Ok(())) => memory.into_host(),
            (Some(memory), Err(error)) => Err(Failed::new(error, memory)),
            (None, _) => Err(Failed::lost(taken_back())),
        })
    }
}

impl<H: HostMemory> fmt::Debug for Returned<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Returned").field(&self.memory).finish()
    }
}
