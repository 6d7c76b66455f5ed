//! Every example as a person meets it: help, mistakes, and what it prints.

mod mistakes;
mod shown;

use std::fs::{File, OpenOptions};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem_tests::environment::{Backend, Environment, Skip, sim_path};
use cuda_mem_tests::own_process;

/// An example, and arguments with which it does all that it does in a short time.
pub(crate) struct Example {
    pub(crate) name: &'static str,
    pub(crate) quick: &'static [&'static str],
    /// Takes an allocation log behind these arguments.
    pub(crate) log: Option<&'static [&'static str]>,
    /// Options that take a size.
    pub(crate) sizes: &'static [&'static str],
}

/// `ipc` needs a second process to come to an end; `super::ipc` tests that. Elsewhere than on Linux it says that it is
/// for Linux, and nothing else.
pub(crate) const EXAMPLES: &[Example] = &[
    Example {
        name: "devices",
        quick: &[],
        log: None,
        sizes: &[],
    },
    Example {
        name: "doctor",
        quick: &[],
        log: None,
        sizes: &[],
    },
    #[cfg(target_os = "linux")]
    Example {
        name: "ipc",
        quick: &["cuda-mem-test-examples"],
        log: None,
        sizes: &[],
    },
    Example {
        name: "metrics",
        quick: &["--listen", "127.0.0.1:0", "--requests", "0"],
        log: None,
        sizes: &[],
    },
    Example {
        name: "peers",
        quick: &[],
        log: None,
        sizes: &[],
    },
    Example {
        name: "quickstart",
        quick: &[],
        log: Some(&["--trace"]),
        sizes: &["--bytes={}"],
    },
    Example {
        name: "replay",
        quick: &["--first", "200"],
        log: Some(&[]),
        sizes: &["--adaptor=limit={}", "--adaptor=aligned={}"],
    },
    Example {
        name: "sanitizer",
        quick: &[],
        log: None,
        sizes: &[],
    },
    Example {
        name: "window",
        quick: &["calls", "--quick"],
        log: None,
        sizes: &["--size={}"],
    },
];

/// No example takes longer with these arguments unless it hangs. `doctor --measure` took more than 60 s beside other tests
/// on the same host.
const PATIENCE: Duration = Duration::from_secs(180);

/// What an example left.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) errors: String,
}

impl Example {
    /// On the driver under test.
    pub(crate) fn command(&self, env: &Environment, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(own_process::example(self.name)?);
        command.args(arguments).stdin(Stdio::null());
        if env.backend == Backend::Sim {
            command.env(LIBRARY_VARIABLE, sim_path()?);
        }
        Ok(command)
    }

    pub(crate) fn run(&self, env: &Environment, arguments: &[&str]) -> Result<Ended> {
        let command = self.command(env, arguments)?;
        ended(command, None).with_context(|| format!("{} {arguments:?}", self.name))
    }

    /// The arguments that make it quick, and then these.
    pub(crate) fn quick<'a>(&self, more: &[&'a str]) -> Vec<&'a str> {
        self.quick.iter().chain(more).copied().collect()
    }
}

/// What comes of each item, all at once: starting a program takes longer on a GPU than what it does.
pub(crate) fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = items
            .iter()
            .map(|item| scope.spawn(move || work(item)))
            .collect();
        let ends = threads.into_iter().map(|thread| {
            let end = thread.join();
            end.map_err(|_| anyhow!("a thread panicked"))?
        });
        ends.collect()
    })
}

/// An allocation log of three operations on two threads and streams.
pub(crate) fn small_log() -> Result<(tempfile::TempDir, String)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("log.csv");
    let rows = "0,0.1,allocate,0x10,1000000,0\n1,0.2,allocate,0x20,5000,3\n\
                0,0.3,free,0x10,1000000,0\n";
    std::fs::write(
        &path,
        format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}"),
    )?;
    Ok((folder, path.display().to_string()))
}

/// A file that takes no byte: the disk is full.
pub(crate) fn full_disk() -> Result<File> {
    match OpenOptions::new().write(true).open("/dev/full") {
        // Wine shows the machine's.
        Err(_) if cfg!(windows) => Err(Skip("Windows has no /dev/full".to_owned()).into()),
        opened => Ok(opened?),
    }
}

/// Waits for the end; an example that does not end is a failure, and is killed.
pub(crate) fn ended(mut command: Command, out: Option<File>) -> Result<Ended> {
    command
        .stdout(out.map_or_else(Stdio::piped, Stdio::from))
        .stderr(Stdio::piped());
    let mut child = own_process::started(|| command.spawn())?;
    let readers = [
        child.stdout.take().map(|pipe| thread::spawn(|| read(pipe))),
        child.stderr.take().map(|pipe| thread::spawn(|| read(pipe))),
    ];
    let status = wait(&mut child)?;
    let [out, errors] = readers.map(|reader| match reader.map(thread::JoinHandle::join) {
        Some(Ok(text)) => text,
        _ => String::new(),
    });
    ensure!(!errors.contains("panicked"), "{errors}");
    Ok(Ended {
        code: status.with_context(|| format!("killed: {out}{errors}"))?,
        out,
        errors,
    })
}

fn read(mut pipe: impl std::io::Read) -> String {
    let mut bytes = Vec::new();
    // What came before a failure is still worth showing.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn wait(child: &mut Child) -> Result<Option<i32>> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill()?;
    child.wait()?;
    bail!("it had not ended after {} s", PATIENCE.as_secs())
}
