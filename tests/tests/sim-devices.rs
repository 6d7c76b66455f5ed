//! Two devices: what goes together is told apart from what does not, before the driver is asked.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{Device, ErrorKind, MemoryPool};
use cuda_mem_tests::contract;
use cuda_mem_tests::lab::Lab;
use cuda_mem_tests::run::{self, Options};

/// In this process there are two devices, and the tests run.
const CHILD: &str = "CUDA_MEM_TEST_DEVICES_CHILD";

mod devices {
    use super::*;

    fn both(lab: &Lab) -> Result<[Device; 2]> {
        let devices = lab.driver.devices()?;
        devices.try_into().ok().context("there are not two devices")
    }

    pub(crate) fn a_pool_wants_a_stream_of_its_device(lab: &Lab) -> Result<()> {
        let [first, second] = both(lab)?;
        let pool = MemoryPool::builder(&first).build()?;
        let stream = second.primary_context()?.stream()?;
        let Err(error) = pool.alloc::<u8>(&stream, 10) else {
            anyhow::bail!("a stream of another device was taken");
        };
        ensure!(error.kind() == ErrorKind::InvalidValue && error.code().is_none());
        ensure!(error.to_string().contains("Device(1)"), "{error}");
        Ok(())
    }

    pub(crate) fn a_buffer_is_copied_to_another_device_but_not_lent(lab: &Lab) -> Result<()> {
        let [first, second] = both(lab)?;
        let (here, there) = (
            first.primary_context()?.stream()?,
            second.primary_context()?.stream()?,
        );
        let mut near = MemoryPool::builder(&first)
            .build()?
            .alloc_from(&here, &[1_u8; 10])?;
        let far = MemoryPool::builder(&second)
            .build()?
            .alloc_from(&there, &[2_u8; 10])?;
        ensure!(
            near.on(&there)
                .is_err_and(|error| error.kind() == ErrorKind::InvalidValue)
        );
        // The copy itself: the contract of two devices.
        let refused = near.copy_from_buffer(&far);
        ensure!(refused.is_err() && near.to_vec()? == [1; 10]);
        Ok(())
    }

    pub(crate) fn streams_of_two_devices_wait_for_each_other(lab: &Lab) -> Result<()> {
        let [first, second] = both(lab)?;
        let (here, there) = (
            first.primary_context()?.stream()?,
            second.primary_context()?.stream()?,
        );
        let held = cuda_mem_tests::hold::hold(&here)?;
        there.wait_for(&here)?;
        ensure!(!there.is_done()?);
        drop(held);
        there.synchronize()?;
        Ok(())
    }

    pub(crate) fn one_device_at_work_leaves_the_other_alone(lab: &Lab) -> Result<()> {
        let [first, second] = both(lab)?;
        let stream = second.primary_context()?.stream()?;
        let pool = MemoryPool::builder(&second).build()?;
        ensure!(pool.alloc_from(&stream, &[3_u8; 10])?.to_vec()? == [3; 10]);
        ensure!(second.has_active_context()? && !first.has_active_context()?);
        drop((stream, pool));
        ensure!(!second.has_active_context()?);
        Ok(())
    }
}

fn tests() -> Vec<run::Test> {
    cuda_mem_tests::tests! {
        devices: a_pool_wants_a_stream_of_its_device, a_buffer_is_copied_to_another_device_but_not_lent,
            streams_of_two_devices_wait_for_each_other, one_device_at_work_leaves_the_other_alone;
    }
}

mod spawned {
    use super::*;

    /// Also the contract, which must hold with a second device beside.
    pub(crate) fn everything_holds_with_two_devices(_: &Lab) -> Result<()> {
        let output = Command::new(std::env::current_exe()?)
            .env(CHILD, "1")
            .env("CUDA_SIM_DEVICES", "2")
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success() && text.contains(" 0 ignored"),
            "{text}"
        );
        ensure!(
            text.contains("one_device_at_work_leaves_the_other_alone"),
            "{text}"
        );
        Ok(())
    }
}

fn main() -> ExitCode {
    if std::env::var_os(CHILD).is_some() {
        let mut all = contract::all();
        all.extend(tests());
        // One at a time: one of them looks at which contexts are active.
        let options = Options {
            serial: true,
            sim_only: true,
            ..Options::default()
        };
        return run::main(&all, options);
    }
    let tests = cuda_mem_tests::tests! { spawned: everything_holds_with_two_devices; };
    run::main(
        &tests,
        Options {
            sim_only: true,
            ..Options::default()
        },
    )
}
