//! Tables for people, one JSON object per line for programs.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use comfy_table::Table;
use cuda_mem::Device;
use cuda_mem_console::{Backend, bytes, count, figures, nanoseconds, say, wrapped};
use serde_json::json;

use crate::adaptors::Adaptor;
use crate::measure::{Figures, METHOD};
use crate::plan::Plan;

/// Prints immediately, or collects a table for the end.
pub(crate) struct Show<'a> {
    json: bool,
    backend: &'a Backend,
    adaptors: Vec<String>,
    plan: &'a Plan,
    table: Table,
    computed: bool,
    not_run: Vec<(&'static str, String)>,
}

impl<'a> Show<'a> {
    pub(crate) fn new(
        json: bool,
        backend: &'a Backend,
        adaptors: &[Adaptor],
        plan: &'a Plan,
    ) -> Self {
        let header = [
            "resource", "pass", "mean", "median", "p99", "worst", "reserved", "/ asked", "calls",
        ];
        Self {
            json,
            backend,
            adaptors: adaptors.iter().map(ToString::to_string).collect(),
            plan,
            table: figures(1, header),
            computed: false,
            not_run: Vec::new(),
        }
    }

    pub(crate) fn head(&self, device: Device, trace: &Path, clock: Duration) -> Result<()> {
        if self.json {
            return Ok(());
        }
        let plan = self.plan;
        let driver = self.backend.driver.version();
        let kind = self.backend.name();
        say!("driver: {kind}, CUDA {driver}, {}", device.name()?)?;
        let trace = trace.file_name().unwrap_or(trace.as_os_str()).display();
        let of = |number: usize, noun: &str| {
            let plural = if number == 1 { "" } else { "s" };
            format!("{} {noun}{plural}", count(number as u64))
        };
        let mut log = vec![
            of(plan.steps.len(), "operation"),
            of(plan.streams, "stream"),
            of(plan.threads, "thread"),
            format!("at most {} alive", bytes(plan.peak_asked)),
        ];
        if plan.failures > 0 {
            let failed = of(plan.failures, "request");
            log.push(format!(
                "{failed} failed when it was recorded and not replayed"
            ));
        }
        if plan.foreign_frees > 0 {
            let frees = of(plan.foreign_frees, "free");
            log.push(format!(
                "{frees} on another stream than the allocation, behind an event"
            ));
        }
        say!(
            "{}",
            wrapped("log: ", &format!("{trace}: {}", log.join(", ")))
        )?;
        say!("{}", wrapped("order: ", &plan.order()))?;
        let clock = nanoseconds(clock.as_nanos() as f64);
        say!(
            "{}",
            wrapped("method: ", &format!("{METHOD}; the clock costs {clock}"))
        )?;
        if !self.adaptors.is_empty() {
            let adaptors = self.adaptors.join(", ");
            say!("{}", wrapped("adaptors, innermost first: ", &adaptors))?;
        }
        Ok(())
    }

    pub(crate) fn figures(&mut self, resource: &'static str, passes: &[Figures]) -> Result<()> {
        for (pass, figures) in passes.iter().enumerate() {
            if self.json {
                self.json_line(resource, pass, figures)?;
            } else {
                self.row(resource, pass, figures);
            }
        }
        Ok(())
    }

    fn json_line(&self, resource: &str, pass: usize, figures: &Figures) -> Result<()> {
        let line = json!({
            "resource": resource,
            "adaptors": self.adaptors,
            "backend": self.backend.name(),
            "pass": pass,
            "operations": self.plan.steps.len(),
            "streams": self.plan.streams,
            "threads": self.plan.threads,
            "ns_per_op": figures.ns_per_op,
            "median_ns": figures.median_ns,
            "p99_ns": figures.p99_ns,
            "worst_ns": figures.worst_ns,
            "peak_asked": self.plan.peak_asked,
            "peak_used": figures.peak_used,
            "peak_reserved": figures.peak_reserved,
            "peaks_known": figures.peaks_known,
            "driver_calls": figures.driver_calls,
        });
        say!("{line}")
    }

    fn row(&mut self, resource: &str, pass: usize, figures: &Figures) {
        self.computed |= !figures.peaks_known;
        let peak = |number| {
            let mark = if figures.peaks_known { "" } else { " *" };
            format!("{}{mark}", bytes(number))
        };
        let asked = self.plan.peak_asked.max(1) as f64;
        self.table.add_row([
            resource.to_owned(),
            pass.to_string(),
            nanoseconds(figures.ns_per_op),
            nanoseconds(figures.median_ns as f64),
            nanoseconds(figures.p99_ns as f64),
            nanoseconds(figures.worst_ns as f64),
            peak(figures.peak_reserved),
            format!("{:.3}", figures.peak_reserved as f64 / asked),
            format!(
                "{:.3}",
                figures.driver_calls as f64 / self.plan.steps.len() as f64
            ),
        ]);
    }

    /// Reports a resource that could not be used, and why.
    pub(crate) fn not_run(&mut self, resource: &'static str, reason: String) {
        if self.json {
            eprintln!("{resource}: not run: {reason}");
        } else {
            self.not_run.push((resource, reason));
        }
    }

    pub(crate) fn finish(&self) -> Result<()> {
        if self.json {
            return Ok(());
        }
        if self.table.row_count() > 0 {
            say!("\n{}", self.table)?;
            say!(
                "times, peaks, and driver calls of an operation; / asked: reserved over the most bytes alive"
            )?;
        }
        for (resource, reason) in &self.not_run {
            say!("{}", wrapped(&format!("{resource}: not run: "), reason))?;
        }
        if self.computed {
            say!("* computed from the operations: the resource keeps no statistics")?;
        }
        if self.backend.simulated {
            say!("(simulated driver: the times say nothing about a GPU)")?;
        }
        Ok(())
    }
}
