//! What is run, in which order, and what it is expected to print.

use std::path::Path;

/// The trace that the example replays.
const TRACE: &str = "gpt2-train-varlen.csv.gz";

/// What a program says at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// The closing line of a Rust test program.
    TestResult,
    /// A JSON object on one line.
    Json,
    /// Nothing in particular.
    Nothing,
}

/// One program to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    /// Tests of the simulated driver itself: they run on it, here too.
    pub(crate) simulated: bool,
    pub(crate) expect: Expect,
    /// The file for what it prints.
    pub(crate) log: String,
}

/// Everything in order, and what stays out.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) jobs: Vec<Job>,
    pub(crate) not_run: Vec<String>,
}

/// Tests, then the example with and without JSON, then benchmarks.
pub(crate) fn plan(programs: &[String], data: &Path, only: &[String]) -> Plan {
    let trace = data.join(TRACE).display().to_string();
    let named = |prefix: &'static str| {
        programs
            .iter()
            .filter(move |name| name.starts_with(prefix))
            .map(String::as_str)
    };
    let mut jobs: Vec<Job> = named("test-")
        .map(|name| job(name, &[], Expect::TestResult))
        .collect();
    // Always planned: a bundle without the example is broken, and the report has to say so.
    let example = "example-quickstart";
    jobs.push(job(example, &["--json", "--trace", &trace], Expect::Json));
    jobs.push(job(example, &["--trace", &trace], Expect::Nothing));
    jobs.extend(named("example-doctor").map(|name| job(name, &["--measure"], Expect::Nothing)));
    jobs.extend(named("example-devices").map(|name| job(name, &[], Expect::Nothing)));
    jobs.extend(named("example-peers").map(|name| job(name, &[], Expect::Nothing)));
    jobs.extend(named("example-replay").map(|name| {
        job(
            name,
            &["--resource", "pool", "--resource", "arena", &trace],
            Expect::Nothing,
        )
    }));
    for name in named("example-window") {
        jobs.extend(
            ["latency", "bandwidth", "calls", "ping-pong"].map(|tool| Job {
                log: format!("{name}-{tool}.json.log"),
                ..job(name, &[tool, "--json"], Expect::Json)
            }),
        );
    }
    jobs.extend(named("bench-").map(|name| job(name, &["--json"], Expect::Json)));

    let wanted = |name: &str| only.is_empty() || only.iter().any(|text| name.contains(text));
    jobs.retain(|job| wanted(&job.program));
    let planned = |name: &str| jobs.iter().any(|job| job.program == name);
    let not_run = ["test-", "example-", "bench-"]
        .into_iter()
        .flat_map(named)
        .filter(|name| !planned(name))
        .map(str::to_owned)
        .collect();
    Plan { jobs, not_run }
}

fn job(program: &str, arguments: &[&str], expect: Expect) -> Job {
    let suffix = match expect {
        Expect::Json => ".json.log",
        _ => ".log",
    };
    Job {
        program: program.to_owned(),
        arguments: arguments.iter().map(|arg| (*arg).to_owned()).collect(),
        simulated: is_simulated(program),
        expect,
        log: format!("{program}{suffix}"),
    }
}

fn is_simulated(program: &str) -> bool {
    program
        .strip_prefix("test-sim")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_of(names: &[&str], only: &[&str]) -> Plan {
        let strings = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        plan(&strings(names), Path::new("data"), &strings(only))
    }

    const NAMES: [&str; 7] = [
        "bench-alloc",
        "example-ipc",
        "example-quickstart",
        "libcuda_sim.so",
        "report",
        "test-pool",
        "test-sim-faults",
    ];

    #[test]
    fn tests_come_first_then_the_example_then_benchmarks() {
        let plan = plan_of(&NAMES, &[]);
        let logs: Vec<_> = plan.jobs.iter().map(|job| job.log.as_str()).collect();
        assert_eq!(
            logs,
            [
                "test-pool.log",
                "test-sim-faults.log",
                "example-quickstart.json.log",
                "example-quickstart.log",
                "bench-alloc.json.log"
            ]
        );
        assert_eq!(plan.not_run, ["example-ipc"]);
        // The path that the example knows by itself is that of the machine that built it.
        assert_eq!(plan.jobs[2].arguments[2], format!("data/{TRACE}"));
        assert_eq!(plan.jobs[3].arguments[1], format!("data/{TRACE}"));
    }

    #[test]
    fn each_tool_for_windows_has_a_log_of_its_own() {
        let jobs = plan_of(&["example-window"], &["window"]).jobs;
        let logs: Vec<_> = jobs.iter().map(|job| job.log.as_str()).collect();
        assert_eq!(
            logs,
            ["latency", "bandwidth", "calls", "ping-pong"]
                .map(|tool| format!("example-window-{tool}.json.log"))
        );
        assert!(jobs.iter().all(|job| job.expect == Expect::Json));
    }

    #[test]
    fn only_the_simulator_s_own_tests_run_on_it() {
        let plan = plan_of(&["test-sim", "test-sim_faults", "test-simple"], &[]);
        let simulated: Vec<_> = plan.jobs.iter().map(|job| job.simulated).collect();
        assert_eq!(simulated, [true, true, false, false, false]);
    }

    #[test]
    fn a_part_can_be_chosen_and_the_rest_is_named() {
        let plan = plan_of(&NAMES, &["test-"]);
        assert_eq!(plan.jobs.len(), 2);
        assert_eq!(
            plan.not_run,
            ["example-ipc", "example-quickstart", "bench-alloc"]
        );
    }

    #[test]
    fn an_absent_example_is_still_planned() {
        assert_eq!(plan_of(&[], &[]).jobs.len(), 2);
    }
}
