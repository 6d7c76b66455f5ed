//! Pinning and mapping.

use std::ffi::c_void;
use std::sync::{Arc, Barrier};

use cuda_driver_sys::gdr::{
    GDR_MAP_FLAG_REQ_CACHE_MAPPING, GDR_MAP_FLAG_REQ_WC_MAPPING, GDR_PIN_FLAG_DEFAULT,
    GDR_PIN_FLAG_FORCE_PCIE, GPU_PAGE_MASK, GPU_PAGE_SIZE, gdr_mapping_type_t, gdr_mh_t, gdr_t,
};
use cuda_driver_sys::{CUmemAttach_flags, CUpointer_attribute};

use crate::environment::{Buffer, Environment, Kind, Mapped, OK, SIZE, both, cu, gdr, live, one};

/// A coherent platform with persistent mapping, where PCIe can be forced.
pub(crate) const COHERENT: &[(&str, &str)] = &[
    ("CUDA_SIM_GDR_PERSISTENT", "1"),
    ("CUDA_SIM_GDR_MAPPING", "cached"),
];

both! { "basic";
    basic, basic_cumemalloc, basic_vmmalloc, &[];
    basic_v2, basic_v2_cumemalloc, basic_v2_vmmalloc, &[];
    basic_v2_forcepci, basic_v2_forcepci_cumemalloc, basic_v2_forcepci_vmmalloc, COHERENT;
    basic_child_thread_pins_buffer,
        basic_child_thread_pins_buffer_cumemalloc, basic_child_thread_pins_buffer_vmmalloc, &[];
}

one! { "basic";
    basic_with_tokens, &[], with_tokens;
    basic_unaligned_mapping, &[], unaligned_mapping;
    basic_small_buffers_mapping, &[], small_buffers_mapping;
    /// Not in the original: unpinnable memory.
    other_memory_is_refused, &[], other_memory;
    /// Not in the original: calls that return EAGAIN and EINVAL.
    wrong_calls_are_refused, &[], wrong_calls;
}

fn basic(kind: Kind) {
    let env = Environment::new();
    let buffer = env.alloc(kind, SIZE);
    let opened = env.open();
    let handle = env.pin(opened, buffer.at, SIZE);
    env.unpin(opened, handle);
    env.close(opened);
    env.free(buffer);
}

fn basic_v2(kind: Kind) {
    let env = Environment::new();
    let buffer = env.alloc(kind, SIZE);
    let opened = env.open();
    let pin = |flags| env.try_pin_v2(opened, buffer.at, SIZE, flags);
    let handle = pin(GDR_PIN_FLAG_DEFAULT).expect("pinned");
    env.unpin(opened, handle);
    assert_eq!(pin(GDR_PIN_FLAG_FORCE_PCIE), Err(libc::EINVAL));
    assert_eq!(pin(6), Err(libc::EINVAL));
    env.close(opened);
    env.free(buffer);
}

fn basic_v2_forcepci(kind: Kind) {
    let env = Environment::new();
    let buffer = env.alloc(kind, SIZE);
    let opened = env.open();
    let handle = env.try_pin_v2(opened, buffer.at, SIZE, GDR_PIN_FLAG_FORCE_PCIE);
    let handle = handle.expect("pinned");
    let refused = env.try_map(opened, handle, SIZE, GDR_MAP_FLAG_REQ_CACHE_MAPPING);
    assert_eq!(refused.map(|_| ()), Err(libc::EINVAL));
    let mapped = env.try_map(opened, handle, SIZE, GDR_MAP_FLAG_REQ_WC_MAPPING);
    let kind = env.info(opened, handle).mapping_type;
    assert_eq!(kind, gdr_mapping_type_t::GDR_MAPPING_TYPE_WC);
    env.end(opened, mapped.expect("mapped"), SIZE);
    env.close(opened);
    env.free(buffer);
}

fn with_tokens() {
    let env = Environment::new();
    let buffer = env.alloc(Kind::Cumemalloc, SIZE);
    let mut tokens = (0_u64, 0_u32);
    let place = (&raw mut tokens).cast::<c_void>();
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_P2P_TOKENS;
    assert_eq!(
        cu!(env, cuPointerGetAttribute(place, attribute, buffer.at)),
        OK
    );
    let opened = env.open();
    let mut handle = gdr_mh_t::default();
    let pin = |token, space, place| {
        gdr!(
            env,
            gdr_pin_buffer(opened, buffer.at, SIZE as usize, token, space, place)
        )
    };
    assert_eq!(pin(tokens.0, tokens.1, &raw mut handle), 0);
    env.unpin(opened, handle);
    assert_eq!(pin(tokens.0 + 1, tokens.1, &raw mut handle), libc::EINVAL);
    env.close(opened);
    env.free(buffer);
}

/// A mapping starts at a GPU page. Memory that shares a page with other memory can be freed without revoking the
/// mapping of the next page.
fn unaligned_mapping() {
    let env = Environment::new();
    let first = env.alloc(Kind::Cumemalloc, 4);
    let size = GPU_PAGE_SIZE + 4;
    let buffer = env.alloc(Kind::Cumemalloc, size);
    assert_ne!(
        buffer.at & GPU_PAGE_MASK,
        buffer.at,
        "the simulator shares pages"
    );
    let opened = env.open();
    let handle = env.pin(opened, buffer.at, size);
    let refused = env.try_map(opened, handle, size, 0).map(|_| ());
    assert_eq!(refused, Err(libc::EINVAL));
    env.unpin(opened, handle);

    let aligned = buffer.at.next_multiple_of(GPU_PAGE_SIZE);
    let aligned_size = size - (aligned - buffer.at);
    let mapped = env.pin_and_map(opened, aligned, aligned_size);
    mapped.set(0, 7);
    let other = env.pin_and_map(opened, first.at, 4);
    other.set(0, 8);
    env.free(first);
    assert!(!other.is_there());
    mapped.set(0, 9);
    assert_eq!(env.read(aligned, 4), [9, 0, 0, 0]);
    env.unpin(opened, mapped.handle);
    env.close(opened);
    env.free(buffer);
}

/// Blocks smaller than a GPU page, many of them in one page.
fn small_buffers_mapping() {
    let env = Environment::new();
    let opened = env.open();
    let buffers: Vec<Buffer> = (0..512).map(|_| env.alloc(Kind::Cumemalloc, 600)).collect();
    let mut maps = Vec::new();
    for (number, buffer) in buffers.iter().enumerate() {
        let page = buffer.at & GPU_PAGE_MASK;
        let handle = env.pin(opened, buffer.at, 600);
        let info = env.info(opened, handle);
        assert_eq!((info.va, info.page_size), (page, GPU_PAGE_SIZE as u32));
        assert!(!info.mapped());
        if buffer.at == page {
            let mapped = env.try_map(opened, handle, 600, 0).expect("mapped");
            mapped.set(0, number as u32);
            maps.push((mapped, *buffer, number));
        } else {
            assert!(env.try_map(opened, handle, 600, 0).is_err());
        }
    }
    assert!(maps.len() > 1, "some begin at a page");
    for (mapped, buffer, number) in maps {
        assert_eq!(env.read(buffer.at, 4), (number as u32).to_ne_bytes());
        env.unmap(opened, mapped, 600);
    }
    env.close(opened);
    assert_eq!(live(), [0, 0]);
    buffers.into_iter().for_each(|buffer| env.free(buffer));
}

fn other_memory() {
    let env = Environment::new();
    let opened = env.open();
    let (mut at, mut host) = (0, std::ptr::null_mut());
    let refused = |what: &str, at: u64, size: u64| {
        assert_eq!(env.try_pin(opened, at, size), Err(libc::EINVAL), "{what}");
    };
    let size = SIZE as usize;
    let code = cu!(
        env,
        cuMemAllocAsync(&raw mut at, size, std::ptr::null_mut())
    );
    assert_eq!(code, OK);
    refused("of a pool", at, SIZE);
    let everywhere = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
    assert_eq!(
        cu!(env, cuMemAllocManaged(&raw mut at, size, everywhere)),
        OK
    );
    refused("managed", at, SIZE);
    assert_eq!(cu!(env, cuMemHostAlloc(&raw mut host, size, 0)), OK);
    refused("pinned", host.expose_provenance() as u64, SIZE);
    refused("mapped, and not for this", env.mapped(2 << 20, 0).at, SIZE);
    refused(
        "of the program",
        std::ptr::from_ref(&env).expose_provenance() as u64,
        8,
    );
    refused("null", 0, SIZE);
    let buffer = env.alloc(Kind::Cumemalloc, 4 << 20);
    refused("nothing", buffer.at, 0);
    refused("past its end", buffer.at, 8 << 20);
    refused("around the end", buffer.at, u64::MAX - 5);
    env.free(buffer);
    refused("freed", buffer.at, SIZE);
    assert_eq!(live(), [0, 0]);
}

fn wrong_calls() {
    let env = Environment::new();
    let buffer = env.alloc(Kind::Cumemalloc, SIZE);
    let opened = env.open();
    let mapped = env.pin_and_map(opened, buffer.at, SIZE);
    let handle = mapped.handle;
    let map = |size, flags| env.try_map(opened, handle, size, flags).map(|_| ());
    assert_eq!(map(SIZE, 0), Err(libc::EAGAIN), "mapped already");
    assert_eq!(map(SIZE, 9), Err(libc::EAGAIN));
    env.unmap(opened, mapped, SIZE);
    assert_eq!(map(SIZE, 9), Err(libc::EINVAL), "no such flag");
    assert_eq!(map(SIZE, GDR_MAP_FLAG_REQ_CACHE_MAPPING), Err(libc::EINVAL));
    assert_eq!(map(SIZE + 1, 0), Err(libc::EINVAL), "more than is pinned");
    assert_eq!(map(0, 0), Err(libc::EINVAL));
    let unmap = gdr!(env, gdr_unmap(opened, handle, mapped.base, SIZE as usize));
    assert_eq!(unmap, libc::EINVAL, "not mapped");
    let mut byte = 1_u8;
    let place = (&raw mut byte).cast::<c_void>();
    assert_eq!(
        gdr!(env, gdr_copy_to_mapping(handle, place, place, 1)),
        libc::EINVAL
    );
    assert_eq!(
        gdr!(env, gdr_copy_from_mapping(handle, place, place, 1)),
        libc::EINVAL
    );
    env.unpin(opened, handle);
    assert_eq!(gdr!(env, gdr_unpin_buffer(opened, handle)), libc::EINVAL);
    let nobody: gdr_t = std::ptr::null_mut();
    assert_eq!(gdr!(env, gdr_close(nobody)), libc::EINVAL);
    let pin = gdr!(
        env,
        gdr_pin_buffer(opened, buffer.at, 8, 0, 0, std::ptr::null_mut())
    );
    assert_eq!(pin, libc::EINVAL);
    env.close(opened);
    env.free(buffer);
}

/// Threads pin, map, unmap and unpin, continuing each other's work, and two use the same buffer.
fn basic_child_thread_pins_buffer(kind: Kind) {
    #[derive(Clone, Copy)]
    struct Shared(Environment, gdr_t);
    // SAFETY: the simulated library has its own lock.
    unsafe impl Send for Shared {}

    impl Shared {
        fn set_up(self, buffer: Buffer) -> Mapped {
            self.0.pin_and_map(self.1, buffer.at, 16 * GPU_PAGE_SIZE)
        }

        fn tear_down(self, mapped: Mapped) {
            self.0.end(self.1, mapped, 16 * GPU_PAGE_SIZE);
        }
    }

    let env = Environment::new();
    let buffer = env.alloc(kind, 16 * GPU_PAGE_SIZE);
    env.fill(buffer.at, 0xA5, 16 * GPU_PAGE_SIZE);
    let shared = Shared(env, env.open());
    let thread = std::thread::spawn(move || shared.tear_down(shared.set_up(buffer)));
    thread.join().expect("one thread");

    let set_up = std::thread::spawn(move || shared.set_up(buffer));
    let mapped = set_up.join().expect("one thread");
    let tear_down = std::thread::spawn(move || shared.tear_down(mapped));
    tear_down.join().expect("another");

    let barrier = Arc::new(Barrier::new(2));
    let threads = [0, 1].map(|_| {
        let barrier = Arc::clone(&barrier);
        std::thread::spawn(move || {
            barrier.wait();
            for _ in 0..20 {
                let mapped = shared.set_up(buffer);
                assert_eq!(mapped.get(0), 0xA5A5_A5A5);
                shared.tear_down(mapped);
            }
        })
    });
    for thread in threads {
        thread.join().expect("both at once");
    }
    assert_eq!(live(), [0, 0]);
    env.close(shared.1);
    env.free(buffer);
}
