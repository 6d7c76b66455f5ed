//! Which resource serves a device by default, and why.

use std::fmt;
use std::path::Path;

use cuda_driver_sys::CUdevice_attribute;

use crate::base::error::{Error, Result};
use crate::base::lock::SharedLock;
use crate::base::report::DeferHook;
use crate::driver::capabilities::{Capability, Reason, Support};
use crate::driver::device::Device;
use crate::memory::pool::MemoryPool;
use crate::memory::resource::{DirectResource, Resource};

/// How the default resource of a device gets its memory. From [`Device::strategy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// From a dedicated memory pool that keeps freed memory.
    Pool,
    /// From `cuMemAlloc`, because the device has no memory pools. Each free waits for the stream and the
    /// device.
    Direct {
        /// The reason, as far as it is known.
        reason: Reason,
        /// The driver model of the device, which may explain it.
        model: DriverModel,
    },
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool => f.write_str("memory pool"),
            Self::Direct { reason, model } => {
                write!(f, "cuMemAlloc, because memory pools are missing: {reason}")?;
                match model {
                    DriverModel::Linux => Ok(()),
                    model => write!(f, " (driver model: {model})"),
                }
            }
        }
    }
}

/// How the operating system drives a device. Informative only; nothing depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DriverModel {
    /// The Linux driver, or that of another system with a single driver model.
    Linux,
    /// Linux as a guest of Windows (WSL), through the host's display driver.
    Wsl,
    /// The compute driver of Windows. Older versions have no memory pools.
    Tcc,
    /// The display driver of Windows, or its counterpart without a display.
    Wddm,
}

impl fmt::Display for DriverModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linux => "Linux",
            Self::Wsl => "WSL",
            Self::Tcc => "TCC",
            Self::Wddm => "WDDM",
        })
    }
}

/// What a default resource does when the device has no memory pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fallback {
    /// It uses `cuMemAlloc`.
    #[default]
    Direct,
    /// It returns an error.
    Refuse,
}

/// The strategy determined for a device.
struct Choice {
    device: Device,
    strategy: Strategy,
    resource: Resource,
}

static CHOICES: SharedLock<Vec<Choice>> = SharedLock::new(Vec::new());

impl Device {
    /// How the default resource of this device gets its memory, and why. Determined once per process from the
    /// driver's version and the device's attribute. Where these report pools, a pool is created to verify it, since
    /// some systems report pools without having them. Creates no context.
    ///
    /// # Errors
    ///
    /// Any driver error, except that pools are unsupported. After an error the next call tries again.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let device = cuda_mem::Driver::load()?.device(0)?;
    /// println!("how memory is got: {}", device.strategy()?);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn strategy(&self) -> Result<Strategy> {
        self.choice(|choice| choice.strategy)
    }

    /// The resource of this device unless the program chooses another: a memory pool created by this crate that
    /// keeps freed memory, or, where there are no pools, `cuMemAlloc`. [`strategy`](Self::strategy) says which.
    /// There is one per device, for the lifetime of the process.
    ///
    /// # Errors
    ///
    /// Same as [`strategy`](Self::strategy).
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let device = cuda_mem::Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let buffer = device.default_resource()?.alloc_from(&stream, &[1u8, 2, 3])?;
    /// assert_eq!(buffer.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn default_resource(&self) -> Result<Resource> {
        self.choice(|choice| choice.resource.clone())
    }

    /// Like [`default_resource`](Self::default_resource), for programs that would rather fail than run slowly.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported), with the reason, if the device has no pools and `fallback`
    /// is [`Refuse`](Fallback::Refuse); otherwise the same errors.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::memory::Fallback;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// match device.default_resource_with(Fallback::Refuse) {
    ///     Ok(resource) => device.set_current_resource(&resource)?,
    ///     Err(error) => println!("{error}"),
    /// }
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn default_resource_with(&self, fallback: Fallback) -> Result<Resource> {
        let (strategy, resource) =
            self.choice(|choice| (choice.strategy, choice.resource.clone()))?;
        match (strategy, fallback) {
            (Strategy::Direct { .. }, Fallback::Refuse) => Err(Error::not_supported(format!(
                "{self} would get its memory from {strategy}, and that was refused"
            ))),
            _ => Ok(resource),
        }
    }

    /// How the operating system drives this device.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "CU_DEVICE_ATTRIBUTE_TCC_DRIVER")]
    pub fn driver_model(&self) -> Result<DriverModel> {
        let tcc = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_TCC_DRIVER;
        Ok(if self.has_attribute(tcc)? {
            DriverModel::Tcc
        } else if cfg!(windows) {
            DriverModel::Wddm
        } else if Path::new("/dev/dxg").exists() {
            DriverModel::Wsl
        } else {
            DriverModel::Linux
        })
    }

    fn choice<R>(&self, read: impl Fn(&Choice) -> R) -> Result<R> {
        let find = |choices: &[Choice]| choices.iter().find(|c| c.device == *self).map(&read);
        let known = CHOICES.read()?;
        if let Some(known) = find(&known) {
            return Ok(known);
        }
        drop(known);
        // Not under the lock: whatever the trial drops, and the failure hook, may call back into this module. If
        // two threads try at the same time, the second one's pool is dropped.
        let (strategy, pool) = choose(*self)?;
        let _waits = DeferHook::enter();
        let mut choices = CHOICES.write()?;
        if let Some(known) = find(&choices) {
            drop(choices);
            drop(pool);
            return Ok(known);
        }
        let choice = Choice {
            device: *self,
            strategy,
            resource: match pool {
                // It lives as long as the process, like the device's own pool: no destructor runs at exit, and
                // buffers need not count it.
                Some(pool) => {
                    // No program holds it.
                    pool.leave_ledger();
                    Resource::from_static(Box::leak(Box::new(pool)))
                }
                None => Resource::new(DirectResource::new(*self)),
            },
        };
        let answer = read(&choice);
        choices.push(choice);
        Ok(answer)
    }
}

/// The strategy, and the pool if that is it.
fn choose(device: Device) -> Result<(Strategy, Option<MemoryPool>)> {
    let reason = match device.support(Capability::MemoryPools)? {
        Support::No(reason) => reason,
        Support::Yes => match MemoryPool::builder(&device).build() {
            Ok(pool) => return Ok((Strategy::Pool, Some(pool))),
            Err(error) => refused(error)?,
        },
    };
    let model = device.driver_model()?;
    Ok((Strategy::Direct { reason, model }, None))
}

/// The driver reported pools but would not create one. Only an error about its capabilities counts as a lack of
/// pools.
fn refused(error: Error) -> Result<Reason> {
    match error.code() {
        Some(code) if error.is_inability() => Ok(Reason::Refused(code)),
        _ => Err(error),
    }
}
