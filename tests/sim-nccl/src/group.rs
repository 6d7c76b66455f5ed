//! Groups: calls of one thread that are started together.

use std::cell::RefCell;

use cuda_driver_sys::CUstream;
use cuda_driver_sys::nccl::ncclResult_t;

use crate::communicator::Progress;
use crate::export::{Answer, Comm, Failure, invalid_usage};
use crate::init::InitCall;
use crate::launch::launch;
use crate::operation::{Kind, Operation};
use crate::state::state;
use crate::window::WindowCall;

/// A call that was checked, and not started.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    Init(InitCall),
    Window(WindowCall),
    Operation(Comm, CUstream, Operation),
}

#[derive(Debug, Default)]
struct Group {
    depth: usize,
    jobs: Vec<Job>,
    /// Of the first call that failed; the group's end answers it.
    failure: Option<Failure>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub(crate) fn start() -> Answer<ncclResult_t> {
    GROUP.with_borrow_mut(|group| group.depth += 1);
    Ok(ncclResult_t::ncclSuccess)
}

pub(crate) fn end() -> Answer<ncclResult_t> {
    let ended = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        Some((group.depth == 0).then(|| std::mem::take(group)))
    });
    match ended {
        None => invalid_usage("ncclGroupEnd without ncclGroupStart"),
        Some(None) => Ok(ncclResult_t::ncclSuccess),
        Some(Some(group)) => match group.failure {
            None => run(&group.jobs),
            Some(failure) => {
                cancel(&group.jobs);
                Err(failure)
            }
        },
    }
}

/// Checks a call, and starts it: at once, or at the end of the thread's group.
pub(crate) fn grouped(check: impl FnOnce() -> Answer<Job>) -> Answer<ncclResult_t> {
    let checked = check();
    let is_grouped = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return false;
        }
        match &checked {
            Ok(job) => group.jobs.push(*job),
            Err(failure) => {
                group.failure.get_or_insert_with(|| failure.clone());
            }
        }
        true
    });
    let job = checked?;
    if is_grouped {
        return Ok(ncclResult_t::ncclSuccess);
    }
    run(&[job])
}

/// Starts all before it waits for any. The first failure is the result, but all are started: others wait for them.
fn run(jobs: &[Job]) -> Answer<ncclResult_t> {
    let plans = match plans(jobs) {
        Ok(plans) => plans,
        Err(failure) => {
            cancel(jobs);
            return Err(failure);
        }
    };
    let mut result = Ok(ncclResult_t::ncclSuccess);
    let mut add = |answer: Answer<ncclResult_t>| match (&result, answer) {
        (Ok(_), Err(failure)) => result = Err(failure),
        (Ok(_), Ok(ncclResult_t::ncclInProgress)) => result = Ok(ncclResult_t::ncclInProgress),
        _ => {}
    };
    for job in jobs {
        match job {
            Job::Init(call) => call.start(),
            Job::Window(call) => call.start(),
            Job::Operation(..) => {}
        }
    }
    for (comm, stream, operations) in plans {
        add(launch(comm, stream, operations).and_then(|()| started(comm)));
    }
    for job in jobs {
        match job {
            Job::Init(call) => add(call.finish()),
            Job::Window(call) => add(call.finish()),
            Job::Operation(..) => {}
        }
    }
    result
}

/// What the program is told of a started operation.
fn started(comm: Comm) -> Answer<ncclResult_t> {
    let mut state = state();
    let comm = state.comm(comm)?;
    if comm.is_blocking {
        return Ok(ncclResult_t::ncclSuccess);
    }
    // A window of the same group takes longer.
    if matches!(comm.progress, Progress::Done) {
        comm.progress = Progress::Unasked;
    }
    Ok(ncclResult_t::ncclInProgress)
}

/// The operations of each communicator and stream, which one kernel does.
fn plans(jobs: &[Job]) -> Answer<Vec<(Comm, CUstream, Vec<Operation>)>> {
    let mut plans: Vec<(Comm, CUstream, Vec<Operation>)> = Vec::new();
    for job in jobs {
        let Job::Operation(comm, stream, operation) = *job else {
            continue;
        };
        let known = plans
            .iter_mut()
            .find(|(of, on, _)| (*of, *on) == (comm, stream));
        match known {
            Some((.., operations)) => operations.push(operation),
            None => plans.push((comm, stream, vec![operation])),
        }
    }
    for (comm, ..) in &plans {
        check_own_sends(*comm, jobs)?;
    }
    Ok(plans)
}

/// What a rank sends to itself it must receive in the same group, or it would wait for itself.
fn check_own_sends(comm: Comm, jobs: &[Job]) -> Answer {
    let rank = state().comm(comm)?.rank;
    let mut difference = 0_i64;
    for job in jobs {
        if let Job::Operation(of, _, operation) = job
            && *of == comm
        {
            difference += match operation.kind {
                Kind::Send { to } if to == rank => 1,
                Kind::Receive { from } if from == rank => -1,
                _ => 0,
            };
        }
    }
    if difference != 0 {
        return invalid_usage(
            "a rank sends to itself without a receive in the same group, or the other way round",
        );
    }
    Ok(())
}

fn cancel(jobs: &[Job]) {
    for job in jobs {
        if let Job::Init(call) = job {
            call.cancel();
        }
    }
}

/// A test made a call fail: within a group that is the group's failure, and a group whose end fails is over.
pub(crate) fn made_to_fail(name: &str, failure: &Failure) {
    const GROUPED: [&str; 9] = [
        "ncclCommInitRank",
        "ncclCommInitRankConfig",
        "ncclCommWindowRegister",
        "ncclAllReduce",
        "ncclAllGather",
        "ncclBroadcast",
        "ncclReduceScatter",
        "ncclSend",
        "ncclRecv",
    ];
    let is_grouped = GROUPED.contains(&name);
    let ended = GROUP.with_borrow_mut(|group| {
        if group.depth > 0 && is_grouped {
            group.failure.get_or_insert_with(|| failure.clone());
        }
        (name == "ncclGroupEnd").then(|| std::mem::take(group))
    });
    if let Some(group) = ended {
        cancel(&group.jobs);
    }
}
