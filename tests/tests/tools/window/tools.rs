//! What each tool prints.

use anyhow::{Result, ensure};
use cuda_mem_tests::environment::{Backend, Environment};
use serde_json::Value;

use super::{figure, list, object, quick, text, windows, word};

/// Runs a tool, and checks what all of them tell.
fn report(env: &Environment, tool: &str) -> Result<Value> {
    let report = object(&quick(env, &[tool, "--json"])?)?;
    ensure!(report["tool"] == tool, "{report}");
    let backend = match env.backend {
        Backend::Sim => "simulated",
        Backend::Gpu => "gpu",
    };
    ensure!(report["backend"] == backend, "{report}");
    for key in ["device", "driver", "cpu", "host", "method", "usual_window"] {
        word(&report, key)?;
    }
    let windows = windows(&report)?;
    for kind in ["host-mapped", "copies"] {
        ensure!(windows.contains(&kind), "{kind} is everywhere: {report}");
    }
    Ok(report)
}

/// Every window that there is has rows, and both copies of the driver have some too.
fn has_all_ways(report: &Value) -> Result<()> {
    let copies = ["memcpy pageable", "memcpy pinned"];
    for way in windows(report)?.into_iter().chain(copies) {
        let has = list(report, "rows")?.iter().any(|row| row["way"] == way);
        ensure!(has, "no row of {way}: {report}");
    }
    Ok(())
}

#[apply(case)]
fn latency_is_told_by_size_cache_and_direction(env: &Environment) -> Result<()> {
    let report = report(env, "latency")?;
    has_all_ways(&report)?;
    for row in list(&report, "rows")? {
        ensure!(["warm", "cold"].contains(&word(row, "cache")?), "{row}");
        ensure!(row["bytes"].as_u64() >= Some(1), "{row}");
        figure(row, "write_ns")?;
        figure(row, "read_ns")?;
    }
    for window in windows(&report)? {
        let mut meetings = list(&report, "crossovers")?.iter();
        let is_there = meetings.any(|meeting| meeting["window"] == window);
        ensure!(is_there == (window != "copies"), "{window}: {report}");
    }
    for meeting in list(&report, "crossovers")? {
        for direction in ["write", "read"] {
            let bytes = &meeting[format!("{direction}_bytes")];
            let verdict = word(meeting, &format!("{direction}_verdict"))?;
            ensure!(bytes.is_null() == (verdict == "never"), "{meeting}");
            let largest = report["largest_bytes"].as_u64();
            ensure!(bytes.is_null() || bytes.as_u64() <= largest, "{meeting}");
        }
    }
    Ok(())
}

#[apply(case)]
fn bandwidth_is_told_by_size_and_direction(env: &Environment) -> Result<()> {
    let all = report(env, "bandwidth")?;
    has_all_ways(&all)?;
    for row in list(&all, "rows")? {
        ensure!(figure(row, "write_gb_s")? > 0.0, "{row}");
        ensure!(figure(row, "read_gb_s")? > 0.0, "{row}");
    }
    let asked = ["bandwidth", "--json", "--size", "777", "--size", "3"];
    let asked = object(&quick(env, &asked)?)?;
    for row in list(&asked, "rows")? {
        ensure!(row["bytes"] == 777 || row["bytes"] == 3, "{row}");
    }
    Ok(())
}

#[apply(case)]
fn each_call_of_each_window_has_its_cost(env: &Environment) -> Result<()> {
    let report = report(env, "calls")?;
    let rows = list(&report, "rows")?;
    for row in rows {
        figure(row, "median_ns")?;
        figure(row, "p99_ns")?;
        ensure!(row["samples"].as_u64() >= Some(1), "{row}");
    }
    for window in windows(&report)? {
        for call in [
            "open",
            "store 4 B",
            "load 4 B",
            "flush",
            "write 8 B",
            "write 64 B",
            "write 4 KiB",
            "close",
        ] {
            let mut rows = rows.iter();
            let has = rows.any(|row| row["window"] == window && row["call"] == call);
            ensure!(has, "no {call} of {window}: {report}");
        }
    }
    // Devices that give no dma-bufs have a reason in its place.
    let exported = rows.iter().any(|row| row["call"] == "export_dma_buf");
    let left_out = report["left_out"].as_array().map_or(0, Vec::len);
    ensure!(exported == (left_out == 0), "{report}");
    Ok(())
}

#[apply(case)]
fn a_kernel_answers_through_each_window(env: &Environment) -> Result<()> {
    let report = report(env, "ping-pong")?;
    let rows = list(&report, "rows")?;
    let found: Vec<&str> = rows
        .iter()
        .map(|row| word(row, "window"))
        .collect::<Result<_>>()?;
    ensure!(found == windows(&report)?, "{report}");
    for row in rows {
        let [min, median, p99] = ["min_ns", "median_ns", "p99_ns"].map(|key| figure(row, key));
        let (min, median, p99) = (min?, median?, p99?);
        ensure!(min <= median && median <= p99, "{row}");
        ensure!(row["rounds"].as_u64() >= Some(1), "{row}");
    }
    let few = object(&quick(env, &["ping-pong", "--json", "--count", "7"])?)?;
    for row in list(&few, "rows")? {
        ensure!(row["rounds"] == 7, "{row}");
    }
    Ok(())
}

#[apply(case)]
fn tables_say_where_and_how_it_was_measured(env: &Environment) -> Result<()> {
    for tool in ["latency", "bandwidth", "calls", "ping-pong"] {
        let output = quick(env, &[tool])?;
        ensure!(output.status.success(), "{}", text(&output.stderr));
        let shown = text(&output.stdout);
        for word in ["CUDA", "host:", "method:", "default window: ", "gdrcopy:"] {
            ensure!(shown.contains(word), "{word} is not in: {shown}");
        }
        let warned = shown.contains("SIMULATED DRIVER");
        ensure!(warned == (env.backend == Backend::Sim), "{shown}");
    }
    Ok(())
}
