//! Which devices a process sees, on the machine that is there: what the driver shows for many values of
//! `CUDA_VISIBLE_DEVICES`, and what the parser says. On the simulator, two devices.

use std::process::ExitCode;

use anyhow::Result;
use cuda_mem_tests::lab::Lab;
use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::visible::{self, Machine};

mod devices {
    use super::*;

    fn machine(lab: &Lab) -> Machine {
        Machine::of(lab, &[("CUDA_SIM_DEVICES", "2")])
    }

    pub(crate) fn the_driver_shows_what_the_parser_says(lab: &Lab) -> Result<()> {
        visible::the_driver_shows_what_the_parser_says(machine(lab))
    }

    pub(crate) fn a_change_after_the_start_is_told(lab: &Lab) -> Result<()> {
        visible::a_change_after_the_start_is_told(machine(lab))
    }

    pub(crate) fn they_are_chosen_before_the_driver_starts_and_not_after(lab: &Lab) -> Result<()> {
        visible::devices_are_chosen_before_the_driver_starts_and_not_after(machine(lab))
    }

    pub(crate) fn who_initialised_the_driver_before_us_is_noticed(lab: &Lab) -> Result<()> {
        visible::who_initialised_the_driver_before_us_is_noticed(machine(lab))
    }

    pub(crate) fn a_driver_without_devices_has_read_the_variable_too(lab: &Lab) -> Result<()> {
        visible::a_driver_without_devices_was_tried_all_the_same(machine(lab))
    }

    pub(crate) fn a_device_that_is_not_there_quotes_the_variable(lab: &Lab) -> Result<()> {
        visible::a_device_that_is_not_there_quotes_the_variable(machine(lab))
    }
}

fn main() -> ExitCode {
    if let Some(code) = visible::play() {
        return code;
    }
    let tests = cuda_mem_tests::tests! {
        devices: the_driver_shows_what_the_parser_says, a_change_after_the_start_is_told,
            they_are_chosen_before_the_driver_starts_and_not_after,
            who_initialised_the_driver_before_us_is_noticed,
            a_driver_without_devices_has_read_the_variable_too,
            a_device_that_is_not_there_quotes_the_variable;
    };
    run::main(&tests, Options::default())
}
