//! Ranks: which there are, and what each of them runs.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use cuda_mem::collective::{Communicator, Nccl, UniqueId};
use cuda_mem::sys::nccl::NCCL_LIBRARY_VARIABLE;
use cuda_mem::{Driver, Stream};
use cuda_mem_console::{Backend, Misuse};

use super::failure;
use super::meet::{self, Meeting};
use super::processes::OtherRanks;

/// Which ranks there are, and where.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RankOptions {
    /// How many ranks there are; as many as GPUs, if not given
    // The last one counts: a process of another rank has those of its parent too.
    #[arg(long, value_name = "N", overrides_with = "ranks")]
    ranks: Option<usize>,
    /// A process for each rank, instead of a thread
    #[arg(long, conflicts_with = "rank")]
    processes: bool,
    /// This process is one rank, from 0 on; start the others elsewhere
    #[arg(long, value_name = "R", requires_all = ["ranks", "at"])]
    rank: Option<usize>,
    /// Where rank 0 waits for the others
    #[arg(long, value_name = "ADDRESS:PORT", overrides_with = "at")]
    at: Option<SocketAddr>,
    /// NCCL itself waits for other ranks, without a limit
    #[arg(long)]
    blocking: bool,
    /// How many seconds to wait for other ranks
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

impl RankOptions {
    /// Whether rank 0 is in this process.
    pub(crate) fn has_first(&self) -> bool {
        self.rank.unwrap_or(0) == 0
    }

    pub(crate) fn is_blocking(&self) -> bool {
        self.blocking
    }

    /// How many ranks there are.
    pub(crate) fn count(&self, driver: Driver) -> Result<usize> {
        let ranks = self.ranks.map_or_else(|| driver.device_count(), Ok)?;
        if ranks == 0 {
            return Err(Misuse("--ranks 0: at least one is needed".to_owned()).into());
        }
        if let Some(rank) = self.rank.filter(|rank| *rank >= ranks) {
            let text = format!("--rank {rank}: there are {ranks} ranks, which count from 0");
            return Err(Misuse(text).into());
        }
        Ok(ranks)
    }

    /// Runs `work` for each rank, or for the one that this process is. Returns what rank 0 has found, if it is in this process.
    pub(crate) fn run<T: Send>(
        &self,
        nccl: Nccl,
        driver: Driver,
        work: impl Fn(&Communicator) -> Result<T> + Sync,
    ) -> Result<Option<T>> {
        let ranks = self.count(driver)?;
        let limit = Duration::from_secs(self.timeout);
        let run = |rank, id: &UniqueId| {
            let joined = self.join(nccl, driver, (rank, ranks), id);
            joined
                .and_then(|communicator| communicator.abort_on_error(&work))
                .with_context(|| format!("rank {rank}"))
        };
        match self.rank {
            Some(rank) => {
                let at = self.at.context("--at says where rank 0 waits")?;
                let id = if rank == 0 {
                    Meeting::open(Some(at))?.give(nccl, ranks, limit, || Ok(()))?
                } else {
                    meet::receive(at, limit)?
                };
                let found = run(rank, &id)?;
                Ok((rank == 0).then_some(found))
            }
            None if self.processes => {
                if ranks > 1 && nccl_sim::Control::open(nccl.library_path()).is_ok() {
                    let text = "--processes: the simulated NCCL is of one process; leave it out, and ranks are threads";
                    return Err(Misuse(text.to_owned()).into());
                }
                let meeting = Meeting::open(self.at)?;
                let mut others = OtherRanks::start(ranks, meeting.address()?)?;
                let id = meeting.give(nccl, ranks, limit, || others.check())?;
                let found = run(0, &id)?;
                others.wait()?;
                Ok(Some(found))
            }
            None => in_threads(ranks, &nccl.unique_id()?, run).map(Some),
        }
    }

    fn join(
        &self,
        nccl: Nccl,
        driver: Driver,
        (rank, ranks): (usize, usize),
        id: &UniqueId,
    ) -> Result<Communicator> {
        let devices = driver.devices()?;
        // On each of several machines, ranks count on.
        let device = rank.checked_rem(devices.len()).map(|at| devices[at]);
        let context = device.context("there is no device")?.primary_context()?;
        let builder = nccl.communicator(&context, ranks, rank);
        let builder = builder.blocking(self.blocking);
        Ok(builder
            .timeout(Duration::from_secs(self.timeout))
            .join(id)?)
    }
}

/// Opens NCCL. On the simulated driver it is the simulated one, since the real one needs GPUs.
pub(crate) fn open_nccl(backend: &Backend) -> Result<Nccl> {
    let is_chosen = std::env::var_os(NCCL_LIBRARY_VARIABLE).is_some_and(|path| !path.is_empty());
    if !backend.simulated || is_chosen {
        return Ok(Nccl::load()?);
    }
    let path = nccl_sim::library_path()
        .context("the driver is simulated, and libnccl_sim.so was not found beside the program")?;
    // SAFETY: this is the simulated NCCL of this workspace, which behaves as NCCL does.
    Ok(unsafe { Nccl::load_from(path) }?)
}

/// Waits for the stream. After a failure, memory can be freed only once the stream no longer waits for other ranks.
pub(crate) fn synchronize(communicator: &Communicator, stream: &Stream) -> Result<()> {
    Ok(communicator.abort_on_error(|communicator| communicator.synchronize(stream))?)
}

fn in_threads<T: Send>(
    ranks: usize,
    id: &UniqueId,
    run: impl Fn(usize, &UniqueId) -> Result<T> + Sync,
) -> Result<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let others: Vec<_> = (1..ranks)
            .map(|rank| scope.spawn(move || run(rank, id).map(drop)))
            .collect();
        let first = run(0, id);
        let ends = others.into_iter().map(|other| {
            let end = other.join();
            end.unwrap_or_else(|_| Err(anyhow!("a rank panicked")))
        });
        let (found, mut errors) = match first {
            Ok(found) => (Some(found), Vec::new()),
            Err(error) => (None, vec![error]),
        };
        errors.extend(ends.filter_map(Result::err));
        match (failure::cause(errors), found) {
            (None, Some(found)) => Ok(found),
            (error, _) => Err(error.unwrap_or_else(|| anyhow!("rank 0 found nothing"))),
        }
    })
}
