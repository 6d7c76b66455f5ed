//! The end of a process, and of things that others own: each in a process of its own, on the driver
//! that the other tests use. No crash, no hang, no panic, and what could not be freed is counted.

mod deferred;
mod hooks;

use std::cell::RefCell;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::base::{DropCounts, drop_counts};
use cuda_mem::mapped::PinnedBuffer;
use cuda_mem::{Arena, DeviceBuffer, ErrorKind, MemoryResource as _, Resource, Stream};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::foreign::synchronize;
use cuda_mem_tests::hold::hold;
use cuda_mem_tests::own_process;
use cuda_mem_tests::resources::subjects;

/// Names the scenario that this process runs.
const SCENARIO: &str = "CUDA_MEM_TEST_SCENE";

/// Longer than any scenario takes, also where starting a driver takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a scenario's process printed and how it ended.
#[derive(Debug)]
struct End {
    code: Option<i32>,
    output: String,
}

/// Runs a scenario in a process of its own.
fn run_scenario(env: &Environment, scenario: &str) -> Result<End> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .env(SCENARIO, scenario)
        .env("CUDA_MEM_TEST_BACKEND", env.backend.name());
    let output =
        own_process::output_within(&mut command, PATIENCE).with_context(|| scenario.to_owned())?;
    let text = [output.stdout, output.stderr].concat();
    Ok(End {
        code: output.status.code(),
        output: String::from_utf8_lossy(&text).into_owned(),
    })
}

/// The scenario must end with 0 and say `line`.
fn ends_well(env: &Environment, scenario: &str, line: &str) -> Result<()> {
    let end = run_scenario(env, scenario)?;
    ensure!(
        end.code == Some(0) && end.output.lines().any(|found| found == line),
        "{scenario}: {end:?}, and not {line:?}"
    );
    Ok(())
}

mod process {
    use super::*;

    #[apply(case)]
    fn a_static_keeps_its_buffer_to_the_end(env: &Environment) -> Result<()> {
        ends_well(env, "static", "kept")
    }

    #[apply(case)]
    fn a_thread_local_of_the_main_thread_frees_or_counts(env: &Environment) -> Result<()> {
        env.not_on_windows("the values of the main thread are not dropped there")?;
        ends_well(env, "main_thread_local", "at the end: 0 failures")
    }

    #[apply(case)]
    fn a_thread_local_of_a_thread_frees_when_that_ends(env: &Environment) -> Result<()> {
        ends_well(env, "thread_local", "used 0, 0 failures, 0 too late")
    }

    #[apply(case)]
    fn a_drop_after_the_driver_has_shut_down_is_harmless(env: &Environment) -> Result<()> {
        let line = "after the driver: 0 failures, 0 waiting";
        ends_well(env, "after_the_driver", line)
    }

    #[apply(case)]
    fn leaving_while_threads_allocate_does_not_hang(env: &Environment) -> Result<()> {
        ends_well(env, "busy_threads", "leaving")
    }

    #[apply(case)]
    fn a_panic_frees_what_it_unwinds(env: &Environment) -> Result<()> {
        let end = run_scenario(env, "panic")?;
        ensure!(
            end.code == Some(101) && end.output.contains("on purpose"),
            "{end:?}"
        );
        ensure!(end.output.contains("unwound: used 0"), "{end:?}");
        Ok(())
    }

    #[apply(case)]
    fn a_panic_in_a_hook_does_not_spread(env: &Environment) -> Result<()> {
        ends_well(env, "hook", "0 panics came out")
    }

    #[apply(case)]
    fn a_hook_may_use_the_arena_that_it_is_told_of(env: &Environment) -> Result<()> {
        ends_well(env, "arena_in_a_hook", "told: true, trimmed: true")
    }

    /// Not on a GPU: whether its driver bears such an end is another question.
    #[apply(case_of_sim)]
    fn the_main_thread_does_not_wait_for_its_own_stream_at_its_end(
        env: &Environment,
    ) -> Result<()> {
        ends_well(env, "own_stream", "leaving")
    }
}

mod others {
    use super::*;

    #[apply(case)]
    fn a_context_that_somebody_reset_is_a_typed_error(env: &Environment) -> Result<()> {
        ends_well(env, "reset", "typed errors, 0 failures")
    }

    #[apply(case)]
    fn a_context_that_somebody_released_is_a_typed_error(env: &Environment) -> Result<()> {
        ends_well(env, "released", "typed errors, 0 failures")
    }
}

mod waiting {
    use super::*;

    #[apply(case)]
    fn an_idle_stream_is_synchronised_while_the_rest_of_its_context_ends(
        env: &Environment,
    ) -> Result<()> {
        ends_well(env, "shared_context", "synchronised, 0 wait, 0 failures")
    }

    #[apply(case)]
    fn an_idle_stream_is_synchronised_while_a_pool_of_an_ended_context_is_in_use(
        env: &Environment,
    ) -> Result<()> {
        let line = "synchronised, 1 and then 0 wait, 0 failures";
        ends_well(env, "pool_in_use", line)
    }

    #[apply(case)]
    fn an_arena_ends_inside_a_call_of_its_own_upstream(env: &Environment) -> Result<()> {
        ends_well(env, "inside_deallocate", "given back, 0 wait, 0 failures")
    }
}

mod resources {
    use super::*;

    /// Not on a GPU: there, the handles of a context that was reset dangle inside the driver, and any call with one may
    /// crash (R180).
    #[apply(case_of_sim)]
    fn buffers_of_every_resource_survive_the_loss_of_their_context(
        env: &Environment,
    ) -> Result<()> {
        ends_well(env, "resources_reset", "every resource went on, 0 failures")
    }
}

/// What the children run.
mod scenarios {
    use super::*;

    static KEPT: OnceLock<Mutex<DeviceBuffer<u8>>> = OnceLock::new();

    thread_local! {
        static OWN: RefCell<Option<Last>> = const { RefCell::new(None) };
    }

    /// Says at its end how many drops have failed, after its buffer is gone.
    struct Last(Option<DeviceBuffer<u8>>);

    impl Drop for Last {
        fn drop(&mut self) {
            drop(self.0.take());
            println!("at the end: {} failures", drop_counts().failures);
        }
    }

    pub(super) fn run(scenario: &str, env: &'static Environment) -> Result<()> {
        match scenario {
            "static" => keep_in_a_static(env),
            "own_stream" => super::deferred::leave_with_a_busy_stream(env),
            "main_thread_local" => {
                let last = Last(Some(env.pool()?.alloc_zeroed(&env.stream()?, 1000)?));
                OWN.with(|own| own.replace(Some(last)));
                Ok(())
            }
            "thread_local" => keep_in_a_thread(env),
            "after_the_driver" => drop_after_the_driver(env),
            "busy_threads" => leave_in_the_middle(env),
            "panic" => panic_with_a_buffer(env),
            "hook" => hooks::panic_in_a_hook(env),
            "arena_in_a_hook" => hooks::use_an_arena_in_a_hook(env),
            "reset" => lose_the_context(env, true),
            "released" => lose_the_context(env, false),
            "resources_reset" => lose_the_context_of_resources(env),
            "shared_context" => super::deferred::end_beside_an_idle_stream(env),
            "pool_in_use" => super::deferred::end_with_a_pool_in_use(env),
            "inside_deallocate" => super::deferred::end_inside_deallocate(env),
            other => bail!("no scenario {other:?}"),
        }
    }

    fn keep_in_a_static(env: &Environment) -> Result<()> {
        let buffer = env.pool()?.alloc_zeroed(&env.stream()?, 1000)?;
        KEPT.get_or_init(|| Mutex::new(buffer));
        println!("kept");
        Ok(())
    }

    fn keep_in_a_thread(env: &Environment) -> Result<()> {
        let (pool, stream) = (env.pool()?, env.stream()?);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let last = Last(Some(pool.alloc_zeroed(&stream, 1000)?));
                OWN.with(|own| own.replace(Some(last)));
                anyhow::Ok(())
            });
            thread.join().map_err(|_| anyhow::anyhow!("panicked"))?
        })?;
        // A scope may end before the thread's own values are gone; the free says when.
        let began = Instant::now();
        while pool.stats()?.used.current > 0 && began.elapsed() < PATIENCE / 2 {
            std::thread::yield_now();
        }
        let counts = drop_counts();
        println!(
            "used {}, {} failures, {} too late",
            pool.stats()?.used.current,
            counts.failures,
            counts.too_late
        );
        Ok(())
    }

    static LATE: Mutex<Option<(Last, PinnedBuffer<u8>)>> = Mutex::new(None);

    extern "C" fn drop_late() {
        if let Ok(mut late) = LATE.lock() {
            drop(late.take());
            let DropCounts {
                failures, waiting, ..
            } = drop_counts();
            println!("after the driver: {failures} failures, {waiting} waiting");
        }
    }

    /// `main` registered [`drop_late`] before the driver was loaded, so it runs after what the
    /// driver has registered.
    fn drop_after_the_driver(env: &Environment) -> Result<()> {
        let buffer = env.pool()?.alloc_zeroed(&env.stream()?, 1000)?;
        let late = (Last(Some(buffer)), env.context()?.pinned(1000)?);
        *LATE.lock().map_err(|_| anyhow::anyhow!("poisoned"))? = Some(late);
        Ok(())
    }

    pub(super) fn before_the_driver(scenario: &str) {
        if scenario == "after_the_driver" {
            // SAFETY: the handler is a function of this program, which is there to the end.
            unsafe { libc::atexit(drop_late) };
        }
    }

    fn leave_in_the_middle(env: &'static Environment) -> Result<()> {
        static STARTED: AtomicBool = AtomicBool::new(false);
        let pool = env.pool()?;
        for _ in 0..4 {
            let (pool, stream) = (pool.clone(), env.stream()?);
            std::thread::spawn(move || {
                loop {
                    // At the very end the driver refuses, which is the point.
                    let buffer = pool.alloc::<u8>(&stream, 1000);
                    STARTED.store(true, Ordering::Relaxed);
                    drop(buffer);
                }
            });
        }
        while !STARTED.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        println!("leaving");
        Ok(())
    }

    fn panic_with_a_buffer(env: &Environment) -> Result<()> {
        let (pool, stream) = (env.pool()?, env.stream()?);
        struct Tell(cuda_mem::MemoryPool);
        impl Drop for Tell {
            fn drop(&mut self) {
                let used = self.0.stats().map(|stats| stats.used.current);
                println!("unwound: used {}", used.unwrap_or(u64::MAX));
            }
        }
        let _tell = Tell(pool.clone());
        let mut buffer = pool.alloc::<u8>(&stream, 1000)?;
        let other = env.stream()?;
        let _lent = buffer.on(&other)?;
        panic!("on purpose");
    }

    /// An arena that has marked the place up to which a busy stream uses a block, and has not seen it reached.
    struct Marked {
        arena: Arena,
        streams: [Stream; 2],
    }

    fn arena_with_a_mark(env: &Environment) -> Result<Marked> {
        let arena = Arena::builder(&env.device()?).build()?;
        let (busy, idle) = (env.stream()?, env.stream()?);
        let held = hold(&busy)?;
        drop(arena.alloc::<u8>(&busy, 40 << 20)?);
        // A smaller request would make the arena grow.
        drop(arena.alloc::<u8>(&idle, 36 << 20)?);
        drop(held);
        synchronize(&busy)?;
        ensure!(arena.stats().waits == 1, "no mark: {}", arena.stats());
        let streams = [busy, idle];
        Ok(Marked { arena, streams })
    }

    /// Somebody resets the context while every resource has a buffer in it. Nothing crashes, and with a new
    /// context the same resources serve again.
    fn lose_the_context_of_resources(env: &Environment) -> Result<()> {
        let device = env.device()?;
        let resources: Vec<Resource> = subjects(env)?
            .iter()
            .filter(|subject| !subject.name.contains(" over "))
            .map(|subject| subject.make(env))
            .collect::<Result<_>>()?;
        let stream = env.stream()?;
        let mut live = Vec::new();
        for resource in &resources {
            live.push(resource.alloc_zeroed::<u8>(&stream, 1000)?);
        }
        stream.synchronize()?;
        let (of_ended, of_kept) = (arena_with_a_mark(env)?, arena_with_a_mark(env)?);
        let end = env.driver.table().cuDevicePrimaryCtxReset_v2;
        let end = end.context("no reset")?;
        // SAFETY: the driver lets anybody do this; the handles in it are refused afterwards.
        ensure!(unsafe { end(device.as_raw()) }.0 == 0);
        // Before anything else shows that all is done, such as the end of a handle of the context.
        of_kept.arena.trim_to(0)?;
        drop(of_ended.streams);
        of_ended.arena.trim_to(0)?;
        let arenas = [of_kept.arena, of_ended.arena];
        for arena in &arenas {
            ensure!(arena.stats().reserved == 0, "{}", arena.stats());
        }
        drop((live, stream, of_kept.streams));
        let counts = drop_counts();
        ensure!(counts.too_late >= resources.len() as u64, "{counts:?}");
        let of_arenas: Vec<Resource> = arenas.iter().cloned().map(Resource::from).collect();
        for resource in resources.iter().chain(&of_arenas) {
            let stream = env.stream()?;
            let buffer = resource.alloc_from(&stream, &[1_u8, 2, 3])?;
            ensure!(buffer.to_vec()? == [1, 2, 3], "{resource:?}");
            buffer.free()?;
        }
        for arena in arenas {
            arena.trim_to(0)?;
            ensure!(arena.stats().reserved == 0, "{}", arena.stats());
        }
        let failures = drop_counts().failures;
        println!("every resource went on, {failures} failures");
        Ok(())
    }

    /// Somebody ends the primary context that we hold.
    fn lose_the_context(env: &Environment, reset: bool) -> Result<()> {
        let (pool, stream) = (env.pool()?, env.stream()?);
        let mut buffer = pool.alloc_zeroed::<u8>(&stream, 1000)?;
        let event = stream.context().event()?;
        stream.synchronize()?;
        let device = env.device()?;
        let table = env.driver.table();
        if reset {
            let end = table.cuDevicePrimaryCtxReset_v2.context("no reset")?;
            // SAFETY: the driver lets anybody do this; the handles in it are refused afterwards.
            ensure!(unsafe { end(device.as_raw()) }.0 == 0);
        } else {
            let end = table.cuDevicePrimaryCtxRelease_v2.context("no release")?;
            while device.has_active_context()? {
                // SAFETY: as above.
                ensure!(unsafe { end(device.as_raw()) }.0 == 0);
            }
        }
        let lost = |error: cuda_mem::Error| {
            let kind = error.kind();
            matches!(
                kind,
                ErrorKind::ContextDestroyed | ErrorKind::InvalidContext
            )
            .then_some(())
            .with_context(|| format!("{kind:?}: {error}"))
        };
        let outcomes = [
            stream.synchronize().err(),
            buffer.fill(1).err(),
            pool.alloc::<u8>(&stream, 10).err(),
            event.record(&stream).err(),
        ];
        for (index, outcome) in outcomes.into_iter().enumerate() {
            lost(outcome.with_context(|| format!("call {index} went well"))?)?;
        }
        drop((buffer, event, stream));
        let counts = drop_counts();
        ensure!(counts.too_late >= 1, "{counts:?}");
        println!("typed errors, {} failures", counts.failures);
        Ok(())
    }
}

/// Runs the scenario that this process was started for, if it was.
pub(crate) fn as_child() -> Option<Result<()>> {
    let scenario = std::env::var(SCENARIO).ok()?;
    scenarios::before_the_driver(&scenario);
    cuda_mem::base::on_drop_failure(|failure| eprintln!("{}: {}", failure.object, failure.error));
    Some(Environment::get().and_then(|env| scenarios::run(&scenario, env)))
}
