//! Snapshots: the layout of memory at one moment.

use std::ffi::c_char;

use crate::recorder::{self, Recorder, write_file};
use crate::resource::{Resource, Source};
use crate::status::{Status, answer, invalid};

/// Writes the segments and blocks of an arena or a pool to a new file, in the form of PyTorch's memory snapshots: as JSON if the
/// name ends in .json, and as a pickle otherwise. With `recorder`, the one of that arena or pool, which keeps its events in
/// memory, the file also has these events, and blocks have the bytes that were asked for and where they come from.
///
/// CUDAMEM_STATUS_INVALID_VALUE for an adaptor. A pool without a recorder has no blocks in the file.
///
/// # Safety
///
/// `resource` is null or not released, and so is `recorder`; `path` is null or a zero-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_snapshot_write(
    resource: *mut Resource,
    recorder: *const Recorder,
    path: *const c_char,
) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        let resource = unsafe { Resource::of(resource, "resource") }?;
        // SAFETY: as above.
        let path = unsafe { recorder::path(path, "path") }?;
        let (snapshot, own) = match &resource.source {
            Source::Arena(arena) => (arena.snapshot(), arena.recorder()),
            Source::Pool => match cuda_mem::MemoryResource::pool(&resource.resource) {
                Some(pool) => (pool.snapshot()?, pool.recorder()),
                None => return Err(invalid("`resource` has no pool")),
            },
            Source::Limit | Source::Statistics(_) | Source::Checked(_) => {
                let text = "`resource` is an adaptor; take the snapshot of what it is over";
                return Err(invalid(text));
            }
        };
        let recording = if recorder.is_null() {
            None
        } else {
            // SAFETY: as above.
            let recorder = unsafe { Recorder::of(recorder) }?;
            if !own.is_some_and(|own| own.is_same(recorder.recorder())) {
                return Err(invalid("`recorder` is not the one that records `resource`"));
            }
            Some(recorder.recording()?)
        };
        let is_json = path.extension().is_some_and(|ending| ending == "json");
        write_file(&path, |file| {
            if is_json {
                snapshot.write_json(recording.as_ref(), file)
            } else {
                snapshot.write_pickle(recording.as_ref(), file)
            }
        })
    })
}
