//! Drivers of simulated machines, for tests.

use cuda_sim::{Machine, Simulator};

use super::Driver;
use crate::base::error::Result;

impl Driver {
    /// The driver of a new simulated machine with one H200, for a test. Each call gives another machine, so tests that run
    /// at the same time share nothing. Needs the feature `sim`.
    ///
    /// [`Machine`] describes other machines, counts calls and makes them fail. Only [`Simulator::check`] makes a test fail
    /// for what the order sanitizer found; here its reports are printed on standard error.
    ///
    /// # Panics
    ///
    /// If the simulator was not built or does not open: a test cannot do without.
    ///
    /// ```
    /// use cuda_mem::{Driver, MemoryPool};
    ///
    /// let device = Driver::simulated().device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let pool = MemoryPool::builder(&device).build()?;
    /// let numbers = pool.alloc_from(&stream, &[1_u32, 2, 3])?;
    /// assert_eq!(numbers.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[must_use]
    pub fn simulated() -> Self {
        let simulator = Machine::new().start();
        let simulator = simulator.unwrap_or_else(|error| panic!("no simulated driver: {error}"));
        let driver = Self::load_simulated(&simulator);
        driver.unwrap_or_else(|error| panic!("the simulated driver does not start: {error}"))
    }

    /// The driver of a simulated machine, initialised. Needs the feature `sim`.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    ///
    /// ```
    /// use cuda_mem::Driver;
    ///
    /// let simulator = cuda_sim::Machine::new().devices(2).start()?;
    /// assert_eq!(Driver::load_simulated(&simulator)?.device_count()?, 2);
    /// simulator.check()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn load_simulated(simulator: &Simulator) -> Result<Self> {
        // SAFETY: the file is the simulator, which behaves like a driver.
        unsafe { Self::load_from(simulator.path()) }
    }
}
