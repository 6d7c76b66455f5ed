//! What a person sees.

use anyhow::{Result, ensure};
use cuda_mem_tests::environment::Environment;

use super::{EXAMPLES, Example, small_log};

const WIDTH: usize = 100;

/// What each example prints in all its ways.
fn texts(env: &Environment, look: impl Fn(&Example, &str) -> Result<()>) -> Result<()> {
    let (_folder, log) = small_log()?;
    for example in EXAMPLES.iter().filter(|example| example.name != "ipc") {
        let runs: &[&[&str]] = match example.name {
            "doctor" => &[&[], &["--measure"], &["--simulate"]],
            "quickstart" => &[&["--trace", &log, "--bytes", "1M"]],
            "replay" => &[
                &["--compare", &log],
                &["--adaptor", "limit=1GiB", "--adaptor", "logging", &log],
            ],
            "window" => &[
                &["latency", "--quick"],
                &["bandwidth", "--quick"],
                &["calls", "--quick"],
                &["ping-pong", "--quick"],
            ],
            _ => &[&[]],
        };
        for arguments in runs {
            let ended = example.run(env, arguments)?;
            ensure!(
                ended.code == 0 || example.name == "doctor" && ended.code < 2,
                "{} {arguments:?}: {}{}",
                example.name,
                ended.out,
                ended.errors
            );
            look(example, &ended.out)?;
        }
    }
    Ok(())
}

#[apply(case)]
fn lines_fit_the_terminal(env: &Environment) -> Result<()> {
    texts(env, |example, text| {
        for line in text.lines() {
            // A path has the length that it has.
            let is_long = line.chars().count() > WIDTH && !line.contains('/');
            ensure!(!is_long, "{}: {line}", example.name);
        }
        Ok(())
    })
}

/// `Some(3)`, `Device(0)`, `Stats { used: 0 }`.
#[apply(case)]
fn nothing_is_shown_as_the_compiler_would(env: &Environment) -> Result<()> {
    texts(env, |example, text| {
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
                ensure!(is_mark || !is_name(&line[..at]), "{}: {line}", example.name);
            }
        }
        Ok(())
    })
}
