//! Memory that is registered with communicators as long as it is allocated.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use cuda_driver_sys::CUdeviceptr;

use super::communicator::Communicator;
use super::registration::Registration;
use super::wait::Wait;
use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::driver::device::Device;
use crate::driver::location::Location;
use crate::driver::pointer::MemoryKind;
use crate::mapped::{MappedMemory, MappedMemoryBuilder};
use crate::memory::resource::{
    DeviceSet, MemoryProperties, MemoryResource, wait_by_and_free, wrong_device,
};
use crate::stream::Stream;

/// Memory for collective operations. Each block is one piece of physical memory of its own, made as
/// [`MappedMemory::collective`] makes it, and registered with the communicators from its allocation to its free.
///
/// Blocks take whole large pages, and making one takes a fraction of a millisecond, so put an [`Arena`](crate::Arena) over it: all
/// buffers of the arena are then registered memory, each within one piece.
///
/// A free waits for the stream, as long as the communicator's [time](super::CommunicatorBuilder::timeout) lasts. If the communicator has
/// operations in the stream that the host has not seen done, it is aborted then, or as soon as it has failed, or a second after the
/// thread began to panic. If something else holds the stream up, the free is refused with
/// [`TimedOut`](crate::ErrorKind::TimedOut) and the memory stays registered; a buffer that is dropped is then freed once the stream is
/// done.
///
/// If NCCL does not end the registration of a window in time, the communicator is aborted; if even that fails, the memory is leaked, with a
/// report, because NCCL may still use it.
///
/// With [`windows`](RegisteredResourceBuilder::windows) the memory is also a window of NCCL, at a second address: operations of up to
/// 32 KiB on such memory use that, because they are faster there, and longer ones do not, because they are slower.
/// [`Communicator::uses_window`] says which.
///
/// ```
/// use cuda_mem::{Arena, Driver};
/// use cuda_mem::collective::{Nccl, ReduceOp, RegisteredResource};
///
/// # cuda_sim::use_if_no_driver();
/// # nccl_sim::use_if_no_nccl();
/// let context = Driver::load()?.device(0)?.primary_context()?;
/// let stream = context.stream()?;
/// let communicators = Nccl::load()?.communicators(&[context]).join()?;
/// let communicator = &communicators[0];
///
/// let arena = Arena::over(RegisteredResource::builder(communicator).build()?);
/// let mut gradients = arena.alloc_from(&stream, &[1.0f32, 2.0, 3.0])?;
/// communicator.all_reduce_in_place(&mut gradients, ReduceOp::Average)?;
/// communicator.synchronize(&stream)?; // has a limit; `to_vec` alone would wait for ever if another rank were lost
/// assert_eq!(gradients.to_vec()?, [1.0, 2.0, 3.0]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct RegisteredResource {
    device: Device,
    properties: MemoryProperties,
    recipe: MappedMemoryBuilder,
    communicators: Vec<Communicator>,
    has_windows: bool,
    blocks: Lock<BTreeMap<CUdeviceptr, Block>>,
}

/// Memory, and its registrations, which end before it is unmapped.
struct Block {
    registrations: Vec<Registration>,
    /// `None` only while it is dropped. The second one is the same memory at another address.
    memory: Option<(MappedMemory, Option<MappedMemory>)>,
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut is_over = true;
        for registration in self.registrations.drain(..) {
            is_over &= registration.end();
        }
        if !is_over {
            // NCCL may still use it. That was reported.
            std::mem::forget(self.memory.take());
        }
    }
}

/// Settings of a [`RegisteredResource`].
#[must_use]
pub struct RegisteredResourceBuilder {
    communicators: Vec<Communicator>,
    has_windows: bool,
}

impl RegisteredResource {
    /// Memory of the communicator's device, registered with it.
    pub fn builder(communicator: &Communicator) -> RegisteredResourceBuilder {
        RegisteredResourceBuilder {
            communicators: vec![communicator.share()],
            has_windows: false,
        }
    }

    #[track_caller]
    fn make(&self, bytes: usize) -> Result<(CUdeviceptr, Block)> {
        let memory = self.recipe.clone().build(bytes as u64)?;
        let range = (memory.address(), memory.size_bytes() as usize);
        let alias = match self.has_windows {
            false => None,
            true => {
                let parts: Vec<_> = memory.parts().cloned().collect();
                Some(self.recipe.clone().build_from(parts)?)
            }
        };
        let second = alias.as_ref().map(MappedMemory::address);
        let mut block = Block {
            registrations: Vec::new(),
            memory: Some((memory, alias)),
        };
        for communicator in &self.communicators {
            // SAFETY: the block ends the registrations before it unmaps the memory, also if this fails later.
            let local = unsafe { Registration::local(communicator, range) }?;
            block.registrations.push(local);
        }
        if let Some(second) = second {
            for communicator in &self.communicators {
                // SAFETY: as above, and both addresses are of the same physical memory.
                let window = unsafe { Registration::window(communicator, range, second) }?;
                block.registrations.push(window);
            }
        }
        Ok((range.0, block))
    }
}

impl RegisteredResource {
    /// How long a stream may take after an abort to leave the work that it waited for.
    const AFTER_ABORT: Duration = Duration::from_secs(10);

    /// Waits until everything in the stream is done, with a limit, and aborts communicators whose operations hold it up. After an
    /// error nothing has changed.
    fn wait_for(&self, stream: &Stream) -> Result<()> {
        let times = self.communicators.iter().map(Communicator::timeout);
        let mut limit = times.max().unwrap_or_default();
        let wait = Wait::new("the work in the stream", Duration::MAX);
        stream.synchronize_by(|| {
            let waited = wait.elapsed();
            for communicator in &self.communicators {
                if communicator.abort_if_stuck(stream, waited) {
                    limit = waited + Self::AFTER_ABORT;
                }
            }
            if waited < limit {
                wait.rest();
                return Ok(());
            }
            Err(Error::not_in_time(format!(
                "{stream} is not done after {waited:.1?}, so the memory stays registered; free it once the stream is done"
            )))
        })
    }
}

impl RegisteredResourceBuilder {
    /// Registers the memory with another communicator too, of the same device. One that is named twice counts once.
    pub fn and_with(mut self, communicator: &Communicator) -> Self {
        self.communicators.push(communicator.share());
        self
    }

    /// Registers the memory as windows too. **All ranks must then allocate the same sizes in the same order**, and free them so: each
    /// waits for the others. An arena that takes all its memory at once
    /// ([`initial_bytes`](crate::arena::ArenaBuilder::initial_bytes)) does so once. Needs NCCL 2.27.
    #[doc(alias = "ncclCommWindowRegister")]
    pub fn windows(mut self, wanted: bool) -> Self {
        self.has_windows = wanted;
        self
    }

    /// Creates the resource, which has no memory yet.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the communicators are of several devices; otherwise as
    /// [`MappedMemory::collective`].
    #[doc(alias("ncclCommRegister", "ncclMemAlloc"))]
    pub fn build(self) -> Result<RegisteredResource> {
        let mut communicators: Vec<Communicator> = Vec::new();
        for communicator in self.communicators {
            if !communicators
                .iter()
                .any(|known| known.is_same(&communicator))
            {
                communicators.push(communicator);
            }
        }
        let mut devices = communicators.iter().map(Communicator::device);
        let Some(device) = devices.next() else {
            return Err(Error::invalid("no communicator".to_owned()));
        };
        if let Some(other) = devices.find(|other| *other != device) {
            return Err(Error::invalid(format!(
                "communicators of {device} and of {other}; memory is of one device"
            )));
        }
        let driver = device.driver();
        let mut reached = DeviceSet::none(driver).with(device);
        for peer in driver.devices()? {
            if peer != device && peer.can_access_peer(&device)? {
                reached = reached.with(peer);
            }
        }
        Ok(RegisteredResource {
            device,
            properties: MemoryProperties {
                devices: reached,
                ..MemoryProperties::of_device(device)
            },
            recipe: MappedMemory::collective(&device)?,
            communicators,
            has_windows: self.has_windows,
            blocks: Lock::default(),
        })
    }
}

// SAFETY: every block is physical memory of its own, whole pages, which the device and its peers access. Before it is unmapped,
// the host waits for the stream and NCCL forgets it.
unsafe impl MemoryResource for RegisteredResource {
    #[doc(alias("cuMemCreate", "ncclCommRegister"))]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        if !self.properties.reaches(stream.device()) {
            return Err(wrong_device(self, stream));
        }
        if layout.size() == 0 {
            return Ok(0);
        }
        let (address, block) = self.make(layout.size())?;
        self.blocks.lock()?.insert(address, block);
        Ok(address)
    }

    #[doc(alias("cuMemUnmap", "ncclCommDeregister"))]
    unsafe fn deallocate(&self, address: CUdeviceptr, _: Layout, stream: &Stream) -> Result<()> {
        wait_by_and_free(
            address,
            stream,
            || self.wait_for(stream),
            || {
                let block = self.blocks.lock()?.remove(&address);
                drop(block);
                Ok(())
            },
        )
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.properties
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn waits_to_free(&self) -> bool {
        true
    }
}

impl fmt::Debug for RegisteredResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = Location::Device(self.device);
        write!(f, "RegisteredResource({device})")
    }
}

impl fmt::Debug for RegisteredResourceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredResourceBuilder")
            .field("communicators", &self.communicators)
            .field("windows", &self.has_windows)
            .finish()
    }
}
