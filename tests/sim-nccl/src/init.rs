//! New communicators.

use std::ffi::c_char;
use std::time::{SystemTime, UNIX_EPOCH};

use cuda_driver_sys::nccl::{
    NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, NCCL_UNIQUE_ID_BYTES, ncclComm_t, ncclResult_t,
    ncclUniqueId,
};

use crate::clique::Clique;
use crate::communicator::{Progress, RankComm};
use crate::driver::driver;
use crate::export::{Answer, Comm, Config, Failure, Out, invalid_argument};
use crate::group::{Job, grouped};
use crate::launch;
use crate::state::{Id, changed, new_number, state, wait_until};
use crate::words;

/// More are taken for a mistake.
const MAX_RANKS: usize = 1 << 16;

/// A rank on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitCall {
    comm: Comm,
    out: Out<ncclComm_t>,
}

/// Makes an id that no other call makes.
pub(crate) fn unique_id() -> ncclUniqueId {
    let number = new_number();
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = time.map_or(0, |time| time.as_nanos());
    let text = format!("nccl-sim {} {number} {time}", std::process::id());
    let mut id: Id = [0; NCCL_UNIQUE_ID_BYTES];
    for (place, byte) in id.iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    let mut state = state();
    state.ids.insert(id, number);
    state.cliques.insert(number, Clique::default());
    ncclUniqueId {
        internal: id.map(|byte| byte as c_char),
    }
}

fn is_blocking(config: Config) -> Answer<bool> {
    let Config(Some(config)) = config else {
        return Ok(true);
    };
    if config.magic != NCCL_API_MAGIC {
        return invalid_argument("the config was not initialised");
    }
    match config.blocking {
        0 => Ok(false),
        1 | NCCL_CONFIG_UNDEF_INT => Ok(true),
        other => invalid_argument(format!("blocking is {other}")),
    }
}

/// Makes this rank's end of a communicator.
pub(crate) fn init(
    out: Out<ncclComm_t>,
    ranks: i32,
    id: &ncclUniqueId,
    rank: i32,
    config: Config,
) -> Answer<ncclResult_t> {
    grouped(|| {
        out.required()?;
        let is_blocking = is_blocking(config)?;
        let driver = driver()?;
        let (context, device) = driver.current()?;
        let loaded = launch::load(driver, context)?;
        let id: Id = id.internal.map(|byte| byte as _);
        let mut state = state();
        let Some(&clique) = state.ids.get(&id) else {
            let words = "the unique id is not of this library, or its ranks are all gone";
            words::fault(words.to_owned());
            return invalid_argument(words);
        };
        let place = match (usize::try_from(rank), usize::try_from(ranks)) {
            (Ok(rank), Ok(ranks)) if rank < ranks && ranks <= MAX_RANKS => (rank, ranks),
            _ => {
                let words = format!("there is no rank {rank} of {ranks}");
                let failure = invalid_argument(words);
                if let (Err(failure), Some(clique)) = (&failure, state.cliques.get_mut(&clique))
                    && !clique.is_complete()
                {
                    clique.fail(failure);
                }
                changed();
                return failure;
            }
        };
        let comm = Comm(new_number());
        let made = RankComm::new(clique, place, device, loaded, is_blocking);
        state.comms.insert(comm, made);
        out.write(comm.to_c())?;
        Ok(Job::Init(InitCall { comm, out }))
    })
}

impl InitCall {
    /// Joins the others. A failure is told by [`finish`](Self::finish).
    pub(crate) fn start(&self) {
        let mut state = state();
        let Some(made) = state.comms.get(&self.comm) else {
            return;
        };
        let (clique, rank, ranks, device) = (made.clique, made.rank, made.ranks, made.device);
        let Some(clique) = state.cliques.get_mut(&clique) else {
            return;
        };
        if let Err(failure) = clique.join(ranks, rank, device, self.comm)
            && let Some(made) = state.comms.get_mut(&self.comm)
        {
            made.failure = Some(failure);
        }
        changed();
    }

    /// The group failed before this rank had joined.
    pub(crate) fn cancel(&self) {
        state().comms.remove(&self.comm);
        // It was written once, so it is not null.
        let _ = self.out.write(std::ptr::null_mut());
    }

    /// Waits for the others, unless the communicator does not block.
    pub(crate) fn finish(&self) -> Answer<ncclResult_t> {
        let comm = self.comm;
        let mut locked = state();
        if !locked.comm(comm)?.is_blocking {
            return Ok(ncclResult_t::ncclInProgress);
        }
        let mut found: Option<Failure> = None;
        let mut locked = wait_until(locked, |state| {
            // An error of a rank that has joined comes after this call.
            found = state.join_error(comm);
            found.is_some() || state.is_joined(comm)
        });
        let Some(failure) = found else {
            locked.comm(comm)?.progress = Progress::Done;
            return Ok(ncclResult_t::ncclSuccess);
        };
        locked.remove(comm);
        drop(locked);
        self.out.write(std::ptr::null_mut())?;
        Err(failure)
    }
}
