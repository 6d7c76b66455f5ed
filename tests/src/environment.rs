//! The driver that the tests run on.

use std::path::PathBuf;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::sys::CUdevice_attribute;
use cuda_mem::{Context, CudaVersion, Device, Driver, Error, ErrorKind, MemoryPool, Stream};
use cuda_sim::control::Control;

use crate::handles;

/// Which driver the tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The simulated driver.
    Sim,
    /// A real driver with a GPU.
    Gpu,
}

impl Backend {
    /// What `CUDA_MEM_TEST_BACKEND` calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Gpu => "gpu",
        }
    }
}

/// Read by tests that look at what a pool keeps, written by tests that change it for every pool: when memory
/// runs out, the driver takes back what all pools of the device keep, and synchronising a context lets the
/// host see the frees of all streams.
///
/// Also read by tests that hold a stream: a wait for the context waits for that stream too, and on a GPU may
/// block the call that would release it.
static SECTIONS: RwLock<()> = RwLock::new(());

/// Which device the tests use.
pub const DEVICE: &str = "CUDA_MEM_TEST_DEVICE";

/// The driver under test, and what a test body needs around it.
#[derive(Debug)]
pub struct Environment {
    /// The driver.
    pub driver: Driver,
    /// Which kind it is.
    pub backend: Backend,
    control: Option<Control>,
}

/// A reason why a test cannot run here. A body returns it as its error.
#[derive(Debug)]
pub struct Skip(pub String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

impl Environment {
    /// The environment of this process: `CUDA_MEM_TEST_BACKEND` is `sim` or `gpu`; without it, the GPU if a
    /// real driver answers, else the simulator.
    ///
    /// # Errors
    ///
    /// If the driver asked for does not start. The first answer is kept.
    pub fn get() -> Result<&'static Self> {
        Self::get_or(Self::open)
    }

    /// As [`get`](Self::get), but always the simulator.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn get_sim() -> Result<&'static Self> {
        Self::get_or(Self::sim)
    }

    fn get_or(open: fn() -> Result<Self>) -> Result<&'static Self> {
        static ENVIRONMENT: OnceLock<Result<Environment, String>> = OnceLock::new();
        ENVIRONMENT
            .get_or_init(|| open().map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow::anyhow!("{error}"))
    }

    fn open() -> Result<Self> {
        match std::env::var("CUDA_MEM_TEST_BACKEND").as_deref() {
            Ok("gpu") => Self::gpu().context("CUDA_MEM_TEST_BACKEND is gpu"),
            Ok("sim") => Self::sim(),
            Ok(other) => bail!("CUDA_MEM_TEST_BACKEND is {other:?}; it must be sim or gpu"),
            Err(_) => Self::gpu().or_else(|error| {
                println!("{}: testing on the simulated driver", reason(&error));
                Self::sim()
            }),
        }
    }

    fn gpu() -> Result<Self> {
        let driver = Driver::load()?;
        ensure!(driver.device_count()? > 0, "the driver has no device");
        let simulated = cuda_sim::is_simulator(driver.library_path());
        ensure!(!simulated, "the driver that was found is the simulated one");
        Ok(Self {
            driver,
            backend: Backend::Gpu,
            control: None,
        })
    }

    fn sim() -> Result<Self> {
        let path = sim_path()?;
        // SAFETY: the simulated driver behaves as a CUDA driver does.
        let driver = unsafe { Driver::load_from(&path) }?;
        Ok(Self {
            driver,
            backend: Backend::Sim,
            control: Some(Control::open(&path).map_err(|error| anyhow::anyhow!("{error}"))?),
        })
    }

    /// The simulator's controls; a skip elsewhere.
    ///
    /// # Errors
    ///
    /// [`Skip`] on a GPU.
    pub fn control(&self) -> Result<&Control> {
        self.control
            .as_ref()
            .ok_or_else(|| Skip("only the simulator can show this".to_owned()).into())
    }

    /// A skip unless the driver is at least this new.
    ///
    /// # Errors
    ///
    /// [`Skip`] with both versions.
    pub fn need(&self, major: u32, minor: u32) -> Result<()> {
        let needed = CudaVersion::new(major, minor);
        if self.driver.version() >= needed {
            return Ok(());
        }
        let found = self.driver.version();
        Err(Skip(format!("needs CUDA {needed}, the driver has {found}")).into())
    }

    /// Whether the device knows NUMA nodes of the host. Windows has none for CUDA.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    pub fn has_node(&self) -> Result<bool> {
        let id = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID;
        Ok(self.need(12, 2).is_ok() && self.device()?.attribute(id)? != Some(-1))
    }

    /// A skip unless there is memory on a NUMA node of the host.
    ///
    /// # Errors
    ///
    /// [`Skip`] with the reason.
    pub fn need_node(&self) -> Result<()> {
        self.need(12, 2)?;
        if self.has_node()? {
            return Ok(());
        }
        Err(Skip("the device knows no NUMA node of the host".to_owned()).into())
    }

    /// A skip on Windows.
    ///
    /// # Errors
    ///
    /// [`Skip`] with this reason.
    pub fn not_on_windows(&self, reason: &str) -> Result<()> {
        if cfg!(windows) {
            return Err(Skip(reason.to_owned()).into());
        }
        Ok(())
    }

    /// A shared section: while the guard lives, no test of this process changes what pools keep.
    pub fn shared(&self) -> RwLockReadGuard<'static, ()> {
        SECTIONS.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// An exclusive section: while the guard lives, no test of this process is in a section.
    pub fn exclusive(&self) -> RwLockWriteGuard<'static, ()> {
        SECTIONS.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device under test: the first one, or the last if `CUDA_MEM_TEST_DEVICE` is `last`.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    pub fn device(&self) -> Result<Device> {
        let ordinal = match std::env::var(DEVICE).as_deref() {
            Ok("last") => self.driver.device_count()?.saturating_sub(1),
            Ok(other) => bail!("{DEVICE} is {other:?}; it can only be last"),
            Err(_) => 0,
        };
        Ok(self.driver.device(ordinal)?)
    }

    /// The primary context of the first device.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    pub fn context(&self) -> Result<Context> {
        Ok(self.device()?.primary_context()?)
    }

    /// A new stream there.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    pub fn stream(&self) -> Result<Stream> {
        let context = self.context()?;
        if self.backend == Backend::Gpu {
            make_room_for_streams(&context)?;
        }
        Ok(context.stream()?)
    }

    /// A new pool there, with default settings.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    pub fn pool(&self) -> Result<MemoryPool> {
        Ok(MemoryPool::builder(&self.device()?).build()?)
    }

    /// A new pool that can be exported, as a descriptor or a handle of Windows. When closed it is destroyed, not kept as a spare.
    ///
    /// # Errors
    ///
    /// [`Skip`] if there are no such pools.
    pub fn shareable_pool(&self) -> Result<MemoryPool> {
        // Earlier drivers do not list the types of handles (R2).
        self.need(11, 3)?;
        let device = self.device()?;
        let types = device.capabilities()?.pool_handle_types;
        if !types.contains(handles::KIND) {
            let kind = handles::KIND;
            return Err(Skip(format!("no pools that can be exported as {kind}")).into());
        }
        Ok(MemoryPool::builder(&device)
            .handle_types(handles::KIND)
            .build()?)
    }
}

/// Bytes of a page of the host.
pub(crate) fn host_page() -> usize {
    cuda_sim_support::page::host_page() as usize
}

/// How many streams a GPU is asked for before the first test gets one; 128 without it.
const STREAMS: &str = "CUDA_MEM_TEST_STREAMS";

/// Makes many streams once and destroys them, before any test holds a stream, so that the driver has what it needs for more:
/// making one later may have to wait for held streams (R176). That this prevents it is not proven: with and without it, three
/// runs of 32 threads on an H100 ended.
fn make_room_for_streams(context: &Context) -> Result<()> {
    static MADE: OnceLock<Result<(), String>> = OnceLock::new();
    let make = || -> Result<()> {
        let count = match std::env::var(STREAMS) {
            Ok(count) => count
                .parse()
                .with_context(|| format!("{STREAMS} is {count:?}"))?,
            Err(_) => 128,
        };
        let streams = (0..count).map(|_| context.stream());
        streams.collect::<cuda_mem::Result<Vec<_>>>()?;
        Ok(())
    };
    let made = MADE.get_or_init(|| make().map_err(|error| format!("{error:#}")));
    made.clone().map_err(|error| anyhow::anyhow!("{error}"))
}

/// Why there is no GPU to test on. What was tried in vain on a machine without a driver is no news.
fn reason(error: &anyhow::Error) -> String {
    match error.downcast_ref::<Error>().map(Error::kind) {
        Some(ErrorKind::DriverMissing) => "no GPU driver found".to_owned(),
        _ => format!("no GPU to test on ({error:#})"),
    }
}

/// Where the simulated driver's library lies.
///
/// # Errors
///
/// If it was not built.
pub fn sim_path() -> Result<PathBuf> {
    cuda_sim::library_path().context("the simulated driver was not found beside the test program")
}
