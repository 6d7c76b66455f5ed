//! Interprocess events: two counters in memory that both processes map. A record takes the next number, which is
//! reached when the stream gets there.
//!
//! Measured: a waiter waits for a number; a later record in another stream that is reached earlier also ends the wait.

use std::collections::hash_map::Entry;
use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda_driver_sys::{CUevent, CUipcEventHandle, CUresult};

use crate::context::ContextId;
use crate::event::Event;
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::memory::Mapping;
use crate::state::{HandleKind, State, state, to_handle};
use crate::system::{SharedFile, wait_while, wake_all};

/// Maximum number of events of one context that are shared at a time.
const SLOTS: usize = 1 << 14;

const MAGIC: u32 = 0x7369_6d65;

/// An event in shared memory.
#[derive(Debug)]
#[repr(C, align(64))]
struct Shared {
    /// Identifies the event; a slot is reused for later events.
    identity: AtomicU64,
    /// Number of records submitted, and the latest one reached. Never reset: work that was submitted with a former event
    /// of the slot still counts in them.
    recorded: AtomicU64,
    done: AtomicU64,
    /// The records of former events.
    former: AtomicU64,
    /// Changes whenever `done` does.
    changed: AtomicU32,
}

/// The mapped events of one context.
#[derive(Debug)]
struct Page(Mapping);

impl Page {
    /// Maps all of a file, accessible.
    fn of_file(file: &SharedFile) -> Answer<Arc<Self>> {
        let mapping = Mapping::of_file(file)?;
        mapping.commit(0, mapping.len())?;
        Ok(Arc::new(Self(mapping)))
    }
}

/// One event in a page.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    page: Arc<Page>,
    index: usize,
    identity: u64,
}

impl Slot {
    /// The slot as the event in it now has it.
    fn new(page: Arc<Page>, index: usize) -> Self {
        let mut slot = Self {
            page,
            index,
            identity: 0,
        };
        slot.identity = slot.shared().identity.load(Ordering::SeqCst);
        slot
    }

    fn shared(&self) -> &Shared {
        let address = self.page.0.base() as usize + self.index * size_of::<Shared>();
        let place = std::ptr::with_exposed_provenance::<Shared>(address);
        // SAFETY: the page is mapped while this value lives and holds `SLOTS` of these, whose fields are all atomic:
        // other processes may write them at any time.
        unsafe { &*place }
    }

    /// Adds a record.
    pub(crate) fn record(&self) -> Signal {
        let ticket = self.shared().recorded.fetch_add(1, Ordering::SeqCst) + 1;
        Signal {
            slot: self.clone(),
            ticket,
        }
    }

    /// The latest record by any process. None of an event whose slot has another one, as its records were reached.
    pub(crate) fn latest(&self) -> Option<Signal> {
        let shared = self.shared();
        let ticket = shared.recorded.load(Ordering::SeqCst);
        let is_of_event = ticket > shared.former.load(Ordering::SeqCst)
            && shared.identity.load(Ordering::SeqCst) == self.identity;
        is_of_event.then(|| Signal {
            slot: self.clone(),
            ticket,
        })
    }

    /// Whether every record was reached, by every process.
    fn is_settled(&self) -> bool {
        let shared = self.shared();
        let recorded = shared.recorded.load(Ordering::SeqCst);
        shared.done.load(Ordering::SeqCst) >= recorded
    }
}

/// One record of a shared event.
#[derive(Clone, Debug)]
pub(crate) struct Signal {
    slot: Slot,
    ticket: u64,
}

impl Signal {
    pub(crate) fn is_reached(&self) -> bool {
        self.slot.shared().done.load(Ordering::SeqCst) >= self.ticket
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.ticket == other.ticket
    }

    /// Marks the record as reached.
    pub(crate) fn reach(&self) {
        let shared = self.slot.shared();
        shared.done.fetch_max(self.ticket, Ordering::SeqCst);
        shared.changed.fetch_add(1, Ordering::SeqCst);
        wake_all(&shared.changed);
    }

    /// Blocks until the record is reached. Measured: forever if the recording process is gone.
    pub(crate) fn wait(&self) {
        let shared = self.slot.shared();
        loop {
            let seen = shared.changed.load(Ordering::SeqCst);
            if self.is_reached() {
                return;
            }
            wait_while(&shared.changed, seen);
        }
    }
}

/// The shared events created by one context.
#[derive(Debug)]
pub(crate) struct Slots {
    file: SharedFile,
    page: Arc<Page>,
    free: Vec<usize>,
    next: usize,
}

impl Slots {
    fn new() -> Answer<Self> {
        let len = (SLOTS * size_of::<Shared>()) as u64;
        let file = SharedFile::create(c"cuda-sim events", len, [0; 4])?;
        let page = Page::of_file(&file)?;
        Ok(Self {
            file,
            page,
            free: Vec::new(),
            next: 0,
        })
    }

    fn take(&mut self, identity: u64) -> Answer<Slot> {
        let page = Arc::clone(&self.page);
        let slot = |index| Slot {
            page: Arc::clone(&page),
            index,
            identity,
        };
        // An event may be destroyed while a stream has to record it.
        let mut free = self.free.iter();
        let free = free.rposition(|&index| slot(index).is_settled());
        let index = free.map_or(self.next, |at| self.free.remove(at));
        if index >= SLOTS {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let slot = slot(index);
        self.next = self.next.max(index + 1);
        let shared = slot.shared();
        let former = shared.recorded.load(Ordering::SeqCst);
        shared.former.store(former, Ordering::SeqCst);
        shared.identity.store(identity, Ordering::SeqCst);
        Ok(slot)
    }
}

/// The content of a handle. Measured: a driver reads the first half only.
struct Handle {
    process: u32,
    descriptor: u32,
    index: u32,
    identity: u64,
}

impl Handle {
    fn write(&self) -> CUipcEventHandle {
        let words = [MAGIC, self.process, self.descriptor, self.index];
        let bytes = words.into_iter().flat_map(u32::to_le_bytes);
        let bytes = bytes.chain(self.identity.to_le_bytes());
        let mut handle = CUipcEventHandle::default();
        for (place, byte) in handle.reserved.iter_mut().zip(bytes) {
            *place = byte as c_char;
        }
        handle
    }

    fn read(handle: &CUipcEventHandle) -> Option<Self> {
        let bytes: [u8; 64] = handle.reserved.map(|byte| byte as _);
        let word = |at: usize| bytes[at..][..4].try_into().map_or(0, u32::from_le_bytes);
        (word(0) == MAGIC).then(|| Self {
            process: word(4),
            descriptor: word(8),
            index: word(12),
            identity: u64::from(word(16)) | u64::from(word(20)) << 32,
        })
    }

    /// Finds the event in the process that created it.
    fn find(&self) -> Option<Slot> {
        let file = SharedFile::of_process(self.process, self.descriptor)?;
        let index = self.index as usize;
        if file.len() != (SLOTS * size_of::<Shared>()) as u64 || index >= SLOTS {
            return None;
        }
        let page = Page::of_file(&file).ok()?;
        let slot = Slot::new(page, index);
        (slot.identity == self.identity).then_some(slot)
    }
}

impl State {
    /// A slot for an event created as interprocess.
    pub(crate) fn new_slot(&mut self, context: ContextId, identity: u64) -> Answer<Slot> {
        let slots = match self.sharing.events.entry(context) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => place.insert(Slots::new()?),
        };
        let identity = identity ^ slots.file.identity;
        slots.take(identity)
    }

    /// The event was destroyed; other processes that opened it keep it.
    pub(crate) fn end_slot(&mut self, context: ContextId, slot: &Slot) {
        if let Some(slots) = self.sharing.events.get_mut(&context)
            && Arc::ptr_eq(&slots.page, &slot.page)
        {
            // Reused last, so that a handle to it stays valid as long as possible, as measured.
            slots.free.insert(0, slot.index);
        }
    }

    fn event_handle(&self, event: CUevent) -> Answer<CUipcEventHandle> {
        let invalid = CUresult::CUDA_ERROR_INVALID_HANDLE;
        if event.is_null() {
            return Err(INVALID_VALUE);
        }
        self.check_legacy_sharing()?;
        let event = self.event(event)?;
        let slot = event.own_slot().ok_or(invalid)?;
        let slots = self.sharing.events.get(&event.context).ok_or(invalid)?;
        let handle = Handle {
            process: std::process::id(),
            descriptor: slots.file.number_in_handles(),
            index: slot.index as u32,
            identity: slot.identity,
        };
        Ok(handle.write())
    }
}

exports! {
    plain fn cuIpcGetEventHandle(_, out: Out<CUipcEventHandle>, event: CUevent) {
        out.required()?;
        out.write(state()?.event_handle(event)?)
    }

    plain fn cuIpcOpenEventHandle(_, out: Out<CUevent>, handle: CUipcEventHandle) {
        out.required()?;
        let mut state = state()?;
        let context = state.current()?;
        let unmapped = CUresult::CUDA_ERROR_MAP_FAILED;
        let handle = Handle::read(&handle).ok_or(unmapped)?;
        if handle.process == std::process::id() {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let slot = handle.find().ok_or(unmapped)?;
        let id = state.new_handle(HandleKind::Event);
        state.events.insert(id, Event::opened(context, slot));
        out.write(to_handle(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_reached_by_it_or_by_a_later_one() {
        let mut slots = Slots::new().expect("memory");
        let slot = slots.take(1).expect("a place");
        assert!(slot.latest().is_none());
        let (first, second) = (slot.record(), slot.record());
        assert!(!first.is_reached() && !second.is_reached());
        std::thread::scope(|scope| {
            scope.spawn(|| first.wait());
            second.reach();
        });
        assert!(first.is_reached() && second.is_reached());
        first.reach();
        assert!(second.is_reached(), "it does not go back");
        assert!(slot.latest().is_some_and(|latest| latest.is_same(&second)));
    }

    #[test]
    fn a_slot_is_reused_when_all_its_records_are_reached() {
        let mut slots = Slots::new().expect("memory");
        let former = slots.take(1).expect("a place");
        // As another process has it.
        let opened = Slot::new(Arc::clone(&former.page), former.index);
        let (first, second) = (former.record(), opened.record());
        slots.free.push(former.index);
        first.reach();
        let other = slots.take(2).expect("a place");
        assert_ne!(other.index, former.index);
        second.reach();
        let next = slots.take(3).expect("a place");
        assert_eq!(next.index, former.index);
        assert!(next.latest().is_none() && first.is_reached() && second.is_reached());
        let record = next.record();
        assert!(opened.latest().is_none(), "it has none of the next event");
        assert!(!record.is_reached());
        second.reach();
        assert!(!record.is_reached());
    }

    #[test]
    fn a_handle_is_read_as_it_was_written() {
        let handle = Handle {
            process: 1,
            descriptor: 2,
            index: 3,
            identity: 1 << 40 | 4,
        };
        let mut bytes = handle.write();
        let read = Handle::read(&bytes).expect("a handle");
        assert_eq!((read.process, read.descriptor), (1, 2));
        assert_eq!((read.index, read.identity), (3, 1 << 40 | 4));
        bytes.reserved[0] ^= 1;
        assert!(Handle::read(&bytes).is_none());
    }
}
