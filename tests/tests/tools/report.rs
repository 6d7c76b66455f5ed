//! The program that writes pages about logs; `tests/browser` looks at the pages.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::own_process;

use super::{NO_FILE, NO_FOLDER};

const LOG: &str = "Thread,Time,Action,Pointer,Size,Stream,Origin\n\
                   1,04:12:33.1,map,0x1000,2097152,0x0,\n\
                   1,04:12:33.2,allocate,0x1000,1048576,0x0,\"src/<b>.rs:1 f;src/main.rs:2\"\n\
                   1,04:12:33.3,free requested,0x1000,1048576,0x0,\n\
                   1,04:12:33.4,dropped,0x0,3,0x0,\n";

/// A folder with the log `log.csv`.
fn folder(log: &str) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("log.csv"), log)?;
    Ok(folder)
}

fn report(folder: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(own_process::example("report")?);
    command.args(arguments).current_dir(folder);
    Ok(own_process::started(|| command.output())?)
}

/// This exit code, each word in the message, and no page.
fn refused(folder: &Path, arguments: &[&str], code: i32, words: &[&str]) -> Result<()> {
    let output = report(folder, arguments)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(code),
        "{arguments:?}: {errors}"
    );
    for word in words {
        ensure!(errors.contains(word), "{word:?} is not in: {errors}");
    }
    ensure!(!folder.join("page.html").exists(), "a page was left");
    Ok(())
}

#[apply(case)]
fn a_page_is_one_file_and_its_numbers_are_told(_: &Environment) -> Result<()> {
    let folder = folder(LOG)?;
    for (arguments, runs) in [
        (&["log.csv", "-o", "page.html"][..], 1),
        (&["--diff", "log.csv", "log.csv", "-o", "page.html"], 2),
    ] {
        let output = report(folder.path(), arguments)?;
        let told = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{arguments:?}: {output:?}");
        for word in [
            "4 events",
            "1 MiB asked",
            "2 MiB reserved",
            "3 events were dropped",
        ] {
            ensure!(
                told.matches(word).count() == runs,
                "{word:?} is not in: {told}"
            );
        }
        let page = std::fs::read_to_string(folder.path().join("page.html"))?;
        for absent in ["{{", "http:", "https:", "src=", "href=", "<b>"] {
            ensure!(!page.contains(absent), "{absent:?} is in the page");
        }
        ensure!(
            page.contains("default-src 'none'"),
            "the page may load something"
        );
    }
    Ok(())
}

#[apply(case)]
fn mistakes_are_named_and_leave_no_page(_: &Environment) -> Result<()> {
    let folder = folder(&format!("{LOG}1,04:12:33.5,resize,0x1000,1,0x0,\n"))?;
    let path = folder.path();
    let page = ["-o", "page.html"];
    let of = |log| [&[log][..], &page].concat();
    refused(
        path,
        &of("log.csv"),
        2,
        &["log.csv, line 6", "resize", "free requested"],
    )?;
    refused(path, &of("absent.csv"), 2, &["absent.csv", NO_FILE])?;
    refused(path, &["log.csv"], 2, &["--output"])?;
    refused(
        path,
        &[&["--diff", "log.csv"], &page[..]].concat(),
        2,
        &["--diff"],
    )?;
    std::fs::write(path.join("log.csv"), LOG)?;
    let nowhere = ["log.csv", "-o", "nowhere/page.html"];
    refused(path, &nowhere, 3, &["nowhere/page.html", NO_FOLDER])
}
