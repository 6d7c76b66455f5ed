//! Choosing a GPU without touching any.

use std::fmt;

use super::{ComputeMode, Nvml, NvmlDevice};
use crate::base::error::{Bytes, Error, ErrorKind, Result};
use crate::driver::Driver;
use crate::driver::device::Device;

/// Which GPU to take. Looking for it makes no context and, with [`pick`](Self::pick), does not even
/// initialise the driver.
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
/// What cannot be used is passed over: a GPU that does not answer, one whose compute mode admits no
/// context, and, where MIG is on, the whole GPU, in whose place its instances are looked at.
///
/// What is free is a moment's value: another process may take it before this one does. A program that
/// must not fail then tries again.
pub struct DeviceChoice<'a> {
    at_least: u64,
    most_free: bool,
    filters: Vec<Box<Filter<'a>>>,
}

type Filter<'a> = dyn Fn(&NvmlDevice) -> bool + 'a;

impl<'a> DeviceChoice<'a> {
    /// The one with the most free memory; the first of those with the same.
    #[must_use]
    pub fn most_free() -> Self {
        Self {
            at_least: 0,
            most_free: true,
            filters: Vec::new(),
        }
    }

    /// The first that will do.
    #[must_use]
    pub fn first() -> Self {
        Self {
            most_free: false,
            ..Self::most_free()
        }
    }

    /// With at least this many bytes free. The context itself will take some of them: hundreds of MiB,
    /// depending on driver and GPU.
    #[must_use]
    pub fn at_least(self, bytes: u64) -> Self {
        Self {
            at_least: bytes,
            ..self
        }
    }

    /// Only those for which `fits` answers true.
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

    /// Chooses among **all** GPUs and MIG instances of the machine, for programs that set
    /// `CUDA_VISIBLE_DEVICES` for a process they start, or that run where it is not used. CUDA is not
    /// started.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if one would do but for its free memory,
    /// [`InvalidDevice`](ErrorKind::InvalidDevice) if none would; the text says what keeps each from it.
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

    /// Chooses among the devices that the driver shows this process. The driver is initialised, and no
    /// context is made.
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

    /// How much is free there, or what keeps it from being chosen.
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

/// Why a device is not the one.
enum Unfit {
    /// It has too little that is free.
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
