//! The simulated driver answers the probe's questions as a real one did.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Where the simulator is not as the hardware is: the beginning of the question, and why.
const KNOWN_DIFFERENCES: [(&str, &str); 0] = [];

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

fn probe_the_simulator() -> String {
    let library = cuda_sim::library_path().expect("cargo has built the simulator");
    let output = Command::new(env!("CARGO_BIN_EXE_probe"))
        .arg("--library")
        .arg(library)
        .output()
        .expect("the probe runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("the probe prints UTF-8")
}

fn known(question: &str) -> bool {
    KNOWN_DIFFERENCES
        .iter()
        .any(|(beginning, _)| question.starts_with(beginning))
}

#[test]
fn the_simulator_answers_as_the_hardware_did() {
    let text = probe_the_simulator();
    assert!(text.starts_with("# CUDA 13.0 on Simulated GPU 0\n"));
    let simulated = answers(&text);
    for topic in [
        "init", "none", "contexts", "pools", "trim", "reuse", "wrong",
    ] {
        let asked = simulated.keys().any(|question| question.starts_with(topic));
        assert!(asked, "{topic}");
    }
    for (question, answer) in &simulated {
        let odd = ["hung", "panicked", "crashed"]
            .iter()
            .any(|odd| answer.starts_with(odd));
        assert!(!odd, "{question}: {answer}");
    }

    let record = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/hardware/probe-h200.txt");
    let Ok(recorded) = std::fs::read_to_string(&record) else {
        eprintln!("no {}: nothing to compare with", record.display());
        return;
    };
    let hardware = answers(&recorded);
    let questions: BTreeSet<&str> = simulated.keys().chain(hardware.keys()).copied().collect();
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for question in questions {
        let (simulated, hardware) = (simulated.get(question), hardware.get(question));
        if simulated == hardware {
            continue;
        }
        if known(question) {
            used.extend(
                KNOWN_DIFFERENCES
                    .iter()
                    .map(|(beginning, _)| *beginning)
                    .filter(|beginning| question.starts_with(beginning)),
            );
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
    for (beginning, reason) in KNOWN_DIFFERENCES {
        assert!(
            used.contains(beginning),
            "{beginning} is no difference any more ({reason})"
        );
    }
}
