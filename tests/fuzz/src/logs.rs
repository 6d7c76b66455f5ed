//! Allocation logs, plain and packed.

use std::path::Path;

use cuda_mem_trace::{Events, Op, Timeline, Trace, TraceError};

/// Reads a log. One that is accepted makes sense and is read back as it is written; of one that is refused
/// the line is named in which it ceases to be good. What both readers accept has the same peak.
///
/// # Panics
///
/// If that is not so.
pub fn check(data: &[u8]) {
    match read(data) {
        Ok(trace) => {
            check_sense(&trace);
            check_writing(&trace);
            check_timeline(data, &trace);
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            // It may lack frees and still be a log of events.
            timeline(data);
            if let Some(line) = error.line {
                check_line(data, line);
            }
        }
    }
}

fn read(data: &[u8]) -> Result<Trace, TraceError> {
    Trace::read_from(Path::new("log"), data)
}

fn timeline(data: &[u8]) -> Option<Timeline> {
    let events = Events::read_from(Path::new("log"), data).ok()?;
    Timeline::new(&events).ok()
}

fn check_timeline(data: &[u8], trace: &Trace) {
    let Some(found) = timeline(data) else {
        // A time may be no time, and a replay does not look at other actions.
        return;
    };
    assert!(found.used.bytes >= found.asked.bytes);
    let fits = found.missing_frees + found.unknown_frees == 0;
    if fits {
        let asked = (found.asked.bytes, found.asked_at_end, found.failures);
        assert_eq!(asked, (trace.peak_bytes, trace.left_bytes, trace.failures));
    }
}

/// The operations done one by one.
fn check_sense(trace: &Trace) {
    let mut slots: Vec<Option<usize>> = vec![None; trace.slots];
    let (mut now, mut peak) = (0_u64, 0);
    for op in &trace.ops {
        let used = match *op {
            Op::Allocate {
                slot,
                bytes,
                stream,
            } => {
                assert_eq!(slots[slot].replace(bytes), None, "{op:?}");
                now += bytes as u64;
                stream
            }
            Op::Free { slot, stream } => {
                let bytes = slots[slot].take();
                now -= bytes.unwrap_or_else(|| panic!("{op:?} of nothing")) as u64;
                stream
            }
        };
        assert!(used < trace.streams, "{op:?}");
        peak = peak.max(now);
    }
    assert_eq!((trace.peak_bytes, trace.left_bytes), (peak, now));
    assert_eq!(trace.op_threads.len(), trace.ops.len());
    let threads = trace.op_threads.iter().max().map_or(0, |last| last + 1);
    assert_eq!(trace.threads, threads);
}

fn check_writing(trace: &Trace) {
    let mut log = Vec::new();
    trace.write(&mut log).expect("memory takes everything");
    let again = read(&log).expect("what was written is a log");
    // Failed requests are not written.
    let expected = Trace {
        failures: 0,
        ..trace.clone()
    };
    assert_eq!(again, expected);
}

/// The lines before this one are a log, or the beginning of one, and with it they are none.
fn check_line(data: &[u8], line: u64) {
    // Of packed logs the lines are not to be had here.
    if !data.starts_with(b"Thread") && !data.starts_with(b"Action") {
        return;
    }
    let lines: Vec<&[u8]> = data.split_inclusive(|byte| *byte == b'\n').collect();
    let line = usize::try_from(line).expect("a line that is there");
    assert!((2..=lines.len()).contains(&line), "line {line}");
    let before = read(&lines[..line - 1].concat());
    assert!(
        before.as_ref().is_ok_and(|trace| !trace.ops.is_empty())
            || before.is_err_and(|error| error.line.is_none()),
        "an earlier line than {line}"
    );
    let with = read(&lines[..line].concat()).expect_err("a bad line");
    assert_eq!(with.line, Some(line as u64));
}
