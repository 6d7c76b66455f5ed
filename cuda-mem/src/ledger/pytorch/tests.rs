//! The files of a snapshot and a trace that are written down here.

use serde_json::{Value, json};

use super::*;
use crate::ledger::{BlockState, MemoryBlock, MemorySegment, Origin, TraceAction, TraceEntry};

/// Beyond 32 bits, as addresses of devices are.
pub(super) const BASE: u64 = 0x7f00_0000_0000;

pub(super) fn entry(action: TraceAction, address: u64, bytes: u64) -> TraceEntry {
    TraceEntry {
        time: 0,
        thread: 1,
        action,
        address: BASE + address,
        bytes,
        stream: 7,
        origin: None,
    }
}

/// Events at 1 µs, 2 µs and so on.
pub(super) fn recording(mut entries: Vec<TraceEntry>, dropped: u64) -> Recording {
    let times = (1..).map(|nth| nth * 1000);
    entries
        .iter_mut()
        .zip(times)
        .for_each(|(entry, time)| entry.time = time);
    Recording::new(entries, dropped, 0)
}

/// One segment of these blocks: size, state.
pub(super) fn snapshot(time: Option<u64>, blocks: &[(u64, BlockState)]) -> MemorySnapshot {
    let mut at = BASE;
    let blocks = blocks.iter().map(|(bytes, state)| {
        let block = MemoryBlock::new(at, *bytes, *state, None);
        at += bytes;
        block
    });
    let blocks: Vec<MemoryBlock> = blocks.collect();
    let segment = MemorySegment {
        address: BASE,
        bytes: blocks.iter().map(|block| block.bytes).sum(),
        asleep_bytes: 0,
        device: None,
        stream: None,
        blocks,
    };
    MemorySnapshot {
        segments: vec![segment],
        time,
        ..MemorySnapshot::default()
    }
}

fn sample() -> (MemorySnapshot, Recording) {
    let mut allocated = entry(TraceAction::Allocate, 0, 1000);
    allocated.origin = Some(Origin::Frames("model.py:3 forward;train.py:10".into()));
    let mut failed = entry(TraceAction::AllocateFailure, 0, 1 << 40);
    failed.address = 0;
    let entries = vec![entry(TraceAction::Map, 0, 4096), allocated.clone(), failed];
    let mut snapshot = snapshot(
        Some(3500),
        &[(1024, BlockState::Allocated), (3072, BlockState::Free)],
    );
    let block = &mut snapshot.segments[0].blocks[0];
    (block.requested, block.origin) = (Some(1000), allocated.origin);
    (snapshot, recording(entries, 0))
}

#[test]
fn the_file_is_as_pytorch_writes_it() {
    let (snapshot, recording) = sample();
    let mut file = Vec::new();
    let written = snapshot.write_json(Some(&recording), &mut file);
    written.expect("memory for it");
    let frames = json!([
        {"filename": "model.py", "line": 3, "name": "forward"},
        {"filename": "train.py", "line": 10, "name": ""},
    ]);
    let expected = json!({
        "segments": [{
            "device": 0, "address": BASE, "total_size": 4096, "allocated_size": 1024,
            "active_size": 1024, "requested_size": 1000, "stream": 0, "segment_type": "large",
            "segment_pool_id": [0, 0], "is_expandable": true, "frames": [],
            "blocks": [
                {"address": BASE, "size": 1024, "requested_size": 1000,
                    "state": "active_allocated", "frames": frames},
                {"address": BASE + 1024, "size": 3072, "requested_size": 3072,
                    "state": "inactive", "frames": []},
            ],
        }],
        "device_traces": [[
            {"action": "segment_map", "addr": BASE, "size": 4096, "stream": 0, "time_us": 1,
                "frames": []},
            {"action": "alloc", "addr": BASE, "size": 1000, "stream": 7, "time_us": 2,
                "frames": frames},
            {"action": "oom", "device_free": -1, "size": 1_u64 << 40, "stream": 7, "time_us": 3,
                "frames": []},
            {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 3, "frames": []},
        ]],
    });
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    assert_eq!(file, expected);
}

#[test]
fn the_pickle_has_the_same_and_numbers_of_eight_bytes() {
    let (snapshot, recording) = sample();
    let (mut pickle, mut file) = (Vec::new(), Vec::new());
    let pickled = snapshot.write_pickle(Some(&recording), &mut pickle);
    pickled.expect("memory for it");
    let written = snapshot.write_json(Some(&recording), &mut file);
    written.expect("memory for it");
    let options = serde_pickle::DeOptions::new();
    let read: Value = serde_pickle::from_slice(&pickle, options).expect("a pickle");
    let file: Value = serde_json::from_slice(&file).expect("JSON");
    assert_eq!(read, file);
    // LONG1 with its length.
    let mut address = vec![0x8a, 8];
    address.extend_from_slice(&BASE.to_le_bytes());
    let mut places = pickle.windows(address.len());
    assert!(places.any(|place| place == address), "no address");
}
