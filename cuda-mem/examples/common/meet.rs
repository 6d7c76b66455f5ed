//! How ranks get the id of their communicator: rank 0 makes it and sends it to whoever connects.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cuda_mem::collective::{Nccl, UniqueId};

/// How often the other ranks try until rank 0 listens.
const PAUSE: Duration = Duration::from_millis(20);

/// Rank 0's socket.
pub(crate) struct Meeting(TcpListener);

impl Meeting {
    pub(crate) fn open(at: Option<SocketAddr>) -> Result<Self> {
        let at = at.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let listener = TcpListener::bind(at).with_context(|| format!("cannot listen at {at}"))?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    pub(crate) fn address(&self) -> Result<SocketAddr> {
        Ok(self.0.local_addr()?)
    }

    /// Makes an id and gives it to all other ranks. An error of `check` ends the wait.
    pub(crate) fn give(
        self,
        nccl: Nccl,
        ranks: usize,
        limit: Duration,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<UniqueId> {
        let (id, start) = (nccl.unique_id()?, Instant::now());
        let mut missing = ranks - 1;
        while missing > 0 {
            match self.0.accept() {
                Ok((mut stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.write_all(&id.to_bytes())?;
                    missing -= 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    check()?;
                    if start.elapsed() > limit {
                        let at = self.address()?;
                        bail!("{missing} of {ranks} ranks missing at {at} after {limit:?}");
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(id)
    }
}

/// The id that rank 0 gives.
pub(crate) fn receive(at: SocketAddr, limit: Duration) -> Result<UniqueId> {
    let start = Instant::now();
    loop {
        match TcpStream::connect_timeout(&at, limit) {
            Ok(mut stream) => {
                let mut bytes = [0; 128];
                stream.set_read_timeout(Some(limit))?;
                let read = stream.read_exact(&mut bytes);
                read.with_context(|| format!("rank 0 at {at} sent no id"))?;
                return Ok(UniqueId::from_bytes(bytes));
            }
            Err(_) if start.elapsed() < limit => std::thread::sleep(PAUSE),
            Err(error) => return Err(error).with_context(|| format!("rank 0 is not at {at}")),
        }
    }
}
