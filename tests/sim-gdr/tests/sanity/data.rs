//! Bytes written one way and read another.

use std::ffi::c_void;

use cuda_driver_sys::gdr::{
    GDR_MAP_FLAG_DEFAULT, GDR_PIN_FLAG_DEFAULT, GDR_PIN_FLAG_FORCE_PCIE, gdr_mapping_type_t,
    gdr_mh_t,
};

use crate::basic::COHERENT;
use crate::environment::{Environment, Kind, Mapped, SIZE, both, gdr, one};

const OFFSETS: [usize; 10] = [1, 2, 3, 4, 5, 6, 7, 11, 129, 1023];

both! { "data";
    data_validation, data_validation_cumemalloc, data_validation_vmmalloc, &[];
    data_validation_v2, data_validation_v2_cumemalloc, data_validation_v2_vmmalloc, &[];
    data_validation_v2_forcepci,
        data_validation_v2_forcepci_cumemalloc, data_validation_v2_forcepci_vmmalloc, COHERENT;
}

one! { "data";
    data_validation_mix_mappings_cumemalloc, COHERENT, mix_mappings;
}

fn data_validation(kind: Kind) {
    validate(kind, |env, opened, at| env.pin(opened, at, SIZE));
}

fn data_validation_v2(kind: Kind) {
    validate(kind, |env, opened, at| {
        let handle = env.try_pin_v2(opened, at, SIZE, GDR_PIN_FLAG_DEFAULT);
        handle.expect("pinned")
    });
}

fn data_validation_v2_forcepci(kind: Kind) {
    validate(kind, |env, opened, at| {
        let handle = env.try_pin_v2(opened, at, SIZE, GDR_PIN_FLAG_FORCE_PCIE);
        handle.expect("pinned")
    });
}

/// A bit that walks through the words.
fn walking_bit() -> Vec<u8> {
    let words = 0..SIZE as usize / 4;
    words
        .flat_map(|at| (1_u32 << (at % 32)).to_ne_bytes())
        .collect()
}

fn copy_to(env: &Environment, mapped: Mapped, offset: usize, bytes: &[u8]) {
    let (to, from) = (mapped.at(offset), bytes.as_ptr().cast::<c_void>());
    let code = gdr!(
        env,
        gdr_copy_to_mapping(mapped.handle, to, from, bytes.len())
    );
    assert_eq!(code, 0);
}

fn copy_from(env: &Environment, mapped: Mapped, offset: usize, bytes: &mut [u8]) {
    let (to, from) = (bytes.as_mut_ptr().cast::<c_void>(), mapped.at(offset));
    let code = gdr!(
        env,
        gdr_copy_from_mapping(mapped.handle, to, from, bytes.len())
    );
    assert_eq!(code, 0);
}

/// The nine checks.
fn validate(kind: Kind, pin: impl Fn(&Environment, cuda_driver_sys::gdr::gdr_t, u64) -> gdr_mh_t) {
    let env = Environment::new();
    let buffer = env.alloc(kind, SIZE);
    env.fill(buffer.at, 0xA5, SIZE);
    let opened = env.open();
    let handle = pin(&env, opened, buffer.at);
    assert!(!env.info(opened, handle).mapped());
    let mapped = env
        .try_map(opened, handle, SIZE, GDR_MAP_FLAG_DEFAULT)
        .expect("mapped");
    assert!(env.info(opened, handle).mapped());
    let initial = walking_bit();
    let reset = || env.fill(buffer.at, 0xA5, SIZE);

    // 1: stores by the host, and a copy by the device.
    for round in 0..1000_u32 {
        let at = round as usize * 7 % (SIZE as usize / 4);
        mapped.set(at, round);
        assert_eq!(env.read(buffer.at + at as u64 * 4, 4), round.to_ne_bytes());
    }
    reset();
    // 2: a copy by the library, and one by the device.
    copy_to(&env, mapped, 0, &initial);
    assert!(env.read(buffer.at, SIZE) == initial);
    reset();
    // 3: two copies by the library.
    let mut copy = vec![0xA5; SIZE as usize];
    copy_to(&env, mapped, 0, &initial);
    copy_from(&env, mapped, 0, &mut copy);
    assert!(copy == initial);
    reset();
    // 4 to 9: the same at other offsets: in the mapping, in host memory, and in both.
    for offset in OFFSETS {
        let rest = SIZE as usize - offset;
        for (of_mapping, of_host) in [(offset, 0), (0, offset), (offset, offset)] {
            copy.fill(0xA5);
            copy_to(&env, mapped, of_mapping, &initial[of_host..][..rest]);
            let there = env.read(buffer.at + of_mapping as u64, rest as u64);
            assert!(there == initial[of_host..][..rest], "{offset}");
            copy_from(&env, mapped, of_mapping, &mut copy[of_host..][..rest]);
            assert!(
                copy[of_host..][..rest] == initial[of_host..][..rest],
                "{offset}"
            );
            reset();
        }
    }
    assert_eq!(mapped.get(3), 0xA5A5_A5A5, "what the device does is seen");
    env.end(opened, mapped, SIZE);
    env.close(opened);
    env.free(buffer);
}

/// The same memory mapped twice with different kinds.
fn mix_mappings() {
    let env = Environment::new();
    let buffer = env.alloc(Kind::Cumemalloc, SIZE);
    env.fill(buffer.at, 0xA5, SIZE);
    let opened = env.open();
    let mappings = [GDR_PIN_FLAG_DEFAULT, GDR_PIN_FLAG_FORCE_PCIE].map(|flags| {
        let handle = env
            .try_pin_v2(opened, buffer.at, SIZE, flags)
            .expect("pinned");
        env.try_map(opened, handle, SIZE, GDR_MAP_FLAG_DEFAULT)
            .expect("mapped")
    });
    let kinds = mappings.map(|mapped| env.info(opened, mapped.handle).mapping_type);
    assert_eq!(
        kinds,
        [
            gdr_mapping_type_t::GDR_MAPPING_TYPE_CACHING,
            gdr_mapping_type_t::GDR_MAPPING_TYPE_WC,
        ]
    );
    let initial = walking_bit();
    let mut copy = vec![0; SIZE as usize];
    for (to, from) in [(0, 1), (1, 0)] {
        env.fill(buffer.at, 0xA5, SIZE);
        copy_to(&env, mappings[to], 0, &initial);
        copy_from(&env, mappings[from], 0, &mut copy);
        assert!(copy == initial);
        mappings[to].set(5, 42);
        assert_eq!(mappings[from].get(5), 42);
    }
    for mapped in mappings {
        env.end(opened, mapped, SIZE);
    }
    env.close(opened);
    env.free(buffer);
}
