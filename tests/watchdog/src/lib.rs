//! Ends a test program that hangs: names the tests that have not ended, prints the stacks of all threads, and fails. Of one
//! that is ended by a fault it prints the stack of the thread that had it.
//!
//! Programs of unit tests, whose harness says nothing of when a test begins, are watched as a whole
//! ([`watch_program!`]).

#[doc(hidden)]
pub use ctor;

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// So many seconds, in place of the usual ones: for slow machines.
pub const PATIENCE: &str = "CUDA_MEM_TEST_PATIENCE";

/// Longer than any test takes that does not hang, a whole program within a test included.
const USUAL: Duration = Duration::from_secs(180);
/// The end comes even if saying why hangs.
const LAST: libc::c_uint = 30;
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(200);
/// How long one thread may take to print its stack. It may have been interrupted where nothing can be printed.
const A_STACK: Duration = Duration::from_secs(2);
/// After so many threads that do not answer the others are not asked: they may all wait for the same lock.
const SILENT: u32 = 3;
/// What the program ends with, as after a panic.
const HUNG: libc::c_int = 101;

/// A test that runs.
struct Running {
    number: u64,
    name: &'static str,
    began: Instant,
}

thread_local! {
    /// The number of the test that runs on this thread.
    static OWN: Cell<Option<u64>> = const { Cell::new(None) };
}

static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A test is watched until this is dropped.
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

/// Watches a test that begins now. All tests of a program have the same patience.
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
        say_where_it_faults();
        thread::spawn(move || look(patience));
    });
    Watched { number }
}

/// Watches all that this program does, from now on. For [`watch_program!`].
#[doc(hidden)]
pub fn watch_this_program() {
    std::mem::forget(watch("the program", patience()));
}

/// Watches the program of unit tests that this stands in: all of them together have the patience of one.
///
/// Not under Miri, which wants all threads to end.
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

/// The test that runs, if it is the only one.
#[must_use]
pub fn only_one() -> Option<&'static str> {
    match running().as_slice() {
        [test] => Some(test.name),
        _ => None,
    }
}

/// The test that runs on this thread consists of many parts, and has come to the next one. The patience is for each.
pub fn next_part() {
    let (now, own) = (Instant::now(), OWN.get());
    let mut running = running();
    for test in running.iter_mut().filter(|test| own == Some(test.number)) {
        test.began = now;
    }
}

fn look(patience: Duration) {
    loop {
        thread::sleep(LOOK);
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
    unsafe { libc::alarm(LAST) };
    let names = hung.join(", ");
    print(&format!(
        "\nno end after {} s: {names}\n",
        patience.as_secs()
    ));
    print_stacks();
    end_children(std::process::id());
    // SAFETY: nothing is to be run any more; what would be may hang too.
    unsafe { libc::_exit(HUNG) }
}

/// Takes no lock: a thread that hangs may have that of the standard error stream.
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

/// On the thread whose stack it is. Memory is allocated and a lock of the standard library taken, which a signal handler
/// should not: if the thread was in the middle of that it hangs here, and maybe the others too.
extern "C" fn print_own_stack(_: libc::c_int) {
    print(&Backtrace::force_capture().to_string());
    IS_PRINTED.store(true, Ordering::Release);
}

/// As [`print_own_stack`], where memory that is not there was touched, or a library gave up.
extern "C" fn print_fault(signal: libc::c_int) {
    // SAFETY: no memory is passed.
    unsafe { libc::alarm(LAST) };
    print(&format!("\nsignal {signal}\n"));
    print_own_stack(signal);
    // It comes once this handler returns, and ends the program. What faulted might succeed now: what was printed has taken
    // memory, maybe just there.
    // SAFETY: no memory is passed.
    unsafe { libc::raise(signal) };
}

/// The signal ends the program all the same.
fn say_where_it_faults() {
    let handler: extern "C" fn(libc::c_int) = print_fault;
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
        // SAFETY: all zero is a valid value: no flags, no mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        // The second one ends the program.
        action.sa_flags = libc::SA_RESETHAND;
        // SAFETY: the handler has the signature of one, and nobody wants to know what was there.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

fn print_stacks() {
    let mut silent = 0;
    let handler: extern "C" fn(libc::c_int) = print_own_stack;
    // SAFETY: the handler has the signature of one; the program ends soon.
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
        if silent >= SILENT {
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
            if began.elapsed() > A_STACK {
                print("it does not answer\n");
                silent += 1;
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Ends the processes that this one started, and those that they did.
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
