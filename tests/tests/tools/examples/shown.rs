//! What a person sees.

use std::path::MAIN_SEPARATOR;
use std::sync::OnceLock;

use anyhow::{Result, anyhow, ensure};
use cuda_mem_tests::environment::Environment;

use super::{EXAMPLES, small_log};

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
    let mut texts = Vec::new();
    for example in EXAMPLES.iter().filter(|example| example.name != "ipc") {
        let runs: &[&[&str]] = match example.name {
            "doctor" => &[&[], &["--measure"], &["--simulate"]],
            // Otherwise it serves for ever.
            "metrics" => &[&["--listen", "127.0.0.1:0", "--requests", "0"]],
            "quickstart" => &[&["--trace", &log, "--bytes", "1M"]],
            "replay" => &[
                &["--compare", &log],
                &["--adaptor", "limit=1GiB", "--adaptor", "logging", &log],
            ],
            "sanitizer" => &[&["overrun", "--source", "direct"], &["leak"]],
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
            texts.push((example.name, ended.out));
        }
    }
    Ok(texts)
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
