//! The same mistake has the same answer everywhere.

use anyhow::{Result, ensure};
use cuda_mem_tests::environment::Environment;

use super::super::{DISK_FULL, NO_FOLDER};
use super::{EXAMPLES, Ended, Example, ended, full_disk, side_by_side, small_log};

/// This exit code, each word in the message, and no output.
fn refused(example: &Example, ended: &Ended, code: i32, words: &[&str]) -> Result<()> {
    let (name, errors) = (example.name, &ended.errors);
    ensure!(ended.code == code, "{name}: code {}: {errors}", ended.code);
    for word in words {
        ensure!(
            errors.contains(word),
            "{name}: {word:?} is not in: {errors}"
        );
    }
    ensure!(ended.out.is_empty(), "{name} had begun: {}", ended.out);
    Ok(())
}

#[apply(case)]
fn help_is_given_and_nothing_else_is_done(env: &Environment) -> Result<()> {
    for example in EXAMPLES {
        let ended = example.run(env, &["--help"])?;
        let name = example.name;
        ensure!(
            ended.code == 0 && ended.errors.is_empty(),
            "{name}: {}",
            ended.errors
        );
        for word in ["Usage:", "--device <N>", "Exit codes:", "  2  ", "  3  "] {
            ensure!(
                ended.out.contains(word),
                "{name}: {word:?} is not in: {}",
                ended.out
            );
        }
    }
    Ok(())
}

#[apply(case)]
fn an_unknown_option_is_named(env: &Environment) -> Result<()> {
    for example in EXAMPLES {
        let ended = example.run(env, &example.quick(&["--teapot"]))?;
        refused(example, &ended, 2, &["--teapot", "--help"])?;
    }
    Ok(())
}

#[apply(case)]
fn a_device_that_is_not_there_is_named(env: &Environment) -> Result<()> {
    for example in EXAMPLES {
        let ended = example.run(env, &example.quick(&["--device", "99"]))?;
        if example.name == "doctor" {
            // What it finds is its output, whatever it finds.
            ensure!(
                ended.code == 2 && ended.out.contains("--device 99"),
                "{}",
                ended.out
            );
        } else {
            refused(example, &ended, 2, &["--device 99", "device 99 of"])?;
        }
    }
    Ok(())
}

#[apply(case)]
fn a_hidden_device_is_told_with_the_variable(env: &Environment) -> Result<()> {
    for example in EXAMPLES {
        let mut command = example.command(env, example.quick)?;
        command.env("CUDA_VISIBLE_DEVICES", "9");
        let ended = ended(command, None)?;
        let words = ["CUDA_VISIBLE_DEVICES", "\"9\""];
        if example.name == "doctor" {
            ensure!(ended.code == 2, "{}", ended.out);
            ensure!(
                words.iter().all(|word| ended.out.contains(word)),
                "{}",
                ended.out
            );
        } else {
            refused(example, &ended, 2, &words)?;
        }
    }
    Ok(())
}

#[apply(case)]
fn a_missing_log_is_named(env: &Environment) -> Result<()> {
    for example in EXAMPLES {
        let Some(log) = example.log else { continue };
        let ended = example.run(env, &[log, &["/nowhere/log.csv"]].concat())?;
        refused(example, &ended, 2, &["/nowhere/log.csv", NO_FOLDER])?;
    }
    Ok(())
}

#[apply(case)]
fn a_log_that_is_none_lacks_columns(env: &Environment) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("noise");
    let path = path.to_string_lossy();
    for garbage in [
        &b"a,b\n1,2\n"[..],
        b"\x7fELF\x02\xff\xfe\x00\x01",
        b"",
        b"hello\n",
    ] {
        std::fs::write(&*path, garbage)?;
        for example in EXAMPLES {
            let Some(log) = example.log else { continue };
            let ended = example.run(env, &[log, &[&*path]].concat())?;
            let words = [&*path, "lacks the columns Action, Pointer, Size, Stream"];
            refused(example, &ended, 2, &words)?;
        }
    }
    Ok(())
}

#[apply(case)]
fn a_picture_that_cannot_be_written_is_told_before_the_work(env: &Environment) -> Result<()> {
    for example in EXAMPLES.iter().filter(|example| example.name == "replay") {
        let picture = ["--svg", "/nowhere/picture.svg"];
        let ended = example.run(env, &example.quick(&picture))?;
        refused(example, &ended, 3, &["/nowhere/picture.svg", NO_FOLDER])?;
    }
    Ok(())
}

#[apply(case)]
fn a_full_disk_has_its_code(env: &Environment) -> Result<()> {
    for example in EXAMPLES {
        let ended = ended(example.command(env, example.quick)?, Some(full_disk()?))?;
        refused(
            example,
            &ended,
            3,
            &["standard output cannot be written", DISK_FULL],
        )?;
    }
    Ok(())
}

#[apply(case)]
fn sizes_are_read_alike(env: &Environment) -> Result<()> {
    let (_folder, log) = small_log()?;
    let options: Vec<_> = EXAMPLES
        .iter()
        .flat_map(|example| example.sizes.iter().map(move |option| (example, option)))
        .collect();
    side_by_side(&options, |(example, option)| {
        let quick = match example.log {
            Some(before) => [before, &[log.as_str()]].concat(),
            None => example.quick.to_vec(),
        };
        for size in ["1048576", "1024K", "1M", "1MiB", "1 MiB"] {
            let option = option.replace("{}", size);
            let ended = example.run(env, &[&quick[..], &[&option]].concat())?;
            let (name, errors) = (example.name, &ended.errors);
            ensure!(ended.code == 0, "{name} {option}: {errors}");
        }
        for size in ["many", "-1", "12Q", ""] {
            let option = option.replace("{}", size);
            let ended = example.run(env, &[&quick[..], &[&option]].concat())?;
            refused(example, &ended, 2, &["such as"])?;
        }
        Ok(())
    })?;
    Ok(())
}
