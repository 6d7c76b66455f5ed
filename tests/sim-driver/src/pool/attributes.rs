//! Pool attributes and trimming.

use cuda_driver_sys::{CUmemPool_attribute, CUmemoryPool};

use super::Pool;
use crate::export::{Answer, INVALID_VALUE, Value, exports};
use crate::state::{from_handle, state};

/// A value with the width that the driver writes.
enum Width {
    Int(i32),
    Long(u64),
}

/// The version that introduced an attribute.
fn since(attribute: u32) -> u32 {
    match attribute {
        1..=4 => 11020,
        5..=8 => 11030,
        9..=14 => 13020,
        15 => 13040,
        _ => u32::MAX,
    }
}

fn get(pool: &Pool, attribute: u32) -> Answer<Width> {
    let properties = &pool.properties;
    let (location, id) = properties.location;
    Ok(match attribute {
        1..=3 => Width::Int(i32::from(pool.reuse[attribute as usize - 1])),
        4 => Width::Long(pool.threshold),
        5 => Width::Long(pool.space.reserved.current),
        6 => Width::Long(pool.space.reserved.high),
        7 => Width::Long(pool.space.used.current),
        8 => Width::Long(pool.space.used.high),
        9 => Width::Int(properties.kind.0.cast_signed()),
        10 => Width::Int(properties.handle_types.cast_signed()),
        11 => Width::Int(id),
        12 => Width::Int(location.0.cast_signed()),
        13 => Width::Long(properties.max_size),
        14 => Width::Int(i32::from(properties.usage & 2 != 0)),
        15 => Width::Int(0),
        _ => return Err(INVALID_VALUE),
    })
}

fn set(pool: &mut Pool, attribute: u32, value: Value) -> Answer {
    match attribute {
        1..=3 => pool.reuse[attribute as usize - 1] = value.read::<i32>()? != 0,
        4 => pool.threshold = value.read::<u64>()?,
        6 | 8 if value.read::<u64>()? == 0 => {
            if attribute == 6 {
                pool.space.reset_reserved_high();
            } else {
                pool.space.reset_used_high();
            }
        }
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}

/// Rounds up to a multiple of `step`, a power of two. Measured: near the largest number the result is 0.
fn round_up(value: u64, step: u64) -> u64 {
    value.wrapping_add(step - 1) & !(step - 1)
}

exports! {
    plain fn cuMemPoolGetAttribute(
        _, pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Value
    ) {
        value.required()?;
        let mut state = state()?;
        state.refuse_while_recording()?;
        state.end_finished_streams();
        let version = state.configuration.version;
        let pool = state.pool(pool)?;
        if version < since(attribute.0) {
            return Err(INVALID_VALUE);
        }
        match get(pool, attribute.0)? {
            Width::Int(number) => value.write(number),
            Width::Long(number) => value.write(number),
        }
    }

    plain fn cuMemPoolSetAttribute(
        _, pool: CUmemoryPool, attribute: CUmemPool_attribute, value: Value
    ) {
        value.required()?;
        let mut state = state()?;
        state.refuse_while_recording()?;
        let version = state.configuration.version;
        let pool = state.pool(pool)?;
        if version < since(attribute.0) {
            return Err(INVALID_VALUE);
        }
        set(pool, attribute.0, value)
    }

    plain fn cuMemPoolTrimTo(_, pool: CUmemoryPool, keep: usize) {
        let mut state = state()?;
        state.refuse_while_recording()?;
        state.end_finished_streams();
        let step = state.pool(pool)?.space.chunk();
        let keep = round_up(keep as u64, step);
        state.give_back(from_handle(pool), |_, then| then >= keep);
        Ok(())
    }
}
