//! Which devices a process sees, on the machine that is there: what the driver shows for many values of
//! `CUDA_VISIBLE_DEVICES`, and what the parser says. On the simulator, two devices.

use anyhow::Result;

use super::Machine;
use crate::environment::Environment;

fn machine(env: &Environment) -> Machine {
    Machine::of(env, &[("CUDA_SIM_DEVICES", "2")])
}

#[apply(case)]
fn the_driver_shows_what_the_parser_says(env: &Environment) -> Result<()> {
    super::the_driver_shows_what_the_parser_says(machine(env))
}

#[apply(case)]
fn a_change_after_the_start_is_told(env: &Environment) -> Result<()> {
    super::a_change_after_the_start_is_told(machine(env))
}

#[apply(case)]
fn they_are_chosen_before_the_driver_starts_and_not_after(env: &Environment) -> Result<()> {
    super::devices_are_chosen_before_the_driver_starts_and_not_after(machine(env))
}

#[apply(case)]
fn who_initialised_the_driver_before_us_is_noticed(env: &Environment) -> Result<()> {
    super::who_initialised_the_driver_before_us_is_noticed(machine(env))
}

#[apply(case)]
fn a_driver_without_devices_has_read_the_variable_too(env: &Environment) -> Result<()> {
    super::a_driver_without_devices_was_tried_all_the_same(machine(env))
}

#[apply(case)]
fn a_device_that_is_not_there_quotes_the_variable(env: &Environment) -> Result<()> {
    super::a_device_that_is_not_there_quotes_the_variable(machine(env))
}
