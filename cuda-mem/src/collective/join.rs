//! Joining a communicator.

use std::fmt;
use std::time::Duration;

use cuda_driver_sys::nccl::ncclComm_t;

use super::communicator::Communicator;
use super::library::{Nccl, UniqueId};
use super::wait::Wait;
use crate::base::error::{Error, ErrorKind, Result};
use crate::driver::raw;
use crate::driver::raw::nccl::Progress;
use crate::stream::Context;

/// How ranks wait for each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) timeout: Duration,
    pub(super) is_blocking: bool,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            // What PyTorch waits, too.
            timeout: Duration::from_secs(600),
            is_blocking: false,
        }
    }
}

/// Settings of a rank. From [`Nccl::communicator`]. It ends in [`join`](Self::join), not in `build`, because the other ranks must do
/// the same, and it waits for them.
#[derive(Clone, Debug)]
#[must_use]
pub struct CommunicatorBuilder {
    nccl: Nccl,
    context: Context,
    ranks: usize,
    rank: usize,
    waiting: Waiting,
}

impl CommunicatorBuilder {
    pub(super) fn new(nccl: Nccl, context: &Context, ranks: usize, rank: usize) -> Self {
        Self {
            nccl,
            context: context.clone(),
            ranks,
            rank,
            waiting: Waiting::default(),
        }
    }

    /// How long to wait for other ranks: when joining, when an operation is started, in
    /// [`synchronize`](Communicator::synchronize), and when [registered](super::RegisteredResource) memory is freed. 10 minutes by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.waiting.timeout = timeout;
        self
    }

    /// Whether NCCL itself waits for other ranks, without a limit, where it has to. Starting an operation is faster then: otherwise
    /// NCCL hands it to a thread of its own. Neither the [time](Self::timeout) nor [`abort`](Communicator::abort) ends a call in which
    /// NCCL waits: an abort on another thread waits for that call. `false` by default.
    #[doc(alias = "ncclConfig_t::blocking")]
    pub fn blocking(mut self, is_blocking: bool) -> Self {
        self.waiting.is_blocking = is_blocking;
        self
    }

    /// Joins, and waits until all ranks have.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if there is no such rank, if a rank joins twice, or if two are on one
    /// device; [`TimedOut`](crate::ErrorKind::TimedOut) if not all have come in time. Otherwise any error that NCCL reports.
    #[doc(alias("ncclCommInitRank", "ncclCommInitRankConfig"))]
    #[track_caller]
    pub fn join(self, id: &UniqueId) -> Result<Communicator> {
        let mut place = std::ptr::null_mut();
        let started = self.start(id, &mut place);
        let joined = started.and_then(|_| self.finish_joining(place));
        self.joined(joined, place)
    }

    /// Starts to join. Within a group, everything but the handle comes with its end.
    fn start(&self, id: &UniqueId, place: &mut ncclComm_t) -> Result<Progress> {
        let numbers = (self.number(self.ranks)?, self.number(self.rank)?);
        if self.rank >= self.ranks {
            return Err(Error::invalid(format!(
                "rank {} of {}; there is at least one rank, and they count from 0",
                self.rank, self.ranks
            )));
        }
        let _current = self.context.bind()?;
        // SAFETY: the context of the rank's device is current.
        unsafe {
            raw::nccl::init_rank(
                self.nccl.table(),
                place,
                numbers,
                id.0,
                self.waiting.is_blocking,
            )
        }
        .map_err(|error| error.asked(|| self.to_string()))
    }

    fn number(&self, number: usize) -> Result<i32> {
        i32::try_from(number).map_err(|_| {
            Error::invalid(format!(
                "rank {} of {}; NCCL takes up to {} ranks",
                self.rank,
                self.ranks,
                i32::MAX
            ))
        })
    }

    fn finish_joining(&self, raw: ncclComm_t) -> Result<()> {
        let _current = self.context.bind()?;
        let wait = Wait::new("ncclCommInitRankConfig", self.waiting.timeout);
        // SAFETY: `start` has made the communicator.
        unsafe { wait.until_done(self.nccl.table(), raw) }.map_err(|error| self.named(error))
    }

    fn named(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::TimedOut || error.nccl_code().is_some() {
            return error.asked(|| self.to_string());
        }
        let ranks = self.ranks;
        Error::new(
            ErrorKind::TimedOut,
            format!(
                "{self}: {error}; all {ranks} ranks must join with one id, which serves once, and within that time"
            ),
        )
    }

    /// Takes a communicator that has been joined; ends it if that failed.
    #[track_caller]
    fn joined(self, joined: Result<()>, raw: ncclComm_t) -> Result<Communicator> {
        if let Err(error) = joined {
            if !raw.is_null() {
                let _current = self.context.bind();
                // SAFETY: nobody else has it. Its failure adds nothing to the first one.
                let _ = unsafe { raw::nccl::abort(self.nccl.table(), raw) };
            }
            return Err(error);
        }
        let numbers = (self.rank, self.ranks);
        Ok(Communicator::own(
            self.nccl,
            self.context,
            numbers,
            self.waiting,
            raw,
        ))
    }
}

impl fmt::Display for CommunicatorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.context.device();
        write!(f, "rank {} of {}, {device}", self.rank, self.ranks)
    }
}

/// Settings of communicators with all their ranks in this process. From [`Nccl::communicators`].
#[derive(Clone, Debug)]
#[must_use]
pub struct CommunicatorsBuilder {
    nccl: Nccl,
    contexts: Vec<Context>,
    waiting: Waiting,
}

impl CommunicatorsBuilder {
    pub(super) fn new(nccl: Nccl, contexts: &[Context]) -> Self {
        Self {
            nccl,
            contexts: contexts.to_vec(),
            waiting: Waiting::default(),
        }
    }

    /// As [`CommunicatorBuilder::timeout`].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.waiting.timeout = timeout;
        self
    }

    /// As [`CommunicatorBuilder::blocking`].
    #[doc(alias = "ncclConfig_t::blocking")]
    pub fn blocking(mut self, is_blocking: bool) -> Self {
        self.waiting.is_blocking = is_blocking;
        self
    }

    /// Joins all ranks, and waits until they have.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for no context, and where two are of one device;
    /// [`TimedOut`](crate::ErrorKind::TimedOut) if NCCL is not done in time; otherwise any error that NCCL reports.
    #[doc(alias("ncclCommInitAll", "ncclCommInitRankConfig"))]
    #[track_caller]
    pub fn join(self) -> Result<Vec<Communicator>> {
        let Self {
            nccl,
            contexts,
            waiting,
        } = self;
        let Some(first) = contexts.first() else {
            return Err(Error::invalid(
                "a communicator of no ranks; give a context for each rank".to_owned(),
            ));
        };
        let id = nccl.unique_id()?;
        let builders = contexts.iter().enumerate();
        let builders: Vec<_> = builders
            .map(|(rank, context)| CommunicatorBuilder {
                waiting,
                ..nccl.communicator(context, contexts.len(), rank)
            })
            .collect();
        let mut places = vec![std::ptr::null_mut(); contexts.len()];
        // NCCL goes back to the context that is current here.
        let current = first.bind()?;
        // SAFETY: the places live until after the end of the group.
        unsafe { raw::nccl::group_start(nccl.table()) }?;
        let starts = builders.iter().zip(&mut places);
        let started: Result<Vec<Progress>> = starts
            .map(|(builder, place)| builder.start(&id, place))
            .collect();
        // SAFETY: the group was started above, on this thread.
        let ended = unsafe { raw::nccl::group_end(nccl.table()) };
        drop(current);
        let mut failed = started.and(ended).err();
        let mut communicators = Vec::new();
        for (builder, place) in builders.into_iter().zip(places) {
            // After a failure the others are ended instead, without a wait.
            let joined = match failed.take() {
                Some(error) => Err(error),
                None => builder.finish_joining(place),
            };
            match builder.joined(joined, place) {
                Ok(communicator) => communicators.push(communicator),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            None => Ok(communicators),
            Some(error) => {
                communicators.iter().for_each(|it| {
                    let _ = it.abort();
                });
                Err(error)
            }
        }
    }
}
