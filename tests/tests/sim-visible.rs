//! The same as `visible`, on simulated machines: with eight devices, with one, and with MIG.

use std::process::ExitCode;

use anyhow::Result;
use cuda_mem_tests::lab::Lab;
use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::visible::{self, Machine};

mod machines {
    use super::*;

    pub(crate) fn eight_devices_are_shown_as_the_parser_says(lab: &Lab) -> Result<()> {
        visible::the_driver_shows_what_the_parser_says(Machine::of(
            lab,
            &[("CUDA_SIM_DEVICES", "8")],
        ))
    }

    pub(crate) fn one_device_is_shown_as_the_parser_says(lab: &Lab) -> Result<()> {
        visible::the_driver_shows_what_the_parser_says(Machine::of(
            lab,
            &[("CUDA_SIM_DEVICES", "1")],
        ))
    }

    pub(crate) fn a_machine_without_a_device_is_told_apart_from_a_variable(
        lab: &Lab,
    ) -> Result<()> {
        visible::a_machine_without_a_device_says_so(Machine::of(lab, &[("CUDA_SIM_DEVICES", "0")]))
    }

    pub(crate) fn instances_are_shown_as_the_parser_says(lab: &Lab) -> Result<()> {
        visible::instances_are_shown_as_the_parser_says(
            Machine::of(lab, &[("CUDA_SIM_DEVICES", "4")]),
            Machine::of(
                lab,
                &[("CUDA_SIM_DEVICES", "4"), ("CUDA_SIM_MIG", "1:3,2:0,3:1")],
            ),
            &[None, Some(3), Some(0), Some(1)],
        )
    }
}

fn main() -> ExitCode {
    if let Some(code) = visible::play() {
        return code;
    }
    let tests = cuda_mem_tests::tests! {
        machines: eight_devices_are_shown_as_the_parser_says,
            one_device_is_shown_as_the_parser_says,
            a_machine_without_a_device_is_told_apart_from_a_variable, instances_are_shown_as_the_parser_says;
    };
    let options = Options {
        sim_only: true,
        ..Options::default()
    };
    run::main(&tests, options)
}
