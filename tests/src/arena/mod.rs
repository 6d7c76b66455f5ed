//! The arena: random programs of several streams and threads whose every block is checked, and what a
//! user can count on, step by step.

mod annotated;
mod background;
mod capture_pool;
mod captures;
mod ends;
mod footprint;
mod limits;
mod log;
mod medium;
mod moves;
mod parked;
mod program;
mod rules;
mod sleep;
mod slow_upstream;
mod streams;
mod threads;
mod upstream;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::lab::{Backend, Lab};
use crate::run::Test;
use crate::{tests, tests_alone, watchdog};

/// With a peer.
#[must_use]
pub fn of_two() -> Vec<Test> {
    tests! { moves: many_moves; }
}

/// What a user can count on.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut all = tests! {
        rules: memory_is_reused_at_once_on_its_stream,
            a_block_may_lie_across_pieces,
            what_is_busy_is_not_given_to_others,
            a_stream_waits_rather_than_that_the_arena_grows,
            without_leave_streams_keep_to_themselves,
            what_was_waited_for_goes_to_others_under_every_policy,
            what_is_done_goes_to_other_streams,
            a_burst_of_frees_costs_one_query,
            blocks_may_come_back_on_other_streams,
            a_stream_that_ended_leaves_its_memory_to_the_next,
            an_arena_is_no_larger_than_it_may_be,
            trimming_gives_back_what_is_done,
            a_full_arena_gives_back_before_it_fails,
            the_arena_ends_when_its_last_block_does,
            a_block_takes_little_of_the_host,
            numbers_add_up,
            misuse_is_an_error;
        streams: handles_of_one_stream_share_its_memory,
            a_stream_that_is_borrowed_again_finds_its_memory,
            a_stream_whose_cache_went_to_another_gets_a_new_one,
            an_idle_stream_keeps_no_more_than_a_page;
        parked: memory_of_several_streams_goes_to_nobody_before_they_are_done,
            no_stream_waits_for_memory_of_several_streams,
            a_wait_for_one_of_two_users_does_not_free_a_block,
            a_stream_that_is_named_first_waits_for_nothing,
            one_trim_gives_all_back,
            misuse_of_a_parked_block_is_an_error,
            a_block_parked_on_another_stream_comes_back;
        upstream: a_block_lies_in_one_block_of_the_upstream,
            a_block_that_comes_again_at_once_is_not_lost,
            memory_that_the_upstream_refuses_stays_usable,
            an_upstream_that_panics_is_given_nothing_twice,
            a_panic_of_the_upstream_leaves_the_arena_as_it_was,
            an_upstream_is_asked_for_shares;
        slow_upstream: a_thread_that_grows_holds_up_no_other,
            a_thread_that_trims_holds_up_no_other;
        medium: threads_that_mix_sizes_live_from_pages_of_their_own,
            threads_that_seldom_meet_keep_no_pages,
            pages_that_an_idle_stream_keeps_go_to_others,
            blocks_that_are_freed_elsewhere_are_not_kept,
            pages_go_back_when_little_is_in_use_for_long,
            blocks_that_others_freed_come_back_when_a_stream_keeps_no_more;
        moves: free_memory_moves_where_a_large_request_needs_it,
            memory_in_use_does_not_move,
            what_is_freed_and_not_done_is_demand,
            memory_moves_only_as_it_is_told;
        threads: threads_of_one_stream_get_blocks_of_their_own,
            a_thread_keeps_one_block_of_each_small_size,
            threads_that_come_and_go_take_the_caches_of_others_over;
        sleep: an_arena_that_sleeps_takes_and_gives,
            what_cannot_sleep_says_so,
            pinned_memory_stays_where_it_is,
            a_pin_keeps_its_arena,
            an_arena_wakes_though_its_own_free_memory_is_in_the_way;
        limits: a_share_of_the_device_is_a_limit_too, threads_together_hold_no_more_than_the_arena_may,
            the_initial_bytes_serve_many_streams_without_driver_calls,
            initial_bytes_that_are_not_to_be_had_are_no_error,
            memory_that_is_done_is_found_before_memory_is_out,
            a_refused_free_changes_no_number;
    };
    // Captures forbid things to the whole process; the others look at what the whole process holds, or at what is given back
    // by the end of a wait: a thread that waits for something else may be at it then.
    all.extend(tests_alone! {
        background: a_place_is_made_ahead_of_need,
            the_thread_ends_with_the_last_handle,
            a_fork_drops_an_arena_whose_thread_works,
            a_process_exits_while_the_thread_works,
            the_thread_spoils_no_capture,
            an_idle_thread_is_not_woken,
            what_is_not_moved_can_be_pinned,
            the_thread_gives_back_what_the_arena_is_not_to_keep;
        parked: an_arena_ends_after_all_users_of_its_memory;
        sleep: memory_comes_back_where_it_was,
            waits_trim_beside_memory_that_sleeps;
        streams: a_wait_gives_back_what_other_streams_freed;
        limits: growth_stays_within_its_addresses;
        moves: bytes_survive_many_moves,
            the_training_log_fits_in_little_more_than_its_peak;
        footprint: busy_threads_hold_no_more_than_the_drivers_pool,
            streams_that_take_turns_hold_no_more_than_the_drivers_pool,
            a_sample_of_busy_programs_holds_no_more_than_the_drivers_pool;
        ends: a_cache_whose_end_is_unknown_goes_to_nobody,
            an_arena_dropped_elsewhere_leaves_memory_in_use_alone,
            an_arena_dropped_in_a_capture_gives_its_memory_back,
            buffers_of_other_threads_own_streams_come_back,
            a_wait_from_before_a_cache_was_taken_over_shows_nothing,
            streams_may_end_while_their_arena_ends,
            an_arena_keeps_no_context_of_streams_that_ended;
        capture_pool: a_graph_keeps_its_arenas_memory,
            graphs_of_one_pool_share_its_memory,
            captures_that_fail_give_their_memory_back,
            launches_of_two_threads_keep_apart,
            a_buffer_that_is_taken_back_leaves_the_pool_its_blocks;
        captures: misses_of_other_streams_do_not_spoil_a_capture,
            frees_do_not_spoil_what_others_capture,
            a_trim_does_not_spoil_a_capture,
            a_stream_that_ends_does_not_spoil_a_capture,
            an_arena_that_ends_does_not_spoil_a_capture,
            a_stream_that_somebody_captures_is_refused,
            what_a_captured_stream_freed_goes_to_others_afterwards;
    });
    all
}

/// Needs the whole card.
#[must_use]
pub fn full_card() -> Vec<Test> {
    tests_alone! {
        moves: the_training_log_runs_on_a_full_card;
        sleep: a_sleeping_arena_leaves_the_card_to_others;
    }
}

/// How many random programs run.
const PROGRAMS: &str = "CUDA_MEM_TEST_PROGRAMS";
/// Instead: for how many seconds they run.
const SECONDS: &str = "CUDA_MEM_TEST_SECONDS";
/// If it is set, all programs are long, and on so many threads.
const THREADS: &str = "CUDA_MEM_TEST_THREADS";
/// If it is set, every program is told before it runs: for a driver that crashes or hangs.
const LOUD: &str = "CUDA_MEM_TEST_LOUD";
/// The number of the first one.
const SEED: &str = "CUDA_MEM_TEST_SEED";

fn number(variable: &str) -> Result<Option<u64>> {
    std::env::var(variable)
        .ok()
        .map(|text| {
            text.parse()
                .with_context(|| format!("{variable} is {text:?}; it must be a number"))
        })
        .transpose()
}

/// Many moves of free memory beside a busy stream, between blocks whose bytes are looked at.
///
/// # Errors
///
/// What went wrong.
pub fn many_moves(lab: &Lab) -> Result<()> {
    moves::many_moves(lab)
}

/// Random programs, each of some streams and threads over an arena of its own. Every block is written when
/// it is allocated and looked at before it is freed.
///
/// # Errors
///
/// What went wrong, and the number of the program.
pub fn random_programs(lab: &Lab) -> Result<()> {
    let first = number(SEED)?.unwrap_or(1);
    let seconds = number(SECONDS)?.map(Duration::from_secs);
    let default = match lab.backend {
        Backend::Sim => 200,
        Backend::Gpu => 500,
    };
    let count = match seconds {
        Some(_) => u64::MAX - first,
        None => number(PROGRAMS)?.unwrap_or(default),
    };
    let threads = number(THREADS)?;
    let loud = std::env::var_os(LOUD).is_some();
    // The primary context ends with its last handle, and takes 0.15 s to be made again on a GPU.
    let _context = lab.context()?;
    let start = Instant::now();
    let mut sum = program::Tally::default();
    let mut ran = 0;
    for seed in first..first + count {
        if seconds.is_some_and(|seconds| start.elapsed() >= seconds) {
            break;
        }
        watchdog::next_part();
        if loud {
            println!("program {seed}, {:.3} s", start.elapsed().as_secs_f64());
        }
        let tally = program::run(Lab::get()?, seed, threads)
            .with_context(|| format!("program {SEED}={seed}"))?;
        sum.add(&tally);
        ran += 1;
        if ran % 5000 == 0 {
            println!("{ran} programs, {:.0} s", start.elapsed().as_secs_f64());
        }
        if let Ok(control) = lab.control()
            && control.report_count() > 0
        {
            let reports = control.reports();
            control.reset();
            ensure!(
                reports.is_empty(),
                "program {SEED}={seed} was out of order: {reports:#?}"
            );
        }
        if let Ok(control) = lab.control() {
            let live = control.live();
            let left = (live.mappings, live.reservations, live.annotated);
            ensure!(left == (0, 0, 0), "program {SEED}={seed} left {left:?}");
        }
    }
    println!(
        "{ran} random programs, {:.1} s: {sum}",
        start.elapsed().as_secs_f64()
    );
    // Programs that never get there show nothing.
    let some = sum.taken_over > 0 && sum.waits > 0 && sum.foreign > 0 && sum.refused > 0;
    // A few programs may miss what depends on how threads meet, and on what is done when.
    let rare = sum.moved > 0 && sum.kept > 0;
    ensure!(
        (some || ran < 200) && (rare || ran < 5000),
        "some way was never taken: {sum}"
    );
    Ok(())
}
