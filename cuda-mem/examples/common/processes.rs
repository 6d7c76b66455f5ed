//! The other ranks as processes of this program.

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

/// Processes of the ranks from 1 on. They end with this.
#[derive(Default)]
pub(crate) struct OtherRanks(Vec<Child>);

/// Ranks that miss another one notice that by themselves, and print why they end. This is how long they have for that.
const GRACE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

impl OtherRanks {
    /// This program again for each rank, with the same options.
    pub(crate) fn start(ranks: usize, at: SocketAddr) -> Result<Self> {
        let mut others = Self::default();
        for rank in 1..ranks {
            let own = std::env::args_os().skip(1);
            let mut command = Command::new(std::env::current_exe()?);
            command
                .args(own.filter(|option| option != "--processes"))
                .args(["--ranks", &ranks.to_string(), "--rank", &rank.to_string()])
                .args(["--at", &at.to_string()]);
            others.0.push(command.spawn()?);
        }
        Ok(others)
    }

    /// Whether all still run, as they do until they have met.
    pub(crate) fn check(&mut self) -> Result<()> {
        for (at, process) in self.0.iter_mut().enumerate() {
            if let Some(status) = process.try_wait()? {
                bail!("the process of rank {} has ended: {status}", at + 1);
            }
        }
        Ok(())
    }

    /// Waits until all have ended.
    pub(crate) fn wait(mut self) -> Result<()> {
        for (at, process) in self.0.iter_mut().enumerate() {
            let status = process.wait()?;
            ensure!(status.success(), "the process of rank {}: {status}", at + 1);
        }
        Ok(())
    }
}

impl Drop for OtherRanks {
    fn drop(&mut self) {
        let start = Instant::now();
        for process in &mut self.0 {
            while matches!(process.try_wait(), Ok(None)) && start.elapsed() < GRACE {
                std::thread::sleep(PAUSE);
            }
            // It has ended already unless it hangs.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
