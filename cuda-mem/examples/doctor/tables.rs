//! The report for people.

use std::fmt::{Display, Write as _};

use cuda_mem::driver::{Reason, Support};
use cuda_mem::memory::Strategy;
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem_console::{bytes, nanoseconds, table, wrapped};

use crate::facts::{Answer, Facts, PoolKind};
use crate::opened::{Library, Unopened, environment, kernel_module};
use crate::verdict::Diagnosis;
use crate::{Patient, Report, measure};

/// Explains the row about default pools.
const THRESHOLD: &str = "the release threshold of the pool that the device has by itself: up to so much \
                         it keeps when streams are synchronised. cudaMallocAsync uses that pool; this \
                         crate makes one of its own";

/// Text that is built line by line.
#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, text: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{text}");
    }

    /// A paragraph, indented.
    fn item(&mut self, mark: &str, text: &str) {
        self.line(wrapped(&format!("  {mark}"), text));
    }
}

/// Reasons and explanations, each printed once below the table and referred to by its number.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn no(&mut self, why: String) -> String {
        format!("no [{}]", self.number(why))
    }

    fn number(&mut self, why: String) -> usize {
        let known = self.0.iter().position(|note| *note == why);
        known.unwrap_or_else(|| {
            self.0.push(why);
            self.0.len() - 1
        }) + 1
    }

    fn support(&mut self, support: Support) -> String {
        match support {
            Support::Yes => "yes".to_owned(),
            Support::No(reason) => self.no(reason.to_string()),
        }
    }

    fn answer(&mut self, answer: &Answer) -> String {
        match answer {
            Answer::Known(support) => self.support(*support),
            Answer::Failed(error) => format!("? [{}]", self.number(error.clone())),
        }
    }
}

pub(crate) fn pages(report: &Report) -> String {
    let mut page = Page::default();
    match &report.opened {
        Ok(opened) => {
            let version = format!(", CUDA {}", opened.driver.version());
            library(&mut page, &opened.library, &version);
        }
        Err(unopened) => no_driver(&mut page, unopened),
    }
    variables(&mut page);
    if !report.devices.is_empty() {
        page.line("");
        identities(&mut page, &report.devices);
        matrix(&mut page, &report.devices);
        let is_simulated = report
            .opened
            .as_ref()
            .is_ok_and(|opened| opened.library.simulated);
        measured(&mut page, &report.devices, is_simulated);
    }
    for patient in &report.devices {
        page.line("");
        page.line(format_args!(
            "device {}: {}",
            patient.ordinal,
            patient.diagnosis.verdict.words()
        ));
        diagnosis(&mut page, &patient.diagnosis);
    }
    if let Err(unopened) = &report.opened {
        for line in &unopened.advice {
            page.item("-> ", line);
        }
    }
    if !report.hints.is_empty() {
        page.line("");
    }
    for hint in &report.hints {
        page.item("hint: ", hint);
    }
    page.line("");
    page.line(format_args!(
        "result: {} (exit code {})",
        report.summary(),
        report.exit_code()
    ));
    page.0
}

/// The opened library, and what is known of its version.
fn library(page: &mut Page, library: &Library, version: &str) {
    let name = library.path.display().to_string();
    let file = library.file.as_ref().map(|file| file.display().to_string());
    let file = file.filter(|file| *file != name);
    let file = file.map_or_else(String::new, |file| format!(" ({file})"));
    page.line(format_args!("driver: {name}{file}{version}"));
    if library.simulated {
        page.line("        SIMULATED: nothing below is about the hardware of this machine");
    } else if let Some(kernel) = kernel_module() {
        page.line(wrapped("kernel module: ", &kernel));
    }
}

fn no_driver(page: &mut Page, unopened: &Unopened) {
    if let Some(opened) = &unopened.library {
        library(page, opened, "");
    }
    page.line(unopened.words());
    let error = "error: ";
    if unopened.tried.is_empty() {
        page.item(error, &unopened.text);
        return;
    }
    // The error's text is the same list in one sentence.
    page.item(error, "everything that was tried failed");
    for (path, reason) in &unopened.tried {
        // The loader's message usually starts with the path.
        let reason = reason.strip_prefix(path.as_str()).unwrap_or(reason);
        let reason = reason.trim_start_matches([':', ' ']);
        page.item("tried ", &format!("{path}: {reason}"));
    }
}

fn variables(page: &mut Page) {
    let shown = |name| match environment(name) {
        Some(value) => format!("{value:?}"),
        None => "not set".to_owned(),
    };
    page.line(format_args!(
        "CUDA_VISIBLE_DEVICES: {}",
        shown("CUDA_VISIBLE_DEVICES")
    ));
    if environment(LIBRARY_VARIABLE).is_some() {
        page.line(format_args!(
            "{LIBRARY_VARIABLE}: {}",
            shown(LIBRARY_VARIABLE)
        ));
    }
}

fn identities(page: &mut Page, devices: &[Patient]) {
    let mut shown = table([
        "device", "name", "memory", "compute", "SMs", "model", "context", "verdict",
    ]);
    for patient in devices {
        let verdict = patient.diagnosis.verdict.words().to_owned();
        let ordinal = patient.ordinal.to_string();
        let row = match &patient.facts {
            Ok(facts) => {
                let (major, minor) = facts.can.compute_capability;
                vec![
                    ordinal,
                    facts.name.clone(),
                    bytes(facts.total_memory),
                    format!("{major}.{minor}"),
                    facts.can.multiprocessors.to_string(),
                    facts.model.to_string(),
                    context(facts).to_owned(),
                    verdict,
                ]
            }
            Err(_) => {
                let mut row = vec![ordinal];
                row.extend(std::iter::repeat_n("?".to_owned(), 6));
                row.push(verdict);
                row
            }
        };
        shown.add_row(row);
    }
    page.line(shown);
    for patient in devices {
        if let Ok(facts) = &patient.facts {
            page.item(
                &format!("uuid of device {}: ", patient.ordinal),
                &facts.uuid,
            );
        }
    }
    page.line("");
}

/// Whether there is a context, and whether this program created it.
fn context(facts: &Facts) -> &'static str {
    match (&facts.context.before, &facts.context.after) {
        (Ok(false), Ok(false)) => "none",
        (Ok(true), _) => "active",
        (Ok(false), Ok(true)) => "made by this program",
        (Err(_), _) | (_, Err(_)) => "?",
    }
}

fn matrix(page: &mut Page, devices: &[Patient]) {
    let known: Vec<&Facts> = devices
        .iter()
        .filter_map(|patient| patient.facts.as_ref().ok())
        .collect();
    if known.is_empty() {
        return;
    }
    let mut notes = Notes::default();
    let header = known
        .iter()
        .map(|facts| format!("device {}", facts.device.ordinal()));
    let mut shown = table(std::iter::once("the driver says".to_owned()).chain(header));
    let mut row = |what: &str, cells: Vec<String>| {
        shown.add_row(std::iter::once(what.to_owned()).chain(cells));
    };
    let reported = known.first().map_or(&[][..], |facts| &facts.reported);
    for (index, first) in reported.iter().enumerate() {
        let of_each = known.iter().filter_map(|facts| facts.reported.get(index));
        let cells = of_each.map(|it| notes.support(it.support));
        row(first.words, cells.collect());
    }
    let handles = known
        .iter()
        .map(|facts| facts.can.pool_handle_types.to_string());
    row("pool handle types", handles.collect());

    row("WHAT CAN BE MADE", vec![String::new(); known.len()]);
    let kinds = known.first().map_or(&[][..], |facts| &facts.pools);
    for (kind, _) in kinds {
        let cells = known.iter().map(|facts| pool(facts, *kind, &mut notes));
        row(kind.words(), cells.collect());
    }

    row("WHAT IS USED", vec![String::new(); known.len()]);
    let default = known.iter().map(|facts| strategy(facts, &mut notes));
    row("default resource", default.collect());
    let thresholds = known.iter().map(|facts| match facts.default_pool {
        Some(threshold) => format!("{threshold} [{}]", notes.number(THRESHOLD.to_owned())),
        None => "-".to_owned(),
    });
    row("default pool keeps", thresholds.collect());
    row(
        "reaches devices",
        known.iter().map(|facts| peers(facts, &mut notes)).collect(),
    );
    page.line(shown);
    for (index, note) in notes.0.iter().enumerate() {
        page.item(&format!("[{}] ", index + 1), note);
    }
}

fn pool(facts: &Facts, kind: PoolKind, notes: &mut Notes) -> String {
    match facts.pool(kind) {
        // One device without pools is enough, and it need not be this one.
        Some(Answer::Known(Support::No(Reason::Device)))
            if kind.is_of_the_machine() && !facts.peers.is_empty() =>
        {
            notes.no("not on every device that this process sees".to_owned())
        }
        Some(answer) => notes.answer(answer),
        None => "-".to_owned(),
    }
}

fn strategy(facts: &Facts, notes: &mut Notes) -> String {
    match &facts.strategy {
        Ok(Strategy::Pool) => Strategy::Pool.to_string(),
        Ok(direct) => format!("cuMemAlloc [{}]", notes.number(direct.to_string())),
        Err(error) => format!("? [{}]", notes.number(error.clone())),
    }
}

fn peers(facts: &Facts, notes: &mut Notes) -> String {
    if facts.peers.is_empty() {
        return "no others".to_owned();
    }
    let mut reached = Vec::new();
    for peer in &facts.peers {
        match &peer.reached {
            Ok(true) => reached.push(peer.ordinal.to_string()),
            Ok(false) => {}
            Err(error) => reached.push(format!(
                "{}? [{}]",
                peer.ordinal,
                notes.number(error.clone())
            )),
        }
    }
    if reached.is_empty() {
        "none".to_owned()
    } else {
        reached.join(", ")
    }
}

fn measured(page: &mut Page, devices: &[Patient], is_simulated: bool) {
    let mut shown = table([
        "device",
        "default resource, a pair",
        "cuMemAlloc, a pair",
        "ratio",
        "memory free",
    ]);
    let mut any = false;
    for patient in devices {
        let Some(times) = patient
            .facts
            .as_ref()
            .ok()
            .and_then(|facts| facts.times.as_ref())
        else {
            continue;
        };
        any = true;
        let ordinal = patient.ordinal.to_string();
        match times {
            Ok(times) => shown.add_row(vec![
                ordinal,
                nanoseconds(times.default),
                nanoseconds(times.direct),
                format!("{:.1}", times.ratio()),
                bytes(times.free_memory),
            ]),
            Err(_) => shown.add_row([ordinal.as_str(), "failed", "failed", "-", "-"]),
        };
    }
    if any {
        page.line("");
        page.line(shown);
        page.item("method: ", &measure::method());
        if is_simulated {
            page.line("  (simulated driver: the times say nothing about a GPU)");
        }
    }
}

fn diagnosis(page: &mut Page, diagnosis: &Diagnosis) {
    for because in &diagnosis.because {
        page.item("because: ", because);
    }
    for advice in &diagnosis.advice {
        page.item("-> ", advice);
    }
}
