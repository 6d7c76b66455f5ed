//! Recorders: what happens to memory, over time.

use std::ffi::{CStr, c_char};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cuda_mem::base::is_forked;
use cuda_mem::ledger;
use cuda_mem::{Error, ErrorKind};

use crate::log_file::LogFile;
use crate::status::{Status, answer, invalid, write};

/// Records what happens to the memory of arenas and pools: name it in their options. Counted: the arenas and pools keep what
/// they need, so it may be released at any time.
#[derive(Debug)]
pub struct Recorder {
    recorder: ledger::Recorder,
    /// Where the events are written, unless they stay in memory.
    file: Option<LogFile>,
}

/// Writes the frames of the calling thread, innermost first and separated by `;`, each `FILE:LINE` or `FILE:LINE NAME`, to at
/// most `size` bytes at `text`, and returns how many bytes it wrote; 0 for none. Called in each allocation that is recorded,
/// from any thread; it must not allocate memory that is recorded.
pub type Frames = Option<unsafe extern "C" fn(text: *mut c_char, size: usize) -> usize>;

/// The longest list of frames.
const LONGEST_FRAMES: usize = 8192;

/// A [`Frames`]; null for none.
static FRAMES: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Changes twice with each replacement, so that calls of the next function are not waited for.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// Calls that have not returned, of even and of odd generations.
static CALLS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// From now on recorders of this library ask `frames` where a request comes from; null for no more. Waits until no call of the
/// function before is under way, so do not call it from such a function, nor with a lock that it needs.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_recorder_frames_with(frames: Frames) {
    static REPLACING: Mutex<()> = Mutex::new(());
    let frames = frames.map_or(std::ptr::null_mut(), |frames| frames as *mut ());
    // The calls of a fork, and who holds the lock, are the parent's.
    if is_forked() {
        FRAMES.store(frames, Ordering::SeqCst);
        return;
    }
    let _one_at_a_time = REPLACING.lock().unwrap_or_else(PoisonError::into_inner);
    if FRAMES.swap(frames, Ordering::SeqCst) == frames {
        return;
    }
    // Twice: a call may have taken its generation long before it counts itself and reads the function.
    for _ in 0..2 {
        let generation = GENERATION.fetch_add(1, Ordering::SeqCst);
        while CALLS[generation % 2].load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// A call that has not returned, by its count.
struct Call(&'static AtomicUsize);

impl Call {
    fn begin() -> Self {
        let count = &CALLS[GENERATION.load(Ordering::SeqCst) % 2];
        // Before the function is read: what replaces it then waits for this call.
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Appends what the program says of the calling thread.
fn append_frames(text: &mut String) {
    if FRAMES.load(Ordering::Relaxed).is_null() {
        return;
    }
    let _call = Call::begin();
    let frames = FRAMES.load(Ordering::SeqCst);
    // SAFETY: null, which is none, or made of such a function.
    let Some(frames) = (unsafe { std::mem::transmute::<*mut (), Frames>(frames) }) else {
        return;
    };
    let mut bytes = vec![0_u8; LONGEST_FRAMES];
    // SAFETY: it may write to all of these bytes, as its contract says.
    let written = unsafe { frames(bytes.as_mut_ptr().cast(), bytes.len()) };
    bytes.truncate(written);
    text.push_str(&String::from_utf8_lossy(&bytes));
}

impl Recorder {
    pub(crate) fn recorder(&self) -> &ledger::Recorder {
        &self.recorder
    }

    fn ring(entries: usize) -> Self {
        Self {
            recorder: ledger::Recorder::ring(entries).with_frames(append_frames),
            file: None,
        }
    }

    pub(crate) fn to_file(file: LogFile) -> Self {
        let recorder = ledger::Recorder::to_writer(file.clone());
        Self {
            recorder: recorder.with_frames(append_frames),
            file: Some(file),
        }
    }

    /// The events that are in memory.
    pub(crate) fn recording(&self) -> Result<ledger::Recording, Error> {
        if self.file.is_some() {
            return Err(invalid("`recorder` writes to a file of its own"));
        }
        Ok(self.recorder.recording())
    }

    /// Completes the file. Later events are lost.
    pub(crate) fn end(&self) -> Result<(), Error> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        // In a fork the file is the parent's to complete.
        if file.is_inherited() {
            return Ok(());
        }
        let closed = self.recorder.close();
        // What could be written is completed all the same.
        closed.and(file.end())
    }

    /// # Safety
    ///
    /// `recorder` is null or not released.
    pub(crate) unsafe fn of<'a>(recorder: *const Self) -> Result<&'a Self, Error> {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { recorder.as_ref() }.ok_or_else(|| invalid("`recorder` is null"))
    }
}

/// # Safety
///
/// `path` is null or a zero-terminated string.
pub(crate) unsafe fn path(path: *const c_char, name: &str) -> Result<PathBuf, Error> {
    if path.is_null() {
        return Err(invalid(format!("`{name}` is null")));
    }
    // SAFETY: promised by the caller, in the words of the section above.
    let path = unsafe { CStr::from_ptr(path) }.to_str();
    let path = path.map_err(|_| invalid(format!("`{name}` is no UTF-8")))?;
    Ok(PathBuf::from(path))
}

/// Makes a file and completes it.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(LogFile) -> io::Result<()>,
) -> Result<(), Error> {
    let file = LogFile::create(path)?;
    write(file.clone()).map_err(|error| {
        let text = format!("writing {}: {error}", path.display());
        Error::new(ErrorKind::System, text)
    })?;
    file.end()
}

/// # Safety
///
/// `recorder` is null or not released; `path` is null or a zero-terminated string.
unsafe fn write_recording(
    recorder: *const Recorder,
    path: *const c_char,
    write: impl FnOnce(&ledger::Recording, LogFile) -> io::Result<()>,
) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        let recorder = unsafe { Recorder::of(recorder) }?;
        // SAFETY: as above.
        let path = unsafe { self::path(path, "path") }?;
        let recording = recorder.recording()?;
        write_file(&path, |file| write(&recording, file))
    })
}

/// # Safety
///
/// `out` is null or valid for a write.
unsafe fn create(
    out: *mut *mut Recorder,
    make: impl FnOnce() -> Result<Recorder, Error>,
) -> Status {
    answer(|| {
        // SAFETY: the promise of this function, also below.
        unsafe { write(out, "recorder", std::ptr::null_mut()) }?;
        let recorder = Arc::into_raw(Arc::new(make()?)).cast_mut();
        // SAFETY: as above.
        unsafe { write(out, "recorder", recorder) }
    })
}

/// Creates a recorder that keeps the newest `entries` events in memory.
///
/// # Safety
///
/// `recorder` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_recorder_create(
    entries: usize,
    recorder: *mut *mut Recorder,
) -> Status {
    // More than fits any memory would end the process.
    let most = 1 << 32;
    let make = || {
        if entries == 0 || entries > most {
            return Err(invalid(format!(
                "`entries` is {entries}; it is at least 1 and at most {most}"
            )));
        }
        Ok(Recorder::ring(entries))
    };
    // SAFETY: promised by the caller, in the words of the section above.
    unsafe { create(recorder, make) }
}

/// Creates a recorder that writes every event to a file, as a line of a log: compressed if the name ends in .gz. An existing
/// file is replaced. The file is complete after `cudamem_recorder_end`.
///
/// # Safety
///
/// `path` is null or a zero-terminated string; `recorder` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_recorder_create_file(
    path: *const c_char,
    recorder: *mut *mut Recorder,
) -> Status {
    let make = || {
        // SAFETY: promised by the caller, in the words of the section above.
        let path = unsafe { self::path(path, "path") }?;
        Ok(Recorder::to_file(LogFile::create(&path)?))
    };
    // SAFETY: as above.
    unsafe { create(recorder, make) }
}

/// Writes the events that are in memory to a new file, as a log: compressed if the name ends in .gz.
///
/// CUDAMEM_STATUS_INVALID_VALUE for a recorder that writes to a file by itself.
///
/// # Safety
///
/// `recorder` is null or not released; `path` is null or a zero-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_recorder_write(
    recorder: *const Recorder,
    path: *const c_char,
) -> Status {
    // SAFETY: promised by the caller, in the words of the section above.
    unsafe { write_recording(recorder, path, ledger::Recording::write_csv) }
}

/// Writes the events that are in memory to a new file, as a timeline that Perfetto and Chrome open: compressed if the name ends
/// in .gz.
///
/// CUDAMEM_STATUS_INVALID_VALUE for a recorder that writes to a file by itself.
///
/// # Safety
///
/// `recorder` is null or not released; `path` is null or a zero-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_recorder_write_timeline(
    recorder: *const Recorder,
    path: *const c_char,
) -> Status {
    // SAFETY: promised by the caller, in the words of the section above.
    unsafe { write_recording(recorder, path, ledger::Recording::write_timeline) }
}

/// Completes the file of a recorder that writes to one; later events are lost. Does nothing for others.
///
/// # Safety
///
/// `recorder` is null or not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_recorder_end(recorder: *const Recorder) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Recorder::of(recorder) }?.end()
    })
}

/// How many events are lost so far: those for which there was no space, or that could not be written.
///
/// # Safety
///
/// `recorder` is null or not released; `dropped` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_recorder_dropped(
    recorder: *const Recorder,
    dropped: *mut u64,
) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        let found = unsafe { Recorder::of(recorder) }?.recorder.dropped();
        // SAFETY: as above.
        unsafe { write(dropped, "dropped", found) }
    })
}

/// Gives up the caller's recorder; null is ignored. A file that was not completed may lack its end.
///
/// # Safety
///
/// `recorder` is null or comes from this library, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_recorder_release(recorder: *mut Recorder) {
    if recorder.is_null() {
        return;
    }
    let _ = answer(|| {
        // SAFETY: it was made by `Arc::into_raw`, and the caller gives it up.
        drop(unsafe { Arc::from_raw(recorder.cast_const()) });
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Condvar, Mutex};

    use super::*;

    /// Calls of the functions below so far.
    static ENTERED: Mutex<u64> = Mutex::new(0);
    static CHANGED: Condvar = Condvar::new();
    static IS_OVER: AtomicBool = AtomicBool::new(false);

    /// Returns when another call is under way, so that one always is.
    unsafe extern "C" fn overlapping(_: *mut c_char, _: usize) -> usize {
        let mut entered = ENTERED.lock().expect("no panics");
        *entered += 1;
        let mine = *entered;
        CHANGED.notify_all();
        while *entered == mine && !IS_OVER.load(Ordering::Relaxed) {
            entered = CHANGED.wait(entered).expect("no panics");
        }
        0
    }

    /// Another function that does the same.
    unsafe extern "C" fn successor(text: *mut c_char, size: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe { overlapping(text, size) }
    }

    #[test]
    fn frames_are_replaced_while_calls_overlap() {
        std::thread::scope(|scope| {
            cudamem_recorder_frames_with(Some(overlapping));
            for _ in 0..4 {
                scope.spawn(|| {
                    while !IS_OVER.load(Ordering::Relaxed) {
                        append_frames(&mut String::new());
                    }
                });
            }
            let mut entered = ENTERED.lock().expect("no panics");
            while *entered == 0 {
                entered = CHANGED.wait(entered).expect("no panics");
            }
            drop(entered);
            cudamem_recorder_frames_with(Some(successor));
            // There is nothing to wait for.
            cudamem_recorder_frames_with(Some(successor));
            let entered = ENTERED.lock().expect("no panics");
            IS_OVER.store(true, Ordering::Relaxed);
            drop(entered);
            CHANGED.notify_all();
        });
        cudamem_recorder_frames_with(None);
    }
}
