//! Two devices: on two GPUs, or on two simulated ones. With one GPU there is nothing to test here.

use std::process::{Command, ExitCode};

use anyhow::{Result, bail, ensure};
use cuda_mem::{Access, CaptureMode, ErrorKind, Graph, Instantiate, MemoryPool};
use cuda_mem_tests::lab::{Backend, Lab};
use cuda_mem_tests::run::{self, Options, Test};
use cuda_mem_tests::{arena, contract, host, managed, modules, peers, placement, vmm};

/// What is simulated in this process, which runs the tests themselves.
const CHILD: &str = "CUDA_MEM_TEST_DEVICES_CHILD";

mod simulated {
    use super::*;

    fn in_a_child(what: &str, knob: (&str, &str), test: &str) -> Result<()> {
        let output = Command::new(std::env::current_exe()?)
            .env(CHILD, what)
            .env("CUDA_MEM_TEST_BACKEND", "sim")
            .env("CUDA_SIM_DEVICES", "2")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env(knob.0, knob.1)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success() && text.contains(" 0 ignored"),
            "{text}"
        );
        ensure!(text.contains(test), "{test} did not run: {text}");
        Ok(())
    }

    /// Also the contract, which must hold with a second device beside.
    pub(crate) fn everything_holds_with_two_devices(_: &Lab) -> Result<()> {
        in_a_child("peers", ("CUDA_SIM_PEERS", "1"), "what_is_taken_is_gone")
    }

    pub(crate) fn devices_that_are_no_peers_are_told(_: &Lab) -> Result<()> {
        in_a_child(
            "strangers",
            ("CUDA_SIM_PEERS", "0"),
            "a_stranger_is_refused",
        )
    }
}

mod strangers {
    use super::*;

    pub(crate) fn a_stranger_is_refused_before_anything_is_changed(lab: &Lab) -> Result<()> {
        let devices = lab.driver.devices()?;
        ensure!(!devices[1].can_access_peer(&devices[0])?);
        let pool = MemoryPool::builder(&devices[0]).build()?;
        let Err(error) = pool.set_access(&[(devices[1], Access::ReadWrite)]) else {
            bail!("a stranger was given access");
        };
        ensure!(
            error.kind() == ErrorKind::NotSupported && error.code().is_none(),
            "{error}"
        );
        ensure!(error.to_string().contains("no peers"), "{error}");
        ensure!(pool.access(&devices[1])? == Access::None);
        let built = MemoryPool::builder(&devices[0])
            .accessible_from(&devices[1])
            .build();
        ensure!(built.is_err_and(|error| error.kind() == ErrorKind::NotSupported));
        ensure!(
            lab.control()?.live().pools == 1,
            "the half-made pool is gone"
        );
        Ok(())
    }

    pub(crate) fn strangers_copy_all_the_same(lab: &Lab) -> Result<()> {
        let devices = lab.driver.devices()?;
        let here = devices[0].primary_context()?.stream()?;
        let there = devices[1].primary_context()?.stream()?;
        let source = MemoryPool::builder(&devices[0])
            .build()?
            .alloc_from(&here, &[1_u8, 2, 3])?;
        let mut target = MemoryPool::builder(&devices[1])
            .build()?
            .alloc::<u8>(&there, 3)?;
        target.copy_from_buffer(&source)?;
        ensure!(target.to_vec()? == [1, 2, 3]);
        Ok(())
    }

    /// Whichever side the stranger is on: the stream of the launch, or a buffer that the graph has adopted. The driver
    /// hears of neither launch.
    pub(crate) fn a_graph_touches_no_memory_of_a_stranger(lab: &Lab) -> Result<()> {
        let devices = lab.driver.devices()?;
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
        let control = lab.control()?;
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
        let left = graph.alloc::<u8>(3, &[])?.leave();
        let mut exec = graph.instantiate(Instantiate::Plain)?;
        control.reset();
        refused(exec.launch(&there))?;
        ensure!(exec.left(&left).is_err());
        ensure!(lab.control()?.reports().is_empty());
        Ok(())
    }
}

/// What needs two devices.
fn of_two() -> Vec<Test> {
    let mut all = peers::all();
    all.extend(modules::of_two());
    all.extend(vmm::of_two());
    all.extend(managed::of_two());
    all.extend(host::of_two());
    all.extend(placement::of_two());
    all.extend(arena::of_two());
    all
}

fn main() -> ExitCode {
    // One at a time: one of them looks at which contexts are active.
    let serial = Options {
        serial: true,
        ..Options::default()
    };
    match std::env::var(CHILD).as_deref() {
        Ok("strangers") => {
            let tests = cuda_mem_tests::tests! {
                strangers: a_stranger_is_refused_before_anything_is_changed,
                    strangers_copy_all_the_same, a_graph_touches_no_memory_of_a_stranger;
            };
            return run::main(&tests, serial);
        }
        Ok(_) => {
            let mut all = contract::all();
            all.extend(of_two());
            return run::main(&all, serial);
        }
        Err(_) => {}
    }
    match Lab::get() {
        Ok(lab) if lab.backend == Backend::Gpu => {
            if lab.driver.device_count().unwrap_or(0) < 2 {
                println!("one GPU: what needs two is not tested");
                return run::main(&[], serial);
            }
            run::main(&of_two(), serial)
        }
        _ => {
            let tests = cuda_mem_tests::tests! {
                simulated: everything_holds_with_two_devices, devices_that_are_no_peers_are_told;
            };
            run::main(&tests, Options::default())
        }
    }
}
