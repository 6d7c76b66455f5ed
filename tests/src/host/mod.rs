//! Memory of the host that devices reach: pinned, registered, and of pools.
//!
//! These bodies run in a program of their own: freeing pinned memory holds up every other call of the
//! process until the device is idle (R131), so a test that holds a stream beside it would wait for ever.

mod leaks;
mod loans;
mod pinned;
mod pools;
mod registered;

use crate::run::Test;
use crate::{tests, tests_alone};

/// All of them.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut all = tests! {
        pinned: pinned_memory_is_a_slice_of_zeros, flags_are_kept,
            more_than_there_is_is_refused, a_resource_takes_flags, pinned_memory_may_go_to_other_threads;
        loans: copies_of_all_sizes_arrive_in_both_directions,
            kernels_use_the_memory_by_its_device_address, a_copy_does_not_wait,
            buffers_of_other_streams_are_joined, a_loan_that_ends_waits,
            what_does_not_fit_is_refused, memory_goes_from_one_stream_to_another;
        registered: slices_of_all_sizes_are_copied, a_slice_is_registered_once_at_a_time,
            registrations_end_in_any_order, unknown_flags_are_refused, a_box_comes_back, devices_may_be_kept_from_writing,
            an_end_by_somebody_else_is_noticed, the_driver_knows_what_is_registered,
            kernels_use_borrowed_memory_by_its_address;
        pools: a_pool_of_the_host_serves_both_sides, a_pool_of_a_node_serves_both_sides;
    };
    all.extend(tests_alone! {
        leaks: a_leaked_loan_keeps_its_memory, a_leaked_registration_is_still_known,
            memory_is_given_back_after_a_capture,
            loans_of_a_threads_own_stream_wait_for_captures, a_capture_is_not_disturbed;
    });
    all
}

/// What needs two devices.
#[must_use]
pub fn of_two() -> Vec<Test> {
    tests! { pinned: every_device_has_an_address_for_it; }
}

/// What only the simulator can show.
#[must_use]
pub fn of_sim() -> Vec<Test> {
    tests_alone! {
        pinned: nothing_asked_for_makes_no_call;
        leaks: nothing_is_left;
    }
}

/// Lengths in bytes around those of pages.
const SIZES: [usize; 10] = [0, 1, 4, 16, 1024, 4095, 4096, 4097, 1 << 20, (7 << 20) + 17];

/// Bytes that are different from place to place.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8)) as u8 ^ seed;
    (0..len).map(byte).collect()
}
