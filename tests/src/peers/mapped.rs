//! Mapped memory that the second device may only read.

use anyhow::{Result, ensure};
use cuda_mem::mapped::MappedMemory;
use cuda_mem::{Access, ErrorKind};

use super::{Pair, pair};
use crate::environment::Environment;

#[apply(case_of_two)]
fn what_may_only_be_read_is_lent_to_readers(env: &Environment) -> Result<()> {
    let Pair {
        devices, streams, ..
    } = pair(env)?;
    let mut memory = MappedMemory::builder(&devices[0]).build(1)?;
    memory.set_access([(devices[1], Access::Read)])?;
    let mut buffer = memory.into_buffer::<u8>(&streams[0], 100)?;
    buffer.as_mut_slice().fill(7)?;
    let there = buffer.as_mut_slice().on(&streams[1]).map(drop);
    let moved = buffer.set_stream(&streams[1]);
    for refused in [there, moved] {
        let error = refused.err();
        ensure!(
            error.as_ref().is_some_and(
                |error| error.kind() == ErrorKind::InvalidValue && error.code().is_none()
            ),
            "{error:?}"
        );
    }
    let mut seen = [0; 100];
    buffer.read_on(&streams[1])?.copy_to(&mut seen)?;
    ensure!(seen == [7; 100]);
    Ok(())
}
