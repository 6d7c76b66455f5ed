//! The names by which the variable can select the devices of a machine.

#![forbid(unsafe_code)]

use crate::driver::device::Uuid;

/// One GPU of the machine, by the names that `CUDA_VISIBLE_DEVICES` has for it.
///
/// A list of identities represents a machine, in the order in which CUDA numbers the devices of a process without the
/// variable.
///
/// ```
/// use cuda_mem::driver::Uuid;
/// use cuda_mem::placement::Identity;
///
/// # cuda_sim::use_if_no_driver();
/// let device = cuda_mem::Driver::load()?.device(0)?;
/// let identity = Identity::from(device.uuid()?);
/// assert_eq!(identity.uuid(), device.uuid()?.to_string());
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    uuid: String,
    mig: Option<Vec<MigIdentity>>,
}

/// One MIG instance: a part of a GPU that is a device of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MigIdentity {
    /// As `nvidia-smi -L` writes it, `MIG-` and five groups. `None` with drivers before 470.
    pub uuid: Option<String>,
    /// The number of its GPU instance.
    pub gpu_instance: u32,
    /// The number of its compute instance within that.
    pub compute_instance: u32,
}

impl Identity {
    /// A GPU by the text of its UUID, `GPU-` and five groups.
    #[must_use]
    pub fn new(uuid: impl Into<String>) -> Self {
        Self {
            uuid: uuid.into(),
            mig: None,
        }
    }

    /// The same GPU with MIG on, and these instances.
    #[must_use]
    pub fn with_mig(mut self, instances: impl IntoIterator<Item = MigIdentity>) -> Self {
        self.mig = Some(instances.into_iter().collect());
        self
    }

    /// The text of the GPU's UUID.
    #[must_use]
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Its MIG instances; `None` if MIG is off.
    #[must_use]
    pub fn mig(&self) -> Option<&[MigIdentity]> {
        self.mig.as_deref()
    }
}

/// A GPU without MIG.
impl From<Uuid> for Identity {
    fn from(uuid: Uuid) -> Self {
        Self::new(uuid.to_string())
    }
}

/// A device that a process can see, by its index in the list that represents the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VisibleDevice {
    /// A whole GPU.
    Gpu(usize),
    /// One MIG instance of a GPU.
    Mig {
        /// Which GPU.
        gpu: usize,
        /// Which of its instances, as [`Identity::mig`] lists them.
        instance: usize,
    },
}

impl VisibleDevice {
    /// The index of its GPU.
    #[must_use]
    pub fn gpu(self) -> usize {
        match self {
            Self::Gpu(gpu) | Self::Mig { gpu, .. } => gpu,
        }
    }

    /// The text of the UUID that CUDA reports, if known: that of the MIG instance, if it is one.
    #[must_use]
    pub fn uuid(self, machine: &[Identity]) -> Option<&str> {
        let identity = machine.get(self.gpu())?;
        match self {
            Self::Gpu(_) => Some(&identity.uuid),
            Self::Mig { instance, .. } => identity.mig()?.get(instance)?.uuid.as_deref(),
        }
    }
}
