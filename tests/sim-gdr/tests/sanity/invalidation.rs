//! Mappings whose memory is gone.

use cuda_driver_sys::gdr::gdr_t;

use crate::child::{Child, End};
use crate::lab::{Buffer, Kind, Lab, Mapped, SMALL, both, gdr, live};

const PERSISTENT: &[(&str, &str)] = &[("CUDA_SIM_GDR_PERSISTENT", "1")];

both! { "invalidation";
    invalidation_access_after_gdr_close,
        invalidation_access_after_gdr_close_cumemalloc,
        invalidation_access_after_gdr_close_vmmalloc, &[];
    invalidation_access_after_free,
        invalidation_access_after_free_cumemalloc, invalidation_access_after_free_vmmalloc, &[];
    /// With persistent mapping the original waives what it cannot see; here it is looked at.
    invalidation_access_after_free_persistent,
        invalidation_access_after_free_persistent_cumemalloc,
        invalidation_access_after_free_persistent_vmmalloc, PERSISTENT;
    invalidation_two_mappings,
        invalidation_two_mappings_cumemalloc, invalidation_two_mappings_vmmalloc, &[];
    /// Not of the original: unpinning what is mapped ends the mapping too.
    access_after_unpin, access_after_unpin_cumemalloc, access_after_unpin_vmmalloc, &[];
    /// Not of the original: memory that was freed is not mapped any more.
    map_after_free, map_after_free_cumemalloc, map_after_free_vmmalloc, &[];
}

fn set_up(kind: Kind) -> (Lab, Buffer, gdr_t, Mapped) {
    let lab = Lab::new();
    let buffer = lab.alloc(kind, SMALL);
    lab.fill(buffer.at, 0x95, SMALL);
    let opened = lab.open();
    let mapped = lab.pin_and_map(opened, buffer.at, SMALL);
    mapped.set(0, 4711);
    (lab, buffer, opened, mapped)
}

fn invalidation_access_after_gdr_close(kind: Kind) {
    let child = Child::fork(|| {
        let (lab, _, opened, mapped) = set_up(kind);
        lab.close(opened);
        assert!(!mapped.is_there());
        mapped.get(0);
    });
    assert_eq!(child.wait(), End::Signal(libc::SIGBUS));
}

fn invalidation_access_after_free(kind: Kind) {
    let child = Child::fork(|| {
        let (lab, buffer, opened, mapped) = set_up(kind);
        assert_eq!(lab.callback_flag(opened, mapped.handle), 0);
        lab.free(buffer);
        assert_eq!(lab.callback_flag(opened, mapped.handle), 1);
        mapped.get(0);
    });
    assert_eq!(child.wait(), End::Signal(libc::SIGBUS));
    // What the original does after that, when it has come back from the signal.
    let (lab, buffer, opened, mapped) = set_up(kind);
    lab.free(buffer);
    assert!(!mapped.is_there());
    assert!(!lab.info(opened, mapped.handle).mapped());
    lab.end(opened, mapped, SMALL);
    lab.close(opened);
    assert_eq!(live(), [0, 0]);
}

fn invalidation_access_after_free_persistent(kind: Kind) {
    let (lab, buffer, opened, mapped) = set_up(kind);
    lab.free(buffer);
    assert_eq!(lab.callback_flag(opened, mapped.handle), 0);
    assert!(lab.info(opened, mapped.handle).mapped());
    assert_eq!((mapped.get(0), mapped.get(1)), (4711, 0x9595_9595));
    lab.end(opened, mapped, SMALL);
    lab.close(opened);
}

fn invalidation_two_mappings(kind: Kind) {
    let lab = Lab::new();
    let buffers = [0, 1].map(|_| lab.alloc(kind, SMALL));
    let opened = lab.open();
    let mappings = buffers.map(|buffer| lab.pin_and_map(opened, buffer.at, SMALL));
    mappings[0].set(0, 11);
    mappings[1].set(0, 12);
    assert_eq!(mappings.map(|mapped| mapped.get(0)), [11, 12]);
    lab.free(buffers[0]);
    assert_eq!(mappings.map(Mapped::is_there), [false, true]);
    assert_eq!(mappings[1].get(0), 12);
    let flags = mappings.map(|mapped| lab.callback_flag(opened, mapped.handle));
    assert_eq!(flags, [1, 0]);
    lab.free(buffers[1]);
    for mapped in mappings {
        lab.end(opened, mapped, SMALL);
    }
    lab.close(opened);
}

fn access_after_unpin(kind: Kind) {
    let (lab, buffer, opened, mapped) = set_up(kind);
    lab.unpin(opened, mapped.handle);
    assert!(!mapped.is_there());
    lab.close(opened);
    assert_eq!(lab.read(buffer.at, 4), 4711_u32.to_ne_bytes());
    lab.free(buffer);
}

fn map_after_free(kind: Kind) {
    let lab = Lab::new();
    let buffer = lab.alloc(kind, SMALL);
    let opened = lab.open();
    let handle = lab.pin(opened, buffer.at, SMALL);
    lab.free(buffer);
    let refused = lab.try_map(opened, handle, SMALL, 0).map(|_| ());
    assert_eq!(refused, Err(libc::EINVAL));
    assert_eq!(gdr!(lab, gdr_unpin_buffer(opened, handle)), 0);
    lab.close(opened);
}
