//! The report: what is written, in the order in which it is read.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::host::{Gpus, Host};
use crate::libtest::{self, Ignored};
use crate::plan::{Expect, Job};
use crate::process::Outcome;

/// Raised when a field changes its meaning or goes.
pub(crate) const FORMAT: u32 = 1;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) format: u32,
    /// UTC.
    pub(crate) date: String,
    pub(crate) command: Vec<String>,
    pub(crate) host: Host,
    pub(crate) gpus: Gpus,
    pub(crate) tests: Vec<TestRun>,
    pub(crate) programs: Vec<ProgramRun>,
    /// In the bundle, and no part of this run.
    pub(crate) not_run: Vec<String>,
    pub(crate) totals: Totals,
}

/// A test program.
#[derive(Debug, Serialize)]
pub(crate) struct TestRun {
    name: String,
    /// On the simulated driver, because it is what the program tests.
    simulated: bool,
    exit_code: Option<i32>,
    seconds: f64,
    passed: u64,
    failed: u64,
    ignored: u64,
    ignored_tests: Vec<Ignored>,
    failed_tests: Vec<String>,
    problem: Option<String>,
    log: String,
}

/// An example or a benchmark.
#[derive(Debug, Serialize)]
pub(crate) struct ProgramRun {
    name: String,
    arguments: Vec<String>,
    exit_code: Option<i32>,
    seconds: f64,
    /// The JSON object that it printed last.
    output: Option<Value>,
    problem: Option<String>,
    log: String,
}

#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Totals {
    test_programs: usize,
    test_programs_failed: usize,
    passed: u64,
    failed: u64,
    ignored: u64,
    other_programs: usize,
    other_programs_failed: usize,
    seconds: f64,
}

impl TestRun {
    pub(crate) fn new(job: &Job, outcome: &Outcome) -> Self {
        let summary = libtest::parse(&outcome.stdout);
        let problem = outcome.problem.clone().or_else(|| match &summary {
            None => Some("printed no result line".to_owned()),
            Some(summary) if summary.failed > 0 => Some("tests failed".to_owned()),
            Some(_) => None,
        });
        let summary = summary.unwrap_or_default();
        Self {
            name: job.program.clone(),
            simulated: job.simulated,
            exit_code: outcome.exit_code,
            seconds: outcome.seconds,
            passed: summary.passed,
            failed: summary.failed,
            ignored: summary.ignored,
            ignored_tests: summary.ignored_tests,
            failed_tests: summary.failed_tests,
            problem,
            log: job.log.clone(),
        }
    }
}

impl ProgramRun {
    pub(crate) fn new(job: &Job, outcome: &Outcome) -> Self {
        let output = match job.expect {
            Expect::Json => last_object(&outcome.stdout),
            _ => None,
        };
        let silent = job.expect == Expect::Json && output.is_none();
        Self {
            name: job.program.clone(),
            arguments: job.arguments.iter().map(|arg| shorten(arg)).collect(),
            exit_code: outcome.exit_code,
            seconds: outcome.seconds,
            output,
            problem: outcome
                .problem
                .clone()
                .or_else(|| silent.then(|| "printed no JSON object".to_owned())),
            log: job.log.clone(),
        }
    }
}

impl Totals {
    pub(crate) fn of(tests: &[TestRun], programs: &[ProgramRun]) -> Self {
        let seconds = tests.iter().map(|run| run.seconds).sum::<f64>()
            + programs.iter().map(|run| run.seconds).sum::<f64>();
        Self {
            test_programs: tests.len(),
            test_programs_failed: tests.iter().filter(|run| run.problem.is_some()).count(),
            passed: tests.iter().map(|run| run.passed).sum(),
            failed: tests.iter().map(|run| run.failed).sum(),
            ignored: tests.iter().map(|run| run.ignored).sum(),
            other_programs: programs.len(),
            other_programs_failed: programs.iter().filter(|run| run.problem.is_some()).count(),
            seconds: (seconds * 1000.0).round() / 1000.0,
        }
    }

    pub(crate) fn good(&self) -> bool {
        self.test_programs_failed == 0 && self.other_programs_failed == 0
    }
}

impl fmt::Display for TestRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, seconds, .. } = self;
        let verdict = self.problem.as_deref().unwrap_or("ok");
        write!(
            f,
            "{name}: {verdict}; {} passed, {} failed, {} ignored, {seconds:.1} s",
            self.passed, self.failed, self.ignored
        )?;
        for test in &self.failed_tests {
            write!(f, "\n    failed: {test}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ProgramRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = self.problem.as_deref().unwrap_or("ok");
        write!(f, "{}: {verdict}; {:.1} s", self.name, self.seconds)
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} test programs good ({} passed, {} failed, {} ignored), \
             {} of {} other programs good, {:.1} s",
            self.test_programs - self.test_programs_failed,
            self.test_programs,
            self.passed,
            self.failed,
            self.ignored,
            self.other_programs - self.other_programs_failed,
            self.other_programs,
            self.seconds
        )
    }
}

fn last_object(output: &str) -> Option<Value> {
    output
        .lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(Value::is_object)
}

/// An argument without the folders of this machine: they mean nothing to a reader.
pub(crate) fn shorten(argument: &str) -> String {
    let path = Path::new(argument);
    match path.file_name() {
        Some(name) if path.is_absolute() => format!("…/{}", name.display()),
        _ => argument.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;

    fn outcome(stdout: &str, problem: Option<&str>) -> Outcome {
        Outcome {
            exit_code: Some(0),
            seconds: 1.5,
            stdout: stdout.to_owned(),
            problem: problem.map(str::to_owned),
        }
    }

    fn jobs() -> Vec<Job> {
        let names = ["test-pool".to_owned(), "bench-alloc".to_owned()];
        plan::plan(&names, Path::new("/data"), &[]).jobs
    }

    const GOOD: &str = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
    const BAD: &str = "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";

    #[test]
    fn a_test_program_must_end_well_and_say_so() {
        let job = &jobs()[0];
        let problem = |text, why| TestRun::new(job, &outcome(text, why)).problem;
        assert_eq!(problem(GOOD, None), None);
        assert_eq!(problem(BAD, None).as_deref(), Some("tests failed"));
        assert_eq!(
            problem("running 3 tests\n", None).as_deref(),
            Some("printed no result line")
        );
        assert_eq!(
            problem(GOOD, Some("ended with signal 11")).as_deref(),
            Some("ended with signal 11")
        );
    }

    #[test]
    fn a_json_program_must_print_an_object() {
        let jobs = jobs();
        let text = "warming up\n{\"ns\": 20}\n[1]\ndone\n";
        let run = ProgramRun::new(&jobs[1], &outcome(text, None));
        assert_eq!(run.output, Some(serde_json::json!({"ns": 20})));
        assert_eq!(run.problem, None);
        assert_eq!(run.arguments[2], "…/gpt2-train-varlen.csv.gz");
        let silent = ProgramRun::new(&jobs[1], &outcome("done\n", None));
        assert_eq!(silent.problem.as_deref(), Some("printed no JSON object"));
        let plain = ProgramRun::new(&jobs[2], &outcome("done\n", None));
        assert_eq!(plain.problem, None);
    }

    #[test]
    fn one_failure_spoils_the_totals() {
        let jobs = jobs();
        let good = TestRun::new(&jobs[0], &outcome(GOOD, None));
        let bad = TestRun::new(&jobs[0], &outcome(BAD, None));
        let bench = ProgramRun::new(&jobs[3], &outcome("{}", None));
        let silent = ProgramRun::new(&jobs[3], &outcome("", None));
        assert!(Totals::of(&[], &[bench]).good());
        assert!(!Totals::of(&[], &[silent]).good());
        let totals = Totals::of(&[good, bad], &[]);
        assert!(!totals.good());
        assert_eq!((totals.passed, totals.failed, totals.ignored), (6, 2, 2));
    }
}
