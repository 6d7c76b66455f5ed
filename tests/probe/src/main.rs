//! Asks a CUDA driver, real or simulated, a fixed list of questions, and prints one line each:
//! `topic.question part: answer`.
//!
//! Answers are names of result codes, sizes, yes and no: nothing that differs from run to run. So
//! the lines of a real driver are a record that the simulated one is compared with. Each question
//! is asked in a process of its own, so that one that crashes or hangs costs only its own answer.

mod across;
mod attach;
mod attributes;
mod batches;
mod callbacks;
mod calls;
mod capture;
mod capture_info;
mod capture_updates;
mod child;
mod code;
mod contexts;
mod copies;
mod cubins;
mod current;
mod defaults;
mod environment;
mod events;
mod gate;
mod graph_any;
mod graph_calls;
mod graph_copies;
mod graph_edges;
mod graph_events;
mod graph_kernels;
mod graph_links;
mod graph_memory;
mod graph_sets;
mod graph_shapes;
mod graph_work;
mod graphs;
mod hosts;
mod images;
mod init;
mod ipc;
mod ipc_ends;
mod ipc_events;
mod ipc_hosts;
mod ipc_leaks;
mod ipc_limits;
mod ipc_pointers;
mod joins;
mod kinds;
mod launches;
mod limits;
mod loading;
mod managed;
mod managed_pools;
mod managed_use;
mod meanwhile;
mod memory;
mod modules;
mod none;
mod observe;
mod peers;
mod pinned;
mod place;
mod plane_sets;
mod planes;
mod pools;
mod prefetch;
mod pressure;
mod recorder;
mod registered;
mod reuse;
mod share;
mod streams;
mod told;
mod trim;
mod twin;
mod two;
mod user_objects;
mod variables;
mod views;
mod vmm;
mod vmm_borders;
mod vmm_host;
mod vmm_share;
mod vmm_use;
mod windows;
mod wrong;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use cuda_driver_sys::DriverLibrary;

use crate::environment::Environment;

/// No driver, or none with a device.
const NO_DRIVER: u8 = 3;

/// One question, or a few that belong together.
#[derive(Clone, Copy, Debug)]
struct Question {
    name: &'static str,
    ask: fn(&Environment) -> Result<()>,
    /// Whether it wants a started driver and a current context.
    started: bool,
}

/// Lists the functions of a module as questions.
macro_rules! questions {
    ($started:literal $module:ident: $($name:ident),+ $(,)?) => {
        [$($crate::Question {
            name: concat!(stringify!($module), ".", stringify!($name)),
            ask: $module::$name,
            started: $started,
        }),+]
    };
}

fn questions() -> Vec<Question> {
    let mut all = Vec::new();
    all.extend(
        questions!(false init: before, flags, devices, proc_address, fork_after,
        fork_before),
    );
    all.extend(
        questions!(true attributes: device, pool_get, pool_set, pointer_widths,
        pointer_values, pointer_many, access, access_lists),
    );
    all.extend(
        questions!(true none: copies, copies_of_plain_memory, synchronous, streams,
        default_streams, memory, pools),
    );
    all.extend(
        questions!(false contexts: primary, stack, made, release_waits, destroy_waits,
        after_release, after_reset, after_destroy, again),
    );
    all.extend(
        questions!(true pools: growth, spacing, threshold, threshold_is_lowered, sizes,
        limit, largest_total, largest_block, kinds, default, destroyed_with_a_block,
        device_memory),
    );
    all.extend(questions!(true hosts: host, host_numa, host_entries, host_ranges, sync_memops));
    all.extend(questions!(false hosts: pinned));
    all.extend(
        questions!(true kinds: made, reserved_bytes, at_first, device_attributes,
        host_numbers),
    );
    all.extend(questions!(false kinds: without_access, with_access, access_taken));
    all.extend(
        questions!(true current: by_location, nulls, set_own, of_the_device, elsewhere,
        without_context, managed_of_device),
    );
    all.extend(
        questions!(true defaults: calls, other_context, order, order_of_contexts,
        two_threads, reuse, plain_memory),
    );
    all.extend(
        questions!(true place: fresh, tightest, equal, order_of_frees, own_or_tighter,
        fills_hole, grows_from),
    );
    all.extend(questions!(true trim: keep, live_and_unseen, between_live, boundary, half_used));
    all.extend(
        questions!(true reuse: matrix, same_stream, transitive, event_before_the_free,
        destroyed_stream, destroyed_with_work, room_to_grow, neighbours, freed_by_the_host,
        legacy_stream),
    );
    all.extend(questions!(true joins: followed, finished, waited_for, seen_and_own));
    all.extend(
        questions!(true observe: queries, query_and_other_stream, two_pools, kinds,
        other_calls, through_a_wait, pageable_copy, null_stream, users),
    );
    all.extend(
        questions!(true pressure: other_pools, plain_memory, live_block, unseen_free,
        own_memory, boundary, asker, wait_or_take),
    );
    all.extend(
        questions!(true memory: steps, slabs, sizes, total, free_waits, free_async,
        address_range, host_memory),
    );
    all.extend(
        questions!(true copies: pageable, staging, pinned, zero_length, past_the_end,
        peer),
    );
    all.extend(
        questions!(true streams: flags, priorities, defaults, host_functions,
        destroy_with_work),
    );
    all.extend(
        questions!(true events: fresh, flags, pending, times, other_context,
        destroy_with_work),
    );
    all.extend(
        questions!(true ipc: exports, descriptors, imported_twice, gives_back, fabric, no_context),
    );
    all.extend(questions!(false ipc: both_kinds, bad_imports, fabric_forged));
    all.extend(questions!(false ipc_leaks: rounds));
    all.extend(questions!(false ipc_limits: pools, physical));
    all.extend(questions!(false ipc_hosts: copies));
    all.extend(questions!(true ipc_pointers: exports));
    all.extend(
        questions!(false ipc_pointers: forged, misplaced, pools, pending_free,
        twice),
    );
    all.extend(
        questions!(false ipc_ends: importer_first, exporter_first, exporter_dies,
        importer_dies, legacy),
    );
    all.extend(questions!(true ipc_events: handles));
    all.extend(
        questions!(false ipc_events: wrong, order, recorded_again, ends, stuck,
        waits),
    );
    all.extend(
        questions!(true meanwhile: global, thread_local, relaxed, global_relaxed_thread, global_relaxed_other_thread, global_other_thread,
        thread_local_other_thread, relaxed_other_thread),
    );
    all.extend(
        questions!(true capture: ends, implicit, implicit_per_thread, threads, joined, destroyed, statistics,
        pool_is_gone, exchanged, afterwards),
    );
    all.extend(
        questions!(true graphs: alloc, bad_allocs, null_accesses, add_node, frees, limits,
        moved),
    );
    all.extend(
        questions!(true graph_memory: relaunch, outlives, memory_steps, sizes, reuse,
        sharing),
    );
    all.extend(
        questions!(true graph_work: work, bytes, pointers, out_of_memory, handles,
        running),
    );
    all.extend(questions!(true capture_info: idle, active, forks, nulls, lost));
    all.extend(questions!(true capture_updates: updates));
    all.extend(questions!(false capture_updates: by_hand));
    all.extend(questions!(true graph_calls: flags, uploads, families, dot));
    all.extend(questions!(false graph_calls: odd));
    all.extend(questions!(true graph_edges: listed, neighbours));
    all.extend(questions!(true graph_links: links));
    all.extend(questions!(false graph_links: no_node));
    all.extend(questions!(true graph_events: nodes_of, records, waits, external));
    all.extend(questions!(false graph_events: odd, destroyed));
    all.extend(questions!(true graph_copies: pairs, times, params));
    all.extend(questions!(true graph_shapes: shapes));
    all.extend(questions!(false graph_shapes: misnamed, odd));
    all.extend(questions!(true graph_kernels: shapes, changes, others));
    all.extend(questions!(false graph_kernels: odd));
    all.extend(questions!(true graph_any: work, refused));
    all.extend(questions!(false graph_any: odd));
    all.extend(questions!(true graph_sets: memsets, hosts));
    all.extend(questions!(false graph_sets: unaligned));
    all.extend(questions!(true user_objects: creates, references, graphs, instances));
    all.extend(questions!(false user_objects: odd));
    all.extend(questions!(true callbacks: given, order, captured));
    all.extend(questions!(false callbacks: calls));
    all.extend(questions!(true managed: attributes, sizes, addresses, pointer, device_memory));
    all.extend(questions!(false managed_pools: again, causes, mends, at_first));
    all.extend(questions!(true managed_use: frees));
    all.extend(questions!(false managed_use: bytes, odd_frees, pools, recorded));
    all.extend(questions!(true prefetch: places, ranges, streams));
    all.extend(questions!(false prefetch: kinds, recorded));
    all.extend(questions!(true pinned: sizes, addresses, frees));
    all.extend(questions!(false pinned: flags, odd_frees));
    all.extend(
        questions!(true vmm: granularity, reservations, memory, device_memory,
        pointers),
    );
    all.extend(questions!(true vmm_use: mappings, accesses, borders, bytes, waits, contexts));
    all.extend(questions!(false vmm_use: odd, reading));
    all.extend(questions!(true vmm_host: granularity, memory, accesses, moves, flags));
    all.extend(questions!(true vmm_host: host_access));
    all.extend(questions!(true vmm_borders: mappings, later, far, given));
    all.extend(questions!(false vmm_host: touches, taken));
    all.extend(questions!(true vmm_share: exports, hosts, retains, dma_bufs));
    all.extend(questions!(false vmm_share: wrong));
    all.extend(questions!(true windows: attributes, blocks, pool_blocks, contexts, maps, pointers, flushes));
    all.extend(questions!(false current: destroyed, named_late));
    all.extend(questions!(true defaults: ended_thread));
    all.extend(questions!(false defaults: wrong_frees));
    all.extend(questions!(false peers: devices, lists, enabled, defaults, follows, handles, reuse));
    all.extend(
        questions!(false across: copies, without_context, contexts_of_copies, copies_of_plain_memory, foreign_stream,
        allocations, seen, events, waits),
    );
    all.extend(questions!(false views: addresses, host_memory));
    all.extend(questions!(true images: texts, logs, late_logs, links));
    all.extend(questions!(true modules: names, contexts, laziness));
    all.extend(questions!(false modules: nulls, given_back));
    all.extend(questions!(true cubins: images, contents, links));
    all.extend(questions!(false cubins: odd));
    all.extend(questions!(true variables: names, contents, pointers, contexts, managed, captures, preferences));
    all.extend(questions!(false variables: odd, preferences_of_null));
    all.extend(questions!(true loading: captures, waits, elsewhere));
    all.extend(questions!(false loading: unloads));
    all.extend(questions!(true launches: shapes, contexts, memory));
    all.extend(questions!(true told: places, pages, parts, lengths));
    all.extend(questions!(true limits: values, set, preferences, profiler, texts));
    all.extend(questions!(false limits: flags, tables, names));
    all.extend(questions!(true batches: lists, nulls, streams, contents, users));
    all.extend(questions!(false attach: attach));
    all.extend(questions!(true plane_sets: memsets));
    all.extend(questions!(true planes: pitches, bytes, pitch_zero, waits, recorded));
    all.extend(questions!(false planes: plans));
    all.extend(questions!(true registered: ranges, uses));
    all.extend(questions!(false registered: read_only));
    all.extend(questions!(false wrong: frees, frees_by_the_host, memsets, nulls, handles, pools));
    all
}

struct Options {
    library: Option<PathBuf>,
    only: String,
    list: bool,
    calls: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        library: None,
        only: String::new(),
        list: false,
        calls: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => options.list = true,
            "--calls" => options.calls = true,
            _ => {}
        }
        if ["--list", "--calls"].contains(&argument.as_str()) {
            continue;
        }
        let value = arguments
            .next()
            .ok_or(format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--library" => options.library = Some(value.into()),
            "--only" => options.only = value,
            _ => return Err(format!("unknown option {argument}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!(
                "{error}\nusage: probe [--list] [--calls] [--library PATH] [--only BEGINNING[,BEGINNING]]"
            );
            return ExitCode::from(2);
        }
    };
    if options.list {
        for question in questions() {
            println!("{}", question.name);
        }
        return ExitCode::SUCCESS;
    }
    let opened = match &options.library {
        // SAFETY: whoever names a library vouches that it is a CUDA driver.
        Some(path) => unsafe { cuda_driver_sys::load_from(path) },
        None => cuda_driver_sys::load(),
    };
    let library: &'static DriverLibrary = match opened {
        Ok(library) => library,
        Err(error) => {
            eprintln!("no driver: {error}");
            return ExitCode::from(NO_DRIVER);
        }
    };
    if options.calls
        && let Err(error) = calls::show(library.path())
    {
        eprintln!("--calls: {error}");
        return ExitCode::from(2);
    }
    // This process never starts the driver: a child of a started one would have none.
    let env = Environment::new(library.table(), "header");
    if !child::ask("header", child::LIMIT, || env.header()) {
        eprintln!("the driver {} has no device", library.path().display());
        return ExitCode::from(NO_DRIVER);
    }
    for question in questions() {
        let mut wanted = options.only.split(',');
        if !wanted.any(|only| question.name.starts_with(only)) {
            continue;
        }
        let env = Environment::new(library.table(), question.name);
        let limit = if question.started {
            child::LIMIT
        } else {
            child::LIMIT_OF_MANY
        };
        child::ask(question.name, limit, || {
            if question.started {
                env.start()?;
            }
            (question.ask)(&env)
        });
    }
    ExitCode::SUCCESS
}
