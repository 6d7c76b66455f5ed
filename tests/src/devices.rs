//! Two devices: on two GPUs, or on two simulated ones. With one GPU there is nothing to test here.

use anyhow::{Result, bail, ensure};
use cuda_mem::interop::{CaptureMode, Graph, Instantiate};
use cuda_mem::{Access, ErrorKind, MemoryPool};

use crate::environment::Environment;
use crate::own_process;

mod simulated {
    use super::*;

    fn in_a_child(what: &str, setting: (&str, &str), test: &str) -> Result<()> {
        let mut command = own_process::command(what)?;
        command
            .env("CUDA_MEM_TEST_BACKEND", "sim")
            .env("CUDA_SIM_DEVICES", "2")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env(setting.0, setting.1);
        let output = own_process::started(|| command.output())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let device = Environment::get_sim()?.device()?;
        let skips_nothing = text.contains(" 0 ignored");
        let may_skip = !device.capabilities()?.concurrent_managed_access;
        ensure!(
            output.status.success() && (skips_nothing || may_skip),
            "{text}"
        );
        ensure!(text.contains(test), "{test} did not run: {text}");
        Ok(())
    }

    /// Also the contract, which must hold with a second device beside.
    #[apply(case_of_sim)]
    fn everything_holds_with_two_devices(_: &Environment) -> Result<()> {
        in_a_child(
            "two-devices",
            ("CUDA_SIM_PEERS", "1"),
            "what_is_taken_is_gone",
        )
    }

    #[apply(case_of_sim)]
    fn ranks_of_two_devices_work_together(_: &Environment) -> Result<()> {
        in_a_child(
            "two-ranks",
            ("CUDA_SIM_PEERS", "1"),
            "threads_sum_what_both_have",
        )
    }

    #[apply(case_of_sim)]
    fn devices_that_are_no_peers_are_told(_: &Environment) -> Result<()> {
        in_a_child(
            "strangers",
            ("CUDA_SIM_PEERS", "0"),
            "a_stranger_is_refused",
        )
    }
}

mod strangers {
    use super::*;

    #[apply(case_staged)]
    fn a_stranger_is_refused_before_anything_is_changed(env: &Environment) -> Result<()> {
        let devices = env.driver.devices()?;
        ensure!(!devices[1].can_access_peer(&devices[0])?);
        let pool = MemoryPool::builder(&devices[0]).build()?;
        let Err(error) = pool.set_access([(devices[1], Access::ReadWrite)]) else {
            bail!("a stranger was given access");
        };
        ensure!(
            error.kind() == ErrorKind::NotSupported && error.code().is_none(),
            "{error}"
        );
        ensure!(error.to_string().contains("no peers"), "{error}");
        ensure!(pool.access(&devices[1])? == Access::None);
        let built = MemoryPool::builder(&devices[0])
            .accessible_from([&devices[1]])
            .build();
        ensure!(built.is_err_and(|error| error.kind() == ErrorKind::NotSupported));
        // SAFETY: this is the only thread.
        unsafe { MemoryPool::destroy_spares() }?;
        ensure!(
            env.control()?.live().pools == 1,
            "the half-made pool is gone"
        );
        Ok(())
    }

    #[apply(case_staged)]
    fn strangers_copy_all_the_same(env: &Environment) -> Result<()> {
        let devices = env.driver.devices()?;
        let here = devices[0].primary_context()?.stream()?;
        let there = devices[1].primary_context()?.stream()?;
        let source = MemoryPool::builder(&devices[0])
            .build()?
            .alloc_from(&here, &[1_u8, 2, 3])?;
        let mut target = MemoryPool::builder(&devices[1])
            .build()?
            .alloc::<u8>(&there, 3)?;
        target.copy_from_device(&source)?;
        ensure!(target.to_vec()? == [1, 2, 3]);
        Ok(())
    }

    /// Whichever side the stranger is on: the stream of the launch, or a buffer that the graph has adopted. The driver
    /// hears of neither launch.
    #[apply(case_staged)]
    fn a_graph_touches_no_memory_of_a_stranger(env: &Environment) -> Result<()> {
        let devices = env.driver.devices()?;
        let contexts = [devices[0].primary_context()?, devices[1].primary_context()?];
        let [here, there] = [contexts[0].stream()?, contexts[1].stream()?];
        let pools = [&devices[0], &devices[1]].map(|device| MemoryPool::builder(device).build());
        let [near, far] = pools;
        let (near, far) = (near?, far?);
        let adopting = |source, target| -> Result<_> {
            let mut graph = Graph::new(&contexts[0])?;
            let (source, target) = (graph.adopt(source), graph.adopt(target));
            let mut memory = graph.alloc::<u8>(3, &[])?;
            graph.copy_in(&mut memory, &source, &[])?;
            graph.copy_out(&mut memory, &target, &[])?;
            graph.free(memory, &[])?;
            Ok((graph.instantiate(Instantiate::Plain)?, target))
        };
        let control = env.control()?;
        let refused = |launched: cuda_mem::Result<()>| -> Result<()> {
            let Err(error) = launched else {
                bail!("it was launched");
            };
            let is_ours = error.kind() == ErrorKind::InvalidValue && error.code().is_none();
            ensure!(is_ours && error.to_string().contains("graph"), "{error}");
            ensure!(control.calls("cuGraphLaunch") == 0);
            Ok(())
        };

        let source = near.alloc_from(&here, &[1_u8, 2, 3])?;
        let (mut exec, target) = adopting(source, near.alloc_zeroed(&here, 3)?)?;
        control.reset();
        refused(exec.launch(&there))?;
        exec.launch(&here)?;
        ensure!(exec.buffer(&target)?.to_vec()? == [1, 2, 3]);

        let mut graph = Graph::new(&contexts[0])?;
        let target = graph.adopt(far.alloc_zeroed::<u8>(&there, 3)?);
        let mut memory = graph.alloc::<u8>(3, &[])?;
        control.reset();
        refused(graph.copy_out(&mut memory, &target, &[]).map(drop))?;
        ensure!(control.calls("cuGraphAddMemcpyNode") == 0);
        graph.free(memory, &[])?;
        let mut exec = graph.instantiate(Instantiate::Plain)?;
        refused(exec.launch(&here))?;
        refused(exec.launch(&there))?;
        ensure!(exec.buffer(&target)?.to_vec()? == [0; 3]);

        let buffer = far.alloc_from(&there, &[4_u8; 3])?;
        let (graph, (target, copied)) = here.capture(CaptureMode::Relaxed, |capture| {
            let target = capture.adopt(buffer);
            let memory = capture.alloc::<u8>(3)?;
            Ok((target, memory.copy_out(&target)))
        })?;
        refused(copied)?;
        let mut exec = graph.instantiate(Instantiate::Plain)?;
        refused(exec.launch(&here))?;
        ensure!(exec.buffer(&target)?.to_vec()? == [4; 3]);

        let mut graph = Graph::new(&contexts[0])?;
        let left = graph.alloc::<u8>(3, &[])?.persist();
        let mut exec = graph.instantiate(Instantiate::Plain)?;
        control.reset();
        refused(exec.launch(&there))?;
        ensure!(exec.left(&left).is_err());
        ensure!(env.control()?.reports().is_empty());
        Ok(())
    }
}
