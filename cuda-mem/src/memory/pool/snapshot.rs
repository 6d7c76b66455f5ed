//! Snapshots of a pool that records.

#![forbid(unsafe_code)]

use cuda_driver_sys::CUmemPool_attribute;

use super::Pool;
use crate::base::error::Result;
use crate::ledger::{MemorySegment, MemorySnapshot};

impl Pool {
    /// The pool's memory as it is now. The driver does not say where the blocks of a pool are, so only a pool with a
    /// [recorder](super::PoolBuilder::record) lists them: each live block is a segment, with its stream, the bytes asked
    /// for, and its origin. What the pool holds beyond them is in [`unlisted_bytes`](MemorySnapshot::unlisted_bytes):
    /// without a recorder, all that it holds.
    ///
    /// One driver call. Blocks allocations and frees of this pool while its blocks are copied; with a recorder it then
    /// reads all events, as [`Recorder::recording`](crate::ledger::Recorder::recording) does. While other threads are active, the
    /// blocks and the bytes held are not of the same moment.
    ///
    /// A block that is freed by other means than its buffer or this resource stays in the list until its address is allocated
    /// again.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) before CUDA 11.3; otherwise any driver error.
    ///
    /// ```
    /// use cuda_mem::{Driver, MemoryPool};
    /// use cuda_mem::ledger::Recorder;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let pool = MemoryPool::builder(&device).record(&Recorder::ring(1000)).build()?;
    /// let buffer = pool.alloc::<f32>(&stream, 1000)?; // this line
    ///
    /// let snapshot = pool.snapshot()?;
    /// let block = snapshot.blocks().next().expect("it is live");
    /// assert_eq!((block.address, block.bytes), (buffer.as_raw(), 4000));
    /// println!("{} from {}", snapshot, block.origin.as_ref().expect("a line of this program"));
    /// assert_eq!(snapshot.reserved_bytes(), pool.stats()?.reserved.current);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemPoolGetAttribute")]
    pub fn snapshot(&self) -> Result<MemorySnapshot> {
        self.require_stats()?;
        let mut snapshot = MemorySnapshot {
            device: self.device(),
            ..MemorySnapshot::default()
        };
        if let Some(recorded) = self.recorded() {
            let (blocks, time) = recorded.blocks()?;
            let device = snapshot.device;
            let segments = blocks.into_iter().map(|block| MemorySegment {
                address: block.address,
                bytes: block.bytes,
                asleep_bytes: 0,
                device,
                stream: block.stream,
                blocks: vec![block],
            });
            snapshot.segments = segments.collect();
            snapshot.time = Some(time);
        }
        let reserved = self.wide(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let listed = snapshot.reserved_bytes();
        snapshot.unlisted_bytes = reserved.saturating_sub(listed);
        Ok(snapshot)
    }
}
