//! The tests of everything, on the last device of several: after each of them no other device may have a context.

use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Result, anyhow, ensure};
use cuda_mem_tests::lab::{Backend, DEVICE, Lab};
use cuda_mem_tests::run::{self, Options, Test};
use cuda_mem_tests::{arena, contract, host, managed, modules, resources, untouched, vmm, window};

/// Everything that runs on one device in one process.
fn all() -> Vec<Test> {
    let mut all = contract::all();
    all.extend(resources::all());
    all.extend(arena::all());
    all.extend(modules::all());
    all.extend(vmm::all());
    all.extend(managed::all());
    all.extend(host::all());
    all.extend(window::all());
    all
}

mod others {
    use super::*;

    pub(crate) fn stay_untouched(_: &Lab) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let calls = folder.path().join("calls");
        let mut texts = String::new();
        let claims = folder.path().join("claims");
        std::fs::create_dir(&claims)?;
        let programs = (0..run::at_a_time()).map(|_| {
            let mut command = Command::new(std::env::current_exe()?);
            command
                .env(DEVICE, "last")
                .env("CUDA_MEM_TEST_BACKEND", "sim")
                .env("CUDA_SIM_DEVICES", "8")
                .env(untouched::CALLED, &calls)
                .env(run::CLAIMS, &claims)
                .env_remove("CUDA_VISIBLE_DEVICES");
            Ok(thread::spawn(move || command.output()))
        });
        let programs = programs.collect::<Result<Vec<_>>>()?;
        // All have ended before one is judged.
        let ends: Vec<_> = programs.into_iter().map(|program| program.join()).collect();
        for end in ends {
            let output = end.map_err(|_| anyhow!("a thread panicked"))??;
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{text}\n{errors}");
            texts.push_str(&text);
        }
        ensure!(texts.contains("a_kernel_does_what_it_says"), "{texts}");
        let (claimed, all) = (std::fs::read_dir(claims)?.count(), all().len());
        ensure!(claimed == all, "{claimed} of {all}: {texts}");
        untouched::require_all(&std::fs::read_to_string(calls)?)
    }
}

/// This program with the last device; whether it succeeded.
fn again() -> Result<bool> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(std::env::args_os().skip(1))
        .env(DEVICE, "last");
    Ok(command.status()?.success())
}

fn main() -> ExitCode {
    let lab = match Lab::get() {
        Ok(lab) => lab,
        Err(error) => {
            eprintln!("no driver to test on: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    if std::env::var_os(DEVICE).is_some() {
        // One at a time: what is active is a matter of the whole process.
        let options = Options {
            serial: true,
            untouched: true,
            ..Options::default()
        };
        if let Err(error) = untouched::start(lab) {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
        let code = run::main(&all(), options);
        return match untouched::note_calls(lab) {
            Ok(()) => code,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
    match lab.backend {
        Backend::Gpu if lab.driver.device_count().unwrap_or(0) < 2 => {
            println!("one GPU: there are no others to be left alone");
            run::main(&[], Options::default())
        }
        // Anew, because nothing may have chosen a device yet.
        Backend::Gpu => match again() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        },
        Backend::Sim => {
            let tests = cuda_mem_tests::tests! { others: stay_untouched };
            run::main(&tests, Options::default())
        }
    }
}
