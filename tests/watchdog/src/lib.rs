//! Ends a test program that hangs: names the running tests, prints the stacks of all threads, and fails. After a fault
//! it prints the stack of the thread that caused it.
//!
//! Programs of unit tests, whose harness does not say when a test begins, are watched as a whole ([`watch_program!`]).

#[doc(hidden)]
pub use ctor;

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The patience in seconds, for slow machines.
pub const PATIENCE: &str = "CUDA_MEM_TEST_PATIENCE";

/// Longer than any test that does not hang, including tests that run a whole program.
const USUAL: Duration = Duration::from_secs(180);
/// Seconds until the program ends even if printing hangs.
const LAST_ALARM: libc::c_uint = 30;
/// How often the tests are checked.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long a thread may take to print its stack. It may have been interrupted where it cannot print.
const STACK_LIMIT: Duration = Duration::from_secs(2);
/// After this many threads without an answer the others are not asked: all may wait for the same lock.
const MAX_SILENT: u32 = 3;
/// The exit code, as after a panic.
const HUNG: libc::c_int = 101;

/// A running test.
struct Running {
    number: u64,
    name: &'static str,
    began: Instant,
}

thread_local! {
    /// The number of the test on this thread.
    static OWN: Cell<Option<u64>> = const { Cell::new(None) };
}

static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches a test until it is dropped.
#[derive(Debug)]
pub struct Watched {
    number: u64,
}

impl Drop for Watched {
    fn drop(&mut self) {
        running().retain(|test| test.number != self.number);
    }
}

/// How long a test may take.
#[must_use]
pub fn patience() -> Duration {
    let told = std::env::var(PATIENCE).ok();
    let told = told.and_then(|seconds| seconds.parse().ok());
    told.map_or(USUAL, Duration::from_secs)
}

/// Watches a test that begins now. The patience must be the same for all tests of a program.
#[must_use]
pub fn watch(name: &'static str, patience: Duration) -> Watched {
    static WATCH: Once = Once::new();
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    OWN.set(Some(number));
    running().push(Running {
        number,
        name,
        began: Instant::now(),
    });
    WATCH.call_once(|| {
        print_stack_of_faults();
        thread::spawn(move || check(patience));
    });
    Watched { number }
}

/// Watches this program from now on. For [`watch_program!`].
#[doc(hidden)]
pub fn watch_this_program() {
    std::mem::forget(watch("the program", patience()));
}

/// Watches the program of unit tests that contains it: all tests together have the patience of one.
///
/// Not under Miri, where all threads have to end.
#[macro_export]
macro_rules! watch_program {
    () => {
        #[cfg(not(miri))]
        $crate::ctor::declarative::ctor! {
            #[ctor(unsafe, anonymous)]
            fn watch() {
                $crate::watch_this_program();
            }
        }
    };
}

/// The running test, if there is only one.
#[must_use]
pub fn only_one() -> Option<&'static str> {
    match running().as_slice() {
        [test] => Some(test.name),
        _ => None,
    }
}

/// Restarts the patience of the test on this thread: it consists of parts, and begins the next one.
pub fn next_part() {
    let (now, own) = (Instant::now(), OWN.get());
    let mut running = running();
    for test in running.iter_mut().filter(|test| own == Some(test.number)) {
        test.began = now;
    }
}

fn check(patience: Duration) {
    loop {
        thread::sleep(INTERVAL);
        let hung: Vec<_> = running()
            .iter()
            .filter(|test| test.began.elapsed() > patience)
            .map(|test| test.name)
            .collect();
        if !hung.is_empty() {
            end(&hung, patience);
        }
    }
}

fn end(hung: &[&str], patience: Duration) -> ! {
    // SAFETY: no memory is passed.
    unsafe { libc::alarm(LAST_ALARM) };
    let names = hung.join(", ");
    print(&format!(
        "\nno end after {} s: {names}\n",
        patience.as_secs()
    ));
    print_stacks();
    end_children(std::process::id());
    // SAFETY: no exit handler must run, because it may hang too.
    unsafe { libc::_exit(HUNG) }
}

/// Takes no lock: a hanging thread may hold the one of the standard error stream.
fn print(text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        // SAFETY: the bytes are readable.
        let written = unsafe { libc::write(libc::STDERR_FILENO, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => rest = &rest[written..],
            _ => return,
        }
    }
}

static IS_PRINTED: AtomicBool = AtomicBool::new(false);

/// Runs on the thread whose stack it prints. It allocates memory and takes a lock of the standard library, which a
/// signal handler should not do: a thread interrupted while doing the same hangs here, and may block others.
extern "C" fn print_own_stack(_: libc::c_int) {
    print(&Backtrace::force_capture().to_string());
    IS_PRINTED.store(true, Ordering::Release);
}

/// As [`print_own_stack`], after an invalid access or an abort.
extern "C" fn print_fault(signal: libc::c_int) {
    // SAFETY: no memory is passed.
    unsafe { libc::alarm(LAST_ALARM) };
    print(&format!("\nsignal {signal}\n"));
    print_own_stack(signal);
    // The signal is delivered when this handler returns, and ends the program. A retry of the access might succeed:
    // printing has allocated memory, perhaps at that address.
    // SAFETY: no memory is passed.
    unsafe { libc::raise(signal) };
}

/// The signal still ends the program.
fn print_stack_of_faults() {
    let handler: extern "C" fn(libc::c_int) = print_fault;
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
        // SAFETY: all zero is a valid value: no flags, no mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        // The second one ends the program.
        action.sa_flags = libc::SA_RESETHAND;
        // SAFETY: the handler has the required signature, and the old action is not asked for.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

fn print_stacks() {
    let mut silent = 0;
    let handler: extern "C" fn(libc::c_int) = print_own_stack;
    // SAFETY: the handler has the required signature; the program ends soon.
    unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
    // SAFETY: no memory is passed.
    let own = unsafe { libc::syscall(libc::SYS_gettid) };
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    for task in tasks {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let Some(thread) = task
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i64>().ok())
        else {
            continue;
        };
        if thread == own {
            continue;
        }
        if silent >= MAX_SILENT {
            print("the others are not asked\n");
            break;
        }
        print(&format!("\n-- thread {thread}, {}\n", name.trim()));
        IS_PRINTED.store(false, Ordering::Relaxed);
        let process = i64::from(std::process::id());
        // SAFETY: no memory is passed; the handler is there.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR2) };
        let began = Instant::now();
        while sent == 0 && !IS_PRINTED.load(Ordering::Acquire) {
            if began.elapsed() > STACK_LIMIT {
                print("it does not answer\n");
                silent += 1;
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Kills the children of a process, and their descendants.
pub fn end_children(parent: u32) {
    let mut all = children_of(parent);
    let mut next = 0;
    while let Some(child) = all.get(next) {
        all.extend(children_of(*child));
        next += 1;
    }
    for child in all {
        if let Ok(child) = libc::pid_t::try_from(child) {
            // SAFETY: no memory is passed.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter(|process| {
            let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            // The name, in brackets, may have any character.
            let rest = status.rsplit_once(')').map_or("", |(_, rest)| rest);
            rest.split_whitespace().nth(1) == Some(parent.to_string().as_str())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;
    use std::thread;

    use super::{HUNG, PATIENCE};

    watch_program!();

    const HANGS: &str = "CUDA_MEM_WATCHDOG_HANGS";
    const NAME: &str = "tests::a_program_of_unit_tests_that_hangs_ends_and_says_where";
    const FAULTS: &str = "CUDA_MEM_WATCHDOG_FAULTS";
    const NAME_OF_FAULT: &str = "tests::a_program_that_faults_says_where";

    #[inline(never)]
    fn waits_for_what_never_comes() {
        loop {
            thread::park();
        }
    }

    #[test]
    fn a_program_of_unit_tests_that_hangs_ends_and_says_where() -> std::io::Result<()> {
        // The test hangs where it has started itself.
        if std::env::var_os(HANGS).is_some() {
            waits_for_what_never_comes();
        }
        let output = Command::new(std::env::current_exe()?)
            .args(["--exact", NAME])
            .env(HANGS, "1")
            .env(PATIENCE, "1")
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(HUNG), "{text}");
        assert!(text.contains("no end after 1 s: the program"), "{text}");
        assert!(text.contains("waits_for_what_never_comes"), "{text}");
        Ok(())
    }

    #[inline(never)]
    fn touches_what_is_not_there() {
        // SAFETY: no memory is passed. The signal is what a fault of memory sends.
        let sent = unsafe { libc::raise(libc::SIGSEGV) };
        // Else the call takes the place of this function.
        std::hint::black_box(sent);
    }

    #[test]
    fn a_program_that_faults_says_where() -> std::io::Result<()> {
        // The test faults where it has started itself.
        if std::env::var_os(FAULTS).is_some() {
            touches_what_is_not_there();
        }
        let output = Command::new(std::env::current_exe()?)
            .args(["--exact", NAME_OF_FAULT])
            .env(FAULTS, "1")
            .output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{text}");
        assert!(text.contains("touches_what_is_not_there"), "{text}");
        Ok(())
    }
}
