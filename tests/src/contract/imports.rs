//! What holds for an imported pool, however it came.

use anyhow::{Result, ensure};
use cuda_mem::interop::{ImportedPool, SharedBuffer};
use cuda_mem::{MemoryPool, Stream};

/// A pool and its import in the same process have the same memory, at two addresses.
pub(super) fn ensure_same_memory(
    pool: &MemoryPool,
    imported: &ImportedPool,
    stream: &Stream,
) -> Result<()> {
    ensure!(imported.as_raw() != pool.as_raw());
    let mut buffer = pool.alloc_from(stream, &[1_u16; 100])?;
    let shared = SharedBuffer::from_bytes(&buffer.export()?.to_bytes())?;
    // SAFETY: one stream orders everything; the buffer lives longer.
    let mut view = unsafe { imported.import::<u16>(stream, &shared) }?;
    ensure!(view.as_raw() != buffer.as_raw(), "another mapping");
    view.fill(2)?;
    ensure!(buffer.to_vec()? == [2; 100]);
    drop(view);
    buffer.fill(3)?;
    ensure!(buffer.to_vec()? == [3; 100]);
    Ok(())
}
