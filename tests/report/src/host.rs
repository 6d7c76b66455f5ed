//! What a reader has to know about the machine. Nothing that identifies it: the report is
//! published.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use crate::process;

#[derive(Debug, Serialize)]
pub(crate) struct Host {
    kernel: Option<String>,
    cpu: Option<String>,
    /// Those that this process may use.
    cores: Option<usize>,
}

/// What `nvidia-smi` lists, or why there is no list.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Gpus {
    count: Option<usize>,
    devices: Option<Vec<Gpu>>,
    reason: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Gpu {
    name: String,
    driver_version: String,
    memory_mib: Option<u64>,
}

/// A driver in trouble can keep `nvidia-smi` waiting.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn host() -> Host {
    let read = |file: &str| fs::read_to_string(file).ok();
    Host {
        kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
        cpu: read("/proc/cpuinfo").and_then(|text| cpu_model(&text)),
        cores: std::thread::available_parallelism().ok().map(Into::into),
    }
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

pub(crate) fn gpus(logs: &Path) -> Gpus {
    let mut command = Command::new("nvidia-smi");
    command.args([
        "--query-gpu=name,driver_version,memory.total",
        "--format=csv,noheader,nounits",
    ]);
    let outcome = process::run_command(&mut command, &logs.join("nvidia-smi.log"), LIMIT);
    let listed = match outcome.problem {
        Some(why) => Err(format!("nvidia-smi {why}")),
        None => list(&outcome.stdout),
    };
    match listed {
        Ok(devices) => Gpus {
            count: Some(devices.len()),
            devices: Some(devices),
            reason: None,
        },
        Err(reason) => Gpus {
            count: None,
            devices: None,
            reason: Some(reason),
        },
    }
}

/// One line a GPU: `NVIDIA H200, 580.95.05, 143771`.
fn list(text: &str) -> Result<Vec<Gpu>, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let mut fields = line.rsplitn(3, ',').map(str::trim);
            let memory = fields.next();
            match (fields.next(), fields.next()) {
                (Some(driver), Some(name)) => Ok(Gpu {
                    name: name.to_owned(),
                    driver_version: driver.to_owned(),
                    // `[N/A]` where the memory is the machine's.
                    memory_mib: memory.and_then(|memory| memory.parse().ok()),
                }),
                _ => Err(format!(
                    "nvidia-smi wrote a line of an unknown form: {line}"
                )),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_listed() {
        let text = "NVIDIA H200, 580.95.05, 143771\nNVIDIA GB10, 580.95.05, [N/A]\n";
        let listed = list(text).expect("a list");
        assert_eq!(listed[0].name, "NVIDIA H200");
        assert_eq!(listed[0].driver_version, "580.95.05");
        assert_eq!(listed[0].memory_mib, Some(143_771));
        assert_eq!(listed[1].memory_mib, None);
        assert!(list("No devices were found\n").is_err());
    }

    #[test]
    fn the_cpu_is_named() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(cpu_model(text).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(cpu_model("processor\t: 0\n"), None);
    }
}
