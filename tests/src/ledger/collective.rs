//! Communicators and registrations are listed while they live.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::Resource;
use cuda_mem::collective::RegisteredResource;
use cuda_mem::ledger::{Ledger, LedgerKind, LedgerLevel};

use super::{begin, sum};
use crate::collective::nccl;
use crate::environment::Environment;

#[apply(case)]
fn a_registration_that_is_left_is_found(env: &Environment) -> Result<()> {
    begin(LedgerLevel::Origins);
    let context = env.device()?.primary_context()?;
    let stream = context.stream()?;
    let communicators = nccl(env)?.communicators(&[context]).join()?;
    ensure!(sum(LedgerKind::Communicator) == (1, 0));
    let memory = RegisteredResource::builder(&communicators[0]);
    // Named twice, it is one all the same.
    let memory = memory.and_with(&communicators[0]).build()?;
    let memory = Resource::new(memory);
    let first = memory.alloc::<u8>(&stream, 100)?;
    let second = memory.alloc::<u8>(&stream, 100)?;
    ensure!(sum(LedgerKind::Registration) == (2, 0));
    drop(first);
    ensure!(sum(LedgerKind::Registration) == (1, 0));
    let report = Ledger::report();
    let left = report.of(LedgerKind::Registration).next();
    let origin = left.and_then(|group| group.origin);
    let origin = origin.context("where it was made is not known")?;
    ensure!(origin.file() == file!(), "{origin}");
    drop((second, memory));
    ensure!(sum(LedgerKind::Registration) == (0, 0));
    for communicator in communicators {
        communicator.close()?;
    }
    ensure!(sum(LedgerKind::Communicator) == (0, 0));
    Ledger::enable(LedgerLevel::Off);
    Ok(())
}
