//! What the library reports about itself and the module.

use std::ffi::{CStr, c_int};

use cuda_driver_sys::gdr::{gdr_attr_t, gdr_info_t, gdr_mapping_type_t, gdr_t};

use crate::basic::COHERENT;
use crate::environment::{Environment, Kind, SIZE, gdr, one};

one! { "attributes";
    attributes_sanity, &[], || sanity(&[Ok(0), Ok(1), Err(libc::EINVAL)]);
    attributes_sanity_persistent, COHERENT, || sanity(&[Ok(1), Ok(1), Err(libc::EINVAL)]);
    attributes_sanity_2_6, &[("CUDA_SIM_GDR_VERSION", "2.6")],
        || sanity(&[Ok(0), Ok(1), Ok(0)]);
    attributes_sanity_old_module, &[("CUDA_SIM_GDR_DRIVER_VERSION", "2.4")],
        || sanity(&[Ok(0), Ok(0), Err(libc::EINVAL)]);
    kinds_of_mappings_have_names, &[], names;
    the_structs_of_both_versions_agree, &[], infos;
    versions_are_told, &[("CUDA_SIM_GDR_DRIVER_VERSION", "2.3")], versions;
}

fn sanity(expected: &[Result<c_int, c_int>]) {
    let env = Environment::new();
    let opened = env.open();
    let ask = |number| env.attribute(opened, gdr_attr_t(number));
    let told: Vec<_> = (1..=expected.len() as u32).map(ask).collect();
    assert_eq!(told, expected);
    assert_eq!([0, 4, 99].map(ask), [Err(libc::EINVAL); 3]);
    env.close(opened);
}

fn names() {
    let env = Environment::new();
    let name = |number| {
        let mut text = std::ptr::null();
        let place = &raw mut text;
        match gdr!(
            env,
            gdr_get_mapping_type_string(gdr_mapping_type_t(number), place)
        ) {
            // SAFETY: a static text of the library.
            0 => Ok(unsafe { CStr::from_ptr(text) }),
            code => Err(code),
        }
    };
    assert_eq!(
        [0, 1, 2, 3].map(name),
        [c"None", c"Write Combining", c"Caching", c"Device"].map(Ok)
    );
    assert_eq!(name(4), Err(libc::EINVAL));
}

fn infos() {
    let env = Environment::new();
    let buffer = env.alloc(Kind::Cumemalloc, SIZE);
    let opened = env.open();
    let mapped = env.pin_and_map(opened, buffer.at, SIZE);
    let new = env.info(opened, mapped.handle);
    let mut old = gdr_info_t::default();
    assert_eq!(
        gdr!(env, gdr_get_info(opened, mapped.handle, &raw mut old)),
        0
    );
    assert_eq!(
        (old.va, old.mapped_size, old.page_size, old.bits),
        (new.va, new.mapped_size, new.page_size, new.bits)
    );
    assert!(old.mapped() && old.wc_mapping());
    env.close(opened);
    env.free(buffer);
}

fn versions() {
    let env = Environment::new();
    let opened = env.open();
    let (mut major, mut minor) = (0, 0);
    gdr!(env, gdr_runtime_get_version(&raw mut major, &raw mut minor));
    assert_eq!((major, minor), (2, 5));
    let tell = |opened, major, minor| gdr!(env, gdr_driver_get_version(opened, major, minor));
    assert_eq!(tell(opened, &raw mut major, &raw mut minor), 0);
    assert_eq!((major, minor), (2, 3));
    let nobody: gdr_t = std::ptr::null_mut();
    assert_eq!(tell(nobody, &raw mut major, &raw mut minor), libc::EINVAL);
    env.close(opened);
}
