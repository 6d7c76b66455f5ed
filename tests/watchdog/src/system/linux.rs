//! Stacks of threads, by signals, and children, by the files of `/proc`.

use std::backtrace::Backtrace;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Seconds until the program ends even if printing hangs.
const LAST_ALARM: libc::c_uint = 30;
/// How long a thread may take to print its stack. It may have been interrupted where it cannot print.
const STACK_LIMIT: Duration = Duration::from_secs(2);
/// After this many threads without an answer the others are not asked: all may wait for the same lock.
const MAX_SILENT: u32 = 3;

/// Ends the program soon, whatever hangs.
pub(super) fn set_alarm() {
    // SAFETY: no memory is passed.
    unsafe { libc::alarm(LAST_ALARM) };
}

/// Takes no lock: a hanging thread may hold the one of the standard error stream.
pub(super) fn print(text: &str) {
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
    set_alarm();
    print(&format!("\nsignal {signal}\n"));
    print_own_stack(signal);
    // The signal is delivered when this handler returns, and ends the program. A retry of the access might succeed:
    // printing has allocated memory, perhaps at that address.
    // SAFETY: no memory is passed.
    unsafe { libc::raise(signal) };
}

/// The signal still ends the program.
pub(super) fn print_stack_of_faults() {
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

pub(super) fn print_stacks() {
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
