//! Choosing a GPU without using any.

use std::fmt;

use super::{ComputeMode, Nvml, NvmlDevice};
use crate::base::error::{Bytes, Error, ErrorKind, Result};
use crate::driver::Driver;
use crate::driver::device::Device;

/// Criteria for choosing a GPU. The search creates no context and, with [`pick`](Self::pick), does not even initialise
/// the driver.
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::placement::{DeviceChoice, Nvml};
///
/// # cuda_sim::use_if_no_driver();
/// # nvidia_ml_sim::use_if_no_nvml();
/// let choice = DeviceChoice::most_free().at_least(1 << 30);
///
/// // Among the devices that CUDA_VISIBLE_DEVICES leaves to this process:
/// let device = choice.pick_visible(&Nvml::load()?, Driver::load()?)?;
/// let context = device.primary_context()?; // the first thing that takes memory there
/// # let _ = context;
/// # Ok::<(), cuda_mem::Error>(())
/// ```
///
/// Unusable GPUs are skipped: those that do not respond and those whose compute mode allows no context. Where MIG is
/// on, the instances are considered instead of the whole GPU.
///
/// Free memory is a snapshot: another process may take it first. A program that must not fail should then retry.
pub struct DeviceChoice<'a> {
    at_least: u64,
    most_free: bool,
    filters: Vec<Box<Filter<'a>>>,
}

type Filter<'a> = dyn Fn(&NvmlDevice) -> bool + 'a;

impl<'a> DeviceChoice<'a> {
    /// Takes the device with the most free memory, the first one if several are equal.
    #[must_use]
    pub fn most_free() -> Self {
        Self {
            at_least: 0,
            most_free: true,
            filters: Vec::new(),
        }
    }

    /// Takes the first suitable device.
    #[must_use]
    pub fn first() -> Self {
        Self {
            most_free: false,
            ..Self::most_free()
        }
    }

    /// Requires at least this many free bytes. The context itself takes some of them: hundreds of MiB, depending on
    /// driver and GPU.
    #[must_use]
    pub fn at_least(self, bytes: u64) -> Self {
        Self {
            at_least: bytes,
            ..self
        }
    }

    /// Considers only devices for which `fits` returns true.
    ///
    /// ```
    /// # nvidia_ml_sim::use_if_no_nvml();
    /// use cuda_mem::placement::{DeviceChoice, Nvml};
    ///
    /// // One that nobody else computes on.
    /// let idle = DeviceChoice::first()
    ///     .filter(|gpu| gpu.processes().is_ok_and(|found| found.is_empty()));
    /// # std::hint::black_box(&idle);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[must_use]
    pub fn filter(mut self, fits: impl Fn(&NvmlDevice) -> bool + 'a) -> Self {
        self.filters.push(Box::new(fits));
        self
    }

    /// Chooses among **all** GPUs and MIG instances of the machine, for programs that set `CUDA_VISIBLE_DEVICES` for a
    /// process they start, or that run where it is not used. CUDA is not initialised.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if a device is suitable except that too little memory is free,
    /// [`InvalidDevice`](ErrorKind::InvalidDevice) if none is suitable; the message gives the reason for each.
    ///
    /// ```
    /// use cuda_mem::placement::{DeviceChoice, Nvml};
    ///
    /// # nvidia_ml_sim::use_if_no_nvml();
    /// let gpu = DeviceChoice::most_free().pick(&Nvml::load()?)?;
    /// let mut worker = std::process::Command::new("worker");
    /// worker.env("CUDA_VISIBLE_DEVICES", gpu.uuid_text()?);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn pick(&self, nvml: &Nvml) -> Result<NvmlDevice> {
        let mut judge = Judge::new(self);
        for index in 0..nvml.device_count()? {
            match nvml.device(index).and_then(units) {
                Ok(units) if units.is_empty() => {
                    judge.pass_over(format!("GPU {index}: MIG is on, and it has no instance"));
                }
                Ok(units) => units.into_iter().for_each(|unit| judge.look_at(unit, unit)),
                Err(error) => judge.pass_over(format!("GPU {index}: {error}")),
            }
        }
        judge.verdict()
    }

    /// Chooses among the devices that are visible to this process. Initialises the driver, and creates no context.
    ///
    /// # Errors
    ///
    /// As [`pick`](Self::pick).
    pub fn pick_visible(&self, nvml: &Nvml, driver: Driver) -> Result<Device> {
        let mut judge = Judge::new(self);
        for device in driver.devices()? {
            match device.nvml(nvml) {
                Ok(unit) => judge.look_at(unit, device),
                Err(error) => judge.pass_over(format!("device {}: {error}", device.ordinal())),
            }
        }
        judge.verdict()
    }

    /// Free bytes of the device, or why it is unsuitable.
    fn examine(&self, unit: &NvmlDevice) -> Result<u64, Unfit> {
        // Not all devices tell, and MIG instances have none: what is not known is no obstacle.
        match unit.compute_mode() {
            Ok(ComputeMode::Prohibited) => {
                return Err(Unfit::Other(
                    "its compute mode prohibits contexts".to_owned(),
                ));
            }
            Ok(ComputeMode::ExclusiveProcess)
                if unit.processes().is_ok_and(|others| {
                    others.iter().any(|other| other.pid != std::process::id())
                }) =>
            {
                return Err(Unfit::Other("another process has it for itself".to_owned()));
            }
            _ => {}
        }
        if !self.filters.iter().all(|fits| fits(unit)) {
            return Err(Unfit::Other("the filter refused it".to_owned()));
        }
        match unit.memory() {
            Ok(memory) if memory.free >= self.at_least => Ok(memory.free),
            Ok(memory) => Err(Unfit::Memory(memory.to_string())),
            // Devices that share the host's memory do not tell; with no demand they will do.
            Err(_) if self.at_least == 0 => Ok(0),
            Err(error) => Err(Unfit::Other(error.to_string())),
        }
    }
}

/// What CUDA can use of a GPU: itself, or its MIG instances.
fn units(gpu: NvmlDevice) -> Result<Vec<NvmlDevice>> {
    if gpu.mig_mode()?.is_some_and(|mode| mode.enabled) {
        return gpu.mig_devices();
    }
    Ok(vec![gpu])
}

/// Why a device is unsuitable.
enum Unfit {
    /// Too little memory is free.
    Memory(String),
    Other(String),
}

/// Keeps the best so far, and why others were passed over.
struct Judge<'a, T> {
    choice: &'a DeviceChoice<'a>,
    best: Option<(u64, T)>,
    reasons: Vec<String>,
    too_little: bool,
}

impl<'a, T> Judge<'a, T> {
    fn new(choice: &'a DeviceChoice<'a>) -> Self {
        Self {
            choice,
            best: None,
            reasons: Vec::new(),
            too_little: false,
        }
    }

    fn look_at(&mut self, unit: NvmlDevice, name: T) {
        if self.best.is_some() && !self.choice.most_free {
            return;
        }
        let why = match self.choice.examine(&unit) {
            Ok(free) => {
                let is_better = self.best.as_ref().is_none_or(|(best, _)| free > *best);
                if is_better {
                    self.best = Some((free, name));
                }
                return;
            }
            Err(Unfit::Memory(why)) => {
                self.too_little = true;
                why
            }
            Err(Unfit::Other(why)) => why,
        };
        self.pass_over(format!("{unit}: {why}"));
    }

    fn pass_over(&mut self, reason: String) {
        self.reasons.push(reason);
    }

    fn verdict(self) -> Result<T> {
        let Self {
            choice,
            best,
            reasons,
            too_little,
        } = self;
        if let Some((_, found)) = best {
            return Ok(found);
        }
        let reasons = if reasons.is_empty() {
            "there is none".to_owned()
        } else {
            reasons.join("; ")
        };
        Err(if too_little {
            let text = format!("no GPU has {} free ({reasons})", Bytes(choice.at_least));
            Error::new(ErrorKind::OutOfMemory, text).with_asked(choice.at_least)
        } else {
            Error::new(
                ErrorKind::InvalidDevice,
                format!("no GPU will do: {reasons}"),
            )
        })
    }
}

impl fmt::Debug for DeviceChoice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceChoice")
            .field("at_least", &self.at_least)
            .field("most_free", &self.most_free)
            .field("filters", &self.filters.len())
            .finish()
    }
}
