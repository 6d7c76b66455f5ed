//! What every memory resource must do, over every resource and every stack of two adaptors.

mod bodies;
mod misuse;
mod subjects;

pub use subjects::{Subject, subjects};

use crate::run::Test;
use crate::{tests, tests_alone};

/// All of it.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut all = tests! {
        bodies: sizes_from_nothing_to_a_gibibyte_are_served,
            memory_is_as_it_is_described,
            random_sizes_come_and_go, mixed_random_sizes_keep_their_contents,
            a_producer_hands_over_to_a_consumer, many_threads_share_a_resource,
            a_stream_may_go_before_its_buffer, a_context_may_go_before_its_buffer,
            a_buffer_may_end_on_a_foreign_thread, a_buffer_goes_over_to_another_stream,
            a_buffer_keeps_its_resource;
        misuse: what_cannot_be_had_is_refused_and_harmless,
            the_largest_sizes_do_not_wrap, memory_of_another_resource_is_not_given_out_of_hand;
    };
    all.extend(tests_alone! {
        bodies: a_free_waits_for_the_work_before_it,
            a_buffer_is_given_back_after_the_capture_of_its_stream;
    });
    all
}
