//! Two devices: what crosses from one to the other, as measured.

use std::ffi::{c_int, c_void};

use cuda_driver_sys::*;

use crate::harness::*;

const LEN: usize = 64;

/// Both devices' contexts, with a stream, a pool and a filled block of each.
struct Two {
    contexts: [CUcontext; 2],
    streams: [CUstream; 2],
    pools: [CUmemoryPool; 2],
    blocks: [CUdeviceptr; 2],
    _turn: Turn,
}

impl Two {
    fn new() -> Self {
        let turn = turn();
        let contexts = [turn.context, handle!(cuDevicePrimaryCtxRetain(_, 1))];
        let mut streams = [std::ptr::null_mut(); 2];
        let mut pools = [std::ptr::null_mut(); 2];
        let mut blocks = [0; 2];
        for device in [0, 1] {
            assert_eq!(cu!(cuCtxSetCurrent(contexts[device])), OK);
            let mut wish = props();
            wish.location = location(CUmemLocationType(1), device as c_int);
            streams[device] = stream();
            pools[device] = pool(&wish);
            blocks[device] = alloc(pools[device], LEN as u64, streams[device]);
            let (block, stream) = (blocks[device], streams[device]);
            let byte = 10 + device as u8;
            assert_eq!(cu!(cuMemsetD8Async(block, byte, LEN, stream)), OK);
            synchronise(stream);
        }
        let two = Self {
            contexts,
            streams,
            pools,
            blocks,
            _turn: turn,
        };
        two.enter(Some(0));
        two
    }

    fn enter(&self, device: Option<usize>) {
        let context = device.map_or(std::ptr::null_mut(), |device| self.contexts[device]);
        assert_eq!(cu!(cuCtxSetCurrent(context)), OK);
    }

    /// What the second device's pool allows the first.
    fn open(&self, flags: u32) {
        let wish = CUmemAccessDesc {
            location: location(CUmemLocationType(1), 0),
            flags: CUmemAccess_flags(flags),
        };
        assert_eq!(
            cu!(cuMemPoolSetAccess(self.pools[1], &raw const wish, 1)),
            OK
        );
    }

    /// Copies the second's block into the first's, on a stream of this device.
    fn copy(&self, on: usize) -> CUresult {
        let [to, from] = self.blocks;
        let answer = cu!(cuMemcpyDtoDAsync_v2(to, from, LEN, self.streams[on]));
        synchronise(self.streams[on]);
        answer
    }

    fn first_byte(&self) -> u8 {
        self.enter(Some(0));
        let mut bytes = [0_u8; LEN];
        let host = bytes.as_mut_ptr().cast::<c_void>();
        assert_eq!(cu!(cuMemcpyDtoH_v2(host, self.blocks[0], LEN)), OK);
        bytes[0]
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        for device in [0, 1] {
            self.enter(Some(device));
            free(self.blocks[device], self.streams[device]);
            synchronise(self.streams[device]);
            assert_eq!(cu!(cuMemPoolDestroy(self.pools[device])), OK);
            assert_eq!(cu!(cuStreamDestroy_v2(self.streams[device])), OK);
        }
        self.enter(Some(0));
        assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(1)), OK);
    }
}

#[test]
fn a_copy_is_checked_against_the_current_context_and_not_the_stream() {
    let two = Two::new();
    assert_eq!(two.copy(0), INVALID_VALUE, "nobody has access");
    two.open(3);
    for on in [0, 1] {
        two.enter(Some(0));
        assert_eq!(two.copy(on), OK, "the first reaches both");
        two.enter(Some(1));
        assert_eq!(two.copy(on), INVALID_VALUE, "the second does not");
    }
    two.enter(None);
    assert_eq!(two.copy(0), OK, "without a context the stream decides");
    assert_eq!(two.copy(1), INVALID_VALUE);
    assert_eq!(two.first_byte(), 11);
}

#[test]
fn a_fill_is_checked_against_the_stream() {
    let two = Two::new();
    let fill = || cu!(cuMemsetD8Async(two.blocks[1], 1, LEN, two.streams[0]));
    for current in [Some(0), Some(1), None] {
        two.enter(current);
        assert_eq!(fill(), INVALID_VALUE);
    }
    two.open(3);
    for current in [Some(0), Some(1), None] {
        two.enter(current);
        assert_eq!(fill(), OK);
    }
    synchronise(two.streams[0]);
}

#[test]
fn a_peer_copy_needs_no_access_but_the_right_contexts() {
    let two = Two::new();
    let [to, from] = two.blocks;
    let [first, second] = two.contexts;
    let copy = |there, here| {
        let queue = two.streams[0];
        let answer = cu!(cuMemcpyPeerAsync(to, there, from, here, LEN, queue));
        synchronise(queue);
        answer
    };
    assert_eq!(copy(second, first), INVALID_VALUE);
    assert_eq!(copy(first, first), INVALID_VALUE);
    assert_eq!(copy(first, second), OK);
    assert_eq!(two.first_byte(), 11);
    assert_eq!(cu!(cuMemcpyPeer(to, first, from, second, LEN)), OK);
    two.enter(None);
    assert_eq!(copy(first, second), OK);
    assert_eq!(
        cu!(cuMemcpyPeer(to, first, from, second, LEN)),
        CUresult::CUDA_ERROR_INVALID_CONTEXT
    );
}

#[test]
fn an_address_is_a_devices_where_the_current_context_reaches_it() {
    let two = Two::new();
    let ask = || {
        let mut value = 0_u64;
        let place = (&raw mut value).cast::<c_void>();
        cu!(cuPointerGetAttribute(
            place,
            CUpointer_attribute(3),
            two.blocks[1]
        ))
    };
    let range = || {
        let (mut base, mut len) = (0, 0);
        cu!(cuMemGetAddressRange_v2(
            &raw mut base,
            &raw mut len,
            two.blocks[1]
        ))
    };
    assert_eq!(ask(), INVALID_VALUE);
    assert_eq!(range(), CUresult::CUDA_ERROR_NOT_FOUND);
    two.open(3);
    assert_eq!((ask(), range()), (OK, OK));
    two.open(0);
    two.enter(Some(1));
    assert_eq!((ask(), range()), (OK, OK));
    two.enter(None);
    assert_eq!(ask(), CUresult::CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn contexts_that_open_to_each_other_open_no_pools() {
    let two = Two::new();
    let second = two.contexts[1];
    two.enter(Some(1));
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, LEN));
    two.enter(Some(0));
    let fill = |block| cu!(cuMemsetD8Async(block, 1, LEN, two.streams[0]));
    assert_eq!(fill(plain), INVALID_VALUE);
    let unknown = CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    assert_eq!(cu!(cuCtxDisablePeerAccess(second)), unknown);
    assert_eq!(cu!(cuCtxEnablePeerAccess(second, 0)), OK);
    let again = CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    assert_eq!(cu!(cuCtxEnablePeerAccess(second, 0)), again);
    assert_eq!((fill(plain), fill(two.blocks[1])), (OK, INVALID_VALUE));
    synchronise(two.streams[0]);
    assert_eq!(cu!(cuCtxDisablePeerAccess(second)), OK);
    assert_eq!(fill(plain), INVALID_VALUE);
    assert_eq!(cu!(cuMemFree_v2(plain)), OK);
}

#[test]
fn a_list_of_accesses_counts_as_a_whole_or_not_at_all() {
    let two = Two::new();
    let wish = |device: c_int, flags: u32| CUmemAccessDesc {
        location: location(CUmemLocationType(1), device),
        flags: CUmemAccess_flags(flags),
    };
    let set = |list: &[CUmemAccessDesc]| {
        let answer = cu!(cuMemPoolSetAccess(two.pools[0], list.as_ptr(), list.len()));
        let mut flags = CUmemAccess_flags(77);
        let mut place = location(CUmemLocationType(1), 1);
        let asked = cu!(cuMemPoolGetAccess(
            &raw mut flags,
            two.pools[0],
            &raw mut place
        ));
        assert_eq!(asked, OK);
        (answer, flags.0)
    };
    let no_device = CUresult::CUDA_ERROR_INVALID_DEVICE;
    assert_eq!(set(&[wish(1, 3), wish(99, 3)]), (no_device, 0));
    assert_eq!(set(&[wish(1, 3), wish(0, 0)]), (no_device, 0), "the owner");
    assert_eq!(set(&[wish(1, 3), wish(0, 7)]), (INVALID_VALUE, 0));
    assert_eq!(
        set(&[wish(1, 0), wish(1, 3)]),
        (OK, 3),
        "the last one counts"
    );
    assert_eq!(set(&[wish(1, 3), wish(1, 0)]), (OK, 0));
}
