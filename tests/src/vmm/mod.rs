//! Virtual memory: physical memory, addresses, and buffers over both.

mod appends;
mod buffers;
mod captures;
mod forks;
mod mappings;
mod moves;
mod samples;

use anyhow::Result;
use cuda_mem::Location;

use crate::lab::Lab;
use crate::run::Test;
use crate::{tests, tests_alone};

/// All of them.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut all = tests! {
        mappings: sizes_are_whole_granules,
            a_mapping_gives_no_access,
            bytes_stay_with_the_memory,
            what_cannot_be_mapped_is_explained,
            ends_come_in_any_order,
            wishes_are_handed_on,
            memory_that_is_there_is_mapped,
            memory_of_the_host_is_mapped_for_devices;
        buffers: mapping_and_unmapping_again_changes_nothing,
            a_buffer_grows_in_place,
            what_does_not_fit_is_refused_and_loses_nothing,
            a_granularity_is_kept_or_refused,
            elements_that_want_another_address_are_refused,
            an_end_waits_for_the_work,
            buffers_that_were_exchanged_do_not_change;
        appends: elements_are_added_at_the_same_address,
            no_elements_change_nothing,
            elements_are_added_wherever_the_memory_is,
            what_cannot_be_added_loses_nothing,
            elements_come_behind_what_other_streams_write,
            a_captured_stream_adds_nothing_and_others_do;
        moves: every_size_and_place_keeps_its_bytes,
            a_buffer_is_moved_and_keeps_its_address,
            whoever_copies_needs_no_access_of_their_own,
            the_hosts_access_comes_back_with_the_memory,
            access_is_given_later;
        captures: buffers_of_other_streams_spoil_no_capture,
            a_buffer_of_the_captured_stream_ends_afterwards,
            an_owner_of_lent_memory_is_told_afterwards,
            memory_is_not_moved_by_a_stream_that_cannot_be_waited_for;
        samples: vectors_lie_on_one_device,
            memory_goes_to_another_process;
    };
    all.extend(tests_alone! {
        forks: a_forked_child_leaves_mapped_memory_alone;
    });
    all
}

/// What needs two devices.
#[must_use]
pub fn of_two() -> Vec<Test> {
    tests! {
        moves: a_buffer_moves_between_devices,
            a_device_copies_what_is_not_its_own,
            striped_memory_moves_to_one_place;
        samples: vectors_lie_on_two_devices, memory_of_each_device_goes_to_all_processes;
    }
}

/// The sizes of the kernel driver's own tests, and those around pages.
pub(crate) const SIZES: [usize; 16] = [
    1,
    4,
    16,
    1024,
    (4 << 10) - 1,
    4 << 10,
    (4 << 10) + 1,
    (64 << 10) - 1,
    64 << 10,
    (64 << 10) + 1,
    1 << 20,
    (2 << 20) - 1,
    2 << 20,
    (2 << 20) + 1,
    (7 << 20) + 17,
    5 * (2 << 20) - 1,
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
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}
