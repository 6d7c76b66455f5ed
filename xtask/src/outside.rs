//! Programs outside the workspace: one made from the README alone, as a new user would make it, and the examples of
//! testing without a GPU.
//!
//! The crates come from git: cargo names their files otherwise than those of a workspace, and only what is
//! committed is there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args as ClapArgs;

use crate::workspace;

/// What the README has in the place of the repository's address.
const URL: &str = "URL-OF-THIS-REPOSITORY";

/// The files of each example that its run needs.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("cuda-mem", &["Cargo.toml", "src/lib.rs", "tests/memory.rs"]),
    (
        "cudarc",
        &["Cargo.toml", "src/lib.rs", "tests/memory.rs", "run.sh"],
    ),
    ("c", &["memory.c", "run.sh"]),
];

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Where the program is made, and kept; without it in a scratch folder
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root();
    let readme = workspace::read(&root.join("README.md"))?;
    let scratch = tempfile::tempdir()?;
    let folder = args.into.as_deref().unwrap_or(scratch.path());
    let program = Program::of(&readme)?;
    let is_empty = std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    ensure!(
        is_empty,
        "{} is not empty, and nothing in it may be lost",
        folder.display()
    );
    program.write(folder, &root)?;

    let target = std::path::absolute(folder)?.join("target");
    let output = cargo(folder, &target, &["test", "--quiet"])?;
    print!("{output}");
    ensure!(
        output.contains("test result: ok. 1 passed"),
        "the README's test did not run"
    );
    let shown = program.run(&target)?;
    print!("{shown}");
    let shown = on_one_line(&shown);
    for promised in program
        .output
        .lines()
        .collect::<Vec<_>>()
        .join(" ")
        .split('…')
    {
        ensure!(
            shown.contains(&on_one_line(promised)),
            "the README shows this, and the program does not print it: {promised}"
        );
    }
    examples(&root, &scratch.path().join("ci-example"), &target)
}

/// The projects of `tests/ci-example`, in a folder with nothing else of the workspace. `target` may have crates of this
/// repository already.
fn examples(root: &Path, folder: &Path, target: &Path) -> Result<()> {
    let repository = format!("file://{}", root.display());
    let from = root.join("tests/ci-example");
    for (name, files) in EXAMPLES {
        for file in *files {
            let text = workspace::read(&from.join(name).join(file))?;
            let to = folder.join(name).join(file);
            std::fs::create_dir_all(to.parent().context("a file in a folder")?)?;
            workspace::write(&to, &text.replace(URL, &repository))?;
        }
    }
    let output = cargo(&folder.join("cuda-mem"), target, &["test", "--quiet"])?;
    print!("{output}");
    ensure!(
        output.contains("test result: ok. 5 passed"),
        "the tests with cuda-mem did not run"
    );
    // A target of its own: it has to find the simulator that it builds itself.
    let cudarc = folder.join("cudarc").join("target");
    let output = script(&folder.join("cudarc"), &cudarc, &[])?;
    print!("{output}");
    ensure!(
        output.contains("test result: ok. 1 passed"),
        "the test with cudarc did not run"
    );
    let library = simulator(&cudarc)?;
    let include = root.join("tests/sim-driver/include");
    let output = script(&folder.join("c"), target, &[&library, &include])?;
    print!("{output}");
    let passed = output
        .lines()
        .filter(|line| line.starts_with("ok: "))
        .count();
    ensure!(passed == 6, "{passed} of 6 checks in C passed");
    Ok(())
}

/// Runs the `run.sh` of an example.
fn script(folder: &Path, target: &Path, arguments: &[&Path]) -> Result<String> {
    let mut command = Command::new("sh");
    command.arg("run.sh").args(arguments).current_dir(folder);
    command.env("CARGO_TARGET_DIR", target);
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    workspace::output(&mut command)
}

/// With one space between words: the README breaks long lines.
fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The parts of the README that make a program.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    dependencies: String,
    main: String,
    /// What the README says that it prints, with `…` where something is left out.
    output: String,
    test: String,
}

impl Program {
    fn of(readme: &str) -> Result<Self> {
        let block = |language: &str, place: usize| {
            let found = blocks(readme, language).nth(place);
            found.with_context(|| format!("the README has no code block {place} of {language}"))
        };
        let program = Self {
            dependencies: block("toml", 0)?,
            main: block("rust", 0)?,
            output: block("text", 0)?,
            test: block("rust", 1)?,
        };
        ensure!(
            program.dependencies.contains(URL),
            "the README's dependencies lack {URL}"
        );
        ensure!(
            program.main.contains("fn main"),
            "the README's first example has no main"
        );
        ensure!(
            program.test.contains("#[test]"),
            "the README's second example is no test"
        );
        Ok(program)
    }

    fn write(&self, folder: &Path, root: &Path) -> Result<()> {
        std::fs::create_dir_all(folder.join("src"))?;
        std::fs::create_dir_all(folder.join("tests"))?;
        let repository = format!("file://{}", root.display());
        let package = "[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
        let manifest = format!("{package}\n{}", self.dependencies.replace(URL, &repository));
        workspace::write(&folder.join("Cargo.toml"), &manifest)?;
        workspace::write(&folder.join("src/main.rs"), &self.main)?;
        workspace::write(&folder.join("tests/gpu.rs"), &self.test)
    }

    /// On the simulated driver: the example ends with an error that says how much memory there is.
    fn run(&self, target: &Path) -> Result<String> {
        let mut command = Command::new(target.join("debug/outside"));
        command.env("CUDA_DRIVER_SYS_LIBRARY", simulator(target)?);
        let output = command
            .output()
            .with_context(|| format!("could not start {command:?}"))?;
        ensure!(
            output.status.code() == Some(1),
            "it ended with {}",
            output.status
        );
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text += &String::from_utf8_lossy(&output.stderr);
        Ok(text)
    }
}

/// The library that cargo built for the test, whose name has a hash in it.
fn simulator(target: &Path) -> Result<PathBuf> {
    for entry in std::fs::read_dir(target.join("debug/deps"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("libcuda_sim-") && name.ends_with(".so") {
            return Ok(path);
        }
    }
    bail!("cargo built no libcuda_sim")
}

fn cargo(folder: &Path, target: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = workspace::cargo();
    command.current_dir(folder).args(arguments);
    command.env("CARGO_TARGET_DIR", target);
    workspace::output(&mut command)
}

/// The contents of the code blocks of a language.
fn blocks<'a>(markdown: &'a str, language: &'a str) -> impl Iterator<Item = String> + 'a {
    let mut lines = markdown.lines();
    std::iter::from_fn(move || {
        lines.find(|line| line.strip_prefix("```") == Some(language))?;
        let block = lines.by_ref().take_while(|line| *line != "```");
        Some(block.map(|line| format!("{line}\n")).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = "# A crate\n```toml\n[dependencies]\nx = { git = \"URL-OF-THIS-REPOSITORY\" }\n```\n\
                          ```rust\nfn main() {}\n```\n```text\nhello …\n```\n```rust,ignore\nno\n```\n\
                          ```rust\n#[test]\nfn works() {}\n```\n";

    #[test]
    fn the_parts_are_found_in_their_order() {
        let program = Program::of(README).expect("a whole README");
        assert_eq!(program.main, "fn main() {}\n");
        assert_eq!(program.output, "hello …\n");
        assert_eq!(program.test, "#[test]\nfn works() {}\n");
    }

    #[test]
    fn a_part_that_is_absent_is_named() {
        for (part, word) in [
            ("```toml", "toml"),
            ("```text", "text"),
            ("#[test]", "no test"),
            ("fn main", "no main"),
            (URL, URL),
        ] {
            let without = README.replace(part, "");
            let error = Program::of(&without).expect_err(part).to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn the_readme_has_all_parts() {
        let readme = workspace::read(&workspace::root().join("README.md")).expect("it is there");
        Program::of(&readme).expect("a whole README");
    }
}
