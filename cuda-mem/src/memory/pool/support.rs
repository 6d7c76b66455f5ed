//! Whether a pool can be created, determined without creating one where possible.

use cuda_driver_sys::{CUdevice_attribute, CudaVersion};

use super::{PoolBuilder, sharing};
use crate::base::error::Result;
use crate::base::lock::Lock;
use crate::base::report::HookDeferringGuard;
use crate::driver::Driver;
use crate::driver::capabilities::{Capability, Reason, Support};
use crate::driver::device::HandleTypes;
use crate::driver::location::{AllocationType, Location};

/// The properties that decide whether a pool can be created, beyond what attributes report.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Question {
    driver: Driver,
    location: Location,
    allocation_type: AllocationType,
    handle_types: HandleTypes,
    hw_decompress: bool,
}

/// Questions that were answered by creating a pool.
static ANSWERS: Lock<Vec<(Question, Support)>> = Lock::new(Vec::new());

impl PoolBuilder {
    /// Whether such a pool can be created. Where the device's attributes do not say, or are known to report support
    /// wrongly, a pool is created and destroyed, once per process; the answer is cached. Creates no context.
    ///
    /// Access of other devices is not checked; see [`Device::can_access_peer`](crate::Device::can_access_peer).
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for incompatible options, as in [`build`](Self::build);
    /// otherwise any error of the driver's queries.
    ///
    /// ```
    /// use cuda_mem::{Driver, MemoryPool};
    /// use cuda_mem::driver::{HandleTypes, Support};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let shared = MemoryPool::builder(&device).handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR);
    /// match shared.support()? {
    ///     Support::Yes => println!("pools can be shared with other processes"),
    ///     Support::No(reason) => println!("pools cannot be shared: {reason}"),
    /// }
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn support(&self) -> Result<Support> {
        if let Some((_, since)) = self.newest_need() {
            let found = self.driver.version();
            if found < since {
                return Ok(Support::No(Reason::DriverTooOld { since, found }));
            }
        }
        self.props()?;
        if let Some(no) = self.told_by_attributes()? {
            return Ok(no);
        }
        self.try_once()
    }

    /// A negative answer that needs no trial.
    fn told_by_attributes(&self) -> Result<Option<Support>> {
        use CUdevice_attribute as A;
        let pinned = self.allocation_type == AllocationType::Pinned;
        let no = Some(Support::No(Reason::Device));
        if let Location::Device(device) = self.location {
            let pools = device.support(Capability::MemoryPools)?;
            if !pools.is_yes() {
                return Ok(Some(pools));
            }
            // Drivers before 11.3 do not know the mask, but may still support the handle types (R2).
            let mask = device.query_since(
                A::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
                CudaVersion::new(11, 3),
            )?;
            let offered = mask.map(|mask| HandleTypes::from_bits_retain(mask.cast_unsigned()));
            if offered.is_some_and(|offered| !offered.contains(self.handle_types)) {
                return Ok(no);
            }
            // The driver creates such a pool even if there is no such engine (measured).
            let engine = A::CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK;
            if self.hw_decompress && device.query_since(engine, CudaVersion::new(12, 8))? == Some(0)
            {
                return Ok(no);
            }
        }
        // Which drivers know which attribute: R4. A driver that does not know it gives no answer.
        let capability = match self.location {
            Location::Host if pinned => Capability::HostMemoryPools,
            Location::HostNuma(_) if pinned => Capability::HostNumaMemoryPools,
            // Every device of the machine must have it (R5).
            _ if !pinned => Capability::ConcurrentManagedAccess,
            _ => return Ok(None),
        };
        for device in self.driver.devices()? {
            if Some(device.support(capability)?) == no {
                return Ok(no);
            }
        }
        Ok(None)
    }

    fn try_once(&self) -> Result<Support> {
        let question = Question {
            driver: self.driver,
            location: self.location,
            allocation_type: self.allocation_type,
            handle_types: self.handle_types,
            hw_decompress: self.hw_decompress,
        };
        // Held over the trial, so that there is only one.
        let mut answers = ANSWERS.lock().map(HookDeferringGuard::new)?;
        let known = answers.iter().find(|(asked, _)| *asked == question);
        if let Some((_, answer)) = known {
            return Ok(*answer);
        }
        let answer = match self.create() {
            Ok(pool) => {
                // SAFETY: made just now, and nothing came from it.
                unsafe { sharing::destroy(self.driver, pool) }?;
                Support::Yes
            }
            Err(error) => match error.code() {
                // Any other error says nothing about the machine: try again next time.
                Some(code)
                    if error.function() == Some("cuMemPoolCreate") && error.is_inability() =>
                {
                    Support::No(Reason::Refused(code))
                }
                _ => return Err(error),
            },
        };
        answers.push((question, answer));
        Ok(answer)
    }
}
