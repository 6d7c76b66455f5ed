//! Test bodies for NCCL: ranks are threads of this process, or one thread drives all of them.

mod alone;
mod failures;
mod graphs;
mod memory;
mod ranks;

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::collective::{Communicator, CommunicatorBuilder, Nccl};
use cuda_mem::{Context, ErrorKind, MemoryPool, Stream};

use crate::environment::{Backend, Environment, Skip};

/// Long enough for a GPU that is busy, short enough for a test that hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// NCCL for the driver under test; a skip if there is none.
pub(crate) fn nccl(env: &Environment) -> Result<Nccl> {
    if env.backend == Backend::Gpu {
        return match Nccl::load() {
            Err(error) if error.kind() == ErrorKind::NcclMissing => {
                Err(Skip(error.to_string()).into())
            }
            other => Ok(other?),
        };
    }
    static SIMULATED: OnceLock<Result<Nccl, String>> = OnceLock::new();
    let open = || {
        let path = nccl_sim::library_path().context("libnccl_sim.so was not built")?;
        // SAFETY: it is the simulated NCCL, which behaves as NCCL does.
        anyhow::Ok(unsafe { Nccl::load_from(path) }?)
    };
    SIMULATED
        .get_or_init(|| open().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!("{error}"))
}

/// A rank, its stream, and a pool of its device.
struct Rank {
    communicator: Communicator,
    stream: Stream,
    pool: MemoryPool,
}

impl Rank {
    fn new(communicator: Communicator) -> Result<Self> {
        let stream = communicator.context().stream()?;
        let pool = MemoryPool::builder(&communicator.device()).build()?;
        Ok(Self {
            communicator,
            stream,
            pool,
        })
    }

    fn number(&self) -> usize {
        self.communicator.rank()
    }
}

/// The contexts of the first two devices.
fn contexts(env: &Environment) -> Result<[Context; 2]> {
    let devices = env.driver.devices()?;
    ensure!(devices.len() > 1, "there is one device");
    Ok([devices[0].primary_context()?, devices[1].primary_context()?])
}

/// Both ranks, driven by the calling thread.
fn both(env: &Environment) -> Result<[Rank; 2]> {
    let mut ranks = nccl(env)?
        .communicators(&contexts(env)?)
        .join()?
        .into_iter()
        .map(Rank::new)
        .collect::<Result<Vec<_>>>()?;
    let second = ranks.pop().context("two ranks")?;
    let first = ranks.pop().context("two ranks")?;
    Ok([first, second])
}

/// Runs a body for both ranks, each in a thread of its own. The limit is for waits of NCCL.
fn in_threads<T: Send>(
    env: &Environment,
    limit: Duration,
    body: impl Fn(Rank) -> Result<T> + Sync,
) -> Result<[T; 2]> {
    in_threads_as(env, |builder| builder.timeout(limit), body)
}

/// The same, with settings of the communicators.
fn in_threads_as<T: Send>(
    env: &Environment,
    settings: impl Fn(CommunicatorBuilder) -> CommunicatorBuilder + Sync,
    body: impl Fn(Rank) -> Result<T> + Sync,
) -> Result<[T; 2]> {
    let nccl = nccl(env)?;
    let id = nccl.unique_id()?;
    let contexts = contexts(env)?;
    let run = |number: usize| {
        let builder = nccl.communicator(&contexts[number], 2, number);
        body(Rank::new(settings(builder).join(&id)?)?).with_context(|| format!("rank {number}"))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        let first = run(0);
        let other = other.join().map_err(|_| anyhow!("rank 1 panicked"))?;
        Ok([first?, other?])
    })
}

/// `Ok` for an error of this kind.
fn refused<T>(answer: cuda_mem::Result<T>, kind: ErrorKind) -> Result<String> {
    match answer {
        Ok(_) => Err(anyhow!("it was not refused")),
        Err(error) => {
            ensure!(error.kind() == kind, "{:?}: {error}", error.kind());
            Ok(error.to_string())
        }
    }
}
