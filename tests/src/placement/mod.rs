//! Records of real devices, and what is decided by them.

mod allocating;
mod gathered;

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
        allocating: every_placement_is_allocated,
            memory_that_is_to_grow_grows,
            what_cannot_be_carried_out_is_told;
    };
    all.extend(tests_alone! { gathered: gathering_makes_no_context });
    all
}
