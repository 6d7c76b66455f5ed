//! Advice for each finding, in plain words.

use cuda_mem::driver::{Capability, Reason, Support};
use cuda_mem::memory::DriverModel;
use cuda_mem::sys::{Attempt, AttemptFailure, CUresult, LIBRARY_VARIABLE};
use cuda_mem::{CudaVersion, Error, ErrorKind, ReleaseThreshold};

use crate::Patient;
use crate::facts::Facts;
use crate::opened::environment;
use crate::verdict::Verdict;

/// The first NVIDIA driver branch for a CUDA version.
const BRANCHES: [(CudaVersion, u32); 14] = [
    (CudaVersion::new(11, 2), 460),
    (CudaVersion::new(11, 3), 465),
    (CudaVersion::new(11, 4), 470),
    (CudaVersion::new(11, 5), 495),
    (CudaVersion::new(11, 6), 510),
    (CudaVersion::new(11, 7), 515),
    (CudaVersion::new(12, 0), 525),
    (CudaVersion::new(12, 2), 535),
    (CudaVersion::new(12, 3), 545),
    (CudaVersion::new(12, 4), 550),
    (CudaVersion::new(12, 6), 560),
    (CudaVersion::new(12, 8), 570),
    (CudaVersion::new(12, 9), 575),
    (CudaVersion::new(13, 0), 580),
];

/// The last branch that supports GPUs of this compute capability, if known.
fn last_branch((major, minor): (u32, u32)) -> Option<u32> {
    match (major, minor) {
        (0..=3, _) => Some(470),
        (4..=6, _) | (7, 0..=4) => Some(580),
        _ => None,
    }
}

/// The driver to install for a CUDA version, on a GPU of this compute capability.
pub(crate) fn newer_driver(since: CudaVersion, compute: (u32, u32)) -> String {
    let branch = BRANCHES.iter().find(|(version, _)| *version >= since);
    match branch {
        Some((_, branch)) if last_branch(compute).is_some_and(|last| last < *branch) => format!(
            "CUDA {since} came with driver {branch}, and no driver that new knows this GPU \
             (compute {}.{}); a newer GPU is needed.",
            compute.0, compute.1
        ),
        Some((_, branch)) => format!(
            "Install an NVIDIA driver for CUDA {since} or newer: version {branch} or later. No toolkit \
             is needed."
        ),
        None => {
            format!("Install an NVIDIA driver for CUDA {since} or newer. No toolkit is needed.")
        }
    }
}

/// No library could be opened.
pub(crate) fn no_driver(tried: &[Attempt], named: bool, kernel: Option<String>) -> Vec<String> {
    let mut lines = Vec::new();
    let is = |wanted: fn(&AttemptFailure) -> bool| tried.iter().any(|one| wanted(&one.reason));
    if named {
        lines.push(format!(
            "{LIBRARY_VARIABLE} is set, so only that file was tried: unset it, or correct it."
        ));
    }
    if is(|reason| matches!(reason, AttemptFailure::Stub)) {
        lines.push(
            "What was found is the toolkit's stub, which is for linking only: take its folder out of \
             LD_LIBRARY_PATH, and install a driver; the toolkit brings none."
                .to_owned(),
        );
    }
    if !named && is(|reason| matches!(reason, AttemptFailure::NotADriver)) {
        lines.push(
            "What was found is another library under the driver's name: remove it.".to_owned(),
        );
    }
    if let Some(kernel) = kernel {
        lines.push(format!(
            "The kernel's half of the driver is loaded ({kernel}) and only the library is missing. In a \
             container, start it with the GPU (for example `docker run --gpus all`, or \
             NVIDIA_DRIVER_CAPABILITIES with `compute`); elsewhere, install the driver's libraries of \
             the same version, or add their folder to the loader's path."
        ));
    } else {
        lines.push(
            "If this machine has an NVIDIA GPU, install its driver, 460 or later (CUDA 11.2), best the \
             newest that knows the GPU. In a container, the driver is the host's, and the container \
             has to be started with the GPU."
                .to_owned(),
        );
    }
    lines.push("Without a GPU, `--simulate` examines the simulated driver instead.".to_owned());
    lines
}

/// `--simulate` found no library that it could open.
pub(crate) fn no_simulator(tried: &[Attempt]) -> Vec<String> {
    let is_stub = |one: &Attempt| matches!(one.reason, AttemptFailure::Stub);
    let line = if tried.iter().any(is_stub) {
        "The simulated driver is there and plays the toolkit's stub, because CUDA_SIM_STUB is set: \
         unset it."
    } else if tried.is_empty() {
        "Build the simulated driver with `cargo build -p cuda-sim`, or name it in CUDA_SIM_LIBRARY."
    } else {
        "What was found is not a simulated driver that opens: build it anew with \
         `cargo build -p cuda-sim`, or name another file in CUDA_SIM_LIBRARY."
    };
    vec![line.to_owned()]
}

/// A driver was found, but does not start or shows no device.
pub(crate) fn not_started(error: &Error, is_simulated: bool) -> Vec<String> {
    if is_simulated {
        return simulation_not_started(error);
    }
    let mut lines: Vec<String> = hidden_devices(error).into_iter().collect();
    lines.push(for_start(error).to_owned());
    lines
}

/// A simulated driver fails because it was configured to. Advice for a real one is useful practice, but must not be
/// mistaken for something to do here.
fn simulation_not_started(error: &Error) -> Vec<String> {
    let mut lines =
        vec!["The driver is simulated, so this says nothing about the machine.".to_owned()];
    let set = |name, matters: fn(&str) -> bool| {
        let value = environment(name).filter(|value| matters(value.trim()))?;
        Some(format!(
            "{name} is {value:?}, and the simulated driver obeys: unset it."
        ))
    };
    lines.extend(set("CUDA_SIM_INIT_ERROR", |value| value != "0"));
    lines.extend(set("CUDA_SIM_DEVICES", |value| value == "0"));
    lines.extend(hidden_devices(error));
    lines.push(format!(
        "Only if a real driver answered this: {}",
        for_start(error)
    ));
    lines
}

/// Settings that can hide the devices of any driver.
fn hidden_devices(error: &Error) -> Option<String> {
    let value =
        environment("CUDA_VISIBLE_DEVICES").filter(|_| error.kind() == ErrorKind::InvalidDevice)?;
    Some(format!(
        "CUDA_VISIBLE_DEVICES is {value:?}, and may hide every device: its first entry that names no \
         device ends the list, and one named twice empties it. Unset it and try again."
    ))
}

/// Advice for a real driver that does not start.
fn for_start(error: &Error) -> &'static str {
    match error.code() {
        _ if error.kind() == ErrorKind::InvalidDevice && cfg!(windows) => {
            "See whether `nvidia-smi` lists a GPU, and what the Device Manager says of it: it may be \
             disabled, or its driver may not have started. See the Event Viewer, System, source \
             nvlddmkm."
        }
        _ if error.kind() == ErrorKind::InvalidDevice => {
            "See whether `nvidia-smi` lists a GPU. If it does, this process is kept from it: look at the \
             rights of /dev/nvidia*, at the container's GPU options, and, with MIG on, at whether an \
             instance was made. If it does not, no GPU is there, or its driver has not started: see the \
             kernel's log."
        }
        Some(CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) => {
            "The driver's library and its kernel module are of two versions, as after an update: \
             restart the machine, and rebuild containers that carry a driver library of their own."
        }
        Some(CUresult::CUDA_ERROR_SYSTEM_NOT_READY) => {
            "The system behind the GPUs has not started: on machines with NVSwitch, look at the service \
             nvidia-fabricmanager."
        }
        Some(CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE) => {
            "A forward compatibility library was found that this GPU may not use: take its folder \
             (`compat`) out of LD_LIBRARY_PATH, or install a newer driver."
        }
        Some(CUresult::CUDA_ERROR_UNKNOWN | CUresult::CUDA_ERROR_OPERATING_SYSTEM)
            if cfg!(windows) =>
        {
            "The driver of Windows may have stopped: see what the Device Manager says of the GPU, and \
             the Event Viewer, System, source nvlddmkm, and restart the machine if it was asleep."
        }
        Some(CUresult::CUDA_ERROR_UNKNOWN | CUresult::CUDA_ERROR_OPERATING_SYSTEM) => {
            "Often the kernel module nvidia-uvm is not loaded or its device files cannot be opened: \
             see `ls -l /dev/nvidia*` and the kernel's log, and restart the machine if it was asleep."
        }
        Some(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE | CUresult::CUDA_ERROR_NOT_PERMITTED) => {
            "The GPU is kept from this process: another one may own it (compute mode), or rights are \
             missing."
        }
        _ if cfg!(windows) => {
            "The driver was opened and does not start: see `nvidia-smi` and the Event Viewer, System, \
             source nvlddmkm, and reinstall the driver if they agree."
        }
        _ => {
            "The driver was opened and does not start: see `nvidia-smi` and the kernel's log, and \
             reinstall the driver if they agree."
        }
    }
}

/// The default resource is the slow one, without pools.
pub(crate) fn without_pools(facts: &Facts, reason: Reason, model: DriverModel) -> Vec<String> {
    let mut lines = for_reason(reason, facts);
    match (reason, model) {
        (Reason::DriverTooOld { .. }, _) => {}
        // Drivers of Windows have managed memory under each model, so a newer one is not the way out.
        _ if !facts.can.managed_memory => lines.extend(guesses(facts)),
        (_, DriverModel::Tcc) => lines.push(format!(
            "Windows drives this GPU in TCC mode, where pools are missing: update the driver, and if \
             that does not help, switch the model with `nvidia-smi -i {} -dm 0` (WDDM) or, on newer \
             drivers, `-dm 2` (MCDM), as administrator; then restart.",
            facts.uuid
        )),
        (_, DriverModel::Wddm | DriverModel::Wsl) => lines.push(format!(
            "Windows drives this GPU ({model}): update the driver of Windows; newer ones have pools \
             there."
        )),
        _ => lines.extend(guesses(facts)),
    }
    lines.push(
        "Until then everything works over cuMemAlloc, and each free waits for the device: allocate \
         rarely, keep buffers, and see the cost with `--measure`. A program that must not be slow \
         can ask for Device::default_resource_with(Fallback::Refuse)."
            .to_owned(),
    );
    lines
}

/// Possible reasons for missing pools that driver and model do not report.
fn guesses(facts: &Facts) -> Vec<String> {
    let mut lines = Vec::new();
    if !facts.can.managed_memory {
        lines.push(
            "There is no managed memory either, which points to a virtual GPU: ask the administrator \
             for a vGPU profile with unified memory, or for the whole GPU (pass-through)."
                .to_owned(),
        );
    } else if facts.name.contains("MIG") {
        lines.push(
            "This is a MIG instance: ask the administrator for a newer driver or another instance."
                .to_owned(),
        );
    } else if facts.can.compute_capability < (6, 0) {
        lines.push("The GPU is older than pools: no driver may bring them.".to_owned());
    } else if !facts.can.concurrent_managed_access {
        lines.push(
            "Host and device cannot share managed memory at the same time, which points to Windows \
             (WDDM) behind it: update the driver of Windows, or ask the administrator."
                .to_owned(),
        );
    } else {
        lines.push(
            "Driver and GPU are new enough for pools, so something between keeps them away: ask the \
             administrator whether this is a virtual GPU or a MIG instance."
                .to_owned(),
        );
    }
    lines
}

/// Advice that follows from a reason alone.
pub(crate) fn for_reason(reason: Reason, facts: &Facts) -> Vec<String> {
    match reason {
        Reason::DriverTooOld { since, .. } => {
            vec![newer_driver(since, facts.can.compute_capability)]
        }
        Reason::Refused(code) => vec![format!(
            "The device says that it has this, and the driver refused it with {}: try a newer driver, \
             and tell the administrator this code.",
            code.name()
                .map_or_else(|| code.0.to_string(), str::to_owned)
        )],
        _ => Vec::new(),
    }
}

/// Pools work, but cannot be shared with other processes.
pub(crate) fn without_sharing(reason: Reason) -> Vec<String> {
    let hint = match reason {
        Reason::Refused(_) => {
            "Do not trust the mask of handle types here, ask PoolBuilder::support. Seen under WSL and \
             in guests: a machine with Linux on the hardware has them."
        }
        _ => {
            "Missing on virtual GPUs, under WSL and with some MIG set-ups: ask the administrator, if \
             programs are to share pools."
        }
    };
    vec![
        hint.to_owned(),
        "Programs that do not share memory between processes miss nothing.".to_owned(),
    ]
}

/// The device exists, but does not respond.
pub(crate) fn silent_device() -> Vec<String> {
    let log = if cfg!(windows) {
        "the Event Viewer (System, source nvlddmkm)"
    } else {
        "the kernel's log (lines with Xid)"
    };
    vec![format!(
        "See `nvidia-smi` and {log}: the GPU may have failed, be out of memory or be taken by another \
         process."
    )]
}

/// The context or an allocation failed.
pub(crate) fn not_measured() -> Vec<String> {
    vec![
        "Measuring needs a context and 1 MiB: see `nvidia-smi` for who holds the memory, and whether \
         the compute mode lets this process in."
            .to_owned(),
    ]
}

/// Improvements that no device needs but some programs benefit from, each listed once for all devices.
pub(crate) fn hints(devices: &[Patient]) -> Vec<String> {
    let known = devices.iter().filter_map(|patient| {
        let facts = patient.facts.as_ref().ok()?;
        Some((patient.diagnosis.verdict, facts))
    });
    let mut lines: Vec<String> = release_threshold(known.clone()).into_iter().collect();
    for (_, facts) in known.filter(|(verdict, _)| *verdict == Verdict::Ready) {
        let support = facts.support(Capability::HostMemoryPools);
        if let Some(Support::No(Reason::DriverTooOld { since, .. })) = support {
            let line = format!(
                "Only if pools of host or managed memory are wanted: {}",
                newer_driver(since, facts.can.compute_capability)
            );
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

/// Default pools that keep nothing, on devices with working pools.
fn release_threshold<'a>(known: impl Iterator<Item = (Verdict, &'a Facts)>) -> Option<String> {
    let keeps_nothing = |facts: &Facts| facts.default_pool == Some(ReleaseThreshold::Bytes(0));
    let ordinals: Vec<String> = known
        .filter(|(verdict, facts)| *verdict <= Verdict::Limited && keeps_nothing(facts))
        .map(|(_, facts)| facts.device.ordinal().to_string())
        .collect();
    let of = match &ordinals[..] {
        [] => return None,
        [one] => format!("The default pool of device {one}"),
        more => format!(
            "The default pool of each of the devices {}",
            more.join(", ")
        ),
    };
    Some(format!(
        "Pools of this crate keep what is freed. {of}, which cudaMallocAsync uses, has release threshold 0 \
         and gives everything back at each synchronisation: raise it (Device::default_pool, \
         raise_release_threshold) if other libraries allocate there."
    ))
}
