//! Version 2.6 without the module: through dma-bufs of the driver. Not of the original.

use cuda_driver_sys::gdr::{
    GDR_MAP_FLAG_REQ_CACHE_MAPPING, GDR_MAP_FLAG_REQ_WC_MAPPING, gdr_attr_t, gdr_info_t,
};

use crate::child::{Child, End};
use crate::lab::{Kind, Lab, SMALL, both, gdr, library, one};

const NEW: (&str, &str) = ("CUDA_SIM_GDR_VERSION", "2.6");
const NO_MODULE: (&str, &str) = ("CUDA_SIM_GDR_OPEN_ERROR", "2");
const DRIVER: (&str, &str) = ("CUDA_SIM_DRIVER_VERSION", "13030");
const WANTED: (&str, &str) = ("GDRCOPY_USE_DMABUF_MMAP", "1");

both! { "dma_buf";
    memory_is_mapped, memory_is_mapped_cumemalloc, memory_is_mapped_vmmalloc,
        &[NEW, NO_MODULE, DRIVER];
    it_can_be_wanted, it_can_be_wanted_cumemalloc, it_can_be_wanted_vmmalloc,
        &[NEW, WANTED, DRIVER];
}

one! { "dma_buf";
    an_older_driver_is_no_way_out, &[NEW, NO_MODULE], none;
    an_older_library_knows_no_way_out, &[NO_MODULE, DRIVER, WANTED], none;
}

fn memory_is_mapped(kind: Kind) {
    let lab = Lab::new();
    let buffer = lab.alloc(kind, SMALL);
    let opened = lab.open();
    let told = [1, 2, 3].map(|number| lab.attribute(opened, gdr_attr_t(number)));
    assert_eq!(told, [Ok(1); 3]);
    let handle = lab.pin(opened, buffer.at, SMALL);
    let info = lab.info(opened, handle);
    assert_eq!(
        (info.page_size, info.tm_cycles, info.cycles_per_ms),
        (4096, 0, 0)
    );
    let map = |flags| lab.try_map(opened, handle, SMALL, flags);
    assert_eq!(
        map(GDR_MAP_FLAG_REQ_CACHE_MAPPING).map(|_| ()),
        Err(libc::EINVAL)
    );
    let mapped = map(GDR_MAP_FLAG_REQ_WC_MAPPING).expect("mapped");
    mapped.set(1, 8);
    assert_eq!(lab.read(buffer.at + 4, 4), [8, 0, 0, 0]);
    let mut old = gdr_info_t::default();
    let code = gdr!(lab, gdr_get_info(opened, handle, &raw mut old));
    assert_eq!(code, libc::EBADF);
    // It outlives the memory, nobody is told, and children have it.
    lab.free(buffer);
    assert_eq!(lab.callback_flag(opened, handle), 0);
    let child = Child::fork(move || assert_eq!(mapped.get(1), 8));
    assert_eq!(child.wait(), End::Code(0));
    lab.unpin(opened, handle);
    assert!(!mapped.is_there());
    lab.close(opened);
}

fn it_can_be_wanted(kind: Kind) {
    let lab = Lab::new();
    let buffer = lab.alloc(kind, SMALL);
    let opened = lab.open();
    assert_eq!(
        lab.attribute(opened, gdr_attr_t::GDR_ATTR_USING_DMA_BUF_MMAP),
        Ok(1)
    );
    let mapped = lab.pin_and_map(opened, buffer.at, SMALL);
    lab.fill(buffer.at, 3, SMALL);
    assert_eq!(mapped.get(0), 0x0303_0303);
    lab.end(opened, mapped, SMALL);
    lab.close(opened);
    lab.free(buffer);
}

fn none() {
    let lab = Lab::new();
    assert_eq!(library().count(), lab.gdr.count());
    assert!(gdr!(lab, gdr_open()).is_null());
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ENOENT)
    );
}
