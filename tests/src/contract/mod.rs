//! Test bodies that hold on every driver.

mod buffer;
mod capture;
mod context;
mod context_ends;
mod default_pool;
mod default_streams;
mod device;
mod failure;
mod foreign;
mod graph;
mod ipc;
mod ipc_ends;
mod ipc_loans;
mod kinds;
mod order;
mod plain;
mod pointer;
mod pool;
mod reuse;
mod rules;
mod samples;
mod samples_graph;
mod threshold;

use crate::run::Test;
use crate::{tests, tests_alone};

/// All of them.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut all = tests! {
        device: a_device_says_what_it_is, an_ordinal_past_the_end_is_an_invalid_device,
            an_unknown_attribute_is_none, a_symbol_that_does_not_exist_is_missing,
            the_version_is_one_that_has_pools;
        context: binding_puts_back_what_was_current, binding_is_nested,
            a_context_of_the_program_can_be_handed_in,
            no_operation_needs_or_leaves_a_current_context, memory_info_is_plausible;
        order: a_held_stream_is_not_done, an_event_marks_a_point_in_a_stream,
            timing_events_tell_milliseconds, a_stream_waits_for_another,
            waiting_for_oneself_is_nothing, a_lent_buffer_waits_for_its_own_stream,
            the_own_stream_waits_for_the_borrower, a_leaked_loan_is_remembered,
            a_leaked_loan_is_remembered_by_the_free, lending_to_the_own_stream_adds_no_wait,
            a_copy_between_buffers_orders_both_streams,
            several_streams_read_at_a_time, a_leaked_read_loan_is_remembered,
            streams_fork_and_join;
        pool: a_new_pool_holds_nothing, used_counts_the_bytes_asked_for,
            reserved_covers_used_and_highs_cover_both, settings_read_back_as_set,
            every_reuse_policy_reads_back, a_threshold_of_zero_gives_back_at_a_synchronise,
            no_threshold_keeps_the_memory, trimming_needs_the_free_to_be_seen,
            trimming_keeps_what_is_asked_and_what_lives, trimming_to_more_than_held_is_nothing,
            high_marks_go_back_to_now, a_maximum_size_is_kept, a_maximum_of_zero_is_refused,
            a_pool_with_two_handles_is_not_closed,
            a_buffer_outlives_its_pool, closing_wants_all_memory_back_and_seen,
            pools_that_end_early_do_no_harm, handles_may_be_dropped_in_any_order,
            many_threads_share_a_pool;
        default_pool: the_default_pool_serves_and_keeps_its_settings,
            the_current_pool_is_the_default_until_another_is_set,
            a_plain_allocation_comes_from_the_current_pool,
            a_pool_that_somebody_else_made_is_only_a_handle;
        kinds: support_says_what_building_does, every_kind_serves_a_stream,
            memory_of_a_host_pool_is_the_hosts, what_does_not_go_together_is_refused,
            a_pool_tells_what_it_was_made_with, default_pools_are_found_by_place_and_type;
        pointer: an_address_of_a_pool_knows_pool_and_range,
            memory_of_the_program_is_not_known;
        reuse: the_same_stream_gets_its_block_back, a_seen_free_serves_every_stream,
            no_policy_reuses_nothing_pending, event_dependencies_are_followed,
            a_finished_free_is_seen_opportunistically, an_internal_dependency_waits;
        buffer: bytes_come_back_as_they_were_sent, every_width_fills,
            zeroed_memory_is_zero, a_wrong_length_is_refused_and_changes_nothing,
            nothing_at_all_is_a_buffer_too, live_buffers_do_not_overlap,
            a_buffer_may_be_dropped_by_another_thread, freeing_says_how_it_went,
            freeing_on_another_stream_is_ordered, freeing_at_once_serves_every_stream,
            a_buffer_moves_to_another_stream, memory_goes_out_of_hand_and_comes_back;
        threshold: a_scope_raises_the_threshold_and_puts_it_back,
            the_highest_of_several_scopes_holds, scopes_of_several_threads_end_in_any_order,
            a_scope_keeps_memory_that_goes_afterwards,
            handles_of_the_default_pool_share_their_scopes;
        default_streams: default_streams_serve_without_a_current_context,
            default_streams_put_back_what_was_current,
            default_streams_of_a_context_are_told_apart,
            a_threads_own_stream_is_refused_elsewhere,
            a_buffer_of_a_threads_own_stream_may_be_dropped_elsewhere,
            freeing_a_threads_own_buffer_elsewhere_waits,
            a_thread_waits_for_its_own_stream_at_its_end,
            a_held_stream_does_not_hold_the_default_streams;
        plain: borrowed_memory_is_used_and_not_freed;
        rules: addresses_suit_every_type, the_host_may_free_pool_memory,
            running_out_may_pass_after_a_synchronise, default_pools_cannot_be_destroyed,
            a_pool_of_the_host_is_current_on_the_host,
            numbers_cannot_be_set_and_marks_only_to_zero;
        samples: vectors_come_and_go_in_the_order_of_a_stream,
            a_threshold_keeps_memory_over_synchronisations;
        foreign: a_borrowed_stream_is_kept_for_its_buffers,
            a_stream_taken_over_is_destroyed_with_its_last_handle,
            a_view_of_a_stream_orders_like_the_stream,
            an_event_does_not_mark_a_stream_of_another_context;
        failure: a_size_that_overflows_is_refused, too_much_memory_says_how_much_there_was,
            a_pool_works_after_running_out,
            running_out_takes_what_other_pools_keep, dropping_counts_no_failure;
        ipc: two_processes_read_and_write_one_buffer,
            imported_memory_is_described_and_not_handed_out,
            two_imports_of_one_buffer_share_a_mapping, an_import_may_follow_the_end_of_another,
            an_event_orders_two_processes, an_event_is_opened_by_others_only,
            what_was_not_made_to_be_shared_is_refused,
            a_fabric_that_is_not_there_is_refused_before_it_can_crash,
            a_pool_is_imported_where_it_was_exported,
            a_wrong_description_of_a_buffer_is_refused,
            memory_is_given_back_after_it_was_shared;
        ipc_loans: word_of_one_buffer_is_not_taken_for_that_of_another,
            several_threads_wait_and_buffers_come_back_in_any_order,
            several_threads_wait_and_the_channel_is_closed,
            a_return_that_cannot_be_sent_ends_the_wait,
            a_buffer_is_given_back_with_its_last_view_only;
        ipc_ends: the_exporter_may_die, the_exporter_may_die_before_anything_is_imported,
            the_importer_may_die_before_it_imports, the_importer_may_die_with_a_pool,
            the_importer_may_die_with_a_buffer, the_importer_may_die_with_work_submitted,
            dropping_a_lent_buffer_waits_for_its_return,
            an_event_outlives_the_process_that_recorded_it,
            a_message_has_bounds,
            what_was_not_expected_is_refused, a_process_of_another_user_is_turned_away;
    };
    all.extend(graphs());
    all.extend(tests_alone! {
        ipc: foreign_descriptors_are_refused_and_kept, sharing_leaves_no_descriptor_open;
        ipc_ends: a_forked_child_leaves_imports_alone,
            a_name_is_listened_to_by_one_and_free_afterwards;
        device: looking_creates_no_context;
        context: a_primary_context_lives_while_something_holds_it;
        context_ends: a_context_is_used_again_after_a_leaked_guard,
            a_leaked_guard_of_another_thread_does_no_harm, guards_may_be_dropped_out_of_order,
            a_guard_does_not_put_back_a_primary_context_that_has_ended,
            a_guard_puts_back_a_primary_context_that_was_made_again,
            a_guard_survives_the_end_of_a_foreign_context;
        failure: a_forked_child_leaves_the_parents_memory_alone,
            a_forked_child_gets_its_objects_back,
            a_forked_child_drops_what_another_thread_counts;
        pointer: plain_memory_has_no_pool;
        plain: plain_memory_is_freed_in_the_order_of_a_stream;
    });
    all
}

/// A capture forbids things to the whole process, and graph memory is counted for all of it.
fn graphs() -> Vec<Test> {
    tests_alone! {
        graph: what_is_captured_runs_when_it_is_launched, captured_memory_is_not_the_pools,
            graph_memory_has_one_address_for_all_launches,
            what_a_launch_leaves_is_freed_before_the_next,
            an_instance_can_free_what_it_left,
            a_launch_elsewhere_waits_for_the_free_of_what_was_left, an_instance_that_ends_frees_what_it_left,
            graph_memory_is_counted_and_trimmed_apart,
            a_launch_is_ordered_with_the_buffers_of_its_graph,
            nodes_are_ordered_by_the_memory_they_use,
            an_address_is_used_again_where_the_order_allows,
            memory_of_another_graph_is_refused, a_graph_with_memory_is_not_copied,
            a_graph_goes_into_another;
        capture: a_capture_that_fails_leaves_nothing, a_captured_stream_is_refused_to_others,
            a_buffer_is_freed_after_the_capture_of_its_stream,
            buffers_of_other_streams_do_not_spoil_a_capture,
            a_capture_of_somebody_else_loses_no_buffer,
            a_forbidden_free_elsewhere_is_done_all_the_same,
            a_capture_takes_no_work_of_another_thread,
            a_stream_that_ends_in_a_capture_gives_back_what_waits;
        samples_graph: a_recorded_graph_does_what_its_stream_does,
            branches_with_memory_meet_again, memory_that_outlives_a_launch_is_freed_once,
            blocks_that_follow_each_other_take_the_room_of_one,
            graphs_of_one_stream_take_the_room_of_one,
            graphs_of_several_streams_take_room_each, memory_that_is_left_keeps_its_room;
    }
}
