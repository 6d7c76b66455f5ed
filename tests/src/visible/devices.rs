//! Which devices a process sees, on the machine that is there: what the driver shows for many values of
//! `CUDA_VISIBLE_DEVICES`, and what the parser says. On the simulator, two devices.

use anyhow::Result;

use super::Machine;
use crate::lab::Lab;

fn machine(lab: &Lab) -> Machine {
    Machine::of(lab, &[("CUDA_SIM_DEVICES", "2")])
}

#[apply(case)]
fn the_driver_shows_what_the_parser_says(lab: &Lab) -> Result<()> {
    super::the_driver_shows_what_the_parser_says(machine(lab))
}

#[apply(case)]
fn a_change_after_the_start_is_told(lab: &Lab) -> Result<()> {
    super::a_change_after_the_start_is_told(machine(lab))
}

#[apply(case)]
fn they_are_chosen_before_the_driver_starts_and_not_after(lab: &Lab) -> Result<()> {
    super::devices_are_chosen_before_the_driver_starts_and_not_after(machine(lab))
}

#[apply(case)]
fn who_initialised_the_driver_before_us_is_noticed(lab: &Lab) -> Result<()> {
    super::who_initialised_the_driver_before_us_is_noticed(machine(lab))
}

#[apply(case)]
fn a_driver_without_devices_has_read_the_variable_too(lab: &Lab) -> Result<()> {
    super::a_driver_without_devices_was_tried_all_the_same(machine(lab))
}

#[apply(case)]
fn a_device_that_is_not_there_quotes_the_variable(lab: &Lab) -> Result<()> {
    super::a_device_that_is_not_there_quotes_the_variable(machine(lab))
}
