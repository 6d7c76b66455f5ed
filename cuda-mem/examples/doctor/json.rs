//! The report for programs: one document with a fixed set of fields.

use cuda_mem::ReleaseThreshold;
use cuda_mem::driver::{Reason, Support};
use cuda_mem::memory::Strategy;
use cuda_mem::sys::LIBRARY_VARIABLE;
use serde_json::{Map, Value, json};

use crate::facts::{Answer, Facts};
use crate::measure::{self, Times};
use crate::opened::{Library, Opened, Unopened, environment, kernel_module};
use crate::{Patient, Report};

/// Incremented when a field changes its meaning or is removed.
const FORMAT: u32 = 1;

pub(crate) fn document(report: &Report) -> String {
    let (driver, advice) = match &report.opened {
        Ok(opened) => (driver(opened), &[][..]),
        Err(unopened) => (no_driver(unopened), &unopened.advice[..]),
    };
    let document = json!({
        "format": FORMAT,
        "driver": driver,
        "environment": {
            "CUDA_VISIBLE_DEVICES": environment("CUDA_VISIBLE_DEVICES"),
            LIBRARY_VARIABLE: environment(LIBRARY_VARIABLE),
        },
        "devices": report.devices.iter().map(device).collect::<Vec<_>>(),
        "verdict": report.summary(),
        "advice": advice,
        "hints": report.hints,
        "exit_code": report.exit_code(),
    });
    format!("{document:#}\n")
}

fn driver(opened: &Opened) -> Value {
    let version = opened.driver.version().to_string();
    library(Some(&opened.library), Some(version), Value::Null)
}

fn no_driver(unopened: &Unopened) -> Value {
    let tried = unopened.tried.iter();
    let tried: Vec<Value> = tried
        .map(|(path, reason)| json!({ "path": path, "reason": reason }))
        .collect();
    let error = json!({
        "kind": format!("{:?}", unopened.kind),
        "text": unopened.text,
        "function": unopened.function,
        "code": unopened.code,
        "tried": tried,
    });
    library(unopened.library.as_ref(), None, error)
}

/// The opened library; a driver that did not start has no version.
fn library(library: Option<&Library>, version: Option<String>, error: Value) -> Value {
    let file = library.and_then(|library| library.file.as_ref());
    json!({
        "path": library.map(|library| library.path.display().to_string()),
        "file": file.map(|file| file.display().to_string()),
        "cuda_version": version,
        "simulated": library.map(|library| library.simulated),
        "kernel_module": kernel_module(),
        "error": error,
    })
}

fn device(patient: &Patient) -> Value {
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("ordinal", patient.ordinal.into());
    put("verdict", patient.diagnosis.verdict.words().into());
    put("because", json!(patient.diagnosis.because));
    put("advice", json!(patient.diagnosis.advice));
    match &patient.facts {
        Ok(facts) => {
            put("error", Value::Null);
            object.extend(found(facts));
        }
        Err(error) => {
            put("error", error.as_str().into());
        }
    }
    object.into()
}

fn found(facts: &Facts) -> Map<String, Value> {
    let (major, minor) = facts.can.compute_capability;
    let reported = facts.reported.iter();
    let mut capabilities: Map<String, Value> = reported
        .map(|it| (it.key.to_owned(), support(it.support)))
        .collect();
    let handles = facts.can.pool_handle_types;
    capabilities.insert(
        "pool_handle_types".to_owned(),
        json!({
            "bits": handles.bits(),
            "names": handles.iter_names().map(|(name, _)| name).collect::<Vec<_>>(),
        }),
    );
    let pools = facts.pools.iter();
    let pools: Map<String, Value> = pools
        .map(|(kind, found)| {
            let mut value = answer(found);
            value["of_the_machine"] = kind.is_of_the_machine().into();
            (kind.key().to_owned(), value)
        })
        .collect();
    let peers = facts.peers.iter();
    let peers: Vec<Value> = peers
        .map(|peer| {
            json!({
                "ordinal": peer.ordinal,
                "reached": peer.reached.as_ref().ok(),
                "error": peer.reached.as_ref().err(),
            })
        })
        .collect();
    let fields = [
        ("name", facts.name.as_str().into()),
        ("uuid", facts.uuid.as_str().into()),
        ("total_bytes", facts.total_memory.into()),
        ("compute_capability", format!("{major}.{minor}").into()),
        ("multiprocessors", facts.can.multiprocessors.into()),
        ("driver_model", facts.model.to_string().into()),
        (
            "context",
            json!({
                "active_before": facts.context.before.as_ref().ok(),
                "active_after": facts.context.after.as_ref().ok(),
            }),
        ),
        ("capabilities", capabilities.into()),
        ("pools", pools.into()),
        ("strategy", strategy(&facts.strategy)),
        ("default_pool", default_pool(facts.default_pool)),
        ("peers", peers.into()),
        ("measured", measured(facts.times.as_ref())),
    ];
    fields
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

fn support(support: Support) -> Value {
    match support {
        Support::Yes => object(Some(true), None, None),
        Support::No(reason) => object(Some(false), Some(reason), None),
    }
}

fn answer(answer: &Answer) -> Value {
    match answer {
        Answer::Known(known) => support(*known),
        Answer::Failed(error) => object(None, None, Some(error)),
    }
}

/// `supported` is null if unknown.
fn object(supported: Option<bool>, reason: Option<Reason>, error: Option<&str>) -> Value {
    let (cause, needs_cuda, code) = parts(reason);
    json!({
        "supported": supported,
        "reason": reason.map(|reason| reason.to_string()),
        "cause": cause,
        "needs_cuda": needs_cuda,
        "code": code,
        "error": error,
    })
}

/// A reason in parts: its kind, the CUDA version required, the driver's code.
fn parts(reason: Option<Reason>) -> (Option<&'static str>, Option<String>, Option<u32>) {
    match reason {
        None => (None, None, None),
        Some(Reason::DriverTooOld { since, .. }) => {
            (Some("driver_too_old"), Some(since.to_string()), None)
        }
        Some(Reason::Device) => (Some("device"), None, None),
        Some(Reason::Refused(code)) => (Some("refused"), None, Some(code.0)),
        Some(_) => (Some("other"), None, None),
    }
}

fn strategy(strategy: &Result<Strategy, String>) -> Value {
    let (kind, reason) = match strategy {
        Ok(Strategy::Pool) => (Some("pool"), None),
        Ok(Strategy::Direct { reason, .. }) => (Some("direct"), Some(*reason)),
        Ok(_) => (Some("other"), None),
        Err(_) => (None, None),
    };
    let (cause, needs_cuda, code) = parts(reason);
    json!({
        "kind": kind,
        "text": strategy.as_ref().ok().map(ToString::to_string),
        "cause": cause,
        "needs_cuda": needs_cuda,
        "code": code,
        "error": strategy.as_ref().err(),
    })
}

/// The device's default pool.
fn default_pool(threshold: Option<ReleaseThreshold>) -> Value {
    let bytes = match threshold {
        Some(ReleaseThreshold::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    json!({
        "release_threshold": threshold.map(|threshold| threshold.to_string()),
        "release_threshold_bytes": bytes,
    })
}

fn measured(times: Option<&Result<Times, String>>) -> Value {
    let Some(times) = times else {
        return Value::Null;
    };
    let (found, error) = (times.as_ref().ok(), times.as_ref().err());
    json!({
        "method": measure::method(),
        "default_ns_per_pair": found.map(|times| times.default),
        "direct_ns_per_pair": found.map(|times| times.direct),
        "ratio": found.map(Times::ratio),
        "free_bytes": found.map(|times| times.free_memory),
        "error": error,
    })
}
