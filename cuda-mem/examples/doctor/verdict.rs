//! The verdict on a device.

use cuda_mem::CudaVersion;
use cuda_mem::driver::{Capability, Reason, Support};
use cuda_mem::memory::{DriverModel, Strategy};

use crate::advice;
use crate::facts::{Answer, Facts, HANDLE, PoolKind};

/// From best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// Pools, with everything that programs commonly need of them.
    Ready,
    /// Pools, but something commonly needed is missing.
    Limited,
    /// No pools: each free waits for the device.
    Slow,
    /// Not even that could be determined.
    Unusable,
}

impl Verdict {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Limited => "limited",
            Self::Slow => "works, slowly",
            Self::Unusable => "does not work",
        }
    }
}

/// A verdict, its reasons, and what to do.
pub(crate) struct Diagnosis {
    pub(crate) verdict: Verdict,
    pub(crate) because: Vec<String>,
    pub(crate) advice: Vec<String>,
}

impl Diagnosis {
    fn new() -> Self {
        Self {
            verdict: Verdict::Ready,
            because: Vec::new(),
            advice: Vec::new(),
        }
    }

    /// Adds a problem; the worst verdict counts.
    fn find(&mut self, verdict: Verdict, because: String, advice: Vec<String>) {
        self.verdict = self.verdict.max(verdict);
        self.because.push(because);
        self.advise(advice);
    }

    /// Adds advice once, even if several problems share it.
    fn advise(&mut self, advice: Vec<String>) {
        for line in advice {
            if !self.advice.contains(&line) {
                self.advice.push(line);
            }
        }
    }
}

pub(crate) fn judge(facts: &Result<Facts, String>) -> Diagnosis {
    let mut found = Diagnosis::new();
    match facts {
        Ok(facts) => examine(facts, &mut found),
        Err(error) => found.find(
            Verdict::Unusable,
            format!("the driver does not tell what it is: {error}"),
            advice::silent_device(),
        ),
    }
    found
}

fn examine(facts: &Facts, found: &mut Diagnosis) {
    match &facts.strategy {
        Ok(Strategy::Direct { reason, model }) => found.find(
            Verdict::Slow,
            format!("no memory pools: {reason}{}", model_words(*model)),
            advice::without_pools(facts, *reason, *model),
        ),
        Ok(_) => with_pools(facts, found),
        Err(error) => found.find(
            Verdict::Unusable,
            format!("no default resource: {error}"),
            advice::silent_device(),
        ),
    }
    if let Some(Err(error)) = &facts.times {
        found.find(
            Verdict::Limited,
            format!("it could not be measured: {error}"),
            advice::not_measured(),
        );
    }
}

fn model_words(model: DriverModel) -> String {
    match model {
        DriverModel::Linux => String::new(),
        model => format!(" (driver model: {model})"),
    }
}

/// Checks what programs commonly need besides pools. Fabric handles, host pools and the like are not included: few
/// machines have them, and the matrix shows them to those who need them.
fn with_pools(facts: &Facts, found: &mut Diagnosis) {
    let driver = facts.device.driver().version();
    // In Linux guests of Windows there are none (R2).
    match facts.pool(PoolKind::Descriptor) {
        Some(Answer::Known(Support::No(reason))) => {
            let because = if let Reason::Refused(_) = reason {
                format!(
                    "pools that are shared by {HANDLE} are promised and cannot be made: {reason}"
                )
            } else {
                format!("no pools that are shared by {HANDLE}: {reason}")
            };
            found.find(Verdict::Limited, because, advice::without_sharing(*reason));
        }
        Some(Answer::Failed(error)) => found.find(
            Verdict::Limited,
            format!("whether pools can be shared by {HANDLE} could not be found out: {error}"),
            Vec::new(),
        ),
        _ => {}
    }
    for (what, capability) in [
        ("virtual memory management", Capability::VirtualMemory),
        (
            "one address space for host and devices",
            Capability::UnifiedAddressing,
        ),
    ] {
        if let Some(Support::No(reason)) = facts.support(capability) {
            found.find(
                Verdict::Limited,
                format!("no {what}: {reason}"),
                advice::for_reason(reason, facts),
            );
        }
    }
    // Pools of older drivers are incomplete, and in one point were reported to be wrong (R42).
    let sound = CudaVersion::new(11, 5);
    if driver < sound {
        found.find(
            Verdict::Limited,
            format!(
                "a driver for CUDA {driver} has no complete statistics of pools, and memory freed in \
                 one stream is not reused in another early, because drivers before {sound} could hand \
                 it out too soon"
            ),
            vec![advice::newer_driver(sound, facts.can.compute_capability)],
        );
    }
    if let Some(lies) = lies(facts) {
        found.advise(vec![lies]);
    }
}

/// Rarely needed kinds of pools that are reported as supported but cannot be created.
fn lies(facts: &Facts) -> Option<String> {
    let fabric = PoolKind::Fabric;
    match facts.pool(fabric)? {
        Answer::Known(Support::No(reason @ Reason::Refused(_)))
            if facts.can.pool_handle_types.contains(fabric.handle()) =>
        {
            Some(format!(
                "Pools with fabric handles are promised and cannot be made ({reason}); only programs \
                 that share memory between machines miss them."
            ))
        }
        _ => None,
    }
}
