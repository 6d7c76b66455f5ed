//! The tests of everything, on the last of eight simulated devices: after each of them no other device may have a
//! context. On a machine of several GPUs the suite runs by itself.

use std::thread;

use anyhow::{Result, anyhow, ensure};

use crate::environment::{DEVICE, Environment};
use crate::{own_process, untouched};

#[apply(case_of_sim)]
fn other_devices_stay_untouched(_: &Environment) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let calls = folder.path().join("calls");
    let mut texts = String::new();
    let claims = folder.path().join("claims");
    std::fs::create_dir(&claims)?;
    let programs = (0..own_process::max_processes()).map(|_| {
        let mut command = own_process::command(untouched::SUITE)?;
        command
            .env(DEVICE, "last")
            .env("CUDA_MEM_TEST_BACKEND", "sim")
            .env("CUDA_SIM_DEVICES", "8")
            .env(untouched::CALLED, &calls)
            .env(own_process::CLAIMS, &claims)
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
    let (claimed, all) = (
        std::fs::read_dir(claims)?.count(),
        untouched::suite().tests().len(),
    );
    ensure!(claimed == all, "{claimed} of {all}: {texts}");
    untouched::require_all(&std::fs::read_to_string(calls)?)
}
