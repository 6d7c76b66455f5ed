//! Pools, as measured: the tables of `driver-rules.md`.

use std::ffi::c_void;

use cuda_driver_sys::*;

use crate::harness::*;

fn trim(pool: CUmemoryPool, keep: u64) {
    assert_eq!(cu!(cuMemPoolTrimTo(pool, keep as usize)), OK);
}

/// Fresh pool, threshold 0, requests kept live one after another.
#[test]
fn reserved_and_used_grow_as_measured() {
    let f = Fixture::new();
    let table = [
        (1, 1, 32),
        (511, 512, 32),
        (512, 1024, 32),
        (513, 1537, 32),
        (4096, 5633, 32),
        (65_537, 71_170, 32),
        (MIB, 1_119_746, 32),
        (2 * MIB + 1, 3_216_899, 32),
        (31 * MIB, 35_722_755, 64),
        (33 * MIB, 70_325_763, 96),
        (100 * MIB, 175_183_363, 192),
    ];
    let mut blocks = Vec::new();
    for (size, used_after, reserved_after) in table {
        blocks.push(f.alloc(size));
        assert_eq!(used(f.pool), used_after, "after {size}");
        assert_eq!(reserved(f.pool), reserved_after, "after {size}");
    }
    for block in &blocks {
        assert_eq!(block % 512, 0);
        f.free(*block);
    }
    assert_eq!(used(f.pool), 0, "before any synchronise");
    assert_eq!(reserved(f.pool), 192);
    synchronise(f.stream);
    assert_eq!(reserved(f.pool), 0);
    assert_eq!(attribute(f.pool, 6), 192 * MIB, "the high mark stays");
    assert_eq!(attribute(f.pool, 8), 175_183_363);
}

#[test]
fn a_synchronise_shrinks_to_the_largest_step_below_the_threshold() {
    let f = Fixture::new();
    assert_eq!(set_attribute(f.pool, 4, 80 * MIB), OK);
    let block = f.alloc(160 * MIB);
    f.free(block);
    assert_eq!(reserved(f.pool), 160);
    synchronise(f.stream);
    assert_eq!(reserved(f.pool), 64);
}

#[test]
fn events_and_contexts_shrink_pools_too_and_queries_do_not() {
    let f = Fixture::new();
    let event = event();
    for step in 0..3 {
        let block = f.alloc(32 * MIB);
        f.free(block);
        assert_eq!(cu!(cuEventRecord(event, f.stream)), OK);
        assert_eq!(cu!(cuStreamQuery(f.stream)), OK);
        assert_eq!(cu!(cuEventQuery(event)), OK);
        assert_eq!(reserved(f.pool), 32, "a query is no synchronise");
        let answer = match step {
            0 => cu!(cuEventSynchronize(event)),
            1 => cu!(cuCtxSynchronize()),
            _ => cu!(cuStreamSynchronize(f.stream)),
        };
        assert_eq!(answer, OK);
        assert_eq!(reserved(f.pool), 0, "step {step}");
    }
    cu!(cuEventDestroy_v2(event));
}

#[test]
fn trim_keeps_at_least_what_was_asked() {
    let f = Fixture::new();
    assert_eq!(set_attribute(f.pool, 4, u64::MAX), OK);
    let block = f.alloc(512 * MIB);
    f.free(block);
    synchronise(f.stream);
    assert_eq!(reserved(f.pool), 512);
    trim(f.pool, 1 << 30);
    assert_eq!(reserved(f.pool), 512, "more than there is: nothing happens");
    trim(f.pool, 100 * MIB);
    assert_eq!(reserved(f.pool), 128);
    trim(f.pool, 0);
    assert_eq!(reserved(f.pool), 0);
}

/// Close to the largest number the rounding runs over.
#[test]
fn trim_to_the_largest_number_keeps_nothing() {
    let f = Fixture::new();
    assert_eq!(set_attribute(f.pool, 4, u64::MAX), OK);
    let block = f.alloc(32 * MIB);
    f.free(block);
    synchronise(f.stream);
    trim(f.pool, 1 << 63);
    assert_eq!(reserved(f.pool), 32);
    trim(f.pool, u64::MAX);
    assert_eq!(reserved(f.pool), 0);
}

#[test]
fn trim_leaves_half_used_chunks_and_frees_that_nobody_saw() {
    let f = Fixture::new();
    assert_eq!(set_attribute(f.pool, 4, u64::MAX), OK);
    let live = f.alloc(40 * MIB);
    let dead = f.alloc(100 * MIB);
    f.free(dead);
    trim(f.pool, 0);
    assert_eq!(reserved(f.pool), 160, "the free is not observed");
    synchronise(f.stream);
    trim(f.pool, 0);
    assert_eq!(reserved(f.pool), 64, "live 40 MiB keep two chunks");
    f.free(live);
}

#[test]
fn what_was_given_back_comes_again() {
    let f = Fixture::new();
    let first = f.alloc(64 * MIB);
    f.free(first);
    synchronise(f.stream);
    assert_eq!(reserved(f.pool), 0);
    let second = f.alloc(64 * MIB);
    assert_eq!(reserved(f.pool), 64);
    assert_eq!(cu!(cuMemsetD32Async(second, 5, 1 << 10, f.stream)), OK);
    f.free(second);
}

#[test]
fn the_limit_of_a_pool_holds() {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    });
    let a = f.alloc(32 * MIB);
    assert_eq!(try_alloc(f.pool, 48 * MIB, f.stream), Err(OUT_OF_MEMORY));
    let b = f.alloc(20 * MIB);
    f.free(a);
    f.free(b);
}

#[test]
fn absurd_sizes_change_nothing() {
    let f = Fixture::new();
    for size in [1 << 50, u64::MAX] {
        assert_eq!(try_alloc(f.pool, size, f.stream), Err(OUT_OF_MEMORY));
    }
    assert_eq!((used(f.pool), reserved(f.pool)), (0, 0));
}

#[test]
fn nothing_asked_for_is_null_and_null_can_be_freed() {
    let f = Fixture::new();
    assert_eq!(try_alloc(f.pool, 0, f.stream), Ok(0));
    assert_eq!(get!(cuMemAllocAsync(_, 0, f.stream)), 0);
    f.free(0);
    assert_eq!(cu!(cuMemFree_v2(0)), OK);
    let mut out = 0;
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut out, 0)), INVALID_VALUE);
    assert_eq!(control().report_count(), 0);
}

#[test]
fn null_results_and_null_pools_are_refused() {
    let f = Fixture::new();
    let mut out = 0;
    let null = std::ptr::null_mut::<c_void>();
    assert_eq!(
        cu!(cuMemAllocFromPoolAsync(null.cast(), 1, f.pool, f.stream)),
        INVALID_VALUE
    );
    assert_eq!(
        cu!(cuMemAllocFromPoolAsync(
            &raw mut out,
            1,
            null.cast(),
            f.stream
        )),
        INVALID_VALUE
    );
}

#[test]
fn attributes_have_the_measured_widths_and_values() {
    let f = Fixture::new();
    for flag in 1..=3 {
        let mut wide = [u32::MAX, u32::MAX];
        let place = wide.as_mut_ptr().cast::<c_void>();
        let id = CUmemPool_attribute(flag);
        assert_eq!(cu!(cuMemPoolGetAttribute(f.pool, id, place)), OK);
        assert_eq!(wide, [1, u32::MAX], "four bytes only");
        assert_eq!(set_attribute(f.pool, flag, 5), OK);
        assert_eq!(attribute(f.pool, flag), 1);
        assert_eq!(set_attribute(f.pool, flag, 0), OK);
        assert_eq!(attribute(f.pool, flag), 0);
    }
    assert_eq!(attribute(f.pool, 4), 0);
    assert_eq!(set_attribute(f.pool, 4, 12_345), OK);
    assert_eq!(attribute(f.pool, 4), 12_345);
    for read_only in [5, 7, 0, 9, 99] {
        assert_eq!(set_attribute(f.pool, read_only, 0), INVALID_VALUE);
    }
    for high in [6, 8] {
        assert_eq!(set_attribute(f.pool, high, 1), INVALID_VALUE);
        assert_eq!(set_attribute(f.pool, high, 0), OK);
    }
    for unknown in [0, 9, 16] {
        let mut value = 77_u64;
        let place = (&raw mut value).cast::<c_void>();
        let id = CUmemPool_attribute(unknown);
        assert_eq!(cu!(cuMemPoolGetAttribute(f.pool, id, place)), INVALID_VALUE);
        assert_eq!(value, 77);
    }
}

#[test]
fn high_marks_reset_to_what_is_current() {
    let f = Fixture::new();
    let (a, b) = (f.alloc(40 * MIB), f.alloc(1000));
    f.free(a);
    assert_eq!(attribute(f.pool, 8), 40 * MIB + 1000);
    assert_eq!(set_attribute(f.pool, 8, 0), OK);
    assert_eq!(attribute(f.pool, 8), 1000);
    f.free(b);
    synchronise(f.stream);
    assert_eq!(set_attribute(f.pool, 6, 0), OK);
    assert_eq!(attribute(f.pool, 6), 0);
}

/// The shape of a training step: many sizes, a thousand live, over and over.
#[test]
fn a_busy_pool_wastes_little_and_is_quick() {
    let f = Fixture::new();
    assert_eq!(set_attribute(f.pool, 4, u64::MAX), OK);
    let start = std::time::Instant::now();
    let mut random = 12_345_u64;
    let mut next = move |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut live, mut bytes, mut peak) = (Vec::new(), 0, 0);
    for _ in 0..30_000 {
        if live.len() < 1000 && next(2) == 0 || live.is_empty() {
            let magnitude = 4 + next(22);
            let size = 1 + next(1 << magnitude);
            live.push((f.alloc(size), size));
            bytes += size;
            peak = bytes.max(peak);
        } else {
            let (block, size) = live.swap_remove(next(live.len() as u64) as usize);
            f.free(block);
            bytes -= size;
        }
        assert_eq!(used(f.pool), bytes);
    }
    for (block, _) in live {
        f.free(block);
    }
    let waste = attribute(f.pool, 6) as f64 / peak as f64;
    assert!(waste < 1.5, "{waste:.3} times what was asked for");
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
}

/// Measured: other processes can read what was exported after the pool released the memory. That is over once the pool
/// has the range for another block.
#[cfg(target_os = "linux")]
#[test]
fn exported_memory_is_released_once_it_is_reused() {
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let f = Fixture::with(&CUmemPoolProps {
        handleTypes: kind,
        ..props()
    });
    let mut file = -1;
    let place = (&raw mut file).cast::<c_void>();
    let code = cu!(cuMemPoolExportToShareableHandle(place, f.pool, kind, 0));
    assert_eq!(code, OK);
    // SAFETY: the export gave this descriptor to the program.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let bytes_of_file = || {
        // SAFETY: plain data, for which zero is valid.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, and the place is valid for a write.
        let code = unsafe { libc::fstat(file.as_raw_fd(), &raw mut status) };
        assert_eq!(code, 0);
        status.st_blocks as u64 * 512
    };
    let size = 4 * MIB;
    let use_memory = |is_exported| {
        let block = f.alloc(size);
        assert_eq!(cu!(cuMemsetD8Async(block, 1, size as usize, f.stream)), OK);
        synchronise(f.stream);
        assert!(bytes_of_file() >= size);
        if is_exported {
            let _: CUmemPoolPtrExportData = get!(cuMemPoolExportPointer(_, block));
        }
        f.free(block);
        synchronise(f.stream);
        trim(f.pool, 0);
        assert_eq!(reserved(f.pool), 0);
        (block, bytes_of_file())
    };
    let (exported, kept) = use_memory(true);
    assert!(kept >= size);
    let (reused, left) = use_memory(false);
    assert_eq!(reused, exported);
    assert!(left < size, "{left} bytes");
}
