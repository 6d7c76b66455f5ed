//! Devices that do not work.

use std::process::Command;

use anyhow::{Result, ensure};
use cuda_mem_tests::environment::Environment;

use super::{doctor, document, ended, found, has, list, machine};

/// A simulated pool takes address space, four times the device's memory, and the system has no more than
/// 256 TiB: a device after the first ones can make no pool, and answers OUT_OF_MEMORY.
const TOO_MANY: [(&str, &str); 2] = [("CUDA_SIM_DEVICES", "64"), ("CUDA_SIM_MEMORY", "4096G")];

#[apply(case)]
fn a_device_that_does_not_work_is_told(_: &Environment) -> Result<()> {
    let value = machine(&TOO_MANY)?;
    ensure!(value["verdict"] == "does not work", "the worst counts");
    ensure!(value["exit_code"] == 1, "the first one can be used");
    let devices = list(&value["devices"])?;
    let (first, last) = (&devices[0], &devices[63]);
    ensure!(first["verdict"] != "does not work", "{first:#}");
    found(
        last,
        "does not work",
        &["no default resource", "CUDA_ERROR_OUT_OF_MEMORY"],
        &["Xid", "out of memory"],
    )?;
    let strategy = &last["strategy"];
    ensure!(
        strategy["kind"].is_null() && strategy["error"].is_string(),
        "{strategy}"
    );
    let plain = &last["pools"]["plain"];
    ensure!(
        plain["supported"].is_null() && plain["error"].is_string(),
        "{plain}"
    );
    let (_, text) = ended(doctor(&TOO_MANY, &["--simulate"])?)?;
    has(
        &text,
        &[
            "device 63: does not work",
            "result: does not work (exit code 1)",
        ],
    )
}

/// As above with the one device that there is, in a process that may take less address space.
#[apply(case)]
fn a_machine_where_nothing_works_ends_with_its_code(_: &Environment) -> Result<()> {
    let huge = [TOO_MANY[1]];
    let limited = |arguments: &[&str]| -> Result<Command> {
        let asked = doctor(&huge, arguments)?;
        let mut command = Command::new("sh");
        // 1 TiB, in KiB.
        command.args(["-c", "ulimit -v 1073741824 && exec \"$0\" \"$@\""]);
        command.arg(asked.get_program()).args(asked.get_args());
        for (name, value) in asked.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Ok(command)
    };
    let value = document(limited(&["--simulate", "--json"])?)?;
    ensure!(
        value["verdict"] == "does not work" && value["exit_code"] == 2,
        "{value:#}"
    );
    found(
        &value["devices"][0],
        "does not work",
        &["no default resource"],
        &[],
    )?;
    ensure!(list(&value["hints"])?.is_empty(), "{value:#}");
    let (code, text) = ended(limited(&["--simulate"])?)?;
    ensure!(code == 2, "{text}");
    has(
        &text,
        &[
            "device 0: does not work",
            "result: does not work (exit code 2)",
        ],
    )
}
