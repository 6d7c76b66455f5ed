//! Virtual memory: physical memory, addresses, and buffers over both.

mod buffers;
mod mappings;
mod samples;

use anyhow::Result;
use cuda_mem::Location;

use crate::lab::Lab;
use crate::run::Test;
use crate::tests;

/// All of them.
#[must_use]
pub fn all() -> Vec<Test> {
    tests! {
        mappings: sizes_are_whole_granules,
            a_mapping_gives_no_access,
            bytes_stay_with_the_memory,
            what_cannot_be_mapped_is_explained,
            ends_come_in_any_order,
            memory_of_the_host_is_mapped_for_devices;
        buffers: every_size_and_place_keeps_its_bytes,
            mapping_and_unmapping_again_changes_nothing,
            a_buffer_grows_in_place,
            a_buffer_is_moved_and_keeps_its_address,
            what_does_not_fit_is_refused_and_loses_nothing,
            a_granularity_is_kept_or_refused,
            an_end_waits_for_the_work,
            buffers_that_were_exchanged_do_not_change;
        samples: vectors_lie_on_one_device,
            memory_goes_to_another_process;
    }
}

/// What needs two devices.
#[must_use]
pub fn of_two() -> Vec<Test> {
    tests! {
        buffers: a_buffer_moves_between_devices;
        samples: vectors_lie_on_two_devices, memory_of_each_device_goes_to_all_processes;
    }
}

/// The sizes of the kernel driver's own tests, and those around pages.
pub(crate) const SIZES: [usize; 14] = [
    1,
    4,
    16,
    1024,
    4095,
    4096,
    4097,
    (64 << 10) - 1,
    64 << 10,
    1 << 20,
    (2 << 20) - 1,
    2 << 20,
    (2 << 20) + 1,
    (7 << 20) + 17,
];

/// Where memory can be on this machine: the device, and the host as far as the driver is new enough.
fn places(lab: &Lab) -> Result<Vec<Location>> {
    let mut places = vec![Location::Device(lab.device()?)];
    if lab.need(12, 2).is_ok() {
        places.push(Location::HostNuma(0));
    }
    if lab.need(13, 0).is_ok() {
        places.push(Location::Host);
    }
    Ok(places)
}

/// A pattern that differs from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}
