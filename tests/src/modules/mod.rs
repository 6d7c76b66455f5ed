//! Code on devices: loading, asking and launching kernels.

mod kernels;
mod loading;

use anyhow::Result;
use cuda_mem::{Context, Function, Image, Module};

use crate::run::Test;
use crate::{tests, tests_alone};

/// The kernels of the tests.
pub(crate) const PTX: &str = include_str!("../../data/kernels.ptx");

/// All of them.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut all = tests! {
        loading: code_that_does_not_compile_says_why,
            code_for_other_devices_and_drivers_is_refused,
            what_is_no_code_is_refused,
            a_kernel_that_is_not_there_is_named,
            a_library_is_nowhere_until_it_is_used,
            a_kernel_is_loaded_before_it_is_needed,
            a_binary_is_loaded_as_its_text_is,
            nothing_of_this_needs_or_leaves_a_current_context;
        kernels: a_kernel_does_what_it_says,
            a_structure_is_passed_by_value,
            a_kernel_runs_in_the_order_of_its_stream,
            buffers_of_other_streams_are_joined,
            two_streams_read_one_buffer_at_a_time,
            arguments_that_do_not_fit_are_refused,
            blocks_that_cannot_run_are_explained,
            a_launch_over_nothing_does_nothing,
            limits_and_occupancy_agree,
            a_kernel_that_still_runs_keeps_its_code;
    };
    all.extend(tests_alone! {
        loading: code_stays_until_its_last_function_goes;
        kernels: a_captured_stream_takes_no_launch, code_that_goes_does_not_spoil_a_capture;
    });
    all
}

/// What the simulator cannot run, and only it.
#[must_use]
pub fn of_the_simulator() -> Vec<Test> {
    tests! {
        loading: what_the_simulator_refuses_says_why;
        kernels: a_kernel_that_the_simulator_does_not_know_is_refused_with_the_reason;
    }
}

/// What needs two devices.
#[must_use]
pub fn of_two() -> Vec<Test> {
    tests! { kernels: a_stream_of_another_context_is_refused }
}

/// The kernels, loaded into a context.
pub(crate) fn load(context: &Context) -> Result<Module> {
    Ok(context.load(&Image::ptx(PTX)?)?)
}

pub(crate) fn kernel(context: &Context, name: &str) -> Result<Function> {
    Ok(load(context)?.function(name)?)
}
