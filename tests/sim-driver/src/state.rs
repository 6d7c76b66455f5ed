//! The whole state of the driver, behind one lock.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cuda_driver_sys::CUresult;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::alloc::Allocation;
use crate::clock::{Clocks, StreamId};
use crate::configuration::Configuration;
use crate::context::{Context, ContextId};
use crate::device::Device;
use crate::event::{Event, EventId};
use crate::export::Answer;
use crate::graph::Graphs;
use crate::host::Registration;
use crate::ipc::Sharing;
use crate::managed::{Hearsay, Released};
use crate::module::Modules;
use crate::pool::{Place, Pool, PoolId};
use crate::queue::Mark;
use crate::resident::Resident;
use crate::sanitizer::Reports;
use crate::slab::Slabs;
use crate::stream::Stream;
use crate::vmm::Vmm;

static STATE: OnceLock<Mutex<State>> = OnceLock::new();
/// Whether this process was forked from one that called `cuInit`: it inherits the memory but not the driver.
static IS_FORK: AtomicBool = AtomicBool::new(false);

/// The state of the driver. Never locked during blocking waits or callbacks into the program.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) configuration: &'static Configuration,
    pub(crate) devices: Vec<Device>,
    pub(crate) contexts: BTreeMap<ContextId, Context>,
    /// Handles of destroyed contexts; a primary one may be live again.
    pub(crate) ended_contexts: FxHashSet<ContextId>,
    pub(crate) streams: FxHashMap<StreamId, Stream>,
    /// Handles of streams and events whose contexts were destroyed: the program may still name them.
    pub(crate) orphaned_streams: FxHashSet<StreamId>,
    pub(crate) orphaned_events: FxHashMap<EventId, ContextId>,
    /// Streams that threads wait for, once per thread.
    pub(crate) waited_for: Vec<StreamId>,
    pub(crate) clocks: Clocks,
    pub(crate) events: FxHashMap<EventId, Event>,
    pub(crate) pools: BTreeMap<PoolId, Pool>,
    /// Pools not on a device: the default ones, and those set as current.
    pub(crate) default_at: BTreeMap<Place, PoolId>,
    pub(crate) current_at: BTreeMap<Place, PoolId>,
    /// Pools by the start of their range.
    pub(crate) ranges: BTreeMap<u64, PoolId>,
    /// Memory outside the pools, by address.
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    /// Registered memory of the program, by address.
    pub(crate) registrations: BTreeMap<u64, Registration>,
    pub(crate) slabs: Slabs,
    /// Residency of managed memory.
    pub(crate) resident: Resident,
    /// Advice on managed memory.
    pub(crate) hearsay: Hearsay,
    /// Memory of managed pools that was released.
    pub(crate) released: Released,
    pub(crate) sharing: Sharing,
    pub(crate) graphs: Graphs,
    pub(crate) modules: Modules,
    pub(crate) vmm: Vmm,
    pub(crate) reports: Reports,
    /// Memory that is released once the queues that may access it have reached these marks.
    graveyard: Vec<(Box<dyn Debug + Send>, Vec<Mark>)>,
    next_handle: u64,
}

/// Initialises the driver.
pub(crate) fn initialise(configuration: &'static Configuration, devices: Vec<Device>) {
    let state = State {
        configuration,
        devices,
        contexts: BTreeMap::new(),
        ended_contexts: FxHashSet::default(),
        streams: FxHashMap::default(),
        orphaned_streams: FxHashSet::default(),
        orphaned_events: FxHashMap::default(),
        waited_for: Vec::new(),
        clocks: Clocks::default(),
        events: FxHashMap::default(),
        pools: BTreeMap::new(),
        default_at: BTreeMap::new(),
        current_at: BTreeMap::new(),
        ranges: BTreeMap::new(),
        allocations: BTreeMap::new(),
        registrations: BTreeMap::new(),
        slabs: Slabs::default(),
        resident: Resident::default(),
        hearsay: Hearsay::default(),
        released: Released::default(),
        sharing: Sharing::default(),
        graphs: Graphs::default(),
        modules: Modules::new(configuration),
        vmm: Vmm::default(),
        reports: Reports::default(),
        graveyard: Vec::new(),
        next_handle: configuration.first_handle,
    };
    // If another thread was first, its state stays.
    let _ = STATE.set(Mutex::new(state));
}

/// Detects forks. Every call checks for one, and comparing process ids would cost a system call.
pub(crate) fn watch_forks() -> Answer {
    extern "C" fn mark() {
        IS_FORK.store(is_initialised(), Ordering::Release);
    }
    crate::system::watch_forks(mark)
}

/// Whether `cuInit` ran here, or in the process this one was forked from.
pub(crate) fn is_initialised() -> bool {
    STATE.get().is_some()
}

/// Refuses calls before `cuInit` and in a forked child.
pub(crate) fn check_initialised() -> Answer {
    if is_initialised() && !IS_FORK.load(Ordering::Acquire) {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_NOT_INITIALIZED)
    }
}

/// The state, locked.
pub(crate) fn state() -> Answer<MutexGuard<'static, State>> {
    // A forked child has the lock as it was, perhaps held by a thread that it does not have.
    let state = STATE.get().filter(|_| !IS_FORK.load(Ordering::Acquire));
    let state = state.ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)?;
    Ok(state.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The type of a handle, so that no handle is mistaken for another type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandleKind {
    Context = 0xc1,
    Stream = 0x51,
    Event = 0xe1,
    Pool = 0xb1,
    Graph = 0x61,
    Node = 0x4e,
    Exec = 0x6e,
    Physical = 0x9a,
    Module = 0x3d,
    Function = 0xf4,
    Library = 0x1b,
    Kernel = 0xce,
    Link = 0x11,
    Object = 0x0b,
}

impl State {
    /// A handle never used before. It looks like an address, but is not one.
    pub(crate) fn new_handle(&mut self, kind: HandleKind) -> u64 {
        self.next_handle += 1;
        ((kind as u64) << 40) + self.next_handle * 16
    }

    /// Releases memory once no submitted work can access it.
    pub(crate) fn bury(&mut self, memory: impl Debug + Send + 'static) {
        let busy = self.streams.values().map(|stream| stream.queue.mark());
        let busy = busy.filter(|mark| !mark.is_reached()).collect();
        self.graveyard.push((Box::new(memory), busy));
        self.empty_graveyard();
    }

    pub(crate) fn empty_graveyard(&mut self) {
        self.graveyard
            .retain(|(_, marks)| !marks.iter().all(Mark::is_reached));
    }
}

/// A handle as the driver API shows it.
pub(crate) fn to_handle<T>(id: u64) -> *mut T {
    std::ptr::without_provenance_mut(id as usize)
}

/// The number behind a handle.
pub(crate) fn from_handle<T>(handle: *mut T) -> u64 {
    handle.addr() as u64
}
