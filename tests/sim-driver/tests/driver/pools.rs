//! Pools, as measured: the tables of `driver-rules.md`.

use std::ffi::c_void;

use cuda_driver_sys::*;

use crate::harness::*;

/// A pool and a stream, given back at the end.
struct Fixture {
    pool: CUmemoryPool,
    stream: CUstream,
    _turn: Turn,
}

impl Fixture {
    fn new() -> Self {
        Self::with(&props())
    }

    fn with(props: &CUmemPoolProps) -> Self {
        let _turn = turn();
        Self {
            pool: pool(props),
            stream: stream(),
            _turn,
        }
    }

    fn alloc(&self, size: u64) -> CUdeviceptr {
        alloc(self.pool, size, self.stream)
    }

    fn free(&self, address: CUdeviceptr) {
        free(address, self.stream);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        cu!(cuMemPoolDestroy(self.pool));
        cu!(cuStreamDestroy_v2(self.stream));
    }
}

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

/// The reuse matrix: maxSize 64 MiB, one 40 MiB block freed on A, which a host function holds.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    Pending,
    AfterEvent,
    Finished,
    Synchronised,
}

fn reuse(flag: u32, case: Case) -> Result<bool, CUresult> {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    });
    assert_eq!(set_attribute(f.pool, 4, u64::MAX), OK);
    for other in 1..=3 {
        assert_eq!(set_attribute(f.pool, other, u64::from(other == flag)), OK);
    }
    let (other, event) = (stream(), event());
    let gate = Gate::hold(f.stream);
    let block = f.alloc(40 * MIB);
    f.free(block);
    assert_eq!(cu!(cuEventRecord(event, f.stream)), OK);
    assert_eq!(cu!(cuStreamQuery(f.stream)), CUresult::CUDA_ERROR_NOT_READY);
    match case {
        Case::Pending => {}
        Case::AfterEvent => assert_eq!(cu!(cuStreamWaitEvent(other, event, 0)), OK),
        Case::Finished | Case::Synchronised => gate.open(),
    }
    if case == Case::Finished {
        // Seen by other means than the driver.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    if case == Case::Synchronised {
        synchronise(f.stream);
    }
    let result = try_alloc(f.pool, 40 * MIB, other).map(|address| {
        free(address, other);
        address == block
    });
    gate.open();
    synchronise(other);
    assert_eq!(control().reports(), Vec::<String>::new());
    cu!(cuEventDestroy_v2(event));
    cu!(cuStreamDestroy_v2(other));
    result
}

#[test]
fn reuse_between_streams_follows_the_measured_matrix() {
    let same = Ok(true);
    let refused = Err(OUT_OF_MEMORY);
    let matrix = [
        (0, [refused, refused, refused, same]),
        (1, [refused, same, refused, same]),
        (2, [refused, refused, same, same]),
        (3, [same, same, same, same]),
    ];
    let cases = [
        Case::Pending,
        Case::AfterEvent,
        Case::Finished,
        Case::Synchronised,
    ];
    for (flag, row) in matrix {
        for (case, expected) in cases.into_iter().zip(row) {
            let got = reuse(flag, case);
            assert_eq!(got, expected, "flag {flag}, case {}", case as u8);
        }
    }
}

#[test]
fn an_inserted_wait_really_waits() {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    });
    let other = stream();
    let gate = Gate::hold(f.stream);
    let block = f.alloc(40 * MIB);
    f.free(block);
    let again = alloc(f.pool, 40 * MIB, other);
    assert_eq!(again, block);
    assert_eq!(cu!(cuStreamQuery(other)), CUresult::CUDA_ERROR_NOT_READY);
    gate.open();
    synchronise(other);
    free(again, other);
    cu!(cuStreamDestroy_v2(other));
}

#[test]
fn an_event_before_the_free_does_not_help() {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    });
    for flag in 2..=3 {
        assert_eq!(set_attribute(f.pool, flag, 0), OK);
    }
    let (other, event) = (stream(), event());
    let gate = Gate::hold(f.stream);
    let block = f.alloc(40 * MIB);
    assert_eq!(cu!(cuEventRecord(event, f.stream)), OK);
    f.free(block);
    assert_eq!(cu!(cuStreamWaitEvent(other, event, 0)), OK);
    assert_eq!(try_alloc(f.pool, 40 * MIB, other), Err(OUT_OF_MEMORY));
    gate.open();
    cu!(cuEventDestroy_v2(event));
    cu!(cuStreamDestroy_v2(other));
}

#[test]
fn neighbours_freed_by_different_streams_join() {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    });
    let other = stream();
    let (a, b) = (f.alloc(30 * MIB), alloc(f.pool, 30 * MIB, other));
    f.free(a);
    free(b, other);
    synchronise(other);
    // `a` is this stream's own, `b` anybody's; neither is enough.
    assert_eq!(f.alloc(60 * MIB), a);
    f.free(a);
    cu!(cuStreamDestroy_v2(other));
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

/// What `cuMemPoolCreate` answers, and what kind of memory comes out.
fn create(kind: u32, place: u32, id: i32, types: u32) -> Result<(u32, u32), CUresult> {
    let wish = CUmemPoolProps {
        allocType: CUmemAllocationType(kind),
        handleTypes: CUmemAllocationHandleType(types),
        location: location(CUmemLocationType(place), id),
        ..CUmemPoolProps::default()
    };
    let mut pool = std::ptr::null_mut();
    match cu!(cuMemPoolCreate(&raw mut pool, &raw const wish)) {
        OK => {}
        code => return Err(code),
    }
    let stream = stream();
    let block = alloc(pool, 100, stream);
    let ask = |attribute| {
        let mut value = 0_u32;
        let place = (&raw mut value).cast::<c_void>();
        let id = CUpointer_attribute(attribute);
        assert_eq!(cu!(cuPointerGetAttribute(place, id, block)), OK);
        value
    };
    let facts = (ask(2), ask(8));
    free(block, stream);
    cu!(cuStreamDestroy_v2(stream));
    assert_eq!(cu!(cuMemPoolDestroy(pool)), OK);
    Ok(facts)
}

#[test]
fn pools_of_every_kind_are_made_or_refused_as_measured() {
    let _turn = turn();
    let refused = Err(INVALID_VALUE);
    for (kind, place, id, types, expected) in [
        (1, 1, 0, 0, Ok((2, 0))),
        (1, 1, 0, 1, Ok((2, 0))),
        (1, 1, 0, 8, Ok((2, 0))),
        (1, 1, 0, 2, refused),
        (1, 1, 0, 4, refused),
        (1, 1, 0, 16, refused),
        (1, 0, 0, 0, refused),
        (1, 2, 0, 0, Ok((1, 0))),
        (1, 3, 0, 0, Ok((1, 0))),
        (1, 3, -1, 0, refused),
        (1, 4, 0, 0, refused),
        (2, 0, 0, 0, Ok((2, 1))),
        (2, 1, 0, 0, Ok((2, 1))),
        (2, 2, 0, 0, Ok((2, 1))),
        (2, 3, 0, 0, Ok((2, 1))),
        (2, 4, 0, 0, Ok((2, 1))),
        (0, 1, 0, 0, refused),
        (1, 1, -1, 0, refused),
        (1, 1, 99, 0, refused),
    ] {
        let got = create(kind, place, id, types);
        assert_eq!(got, expected, "type {kind}, location {place} {id}, {types}");
    }
    let null = std::ptr::null_mut::<CUmemoryPool>();
    let plain = props();
    assert_eq!(cu!(cuMemPoolCreate(null, &raw const plain)), INVALID_VALUE);
}

#[test]
fn bytes_that_the_version_does_not_know_must_be_zero() {
    let _turn = turn();
    let mut wish = props();
    wish.reserved[0] = 1;
    let mut pool = std::ptr::null_mut();
    assert_eq!(
        cu!(cuMemPoolCreate(&raw mut pool, &raw const wish)),
        INVALID_VALUE
    );
}

#[test]
fn default_and_current_pools() {
    let f = Fixture::new();
    let default = handle!(cuDeviceGetDefaultMemPool(_, 0));
    let current = || handle!(cuDeviceGetMemPool(_, 0));
    assert_eq!(current(), default);
    assert_eq!(cu!(cuMemPoolDestroy(default)), INVALID_VALUE);
    assert_eq!(cu!(cuDeviceSetMemPool(0, f.pool)), OK);
    assert_eq!(cu!(cuDeviceSetMemPool(1, f.pool)), INVALID_VALUE);
    assert_eq!(current(), f.pool);
    let block: CUdeviceptr = get!(cuMemAllocAsync(_, 1000, f.stream));
    assert_eq!(used(f.pool), 1000);
    f.free(block);
    assert_eq!(cu!(cuMemPoolDestroy(f.pool)), OK);
    assert_eq!(current(), default);
    assert_eq!(
        cu!(cuMemPoolDestroy(f.pool)),
        INVALID_VALUE,
        "no handle now"
    );
}

#[test]
fn a_destroyed_pool_lives_until_its_last_block_is_freed() {
    let f = Fixture::new();
    let block = f.alloc(4096);
    assert_eq!(cu!(cuMemPoolDestroy(f.pool)), OK);
    assert_eq!(try_alloc_code(f.pool, f.stream), INVALID_VALUE);
    assert_eq!(cu!(cuMemsetD8Async(block, 3, 4096, f.stream)), OK);
    assert_eq!(control().live().allocations, 1);
    f.free(block);
    synchronise(f.stream);
    assert_eq!(control().live().allocations, 0);
    assert_eq!(
        cu!(cuMemsetD8Async(block, 3, 4096, f.stream)),
        INVALID_VALUE,
        "nothing is there any more"
    );
    assert_eq!(control().reports(), Vec::<String>::new());
}

fn try_alloc_code(pool: CUmemoryPool, stream: CUstream) -> CUresult {
    let mut out = 0;
    cu!(cuMemAllocFromPoolAsync(&raw mut out, 1, pool, stream))
}

#[test]
fn access_is_given_and_taken_as_measured() {
    let f = Fixture::new();
    let set = |device: i32, flags: u32| {
        let wish = CUmemAccessDesc {
            location: location(CUmemLocationType(1), device),
            flags: CUmemAccess_flags(flags),
        };
        cu!(cuMemPoolSetAccess(f.pool, &raw const wish, 1))
    };
    let access = |device: i32| {
        let mut flags = CUmemAccess_flags(77);
        let mut place = location(CUmemLocationType(1), device);
        let answer = cu!(cuMemPoolGetAccess(&raw mut flags, f.pool, &raw mut place));
        assert_eq!(answer, OK);
        flags.0
    };
    assert_eq!((access(0), access(1)), (3, 0));
    assert_eq!(set(0, 0), CUresult::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(set(0, 1), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(set(0, 3), OK);
    assert_eq!(set(0, 2), INVALID_VALUE);
    assert_eq!(set(99, 3), CUresult::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(set(1, 3), OK);
    assert_eq!(access(1), 3);
    assert_eq!(set(1, 0), OK);
    assert_eq!(access(1), 0);
    assert_eq!(cu!(cuMemPoolSetAccess(f.pool, std::ptr::null(), 0)), OK);
}

#[test]
fn pool_memory_tells_about_itself() {
    let f = Fixture::new();
    let block = f.alloc(1000);
    let ask = |attribute: u32, address: CUdeviceptr| {
        let mut value = 0_u64;
        let place = (&raw mut value).cast::<c_void>();
        let id = CUpointer_attribute(attribute);
        (cu!(cuPointerGetAttribute(place, id, address)), value)
    };
    assert_eq!(ask(17, block), (OK, f.pool.addr() as u64));
    assert_eq!(ask(1, block), (OK, 0), "no context");
    assert_eq!(ask(9, block), (OK, 0));
    assert_eq!(ask(2, block), (OK, 2));
    assert_eq!(ask(11, block + 999), (OK, block));
    assert_eq!(ask(12, block), (OK, 1000));
    let (mut base, mut size) = (0, 0);
    let answer = cu!(cuMemGetAddressRange_v2(
        &raw mut base,
        &raw mut size,
        block + 5
    ));
    assert_eq!((answer, base, size), (OK, block, 1000));
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, 100));
    assert_eq!(ask(17, plain), (OK, 0));
    assert_eq!(ask(1, plain), (OK, f._turn.context.addr() as u64));
    let local = 0_u8;
    let foreign = (&raw const local).addr() as u64;
    assert_eq!(ask(2, foreign).0, INVALID_VALUE);
    let mut attributes = [CUpointer_attribute(2), CUpointer_attribute(17)];
    let (mut kind, mut pool) = (9_u32, 9_u64);
    let mut places = [(&raw mut kind).cast::<c_void>(), (&raw mut pool).cast()];
    let answer = cu!(cuPointerGetAttributes(
        2,
        attributes.as_mut_ptr(),
        places.as_mut_ptr(),
        foreign
    ));
    assert_eq!((answer, kind, pool), (OK, 0, 0));
    assert_eq!(cu!(cuMemFree_v2(plain)), OK);
    f.free(block);
}

#[test]
fn memory_is_taken_from_the_device_and_given_back() {
    let f = Fixture::new();
    let info = || {
        let (mut free, mut total) = (0, 0);
        assert_eq!(cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total)), OK);
        (free as u64, total as u64)
    };
    let (before, total) = info();
    assert_eq!(total, 143_771 * MIB);
    let block = f.alloc(10 * MIB);
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, 1));
    assert_eq!(before - info().0, 34 * MIB);
    f.free(block);
    assert_eq!(cu!(cuMemFree_v2(plain)), OK);
    synchronise(f.stream);
    assert_eq!(info().0, before);
    // More than the device has, less than the address space.
    assert_eq!(
        try_alloc(f.pool, total + 32 * MIB, f.stream),
        Err(OUT_OF_MEMORY)
    );
}

#[test]
fn a_free_may_take_what_the_other_kind_of_allocation_gave() {
    let f = Fixture::new();
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, 1000));
    f.free(plain);
    let block = f.alloc(1000);
    synchronise(f.stream);
    assert_eq!(cu!(cuMemFree_v2(block)), OK);
    assert_eq!(used(f.pool), 0);
    assert_eq!(control().reports(), Vec::<String>::new());
    assert_eq!(control().live().allocations, 0);
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

#[test]
fn zz_trace() {
    let Ok(path) = std::env::var("TRACE") else {
        return;
    };
    let text = std::fs::read_to_string(path).unwrap();
    let f = Fixture::new();
    assert_eq!(set_attribute(f.pool, 4, u64::MAX), OK);
    let mut live = std::collections::HashMap::new();
    for pass in 0..2 {
        let start = std::time::Instant::now();
        let mut n = 0;
        for line in text.lines().skip(1) {
            let parts: Vec<&str> = line.split(',').collect();
            n += 1;
            if parts[2] == "allocate" {
                live.insert(parts[3].to_owned(), f.alloc(parts[4].parse().unwrap()));
            } else {
                f.free(live.remove(parts[3]).unwrap());
            }
        }
        println!(
            "pass {pass}: {n} ops {:?}, reserved high {} used high {}",
            start.elapsed(),
            attribute(f.pool, 6),
            attribute(f.pool, 8)
        );
        for (_, b) in live.drain() {
            f.free(b);
        }
    }
}
