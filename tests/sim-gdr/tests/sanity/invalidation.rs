//! Mappings of freed memory.

use cuda_driver_sys::gdr::gdr_t;

use crate::child::{Child, End};
use crate::environment::{Buffer, Environment, Kind, Mapped, SMALL, both, gdr, live};

const PERSISTENT: &[(&str, &str)] = &[("CUDA_SIM_GDR_PERSISTENT", "1")];

both! { "invalidation";
    invalidation_access_after_gdr_close,
        invalidation_access_after_gdr_close_cumemalloc,
        invalidation_access_after_gdr_close_vmmalloc, &[];
    invalidation_access_after_free,
        invalidation_access_after_free_cumemalloc, invalidation_access_after_free_vmmalloc, &[];
    /// With persistent mapping the original skips what it cannot see; here it is checked.
    invalidation_access_after_free_persistent,
        invalidation_access_after_free_persistent_cumemalloc,
        invalidation_access_after_free_persistent_vmmalloc, PERSISTENT;
    invalidation_two_mappings,
        invalidation_two_mappings_cumemalloc, invalidation_two_mappings_vmmalloc, &[];
    /// Not in the original: unpinning mapped memory ends the mapping too.
    access_after_unpin, access_after_unpin_cumemalloc, access_after_unpin_vmmalloc, &[];
    /// Not in the original: freed memory can no longer be mapped.
    map_after_free, map_after_free_cumemalloc, map_after_free_vmmalloc, &[];
}

fn set_up(kind: Kind) -> (Environment, Buffer, gdr_t, Mapped) {
    let env = Environment::new();
    let buffer = env.alloc(kind, SMALL);
    env.fill(buffer.at, 0x95, SMALL);
    let opened = env.open();
    let mapped = env.pin_and_map(opened, buffer.at, SMALL);
    mapped.set(0, 4711);
    (env, buffer, opened, mapped)
}

fn invalidation_access_after_gdr_close(kind: Kind) {
    let child = Child::fork(|| {
        let (env, _, opened, mapped) = set_up(kind);
        env.close(opened);
        assert!(!mapped.is_there());
        mapped.get(0);
    });
    assert_eq!(child.wait(), End::Signal(libc::SIGBUS));
}

fn invalidation_access_after_free(kind: Kind) {
    let child = Child::fork(|| {
        let (env, buffer, opened, mapped) = set_up(kind);
        assert_eq!(env.callback_flag(opened, mapped.handle), 0);
        env.free(buffer);
        assert_eq!(env.callback_flag(opened, mapped.handle), 1);
        mapped.get(0);
    });
    assert_eq!(child.wait(), End::Signal(libc::SIGBUS));
    // The original's steps after it has returned from the signal.
    let (env, buffer, opened, mapped) = set_up(kind);
    env.free(buffer);
    assert!(!mapped.is_there());
    assert!(!env.info(opened, mapped.handle).mapped());
    env.end(opened, mapped, SMALL);
    env.close(opened);
    assert_eq!(live(), [0, 0]);
}

fn invalidation_access_after_free_persistent(kind: Kind) {
    let (env, buffer, opened, mapped) = set_up(kind);
    env.free(buffer);
    assert_eq!(env.callback_flag(opened, mapped.handle), 0);
    assert!(env.info(opened, mapped.handle).mapped());
    assert_eq!((mapped.get(0), mapped.get(1)), (4711, 0x9595_9595));
    env.end(opened, mapped, SMALL);
    env.close(opened);
}

fn invalidation_two_mappings(kind: Kind) {
    let env = Environment::new();
    let buffers = [0, 1].map(|_| env.alloc(kind, SMALL));
    let opened = env.open();
    let mappings = buffers.map(|buffer| env.pin_and_map(opened, buffer.at, SMALL));
    mappings[0].set(0, 11);
    mappings[1].set(0, 12);
    assert_eq!(mappings.map(|mapped| mapped.get(0)), [11, 12]);
    env.free(buffers[0]);
    assert_eq!(mappings.map(Mapped::is_there), [false, true]);
    assert_eq!(mappings[1].get(0), 12);
    let flags = mappings.map(|mapped| env.callback_flag(opened, mapped.handle));
    assert_eq!(flags, [1, 0]);
    env.free(buffers[1]);
    for mapped in mappings {
        env.end(opened, mapped, SMALL);
    }
    env.close(opened);
}

fn access_after_unpin(kind: Kind) {
    let (env, buffer, opened, mapped) = set_up(kind);
    env.unpin(opened, mapped.handle);
    assert!(!mapped.is_there());
    env.close(opened);
    assert_eq!(env.read(buffer.at, 4), 4711_u32.to_ne_bytes());
    env.free(buffer);
}

fn map_after_free(kind: Kind) {
    let env = Environment::new();
    let buffer = env.alloc(kind, SMALL);
    let opened = env.open();
    let handle = env.pin(opened, buffer.at, SMALL);
    env.free(buffer);
    let refused = env.try_map(opened, handle, SMALL, 0).map(|_| ());
    assert_eq!(refused, Err(libc::EINVAL));
    assert_eq!(gdr!(env, gdr_unpin_buffer(opened, handle)), 0);
    env.close(opened);
}
