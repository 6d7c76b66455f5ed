//! What a person sees.

use std::path::MAIN_SEPARATOR;
use std::sync::OnceLock;

use anyhow::{Result, anyhow, ensure};
use cuda_mem_tests::environment::Environment;

use super::{EXAMPLES, side_by_side, small_log};

const WIDTH: usize = 100;

/// The name of an example, and what it printed.
type Shown = (&'static str, String);

/// What each example prints in all its ways. They run once for all tests.
fn texts(env: &Environment) -> Result<&'static [Shown]> {
    static TEXTS: OnceLock<Result<Vec<Shown>, String>> = OnceLock::new();
    match TEXTS.get_or_init(|| run(env).map_err(|error| format!("{error:#}"))) {
        Ok(texts) => Ok(texts),
        Err(error) => Err(anyhow!("{error}")),
    }
}

fn run(env: &Environment) -> Result<Vec<Shown>> {
    let (_folder, log) = small_log()?;
    let examples = EXAMPLES.iter().filter(|example| example.name != "ipc");
    let runs: Vec<_> = examples
        .flat_map(|example| {
            ways(example.name, &log)
                .into_iter()
                .map(move |way| (example, way))
        })
        .collect();
    side_by_side(&runs, |(example, arguments)| {
        let ended = example.run(env, arguments)?;
        ensure!(
            ended.code == 0 || example.name == "doctor" && ended.code < 2,
            "{} {arguments:?}: {}{}",
            example.name,
            ended.out,
            ended.errors
        );
        Ok((example.name, ended.out))
    })
}

/// The arguments of each way in which an example can run.
fn ways<'a>(example: &str, log: &'a str) -> Vec<Vec<&'a str>> {
    match example {
        "doctor" => vec![vec![], vec!["--measure"], vec!["--simulate"]],
        // Otherwise it serves for ever.
        "metrics" => vec![vec!["--listen", "127.0.0.1:0", "--requests", "0"]],
        "quickstart" => vec![vec!["--trace", log, "--bytes", "1M"]],
        "replay" => vec![
            vec!["--compare", log],
            vec!["--adaptor", "limit=1GiB", "--adaptor", "logging", log],
        ],
        "sanitizer" => vec![vec!["overrun", "--source", "direct"], vec!["leak"]],
        "window" => ["latency", "bandwidth", "calls", "ping-pong"]
            .map(|measurement| vec![measurement, "--quick"])
            .into(),
        _ => vec![vec![]],
    }
}

#[apply(case)]
fn lines_fit_the_terminal(env: &Environment) -> Result<()> {
    for (name, text) in texts(env)? {
        for line in text.lines() {
            // A path has the length that it has.
            let is_long = line.chars().count() > WIDTH && !line.contains(['/', MAIN_SEPARATOR]);
            ensure!(!is_long, "{name}: {line}");
        }
    }
    Ok(())
}

/// `Some(3)`, `Device(0)`, `Stats { used: 0 }`.
#[apply(case)]
fn nothing_is_shown_as_the_compiler_would(env: &Environment) -> Result<()> {
    for (name, text) in texts(env)? {
        for line in text.lines() {
            let is_name = |before: &str| {
                let name = before
                    .rsplit(|letter: char| !letter.is_alphanumeric())
                    .next();
                name.is_some_and(|name| {
                    name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase)
                })
            };
            for (at, _) in line.match_indices('(').chain(line.match_indices(" {")) {
                // The name of a processor or device may have brackets: Intel(R).
                let is_mark = ["(R)", "(TM)"]
                    .iter()
                    .any(|mark| line[at..].starts_with(mark));
                ensure!(is_mark || !is_name(&line[..at]), "{name}: {line}");
            }
        }
    }
    Ok(())
}
