//! Tables for people, one JSON object a line for programs.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use cuda_mem::Device;
use serde_json::json;

use crate::adaptors::Adaptor;
use crate::backend::Backend;
use crate::measure::{Figures, METHOD};
use crate::plan::Plan;

/// Prints as it goes, or collects a table for the end.
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
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
            "resource",
            "pass",
            "mean",
            "median",
            "p99",
            "worst",
            "asked",
            "used",
            "reserved",
            "reserved/asked",
            "driver calls",
        ]);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        Self {
            json,
            backend,
            adaptors: adaptors.iter().map(ToString::to_string).collect(),
            plan,
            table,
            computed: false,
            not_run: Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        if self.backend.simulated {
            "simulated"
        } else {
            "gpu"
        }
    }

    pub(crate) fn head(&self, device: Device, trace: &str, clock: Duration) -> Result<()> {
        if let Some(reason) = &self.backend.reason {
            // Said in both forms: nobody should take these figures for a GPU's.
            eprintln!("no GPU driver ({reason}); using the simulated driver");
        }
        if self.json {
            return Ok(());
        }
        let plan = self.plan;
        let mut out = io::stdout().lock();
        let driver = self.backend.driver.version();
        writeln!(
            out,
            "driver: {}, CUDA {driver}, {}",
            self.kind(),
            device.name()?
        )?;
        writeln!(
            out,
            "log: {trace}: {} operations, {} streams, {} threads, at most {} alive",
            plan.steps.len(),
            plan.streams,
            plan.threads,
            mib(plan.peak_asked)
        )?;
        if plan.failures > 0 {
            let failures = plan.failures;
            writeln!(
                out,
                "     {failures} requests failed when it was recorded; they are not replayed"
            )?;
        }
        if plan.foreign_frees > 0 {
            let frees = plan.foreign_frees;
            writeln!(
                out,
                "     {frees} frees are on another stream than the allocation, behind an event"
            )?;
        }
        writeln!(out, "order: {}", plan.order())?;
        writeln!(
            out,
            "method: {METHOD}; the clock costs {} ns",
            clock.as_nanos()
        )?;
        if !self.adaptors.is_empty() {
            writeln!(
                out,
                "adaptors, innermost first: {}",
                self.adaptors.join(", ")
            )?;
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
            "backend": self.kind(),
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
        Ok(writeln!(io::stdout().lock(), "{line}")?)
    }

    fn row(&mut self, resource: &str, pass: usize, figures: &Figures) {
        self.computed |= !figures.peaks_known;
        let peak = |bytes| {
            let mark = if figures.peaks_known { "" } else { " *" };
            format!("{}{mark}", mib(bytes))
        };
        let asked = self.plan.peak_asked;
        let calls = figures.driver_calls;
        let each = calls as f64 / self.plan.steps.len() as f64;
        self.table.add_row([
            resource.to_owned(),
            pass.to_string(),
            format!("{:.0} ns", figures.ns_per_op),
            format!("{} ns", figures.median_ns),
            format!("{} ns", figures.p99_ns),
            format!("{} ns", figures.worst_ns),
            mib(asked),
            peak(figures.peak_used),
            peak(figures.peak_reserved),
            format!("{:.3}", figures.peak_reserved as f64 / asked.max(1) as f64),
            format!("{calls} ({each:.2} an operation)"),
        ]);
    }

    /// A resource that could not be replayed over, and why.
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
        let mut out = io::stdout().lock();
        if self.table.row_count() > 0 {
            writeln!(out, "\n{}", self.table)?;
        }
        for (resource, reason) in &self.not_run {
            writeln!(out, "{resource}: not run: {reason}")?;
        }
        if self.computed {
            writeln!(
                out,
                "* computed from the operations: the resource does not know what it holds"
            )?;
        }
        if self.backend.simulated {
            writeln!(out, "(simulated driver: the times say nothing about a GPU)")?;
        }
        Ok(())
    }
}

fn mib(bytes: u64) -> String {
    if bytes < 1 << 20 {
        return format!("{bytes} B");
    }
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
