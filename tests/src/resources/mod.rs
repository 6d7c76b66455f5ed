//! Memory resources: what every one must do, over every resource and every stack of two adaptors, and what
//! each adds.
//!
//! These bodies run in a program of their own: freeing memory that is no pool's holds up every other
//! call of the process until the device is idle (R96), so a test that holds a stream beside it would
//! wait for ever.

mod adaptors;
mod bodies;
mod containers;
mod counting;
mod current_resource;
mod keeping;
mod ladder;
mod misuse;
mod own;
mod reclaim;
mod subjects;
mod waiting;
mod words;

pub use subjects::{Subject, subjects};

use crate::run::Test;
use crate::{tests, tests_alone};

/// What every resource must do.
#[must_use]
pub fn conformance() -> Vec<Test> {
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
        bodies: captures_of_other_streams_are_not_disturbed,
            a_free_waits_for_the_work_before_it, a_resource_outlives_its_contexts,
            a_buffer_is_given_back_after_the_capture_of_its_stream;
    });
    all
}

/// All bodies. They need memory pools.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut all = tests! {
        adaptors: a_limit_holds_for_all_threads_together, a_limit_says_what_is_taken,
            statistics_count_bytes_and_allocations, scopes_count_their_own_thread_and_nest,
            what_is_alive_is_known_with_its_line, backtraces_are_taken_on_request,
            a_log_ends_with_the_request_that_failed, a_log_that_cannot_be_written_stops_nothing,
            a_callback_is_asked_until_it_gives_up, alignments_are_kept_and_the_memory_comes_back,
            managed_memory_is_moved_and_other_memory_is_not;
        keeping: what_is_beyond_the_threshold_goes_back_at_a_wait,
            peaks_and_trims_are_those_of_a_pool;
        ladder: every_remedy_is_tried_in_order, flushing_and_trimming_give_back,
            a_callback_may_free_and_may_give_up, other_errors_are_not_climbed_for;
        counting: a_statistic_never_exceeds_a_limit,
            statistics_of_many_threads_never_exceed_a_limit;
        containers: a_vector_grows_and_keeps_its_elements, room_is_as_asked,
            a_vector_that_cannot_grow_is_as_it_was,
            vectors_are_copied_in_the_order_of_their_streams,
            elements_of_no_size_take_no_memory, a_scalar_is_read_and_set;
        current_resource: the_default_resource_says_what_it_is,
            a_scope_is_of_one_thread_and_nests;
    };
    all.extend(tests! {
        waiting: four_threads_share_a_limit, a_freed_part_goes_to_the_first,
            waiting_ends_with_who_holds_what, what_cannot_be_waited_for_fails_at_once,
            an_upstream_that_fails_makes_way, a_call_from_below_does_not_wait,
            others_are_waited_for_with_pauses, waiting_for_others_ends;
        own: a_refused_free_changes_nothing_and_may_be_tried_again,
            a_panic_is_an_error_and_nothing_is_freed_twice;
        words: errors_name_things_in_words;
    });
    all.extend(conformance());
    // Some hold a stream, one wants frees that nobody has seen, one changes a setting of the process.
    all.extend(tests_alone! {
        containers: growing_does_not_wait;
        keeping: threads_that_wait_at_a_time_give_all_back;
        current_resource: the_current_resource_is_set_for_all_threads,
            a_capture_does_not_decide_the_strategy;
        own: a_resource_with_a_lock_is_not_called_from_itself, a_forked_child_leaves_adaptors_alone;
        waiting: a_thread_that_captures_does_not_wait, nothing_waits_in_a_fork;
        ladder: nothing_waits_unless_it_is_asked_to, waiting_waits,
            waiting_helps_where_a_free_was_not_seen;
    });
    all
}

/// What takes almost the whole card, and with it the memory of every other process.
#[must_use]
pub fn full_card() -> Vec<Test> {
    tests_alone! {
        ladder: a_full_card_recovers;
        reclaim: others_get_what_an_arena_does_not_use;
    }
}
