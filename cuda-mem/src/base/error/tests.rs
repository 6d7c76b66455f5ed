//! What errors say, and what every cause prints.

use std::error::Error as _;
use std::io;

use cuda_driver_sys::gdr;
use cuda_driver_sys::nccl;
use cuda_driver_sys::nvml::{self, nvmlReturn_t};
use cuda_driver_sys::nvtx;
use cuda_driver_sys::{CUresult, CudaVersion, MissingSymbol};

use super::{Attempt, Cause, Error, ErrorKind, Failed, OutOfMemory, Refusal, Remedy, took_effect};

/// The name of a variant. There is no wildcard, so a new variant has to be added here and to `samples`.
fn name(cause: &Cause) -> &'static str {
    match cause {
        Cause::Load(_) => "Load",
        Cause::NotTried(_) => "NotTried",
        Cause::Missing(_) => "Missing",
        Cause::NvmlLoad(_) => "NvmlLoad",
        Cause::NvmlLacks(_) => "NvmlLacks",
        Cause::Nvml { .. } => "Nvml",
        Cause::NcclLoad(_) => "NcclLoad",
        Cause::NcclLacks(_) => "NcclLacks",
        Cause::Nccl { .. } => "Nccl",
        Cause::GdrLoad(_) => "GdrLoad",
        Cause::NvtxLoad(_) => "NvtxLoad",
        Cause::GdrLacks(_) => "GdrLacks",
        Cause::GdrClosed(_) => "GdrClosed",
        Cause::Errno { .. } => "Errno",
        Cause::NoCpuMapping(_) => "NoCpuMapping",
        Cause::NotInTime(_) => "NotInTime",
        Cause::NvmlForked => "NvmlForked",
        Cause::Driver { .. } => "Driver",
        Cause::NoDevice { .. } => "NoDevice",
        Cause::OutOfMemory { .. } => "OutOfMemory",
        Cause::Code { .. } => "Code",
        Cause::Logged { .. } => "Logged",
        Cause::Told { .. } => "Told",
        Cause::HostMemory { .. } => "HostMemory",
        Cause::DriverTooOld { .. } => "DriverTooOld",
        Cause::NotSupported(_) => "NotSupported",
        Cause::InvalidValue(_) => "InvalidValue",
        Cause::NotPermitted(_) => "NotPermitted",
        Cause::System { .. } => "System",
        Cause::Meant { .. } => "Meant",
        Cause::Capturing(_) => "Capturing",
        Cause::StillAllocated { .. } => "StillAllocated",
        Cause::ArenaBlocks { .. } => "ArenaBlocks",
        Cause::InUse { .. } => "InUse",
        Cause::MemoryInUse => "MemoryInUse",
        Cause::Forked => "Forked",
    }
}

/// The number of arms of `name`.
const VARIANTS: usize = 36;

fn gone() -> io::Error {
    io::Error::from_raw_os_error(2)
}

fn asked() -> Option<String> {
    Some("7 bytes".to_owned())
}

/// One error of every variant.
fn samples() -> Vec<Error> {
    let (code, text) = (CUresult::CUDA_ERROR_INVALID_VALUE, || "a reason".to_owned());
    let memory = OutOfMemory {
        asked: 7,
        tried: vec![Attempt::new(Remedy::Retry, Some(ErrorKind::Capturing))],
        ..OutOfMemory::default()
    };
    // SAFETY: there is no such file, so nothing of it can run.
    let driver = unsafe { cuda_driver_sys::load_from("/nowhere/a.so") };
    // SAFETY: as above.
    let nvml = unsafe { nvml::load_from("/nowhere/b.so") };
    // SAFETY: as above.
    let nccl = unsafe { nccl::load_from("/nowhere/e.so") };
    // SAFETY: as above.
    let gdr = unsafe { gdr::load_from("/nowhere/c.so") };
    // SAFETY: as above.
    let nvtx = unsafe { nvtx::load_from("/nowhere/d.so") };
    let causes = [
        Cause::Load(driver.expect_err("no such file")),
        Cause::Missing(MissingSymbol::new("cuMemPoolCreate")),
        Cause::NvmlLoad(nvml.expect_err("no such file")),
        Cause::NvmlLacks("nvmlDeviceGetMigMode"),
        Cause::Nvml {
            function: "nvmlInit_v2",
            code: nvmlReturn_t::NVML_ERROR_NOT_FOUND,
            asked: asked(),
        },
        Cause::NcclLoad(nccl.expect_err("no such file")),
        Cause::NcclLacks("ncclCommWindowRegister"),
        Cause::Nccl {
            function: "ncclAllReduce",
            code: nccl::ncclResult_t::ncclRemoteError,
            words: Some("a socket closed".to_owned()),
            asked: asked(),
        },
        Cause::GdrLoad(gdr.expect_err("no such file")),
        Cause::NvtxLoad(nvtx.expect_err("no such file")),
        Cause::GdrLacks("gdr_open"),
        Cause::GdrClosed(gone()),
        Cause::Errno {
            function: "mmap",
            error: gone(),
            asked: asked(),
        },
        Cause::NoCpuMapping(text()),
        Cause::NotInTime(text()),
        Cause::NvmlForked,
        Cause::Driver {
            function: "cuMemFree_v2",
            code,
            asked: asked(),
        },
        Cause::NoDevice {
            function: "cuDeviceGet",
            code: CUresult::CUDA_ERROR_INVALID_DEVICE,
            asked: asked(),
            hint: "ask for another one".to_owned(),
        },
        Cause::OutOfMemory {
            refusal: Refusal::Told(text()),
            asked: asked(),
            memory,
        },
        Cause::Code {
            function: "cuModuleLoadDataEx",
            code,
            asked: asked(),
            log: "line 1; error".to_owned(),
        },
        Cause::Logged {
            function: "cuLaunchKernel",
            code,
            asked: asked(),
            log: "a reason".to_owned(),
        },
        Cause::Told {
            kind: ErrorKind::Other,
            text: text(),
        },
        Cause::HostMemory { bytes: 7 },
        Cause::DriverTooOld {
            what: "a pool",
            since: CudaVersion::new(11, 2),
            found: CudaVersion::new(11, 0),
        },
        Cause::NotSupported(text()),
        Cause::InvalidValue(text()),
        Cause::NotPermitted(text()),
        Cause::System {
            what: "reading code",
            error: gone(),
        },
        Cause::Meant {
            function: "cuIpcOpenMemHandle_v2",
            code,
            asked: asked(),
            kind: ErrorKind::PeerGone,
            meaning: "the other process is gone",
        },
        Cause::Capturing(text()),
        Cause::StillAllocated {
            blocks: 1,
            bytes: 7,
        },
        Cause::ArenaBlocks {
            blocks: 1,
            bytes: 7,
        },
        Cause::InUse {
            what: "the pool",
            users: 2,
        },
        Cause::MemoryInUse,
        Cause::Forked,
        Cause::NotTried(Error::capturing(text())),
    ];
    causes.map(Error::from).into()
}

#[test]
#[cfg(not(miri))] // Miri does not open libraries.
fn every_cause_is_printed_as_its_message_and_on_request_as_its_structure() {
    let samples = samples();
    let mut names: Vec<_> = samples.iter().map(|error| name(&error.0)).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), VARIANTS, "one sample of each: {names:?}");
    for error in &samples {
        let (message, structure) = (error.to_string(), format!("{error:#?}"));
        assert!(!message.is_empty());
        assert_eq!(format!("{error:?}"), message);
        assert_ne!(structure, message);
        assert!(structure.contains(name(&error.0)), "{structure}");
    }
}

/// The message contains the text of the underlying error, so nothing may repeat it.
#[test]
#[cfg(not(miri))]
fn a_chain_of_errors_says_nothing_twice() {
    for error in samples() {
        assert!(error.source().is_none(), "{error}");
        let message = error.to_string();
        let chain = anyhow::Error::new(error).context("starting");
        assert_eq!(format!("{chain:#}"), format!("starting: {message}"));
    }
}

#[test]
fn the_error_of_the_system_can_be_had() {
    let error = Error::system("reading code", gone());
    let kind = error.io_error().map(io::Error::kind);
    assert_eq!(kind, Some(io::ErrorKind::NotFound));
    assert!(Error::forked().io_error().is_none());
}

#[test]
fn a_failure_that_gives_an_object_back_prints_why() {
    struct NotDebug;
    let failed = Failed::new(Error::forked(), NotDebug);
    assert_eq!(format!("{failed:?}"), Error::forked().to_string());
    assert_eq!(failed.to_string(), Error::forked().to_string());
    assert!(failed.source().is_none());
    let structure = format!("{failed:#?}");
    for part in ["Failed {", "Forked", "NotDebug"] {
        assert!(structure.contains(part), "{structure}");
    }
    let lost = format!("{:#?}", Failed::<NotDebug>::lost(Error::forked()));
    assert!(lost.contains("None"), "{lost}");
}

#[test]
fn a_driver_error_says_function_code_and_request() {
    let error = Error::driver("cuDeviceGet", CUresult::CUDA_ERROR_INVALID_DEVICE)
        .asked(|| "device 7 of 1".to_owned());
    let text = error.to_string();
    for part in [
        "cuDeviceGet",
        "(101)",
        "device 7 of 1",
        "CUDA_VISIBLE_DEVICES",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// The driver serves a process no more after these.
#[test]
fn codes_that_end_the_process_are_faults_of_the_device() {
    for code in [
        CUresult::CUDA_ERROR_CONTAINED,
        CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK,
        CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED,
    ] {
        let error = Error::driver("cuStreamSynchronize", code);
        assert_eq!(error.kind(), ErrorKind::DeviceFault, "{error}");
        assert!(!error.had_no_effect(), "{error}");
        let text = error.to_string();
        assert!(text.contains("end the process"), "{text}");
    }
}

#[test]
fn codes_of_refusals_and_limits_have_their_kinds() {
    for (code, kind) in [
        (
            CUresult::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER,
            ErrorKind::NotSupported,
        ),
        (
            CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
            ErrorKind::NotSupported,
        ),
        (CUresult::CUDA_ERROR_TIMEOUT, ErrorKind::TimedOut),
    ] {
        let error = Error::driver("cuX", code);
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(error.had_no_effect(), kind == ErrorKind::NotSupported);
    }
}

#[test]
fn an_error_with_a_meaning_says_the_request() {
    let code = CUresult::CUDA_ERROR_UNKNOWN;
    let error = || Error::driver("cuMemPoolImportFromShareableHandle", code);
    let means = |error: Error| error.meaning(code, ErrorKind::InvalidValue, "it is no pool");
    for error in [
        means(error().asked(|| "descriptor 7".to_owned())),
        means(error()).asked(|| "descriptor 7".to_owned()),
    ] {
        let text = error.to_string();
        assert!(text.ends_with(" (descriptor 7): it is no pool"), "{text}");
    }
    let text = means(error()).to_string();
    assert!(!text.contains("descriptor"), "{text}");
}

#[test]
fn only_an_answer_without_effect_leaves_the_memory_there() {
    assert!(took_effect(&Ok(())));
    assert!(!took_effect(&Err(Error::new(
        ErrorKind::InvalidValue,
        "no"
    ))));
    let fault = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
    assert!(took_effect(&Err(Error::driver("cuMemFree_v2", fault))));
    let not_tried = Error::driver("cuStreamSynchronize", fault).not_tried();
    assert!(!took_effect(&Err(not_tried)));
}

/// What another library, or the system, answers may come after a part of the work.
#[test]
#[cfg(not(miri))]
fn failures_of_other_libraries_may_have_had_an_effect() {
    for error in samples().iter().filter(|error| error.code().is_none()) {
        let is_of_a_call = matches!(
            name(&error.0),
            "Nccl" | "Nvml" | "Errno" | "System" | "Told"
        );
        let is_refusal = error.kind() == ErrorKind::NotFound;
        let had_none = error.had_no_effect();
        assert_eq!(had_none, !is_of_a_call || is_refusal, "{error:#?}");
    }
    assert!(!Error::system("reading code", gone()).had_no_effect());
    let refused = nccl::ncclResult_t::ncclInvalidArgument;
    assert!(Error::nccl("ncclCommRegister", refused, None).had_no_effect());
}

#[test]
fn an_unknown_code_is_kept() {
    let error = Error::driver("cuInit", CUresult(54321));
    assert_eq!(error.kind(), ErrorKind::Other);
    assert_eq!(error.code(), Some(CUresult(54321)));
    assert!(error.to_string().contains("54321"));
}

#[test]
fn numbers_are_only_added_to_out_of_memory() {
    let report = || OutOfMemory {
        asked: 40 << 20,
        pool_used: Some(1),
        ..OutOfMemory::default()
    };
    let error = Error::driver("cuMemAllocAsync", CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let error = error.with_memory(report);
    assert_eq!(
        error.out_of_memory().map(|memory| memory.asked),
        Some(40 << 20)
    );
    let text = error.to_string();
    assert!(
        text.contains("asked for 40.0 MiB, pool used 1 B."),
        "{text}"
    );
    let other = Error::driver("cuMemAllocAsync", CUresult::CUDA_ERROR_INVALID_VALUE);
    assert!(other.with_memory(report).out_of_memory().is_none());
}
