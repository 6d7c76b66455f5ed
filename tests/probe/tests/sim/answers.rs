//! The simulated driver answers the probe's questions as a real one did.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::{COMMAND, OF_TWO_DEVICES, WRITE, of_one_device, of_two_devices, probe};

const CRASH: &str = "the driver crashes; the simulator answers an error, which a test can see";
const REPORTED: &str = "the driver crashes; the simulator reports the call";
/// The driver takes the context, and frees it again later (R84).
const TWICE: &str = "the simulator refuses what the driver frees twice";
const IS_HOST: &str = "the simulator's devices are the host";
const NO_DESCRIPTOR: &str = "the simulator keeps no descriptor of what it has imported";
const SEMAPHORES: &str = "the simulator has no external semaphores";
const TOO_WIDE: &str =
    "the driver mixes the parts of a value too wide for its element; the simulator cuts it";
const RANGE: &str = "the driver answers the start of something larger than the block; unexplained";

/// R190. `Machine::reports` and `Control::reports` name such writes.
const LOST: &str = "the driver loses what a device writes there; the simulator reports it";

/// Where the simulator is not as the hardware is: the beginning of the question, and why. With its colon
/// it is all of the question.
const KNOWN_DIFFERENCES: [(&str, &str); 79] = [
    ("managed_pools.again anywhere, of the device:", LOST),
    (
        "managed_pools.again anywhere, of the device, the device writes twice:",
        LOST,
    ),
    ("managed_pools.causes kept by the pool, trimmed:", LOST),
    ("managed_pools.causes filled by a copy:", LOST),
    ("managed_pools.causes large:", LOST),
    ("managed_pools.mends discarded, less", LOST),
    ("managed_pools.mends preferred by", LOST),
    ("managed_pools.mends accessed by", LOST),
    ("managed_pools.mends read mostly:", LOST),
    ("ipc.both_kinds 8 as 8, then used", CRASH),
    ("ipc_limits.pools 0 left, then destroyed", REPORTED),
    (
        "ipc_limits.pools 0 left, used before, then destroyed",
        REPORTED,
    ),
    ("ipc.both_kinds 9 as 1, then used", CRASH),
    (
        "init.proc_address too old, cuMemAlloc 2000",
        "the simulator has no ABI of before 3.2",
    ),
    ("init.fork_after cuStreamSynchronize", CRASH),
    ("init.fork_after cuMemAllocFromPoolAsync", CRASH),
    ("init.fork_after cuMemFreeAsync", CRASH),
    ("init.fork_after the child ends", CRASH),
    ("contexts.after_destroy cuCtxSetCurrent", TWICE),
    ("contexts.after_destroy cuCtxPushCurrent", TWICE),
    ("contexts.after_destroy cuStream", CRASH),
    ("contexts.after_destroy cuEventRecord", CRASH),
    ("contexts.after_destroy cuMemFreeAsync", CRASH),
    ("contexts.after_destroy cuMemAllocFromPoolAsync", CRASH),
    ("contexts.after_destroy cuMemsetD8Async", CRASH),
    ("contexts.again cuStream", CRASH),
    ("contexts.again cuEventRecord", CRASH),
    ("contexts.again cuMemFreeAsync", CRASH),
    ("contexts.again cuMemAllocFromPoolAsync", CRASH),
    ("contexts.again cuMemsetD8Async", CRASH),
    (
        "current.of_the_device the default is current at the host",
        "the driver gives another pool after this sequence and not after others; unexplained",
    ),
    ("hosts.host attribute 11", RANGE),
    ("hosts.host_numa attribute 11", RANGE),
    (
        "copies.staging 8 of 262144 B",
        "how the driver divides its staging memory is not known",
    ),
    ("ipc.bad_imports a pool that was destroyed", NO_DESCRIPTOR),
    (
        "ipc_leaks.rounds a pointer imported, its free not seen",
        NO_DESCRIPTOR,
    ),
    ("ipc.imported_twice descriptors more then", NO_DESCRIPTOR),
    (
        "ipc_ends.exporter_first freed, seen and trimmed, the device has it back",
        "the simulator counts for a device what the pools of one process have",
    ),
    (
        "ipc_events.wrong of a dead process",
        "the driver leaves a file behind, the simulator does not",
    ),
    (
        "graphs.alloc 100 MiB",
        "how the driver lays out the addresses of one graph is not known",
    ),
    ("graphs.null_accesses", CRASH),
    ("graph_any.odd kind 8", SEMAPHORES),
    ("graph_any.odd kind 9", SEMAPHORES),
    ("graph_kernels.odd a forged function", CRASH),
    ("graph_kernels.odd no context", CRASH),
    ("graph_kernels.odd its module unloaded", CRASH),
    ("graph_events.destroyed record, before instantiation", CRASH),
    ("graph_events.destroyed wait", CRASH),
    ("graph_sets.memsets elements of 1:", TOO_WIDE),
    ("graph_sets.memsets elements of 2:", TOO_WIDE),
    ("attach.attach flags 0", CRASH),
    (
        "graphs.limits update",
        "the simulator cannot change an instance",
    ),
    (
        "graphs.moved memory",
        "the driver holds twice as much for a graph inside another; unexplained",
    ),
    (
        "managed.device_memory less once freed",
        "the driver keeps the memory of the freed block, for how long was not asked",
    ),
    (
        "wrong.frees plain memory twice",
        "the driver hangs; the simulator answers INVALID_VALUE",
    ),
    (
        "wrong.memsets D32, so many that the length overflows",
        "the driver breaks the context; the simulator answers INVALID_VALUE",
    ),
    ("wrong.nulls cuMemPoolSetAttribute", CRASH),
    ("wrong.nulls cuGetProcAddress into null", CRASH),
    ("wrong.nulls cuGetProcAddress of null", CRASH),
    ("wrong.nulls cuGetErrorName", CRASH),
    ("wrong.nulls cuDeviceGetName of length 0", CRASH),
    ("wrong.handles ", CRASH),
    (
        "wrong.pools cuDeviceSetMemPool",
        "the driver takes a destroyed pool; the simulator refuses it",
    ),
    (
        "vmm.pointers reserved, cuMemGetAddressRange",
        "both answer null, which the probe told as a distance when it was recorded",
    ),
    (
        "vmm_use.mappings past ",
        "the driver maps there; the simulator refuses it: the addresses may be anybody's",
    ),
    (
        "vmm_use.mappings:",
        "the mapping past the reservation was left when this was recorded; the probe unmaps it now",
    ),
    ("vmm_use.odd cuMemMap of a released handle", CRASH),
    (
        "vmm_host.flags for tile pools, told",
        "the driver tells no usage; the simulator tells what it was given",
    ),
    (
        "vmm_host.flags unknown usage, told",
        "the driver tells no usage; the simulator tells what it was given",
    ),
    ("vmm_host.touches host, no access", IS_HOST),
    ("vmm_host.touches host, access of the device only", IS_HOST),
    ("vmm_host.touches node, no access", IS_HOST),
    ("vmm_host.touches node, access of the device only", IS_HOST),
    (
        "told.pages told, wrapping",
        "the driver looks at the first page; the simulator answers INVALID_VALUE",
    ),
    ("modules.given_back library, unload", CRASH),
    (
        "modules.given_back library, kernel",
        "the driver looks where nothing is any more; the simulator answers INVALID_HANDLE",
    ),
    (
        "modules.laziness attribute 4",
        "the simulator compiles nothing that would use registers",
    ),
    (
        "vmm_host.taken",
        "the simulator's memory is the host's, which always touches it",
    ),
    (
        "windows.maps to read",
        "no file of a program's own answers the kernel's 524",
    ),
];

/// The same of two devices.
const KNOWN_DIFFERENCES_OF_TWO: [(&str, &str); 9] = [
    (
        "across.without_context cuMemcpyDtoDAsync on the stream of 0, no access",
        CRASH,
    ),
    (
        "across.without_context cuMemcpyDtoDAsync on the stream of 1",
        CRASH,
    ),
    (
        "across.without_context cuMemcpyAsync on the stream of 0, no access",
        CRASH,
    ),
    (
        "across.without_context cuMemcpyAsync on the stream of 1",
        CRASH,
    ),
    ("across.contexts_of_copies cuMemcpyPeerAsync, none", CRASH),
    ("across.contexts_of_copies cuMemcpyPeer, none", CRASH),
    (
        "across.foreign_stream from the host, no access, context none",
        CRASH,
    ),
    (
        "across.foreign_stream to the host, no access, context none",
        CRASH,
    ),
    (
        "across.foreign_stream within the block, no access, context none",
        CRASH,
    ),
];

/// The probe's answers by question, from its lines.
fn answers(text: &str) -> BTreeMap<&str, &str> {
    let mut answers = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (question, answer) = line.split_once(": ").expect("question: answer");
        let twice = answers.insert(question, answer);
        assert_eq!(twice, None, "{question} is answered twice");
    }
    answers
}

fn committed(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/hardware");
    folder.join(name)
}

/// The simulator's answers are exactly those of the committed text, which says how it was written.
fn keep(name: &str, text: &str) {
    let mut lines = vec![format!("# Written by `{COMMAND}`.")];
    // Each topic was asked by itself and began with the name of the device.
    lines.extend(text.lines().take(1).map(str::to_owned));
    lines.extend(
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned),
    );
    // Two processes answer these, and which of them is first is chance.
    let is_shared = |line: &String| line.starts_with("ipc");
    let (mut shared, others): (Vec<String>, Vec<String>) = lines.into_iter().partition(is_shared);
    shared.sort_unstable();
    let lines: Vec<String> = others.into_iter().chain(shared).collect();
    let now = lines.join("\n") + "\n";
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(committed(name), &now).expect("the text can be written");
        return;
    }
    let before = std::fs::read_to_string(committed(name)).unwrap_or_default();
    // Two processes of one question may print in either order.
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) =
        (before.lines().collect(), now.lines().collect());
    let gone: Vec<_> = old
        .difference(&new)
        .map(|line| format!("- {line}"))
        .collect();
    let come: Vec<_> = new
        .difference(&old)
        .map(|line| format!("+ {line}"))
        .collect();
    assert!(
        gone.is_empty() && come.is_empty(),
        "docs/hardware/{name} is not what the simulator answers; if it should be, run `{COMMAND}` and \
         commit it\n{}",
        [gone, come].concat().join("\n")
    );
}

fn topic(question: &str) -> &str {
    question.split('.').next().unwrap_or_default()
}

/// The hardware's answers from committed records. Each topic is in one of them.
fn recorded(records: &[String]) -> BTreeMap<&str, &str> {
    let mut all: BTreeMap<&str, &str> = BTreeMap::new();
    for record in records {
        let more = answers(record);
        let topics: BTreeSet<&str> = more.keys().map(|question| topic(question)).collect();
        let before: BTreeSet<&str> = all.keys().map(|question| topic(question)).collect();
        let twice: Vec<_> = topics.intersection(&before).collect();
        assert!(twice.is_empty(), "recorded twice: {twice:?}");
        all.extend(more);
    }
    all
}

/// Compares the simulator's answers with committed records of the hardware's.
fn compare(records: &[&str], text: &str, known: &[(&str, &str)]) {
    let simulated = answers(text);
    for (question, answer) in &simulated {
        let odd = ["hung", "panicked", "crashed"]
            .iter()
            .any(|odd| answer.starts_with(odd));
        assert!(!odd, "{question}: {answer}");
    }
    let read = |record: &&str| std::fs::read_to_string(committed(record));
    let records: Result<Vec<String>, _> = records.iter().map(read).collect();
    let records = records.expect("the records are committed");
    let hardware = recorded(&records);
    let topics: BTreeSet<&str> = hardware.keys().map(|question| topic(question)).collect();
    let questions: BTreeSet<&str> = simulated.keys().chain(hardware.keys()).copied().collect();
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for question in questions {
        let (simulated, hardware) = (simulated.get(question), hardware.get(question));
        let topic = topic(question);
        assert!(
            topics.contains(topic),
            "{topic} is not recorded: `probe --only {topic}.` on hardware"
        );
        if simulated == hardware {
            continue;
        }
        let beginnings = known.iter().map(|(beginning, _)| *beginning);
        let asked = format!("{question}:");
        let matching: Vec<&str> = beginnings
            .filter(|beginning| asked.starts_with(beginning))
            .collect();
        if !matching.is_empty() {
            used.extend(matching);
            continue;
        }
        let show = |answer: Option<&&str>| answer.map_or("nothing", |answer| *answer).to_owned();
        wrong.push(format!(
            "{question}\n    simulated: {}\n    hardware:  {}",
            show(simulated),
            show(hardware)
        ));
    }
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    for (beginning, reason) in known {
        assert!(
            used.contains(beginning),
            "{beginning} is no difference any more ({reason})"
        );
    }
}

#[test]
fn the_simulator_answers_as_the_hardware_did() {
    let text = of_one_device();
    keep("probe-simulator.txt", text);
    let records = ["probe-h200.txt", "probe-h100.txt"];
    compare(&records, text, &KNOWN_DIFFERENCES);
}

#[test]
fn two_simulated_devices_answer_as_two_real_ones_did() {
    let text = of_two_devices();
    keep("probe-simulator-x2.txt", text);
    let records = ["probe-h200-x2.txt"];
    compare(&records, text, &KNOWN_DIFFERENCES_OF_TWO);
}

#[test]
fn one_device_is_not_asked_about_two() {
    let library = cuda_sim::library_path().expect("cargo has built the simulator");
    for topic in OF_TWO_DEVICES {
        let only = format!("{topic}.");
        let arguments = [
            "--library".as_ref(),
            library.as_os_str(),
            "--only".as_ref(),
            only.as_ref(),
        ];
        assert_eq!(probe(&arguments, 1), "# CUDA 13.0 on Simulated GPU 0\n");
    }
}
