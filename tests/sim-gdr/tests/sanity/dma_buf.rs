//! Version 2.6 without the module: through the driver's dma-bufs. Not in the original.

use cuda_driver_sys::gdr::{
    GDR_MAP_FLAG_REQ_CACHE_MAPPING, GDR_MAP_FLAG_REQ_WC_MAPPING, gdr_attr_t, gdr_info_t,
};
use cuda_sim_support::page::host_page;

use crate::child::{Child, End};
use crate::environment::{Environment, Kind, OK, SMALL, both, cu, gdr, library, one};

const NEW: (&str, &str) = ("CUDA_SIM_GDR_VERSION", "2.6");
const NO_MODULE: (&str, &str) = ("CUDA_SIM_GDR_OPEN_ERROR", "2");
const DRIVER: (&str, &str) = ("CUDA_SIM_DRIVER_VERSION", "13030");
const WANTED: (&str, &str) = ("GDRCOPY_USE_DMABUF_MMAP", "1");

both! { "dma_buf";
    memory_is_mapped, memory_is_mapped_cumemalloc, memory_is_mapped_vmmalloc,
        &[NEW, NO_MODULE, DRIVER];
    it_can_be_wanted, it_can_be_wanted_cumemalloc, it_can_be_wanted_vmmalloc,
        &[NEW, WANTED, DRIVER];
    no_context_is_needed, no_context_is_needed_cumemalloc, no_context_is_needed_vmmalloc,
        &[NEW, WANTED, DRIVER];
}

one! { "dma_buf";
    an_older_driver_is_no_way_out, &[NEW, NO_MODULE], none;
    an_older_library_knows_no_way_out, &[NO_MODULE, DRIVER, WANTED], none;
}

fn memory_is_mapped(kind: Kind) {
    let env = Environment::new();
    let buffer = env.alloc(kind, SMALL);
    let opened = env.open();
    let told = [1, 2, 3].map(|number| env.attribute(opened, gdr_attr_t(number)));
    assert_eq!(told, [Ok(1); 3]);
    let handle = env.pin(opened, buffer.at, SMALL);
    let info = env.info(opened, handle);
    assert_eq!(
        (info.page_size, info.tm_cycles, info.cycles_per_ms),
        (host_page() as u32, 0, 0)
    );
    let map = |flags| env.try_map(opened, handle, SMALL, flags);
    assert_eq!(
        map(GDR_MAP_FLAG_REQ_CACHE_MAPPING).map(|_| ()),
        Err(libc::EINVAL)
    );
    let mapped = map(GDR_MAP_FLAG_REQ_WC_MAPPING).expect("mapped");
    mapped.set(1, 8);
    assert_eq!(env.read(buffer.at + 4, 4), [8, 0, 0, 0]);
    let mut old = gdr_info_t::default();
    let code = gdr!(env, gdr_get_info(opened, handle, &raw mut old));
    assert_eq!(code, libc::EBADF);
    // The mapping outlives the memory, without a notification, and children inherit it.
    env.free(buffer);
    assert_eq!(env.callback_flag(opened, handle), 0);
    let child = Child::fork(move || assert_eq!(mapped.get(1), 8));
    assert_eq!(child.wait(), End::Code(0));
    env.unpin(opened, handle);
    assert!(!mapped.is_there());
    env.close(opened);
}

fn it_can_be_wanted(kind: Kind) {
    let env = Environment::new();
    let buffer = env.alloc(kind, SMALL);
    let opened = env.open();
    assert_eq!(
        env.attribute(opened, gdr_attr_t::GDR_ATTR_USING_DMA_BUF_MMAP),
        Ok(1)
    );
    let mapped = env.pin_and_map(opened, buffer.at, SMALL);
    env.fill(buffer.at, 3, SMALL);
    assert_eq!(mapped.get(0), 0x0303_0303);
    env.end(opened, mapped, SMALL);
    env.close(opened);
    env.free(buffer);
}

/// The library retains the primary context itself.
fn no_context_is_needed(kind: Kind) {
    let env = Environment::new();
    let buffer = env.alloc(kind, SMALL);
    std::thread::spawn(move || {
        let opened = env.open();
        let mapped = env.pin_and_map(opened, buffer.at, SMALL);
        mapped.set(0, 5);
        let mut current = std::ptr::null_mut();
        assert_eq!(cu!(env, cuCtxGetCurrent(&raw mut current)), OK);
        assert!(current.is_null());
        env.end(opened, mapped, SMALL);
        env.close(opened);
    })
    .join()
    .expect("no context is needed");
    assert_eq!(env.read(buffer.at, 1), [5]);
    env.free(buffer);
}

fn none() {
    let env = Environment::new();
    assert_eq!(library().count(), env.gdr.count());
    assert!(gdr!(env, gdr_open()).is_null());
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ENOENT)
    );
}
