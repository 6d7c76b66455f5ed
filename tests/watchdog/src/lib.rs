//! Ends a test program that hangs: names the running tests, prints the stacks of all threads, and fails. After a fault
//! it prints the stack of the thread that caused it.
//!
//! Only Linux shows stacks, and ends the children of a program that hangs.
//!
//! Programs of unit tests, whose harness does not say when a test begins, are watched as a whole ([`watch_program!`]).

#[doc(hidden)]
pub use ctor;

#[cfg_attr(target_os = "linux", path = "system/linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "system/other.rs")]
mod system;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use system::end_children;

/// The patience in seconds, for slow machines.
pub const PATIENCE: &str = "CUDA_MEM_TEST_PATIENCE";

/// Longer than any test that does not hang, including tests that run a whole program.
const USUAL: Duration = Duration::from_secs(180);
/// How often the tests are checked.
const INTERVAL: Duration = Duration::from_millis(200);
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
        system::print_stack_of_faults();
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
    system::set_alarm();
    let names = hung.join(", ");
    system::print(&format!(
        "\nno end after {} s: {names}\n",
        patience.as_secs()
    ));
    system::print_stacks();
    end_children(std::process::id());
    // SAFETY: no exit handler must run, because it may hang too.
    unsafe { libc::_exit(HUNG) }
}

#[cfg(all(test, target_os = "linux"))]
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
