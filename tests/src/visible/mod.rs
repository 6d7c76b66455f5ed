//! `CUDA_VISIBLE_DEVICES`: for each of many values a process of its own is started, and what the driver
//! shows there is compared with what the parser says. On any machine: the values are made from the
//! devices that are there.

mod child;
mod devices;
mod machines;
mod values;

use std::process::Output;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::placement::{Identity, MigIdentity, Visibility, VisibleDevice};
use cuda_mem::sys;

use crate::environment::{Backend, Environment, Skip, sim_path};
use crate::own_process;

pub use child::as_child;

const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// Names what a child runs.
const SCENARIO: &str = "CUDA_MEM_TEST_VISIBLE";

/// The number of the last device, for a child that has none yet.
const LAST: &str = "CUDA_MEM_TEST_VISIBLE_LAST";

/// A child may take this share of the time of a test: longer than it takes to start a driver.
const SHARE: f64 = 1.0 / 3.0;

/// As many processes start the driver at a time.
const AT_ONCE: usize = 4;

/// How children are started: on which driver, with which settings.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    backend: Backend,
    settings: &'static [(&'static str, &'static str)],
}

impl Machine {
    /// The machine of the environment; the settings are for the simulator.
    #[must_use]
    pub fn of(env: &Environment, settings: &'static [(&'static str, &'static str)]) -> Self {
        Self {
            backend: env.backend,
            settings,
        }
    }

    /// The output of a child that runs this scenario with this value; an error if it fails.
    fn run(self, scenario: &str, value: Option<&str>) -> Result<String> {
        self.run_after(scenario, value, 0)
    }

    /// The same with `last`, the number of devices before the last one.
    fn run_after(self, scenario: &str, value: Option<&str>, last: usize) -> Result<String> {
        let output = self.start(scenario, value, last)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{scenario} with {value:?}: {}\n{text}{errors}",
            output.status
        );
        Ok(text)
    }

    /// What a program that takes a device prints when it ends with the error.
    fn failure(self, value: Option<&str>, ordinal: usize) -> Result<String> {
        let output = self.start("main", value, ordinal)?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(1),
            "{value:?}: {}\n{text}",
            output.status
        );
        Ok(text)
    }

    fn start(self, scenario: &str, value: Option<&str>, last: usize) -> Result<Output> {
        let mut command = own_process::command("visible")?;
        command
            .env(SCENARIO, scenario)
            .env(LAST, last.to_string())
            .envs(self.settings.iter().copied());
        match value {
            Some(value) => command.env(VARIABLE, value),
            None => command.env_remove(VARIABLE),
        };
        if self.backend == Backend::Sim {
            command.env(sys::LIBRARY_VARIABLE, sim_path()?);
        }
        own_process::output_within(&mut command, own_process::patience().mul_f64(SHARE))
            .with_context(|| format!("{scenario} with {value:?}"))
    }

    /// The devices that a driver shows to a process with this value, by the digits of their UUIDs.
    fn shown(self, value: Option<&str>) -> Result<Vec<String>> {
        let text = self.run("devices", value)?;
        // Without this line the child has not come to its end.
        let end = text.lines().last().context("a child printed nothing")?;
        let devices = text.lines().filter_map(|line| line.strip_prefix("device "));
        let devices: Vec<String> = devices.map(str::to_owned).collect();
        ensure!(
            end == format!("{} devices", devices.len()),
            "{value:?}: {text}"
        );
        Ok(devices)
    }

    /// The devices without the variable.
    fn devices(self) -> Result<Vec<Identity>> {
        let digits = self.shown(None)?;
        ensure!(!digits.is_empty(), "no device without {VARIABLE}");
        let all: Vec<Identity> = digits
            .iter()
            .map(|digits| Identity::new(format!("GPU-{digits}")))
            .collect();
        // Of MIG instances CUDA tells their own UUID, and of one only: that is not the whole machine.
        if let [one] = &all[..]
            && self.shown(Some(one.uuid()))?.is_empty()
        {
            return Err(Skip("MIG is on, and CUDA does not tell all devices".to_owned()).into());
        }
        Ok(all)
    }
}

/// Every value, on the machine as it is.
///
/// # Errors
///
/// If the driver shows anything else than the parser says.
fn the_driver_shows_what_the_parser_says(machine: Machine) -> Result<()> {
    let devices = machine.devices()?;
    println!("{} devices: {devices:?}", devices.len());
    compare(machine, &devices, values::of(&devices))
}

/// The same with MIG instances, which children find that name each of them by its place. `instances` says
/// how many each device has.
///
/// # Errors
///
/// As there.
fn instances_are_shown_as_the_parser_says(
    whole: Machine,
    machine: Machine,
    instances: &[Option<u32>],
) -> Result<()> {
    let mut devices = whole.devices()?;
    ensure!(devices.len() == instances.len(), "{devices:?}");
    for (device, count) in devices.iter_mut().zip(instances) {
        let Some(count) = *count else { continue };
        let mut found = Vec::new();
        for gpu_instance in 1..=count {
            let name = format!("MIG-{}/{gpu_instance}/0", device.uuid());
            match &machine.shown(Some(&name))?[..] {
                [digits] => found.push(MigIdentity {
                    uuid: Some(format!("MIG-{digits}")),
                    gpu_instance,
                    compute_instance: 0,
                }),
                other => bail!("{name} shows {other:?}"),
            }
        }
        *device = device.clone().with_mig(found);
    }
    let mut values = values::of(&devices);
    values.extend(values::of_instances(&devices));
    compare(machine, &devices, values)
}

fn compare(machine: Machine, devices: &[Identity], values: Vec<Option<String>>) -> Result<()> {
    let mut differences = Vec::new();
    for values in values.chunks(AT_ONCE) {
        let shown: Vec<Result<Vec<String>>> = thread::scope(|scope| {
            let children: Vec<_> = values
                .iter()
                .map(|value| scope.spawn(move || machine.shown(value.as_deref())))
                .collect();
            children
                .into_iter()
                .map(|child| child.join().map_err(|_| anyhow::anyhow!("panicked"))?)
                .collect()
        });
        for (value, shown) in values.iter().zip(shown) {
            let shown = shown?;
            let said = Visibility::parse(value.as_deref(), devices);
            let expected: Vec<&str> = said
                .devices()
                .iter()
                .map(|device| digits(*device, devices))
                .collect::<Result<_>>()?;
            let expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
            let line = format!(
                "{value:?}: the driver shows {:?}, the parser says {:?}",
                places(&shown, devices),
                places(&expected, devices)
            );
            println!("{line}");
            if shown != expected {
                differences.push(format!("{line}: {said}"));
            }
        }
    }
    println!("{} differences", differences.len());
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}

/// What a driver tells of a device: its UUID without what it is of.
fn digits(device: VisibleDevice, machine: &[Identity]) -> Result<&str> {
    let uuid = device.uuid(machine).context("a device without a UUID")?;
    Ok(uuid.trim_start_matches("GPU-").trim_start_matches("MIG-"))
}

/// The same as places in the machine, which are easier to read.
fn places(shown: &[String], machine: &[Identity]) -> Vec<String> {
    let name = |digits: &String| {
        let find = |uuid: &str| uuid.ends_with(digits.as_str());
        for (gpu, identity) in machine.iter().enumerate() {
            if find(identity.uuid()) {
                return format!("Gpu({gpu})");
            }
            let mut instances = identity.mig().unwrap_or_default().iter();
            if let Some(instance) = instances.position(|mig| mig.uuid.as_deref().is_some_and(find))
            {
                return format!("Mig({gpu}, {instance})");
            }
        }
        digits.clone()
    };
    shown.iter().map(name).collect()
}

/// A child that changes the variable after the start: it is told, and the devices stay.
///
/// # Errors
///
/// If it is not so.
fn a_change_after_the_start_is_told(machine: Machine) -> Result<()> {
    let text = machine.run("changed", Some("0"))?;
    ensure!(
        text.contains(
            "when the driver was initialised, CUDA_VISIBLE_DEVICES=0; now CUDA_VISIBLE_DEVICES is empty"
        ),
        "{text}"
    );
    Ok(())
}

/// A child that sets the variable first, and then too late.
///
/// # Errors
///
/// If the driver does not see what was set, or it is set too late.
fn devices_are_chosen_before_the_driver_starts_and_not_after(machine: Machine) -> Result<()> {
    let all = machine.devices()?;
    let last = all.last().context("no device")?;
    let text = machine.run_after("set", None, all.len() - 1)?;
    let digits = last.uuid().trim_start_matches("GPU-");
    ensure!(text.lines().any(|line| line == digits), "{text}");
    Ok(())
}

/// A child in which somebody else initialises the driver first, with another value.
///
/// # Errors
///
/// If that is not noticed.
fn who_initialised_the_driver_before_us_is_noticed(machine: Machine) -> Result<()> {
    let text = machine.run("second", Some("0"))?;
    ensure!(
        text.contains("the driver shows 1 devices, and CUDA_VISIBLE_DEVICES=-1 leaves at most 0"),
        "{text}"
    );
    Ok(())
}

/// A value with which there is no device is told as that.
///
/// # Errors
///
/// If it is not.
fn a_driver_without_devices_was_tried_all_the_same(machine: Machine) -> Result<()> {
    let text = machine.run("none", Some("-1"))?;
    ensure!(text.contains("before the first use of CUDA"), "{text}");
    Ok(())
}

/// A program that finds no device says what the variable was, and what to do.
///
/// # Errors
///
/// If it does not.
fn a_device_that_is_not_there_quotes_the_variable(machine: Machine) -> Result<()> {
    let count = machine.devices()?.len();
    let beyond = count.to_string();
    let none = "when the driver was initialised and leaves no device";
    let cases = [
        // No device at all: the driver does not start.
        (
            Some("-1"),
            0,
            vec![
                "(100)",
                "CUDA_VISIBLE_DEVICES was \"-1\" ",
                none,
                "unset it",
            ],
        ),
        (
            Some(""),
            0,
            vec!["(100)", "CUDA_VISIBLE_DEVICES was \"\" ", none, "unset it"],
        ),
        (Some(&*beyond), 0, vec!["(100)", none, "unset it"]),
        // Not so many.
        (
            Some("0"),
            5,
            vec![
                "(101)",
                "(device 5 of 1)",
                "CUDA_VISIBLE_DEVICES was \"0\" when the driver was initialised and leaves 1 device",
                "below 1",
            ],
        ),
        (
            Some("0, x"),
            1,
            vec!["(device 1 of 1)", "was \"0, x\" when"],
        ),
        (
            None,
            count,
            vec![
                "(101)",
                "CUDA_VISIBLE_DEVICES was not set",
                "the driver finds no others",
            ],
        ),
    ];
    for (value, ordinal, parts) in cases {
        let text = machine.failure(value, ordinal)?;
        ensure!(text.starts_with("Error: cu"), "{text}");
        for part in parts {
            ensure!(text.contains(part), "{value:?}: no {part:?} in {text}");
        }
    }
    Ok(())
}

/// Without a device and without the variable, the driver is to be looked at and not the variable.
///
/// # Errors
///
/// If the program says anything else.
fn a_machine_without_a_device_says_so(machine: Machine) -> Result<()> {
    let text = machine.failure(None, 0)?;
    for part in ["(100)", "CUDA_VISIBLE_DEVICES was not set", "nvidia-smi"] {
        ensure!(text.contains(part), "no {part:?} in {text}");
    }
    Ok(())
}
