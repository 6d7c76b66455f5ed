//! The calls, and the events that are used again.

use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cuda_driver_sys::*;

use crate::options::{Apart, Events, Graphs, Options, Pools};

/// Words of a piece of memory.
pub(crate) const WORDS: usize = 64;

const BYTES: usize = WORDS * size_of::<u32>();

/// How long a stream is held back now and then.
const NAP: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream(CUstream);

/// The calling thread's own stream.
pub(crate) const OWN_STREAM: Stream = Stream(std::ptr::without_provenance_mut(2));

// SAFETY: a stream may be used by any thread; the driver locks what it needs to.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// Memory for a pass that takes none from the pool.
#[derive(Debug)]
pub(crate) struct Memory(CUdeviceptr);

/// A piece of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    address: CUdeviceptr,
    of_pool: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool(CUmemoryPool);

// SAFETY: a pool may be used by any thread.
unsafe impl Send for Pool {}

/// Fills and copies memory that nobody looks at.
#[derive(Debug)]
pub(crate) struct Graph(CUgraphExec);

// SAFETY: one thread at a time has it.
unsafe impl Sync for Graph {}

#[derive(Debug)]
struct Event(CUevent);

// SAFETY: an event may be used by any thread, and one at a time has it here.
unsafe impl Send for Event {}

#[derive(Debug)]
pub(crate) struct Driver<'a> {
    table: &'static DriverTable,
    pub(crate) options: &'a Options,
    context: CUcontext,
    pool: Pool,
    /// Those that nobody uses any more.
    ended: Mutex<Vec<Pool>>,
    /// Of these nothing is outstanding.
    quiet: Mutex<Vec<Pool>>,
    /// Held by calls during which no pool is destroyed.
    gate: RwLock<()>,
    /// Held by calls during which no graph is launched.
    launches: RwLock<()>,
    events: Mutex<Vec<Event>>,
}

// SAFETY: contexts and pools may be used by any thread.
unsafe impl Sync for Driver<'_> {}

/// Calls a function of the driver.
macro_rules! cu {
    ($table:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let call = $table.$name.context(concat!("no ", stringify!($name)))?;
        // SAFETY: pointers in the arguments are to live locals. Streams and memory are live until the threads that
        // use them have ended.
        let code = unsafe { call($($arg),*) };
        ensure!(code == CUresult::CUDA_SUCCESS, "{}: {code}", stringify!($name));
    }};
}

unsafe extern "C" fn nap(_: *mut c_void) {
    std::thread::sleep(NAP);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(gate: &RwLock<()>) -> RwLockReadGuard<'_, ()> {
    gate.read().unwrap_or_else(PoisonError::into_inner)
}

fn create_pool(table: &DriverTable, options: &Options) -> Result<Pool> {
    let props = CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation {
            type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            ..Default::default()
        },
        ..Default::default()
    };
    let mut pool = null_mut();
    cu!(table, cuMemPoolCreate(&raw mut pool, &raw const props));
    for policy in [
        CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    ] {
        let mut value = i32::from(options.reuse);
        cu!(
            table,
            cuMemPoolSetAttribute(pool, policy, (&raw mut value).cast())
        );
    }
    Ok(Pool(pool))
}

impl<'a> Driver<'a> {
    pub(crate) fn open(options: &'a Options) -> Result<Self> {
        let table = load()?.table();
        cu!(table, cuInit(0));
        let mut context = null_mut();
        cu!(table, cuDevicePrimaryCtxRetain(&raw mut context, 0));
        let driver = Self {
            table,
            options,
            context,
            pool: create_pool(table, options)?,
            ended: Mutex::default(),
            quiet: Mutex::default(),
            gate: RwLock::default(),
            launches: RwLock::default(),
            events: Mutex::default(),
        };
        driver.bind()?;
        Ok(driver)
    }

    /// For one use.
    pub(crate) fn pool(&self) -> Result<Pool> {
        match self.options.pools {
            Pools::Kept => Ok(self.pool),
            Pools::Again => match lock(&self.quiet).pop() {
                Some(pool) => Ok(pool),
                None => create_pool(self.table, self.options),
            },
            Pools::Quiet | Pools::Gated | Pools::GatedAll | Pools::Synced | Pools::Never => {
                create_pool(self.table, self.options)
            }
        }
    }

    /// The use is over.
    pub(crate) fn end_pool(&self, pool: Pool) -> Result<()> {
        if !matches!(self.options.pools, Pools::Kept) {
            lock(&self.ended).push(pool);
        }
        self.look_at_pools()
    }

    /// Without waiting for anything.
    fn look_at_pools(&self) -> Result<()> {
        match self.options.pools {
            Pools::Kept | Pools::Synced => Ok(()),
            _ => self.destroy_pools(),
        }
    }

    /// Waits for everything, and destroys the pools that ended.
    pub(crate) fn finish_pass(&self) -> Result<()> {
        if matches!(self.options.pools, Pools::Synced) {
            cu!(self.table, cuCtxSynchronize());
            self.destroy_pools()?;
        }
        Ok(())
    }

    /// Those of which nothing is outstanding, unless they are kept.
    fn destroy_pools(&self) -> Result<()> {
        // Nobody else must ask about one of them meanwhile.
        let mut ended = lock(&self.ended);
        let _gate = match (self.options.pools, self.gate.try_write()) {
            (Pools::Gated | Pools::GatedAll, Err(_)) => return Ok(()),
            (_, gate) => gate,
        };
        for pool in std::mem::take(&mut *ended) {
            cu!(self.table, cuMemPoolTrimTo(pool.0, 0));
            let mut reserved = 0u64;
            let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
            let place = (&raw mut reserved).cast();
            cu!(self.table, cuMemPoolGetAttribute(pool.0, attribute, place));
            match self.options.pools {
                _ if reserved > 0 => ended.push(pool),
                Pools::Never | Pools::Again => lock(&self.quiet).push(pool),
                _ => {
                    cu!(self.table, cuMemPoolDestroy(pool.0));
                }
            }
        }
        Ok(())
    }

    fn in_wait(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let is_gated = matches!(self.options.pools, Pools::Gated | Pools::GatedAll);
        is_gated.then(|| read(&self.gate))
    }

    fn in_call(&self) -> [Option<RwLockReadGuard<'_, ()>>; 2] {
        let is_gated = matches!(self.options.pools, Pools::GatedAll);
        [is_gated.then(|| read(&self.gate)), self.apart(Apart::Calls)]
    }

    /// Keeps launches out of these calls, if that was asked for.
    fn apart(&self, calls: Apart) -> Option<RwLockReadGuard<'_, ()>> {
        (self.options.apart == calls).then(|| read(&self.launches))
    }

    /// Fills memory, copies it and fills it again.
    pub(crate) fn graph(&self, memory: &Memory) -> Result<Graph> {
        let stream = self.stream()?;
        let [first, second] = [0, 1].map(|number| Piece {
            address: memory.0 + number * BYTES as u64,
            of_pool: false,
        });
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        cu!(self.table, cuStreamBeginCapture_v2(stream.0, mode));
        self.fill(stream, first, 1)?;
        self.copy(stream, second, first)?;
        self.fill(stream, first, 2)?;
        let (mut graph, mut exec) = (null_mut(), null_mut());
        cu!(self.table, cuStreamEndCapture(stream.0, &raw mut graph));
        cu!(
            self.table,
            cuGraphInstantiateWithFlags(&raw mut exec, graph, 0)
        );
        Ok(Graph(exec))
    }

    pub(crate) fn launch(&self, graph: &Graph, stream: Stream) -> Result<()> {
        let _apart = match self.options.apart {
            Apart::Nothing => None,
            _ => Some(self.launches.write()),
        };
        if matches!(self.options.graphs, Graphs::Uploaded) {
            cu!(self.table, cuGraphUpload(graph.0, stream.0));
        } else {
            cu!(self.table, cuGraphLaunch(graph.0, stream.0));
        }
        Ok(())
    }

    /// Makes the context current to the calling thread.
    pub(crate) fn bind(&self) -> Result<()> {
        cu!(self.table, cuCtxSetCurrent(self.context));
        Ok(())
    }

    pub(crate) fn stream(&self) -> Result<Stream> {
        let mut stream = null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0 as c_uint;
        cu!(self.table, cuStreamCreate(&raw mut stream, flags));
        Ok(Stream(stream))
    }

    pub(crate) fn destroy(&self, stream: Stream) -> Result<()> {
        let _gate = self.in_call();
        cu!(self.table, cuStreamDestroy_v2(stream.0));
        Ok(())
    }

    pub(crate) fn synchronize(&self, stream: Stream) -> Result<()> {
        let _gate = self.in_wait();
        cu!(self.table, cuStreamSynchronize(stream.0));
        Ok(())
    }

    /// Holds the stream back for a moment.
    pub(crate) fn nap(&self, stream: Stream) -> Result<()> {
        let _gate = self.in_call();
        cu!(
            self.table,
            cuLaunchHostFunc(stream.0, Some(nap), null_mut())
        );
        Ok(())
    }

    /// Makes what comes to `later` wait for what is in `earlier`.
    pub(crate) fn order(&self, earlier: Stream, later: Stream) -> Result<()> {
        let _gate = self.in_call();
        if earlier == later {
            return Ok(());
        }
        let _apart = self.apart(Apart::Orders);
        let kept = match self.options.events {
            Events::Fresh => None,
            Events::Kept | Events::OwnFresh => lock(&self.events).pop(),
        };
        let event = kept.map_or_else(|| self.event(), Ok)?;
        self.record(&event, earlier)?;
        let apart = self.apart(Apart::Waits);
        cu!(self.table, cuStreamWaitEvent(later.0, event.0, 0));
        drop(apart);
        let keeps = match self.options.events {
            Events::Fresh => false,
            Events::Kept => true,
            Events::OwnFresh => earlier != OWN_STREAM,
        };
        if keeps {
            lock(&self.events).push(event);
        } else {
            cu!(self.table, cuEventDestroy_v2(event.0));
        }
        Ok(())
    }

    fn record(&self, event: &Event, stream: Stream) -> Result<()> {
        let _apart = self.apart(Apart::Records);
        cu!(self.table, cuEventRecord(event.0, stream.0));
        Ok(())
    }

    fn event(&self) -> Result<Event> {
        let mut event = null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING.0 as c_uint;
        cu!(self.table, cuEventCreate(&raw mut event, flags));
        Ok(Event(event))
    }

    /// Memory of 65 pieces that is never freed.
    pub(crate) fn memory(&self) -> Result<Memory> {
        let mut address = 0;
        cu!(self.table, cuMemAlloc_v2(&raw mut address, 65 * BYTES));
        Ok(Memory(address))
    }

    /// From the pool if there is one, else piece `number` of `plain`.
    pub(crate) fn alloc(
        &self,
        stream: Stream,
        pool: Option<Pool>,
        plain: &Memory,
        number: u32,
    ) -> Result<Piece> {
        let _gate = self.in_call();
        let mut address = plain.0 + u64::from(number) * BYTES as u64;
        if let Some(pool) = pool {
            cu!(
                self.table,
                cuMemAllocFromPoolAsync(&raw mut address, BYTES, pool.0, stream.0)
            );
        }
        let of_pool = pool.is_some();
        Ok(Piece { address, of_pool })
    }

    pub(crate) fn free(&self, stream: Stream, piece: Piece) -> Result<()> {
        let _gate = self.in_call();
        if piece.of_pool {
            cu!(self.table, cuMemFreeAsync(piece.address, stream.0));
        }
        Ok(())
    }

    pub(crate) fn fill(&self, stream: Stream, piece: Piece, word: u32) -> Result<()> {
        let _gate = self.in_call();
        cu!(
            self.table,
            cuMemsetD32Async(piece.address, word, WORDS, stream.0)
        );
        Ok(())
    }

    pub(crate) fn copy(&self, stream: Stream, to: Piece, from: Piece) -> Result<()> {
        let _gate = self.in_call();
        cu!(
            self.table,
            cuMemcpyDtoDAsync_v2(to.address, from.address, BYTES, stream.0)
        );
        Ok(())
    }

    pub(crate) fn read(&self, stream: Stream, from: Piece) -> Result<[u32; WORDS]> {
        let mut words = [0; WORDS];
        let gate = self.in_call();
        cu!(
            self.table,
            cuMemcpyDtoHAsync_v2(words.as_mut_ptr().cast(), from.address, BYTES, stream.0)
        );
        drop(gate);
        self.synchronize(stream)?;
        self.look_at_pools()?;
        Ok(words)
    }
}
