//! Records of real devices, and what is decided by them.

mod allocating;
mod ends;
mod exports;
mod gathered;
mod kinds;

use crate::run::Test;
use crate::{tests, tests_alone};

/// All of them.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut all = tests! {
        gathered: records_say_what_the_devices_say,
            edges_are_those_of_the_driver,
            every_pattern_has_a_place,
            a_place_in_a_pool_can_be_taken,
            a_place_that_is_pinned_can_be_taken;
        allocating: every_kind_and_size_keeps_its_bytes,
            the_host_sees_what_it_may,
            access_of_the_host_comes_first_after_mapping_again,
            every_kind_is_an_argument_of_kernels,
            memory_that_is_to_grow_grows,
            pages_have_the_size_that_was_placed,
            what_cannot_be_carried_out_is_told;
        ends: every_kind_is_freed, each_kind_becomes_its_own_buffer, placements_share_pools,
            a_holder_does_not_change_the_access_of_a_shared_pool;
        exports: what_exports_memory_comes_with_it,
            a_dma_buf_takes_whole_pages,
            zeros_fill_whole_pages;
    };
    all.extend(tests_alone! { gathered: gathering_makes_no_context });
    all
}

/// What needs two devices.
#[must_use]
pub fn of_two() -> Vec<Test> {
    tests! {
        allocating: both_devices_use_what_was_placed_for_both;
        ends: a_holder_does_not_take_the_access_of_a_peer;
    }
}
