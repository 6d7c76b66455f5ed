//! The same on simulated machines: with eight devices, with one, and with MIG.

use anyhow::Result;

use super::Machine;
use crate::environment::Environment;

#[apply(case_of_sim)]
fn eight_devices_are_shown_as_the_parser_says(env: &Environment) -> Result<()> {
    super::the_driver_shows_what_the_parser_says(Machine::of(env, &[("CUDA_SIM_DEVICES", "8")]))
}

#[apply(case_of_sim)]
fn one_device_is_shown_as_the_parser_says(env: &Environment) -> Result<()> {
    super::the_driver_shows_what_the_parser_says(Machine::of(env, &[("CUDA_SIM_DEVICES", "1")]))
}

#[apply(case_of_sim)]
fn a_machine_without_a_device_is_told_apart_from_a_variable(env: &Environment) -> Result<()> {
    super::a_machine_without_a_device_says_so(Machine::of(env, &[("CUDA_SIM_DEVICES", "0")]))
}

#[apply(case_of_sim)]
fn instances_are_shown_as_the_parser_says(env: &Environment) -> Result<()> {
    super::instances_are_shown_as_the_parser_says(
        Machine::of(env, &[("CUDA_SIM_DEVICES", "4")]),
        Machine::of(
            env,
            &[("CUDA_SIM_DEVICES", "4"), ("CUDA_SIM_MIG", "1:3,2:0,3:1")],
        ),
        &[None, Some(3), Some(0), Some(1)],
    )
}
