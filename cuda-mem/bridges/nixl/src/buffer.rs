//! Buffers of cuda-mem that NIXL registers.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytemuck::Pod;
use cuda_mem::base::is_forked;
use cuda_mem::interop::FlushScope;
use cuda_mem::{DeviceBuffer, DeviceSlice, DeviceSliceMut, ErrorKind, Stream};
use nixl_sys::{Agent, OptArgs};

use crate::descriptor::Descriptor;
use crate::error::{Error, Refused, Result};
use crate::reach;
use crate::registrations::Registrations;

/// Bytes that destructors could not free.
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// How many bytes were leaked, since the process started, because a registration could not be ended when a [`Buffer`] was
/// dropped. The ledger of cuda-mem lists their buffers as alive.
///
/// ```
/// assert_eq!(cuda_mem_nixl::leaked_bytes(), 0);
/// ```
#[must_use]
pub fn leaked_bytes() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

/// A [`DeviceBuffer`] of cuda-mem that NIXL can register and transfer. It owns the memory and its registrations, and ends these
/// before it frees the memory.
///
/// ```
/// # cuda_sim::use_if_no_driver();
/// use cuda_mem::Driver;
/// use cuda_mem::mapped::MappedMemory;
/// use cuda_mem_nixl::Buffer;
///
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let memory = MappedMemory::collective(&device)?.build(4 << 20)?; // one piece, which network cards reach
/// let mut cache = Buffer::new(memory.into_buffer::<f32>(&stream, 1 << 20)?.into_buffer())?;
/// cache.memory_mut()?.fill(1.0)?;
///
/// if let Ok(agent) = cuda_mem_nixl::agent("decoder") {
///     cache.register(&agent, None)?; // waits for the fill
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Order
///
/// NIXL knows nothing of streams: it reads and writes at once. So [`register`](Self::register),
/// [`descriptor`](Self::descriptor) and [`descriptor_mut`](Self::descriptor_mut) wait on the host until the memory's stream has
/// done everything before. Work that is submitted later has to be waited for again, with [`synchronize`](Self::synchronize), before
/// you let another agent read it.
///
/// [`memory`](Self::memory) and [`memory_mut`](Self::memory_mut) flush what a network card may have written, if the device needs
/// that, so that work submitted afterwards sees it. Take them again after each transfer.
///
/// # Other agents
///
/// As long as the memory is registered, every agent that has its metadata may read and write it, without asking. What such an
/// agent does at the same time as work in the stream makes the contents unspecified, and nothing worse: all bit
/// patterns are values of `T`, and no reference to the contents is ever given out.
///
/// # Lifetime
///
/// Memory that NIXL may use cannot be freed. That nothing reaches it after a registration has ended is NIXL's promise, on
/// which this type relies. A buffer cannot be registered without its knowledge:
///
/// ```compile_fail,E0277
/// # fn example(agent: nixl_sys::Agent, buffer: cuda_mem_nixl::Buffer<u8>) {
/// let handle = agent.register_memory(&buffer, None); // error: not a NixlDescriptor
/// # }
/// ```
///
/// nor freed or taken apart while a descriptor of it exists:
///
/// ```compile_fail,E0505
/// # fn example(buffer: cuda_mem_nixl::Buffer<u8>) -> Result<(), cuda_mem_nixl::Error> {
/// // SAFETY: nothing is transferred.
/// let descriptor = unsafe { buffer.descriptor() }?;
/// drop(buffer); // error: borrowed
/// println!("{descriptor:?}");
/// # Ok(())
/// # }
/// ```
///
/// nor written while NIXL may write:
///
/// ```compile_fail,E0499
/// # fn example(mut buffer: cuda_mem_nixl::Buffer<u8>) -> Result<(), cuda_mem_nixl::Error> {
/// // SAFETY: nothing is transferred.
/// let descriptor = unsafe { buffer.descriptor_mut() }?;
/// buffer.memory_mut()?.fill(0)?; // error: borrowed
/// println!("{descriptor:?}");
/// # Ok(())
/// # }
/// ```
pub struct Buffer<T: Pod> {
    registrations: Registrations,
    /// Dropped only when no registration is left.
    memory: ManuallyDrop<DeviceBuffer<T>>,
    device: u32,
    /// Whether network cards may reach the memory.
    is_for_network_card: bool,
    /// Whether NIXL may have written to the memory.
    is_exposed: AtomicBool,
}

impl<T: Pod> Buffer<T> {
    /// Takes memory that a network card can register. Asks the driver about it, and does not wait.
    ///
    /// Memory of [`MappedMemory::collective`](cuda_mem::mapped::MappedMemory::collective) can be registered, also through an arena over
    /// a [`RegisteredResource`](cuda_mem::collective::RegisteredResource), and so can memory of `cuMemAlloc`
    /// ([`DirectResource`](cuda_mem::memory::DirectResource)).
    ///
    /// # Errors
    ///
    /// With the memory: [`PoolMemory`](crate::Error::PoolMemory), [`NotGpuDirect`](crate::Error::NotGpuDirect),
    /// [`DeviceNotGpuDirect`](crate::Error::DeviceNotGpuDirect), [`SeveralPieces`](crate::Error::SeveralPieces),
    /// [`NotDeviceMemory`](crate::Error::NotDeviceMemory), [`NoBytes`](crate::Error::NoBytes); otherwise any driver error. A
    /// driver that is too old to tell whether network cards reach the memory refuses nothing here; NIXL does then.
    #[allow(clippy::result_large_err, reason = "the memory comes back")]
    pub fn new(memory: DeviceBuffer<T>) -> Result<Self, Refused<DeviceBuffer<T>>> {
        match reach::device_for_network_card(&memory) {
            Ok(device) => Ok(Self::on_device(memory, device, true)),
            Err(error) => Err(Refused::new(error, memory)),
        }
    }

    /// Takes any device memory, for backends of NIXL that copy through the host or between GPUs of one host. A backend that
    /// wants to register the memory with a network card fails, or copies.
    ///
    /// # Errors
    ///
    /// With the memory: [`NotDeviceMemory`](crate::Error::NotDeviceMemory), [`NoBytes`](crate::Error::NoBytes); otherwise any
    /// driver error.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// use cuda_mem::Driver;
    /// use cuda_mem_nixl::Buffer;
    ///
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let memory = device.default_pool()?.alloc::<u8>(&stream, 1000)?;
    /// let buffer = Buffer::without_network_card(memory)?;
    /// # let _ = buffer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::result_large_err, reason = "the memory comes back")]
    pub fn without_network_card(memory: DeviceBuffer<T>) -> Result<Self, Refused<DeviceBuffer<T>>> {
        match reach::device_of(&memory) {
            Ok(device) => Ok(Self::on_device(memory, device, false)),
            Err(error) => Err(Refused::new(error, memory)),
        }
    }

    fn on_device(memory: DeviceBuffer<T>, device: u32, is_for_network_card: bool) -> Self {
        Self {
            registrations: Registrations::default(),
            memory: ManuallyDrop::new(memory),
            device,
            is_for_network_card,
            is_exposed: AtomicBool::new(false),
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there are no elements: never, because memory without bytes is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The stream in whose order cuda-mem uses the memory.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.memory.stream()
    }

    /// Registers all of the memory with an agent, until [`deregister`](Self::deregister) or the buffer's end. Waits until the
    /// memory's stream has done everything before. `options` name the backends; NIXL takes all that can if there are none.
    ///
    /// The agent stays alive as long.
    ///
    /// # Errors
    ///
    /// Any driver error, and what NIXL answers. Nothing is registered then.
    pub fn register(&mut self, agent: &Agent, options: Option<&OptArgs>) -> Result<()>
    where
        T: Send + Sync,
    {
        // SAFETY: the descriptor is used for one registration, whose handle ends before the memory is freed.
        let descriptor = unsafe { self.descriptor_mut() }?;
        let handle = agent.register_memory(&descriptor, options)?;
        self.registrations.add(handle);
        Ok(())
    }

    /// How many registrations there are.
    #[must_use]
    pub fn registrations(&self) -> usize {
        self.registrations.count()
    }

    /// Ends all registrations. Other agents must have stopped using the memory, or their transfers fail.
    ///
    /// # Errors
    ///
    /// [`MayBeRegistered`](crate::Error::MayBeRegistered), now and ever after: the memory is never freed then. nixl-sys does not say
    /// whether NIXL has refused to end a registration, so this is found only if the call could not be made.
    pub fn deregister(&mut self) -> Result<()> {
        self.registrations.end()
    }

    /// The memory for transfers that only read it, such as a write to another agent. Waits until the memory's stream has done
    /// everything before. cuda-mem can read the memory meanwhile.
    ///
    /// # Errors
    ///
    /// Any driver error.
    ///
    /// # Safety
    ///
    /// nixl-sys keeps addresses without lifetimes, so the caller must ensure that, **before the borrow ends**, also if the
    /// descriptor or a list of it is leaked:
    ///
    /// - every transfer that was made of it, of its parts or copies has ended: NIXL has said that it is complete. Dropping the
    ///   request of a transfer that runs is not enough: NIXL only asks for its end;
    /// - every registration (`Agent::register_memory`), prepared list and view that was made of it has ended.
    ///
    /// NIXL must not write to the memory through it.
    pub unsafe fn descriptor(&self) -> Result<Descriptor<'_, T>> {
        // Readers on other streams may go on.
        self.memory.as_slice().wait_for_pending_uses()?;
        self.stream().synchronize()?;
        Ok(Descriptor::new(self.memory.as_slice(), self.device))
    }

    /// The memory for transfers that may write it, such as a read from another agent. Waits until the memory's stream has
    /// done everything before. cuda-mem cannot use the memory meanwhile.
    ///
    /// # Errors
    ///
    /// Any driver error.
    ///
    /// # Safety
    ///
    /// As for [`descriptor`](Self::descriptor), but NIXL may write to the memory.
    pub unsafe fn descriptor_mut(&mut self) -> Result<Descriptor<'_, T>> {
        self.synchronize()?;
        *self.is_exposed.get_mut() = true;
        Ok(Descriptor::new(self.memory.as_slice(), self.device))
    }

    /// Waits on the host until everything that was submitted to the memory's stream is done, and uses on other streams that
    /// it has to wait for. Afterwards you may let another agent read or write the memory.
    ///
    /// # Errors
    ///
    /// Any driver error, including faults of that work.
    pub fn synchronize(&mut self) -> Result<()> {
        self.memory.wait_for_pending_uses()?;
        Ok(self.stream().synchronize()?)
    }

    /// The memory, for reading through cuda-mem.
    ///
    /// # Errors
    ///
    /// Any driver error; [`NotSupported`](cuda_mem::ErrorKind::NotSupported) if network cards may have written, the device does not
    /// order their writes, and the host cannot flush them, as with drivers before CUDA 11.3.
    pub fn memory(&self) -> Result<DeviceSlice<'_, T>> {
        self.flush()?;
        Ok(self.memory.as_slice())
    }

    /// The memory, for writing through cuda-mem. If it is registered, other agents must not use it meanwhile.
    ///
    /// # Errors
    ///
    /// As [`memory`](Self::memory).
    // No `&mut DeviceBuffer`: it could be exchanged for another one.
    pub fn memory_mut(&mut self) -> Result<DeviceSliceMut<'_, T>> {
        self.flush()?;
        Ok(self.memory.as_mut_slice())
    }

    /// Ends all registrations, and returns the memory. What network cards have written is flushed as for
    /// [`memory`](Self::memory); where the host cannot do that, the memory comes back without, and a stream's memory operations
    /// have to flush.
    ///
    /// # Errors
    ///
    /// As [`deregister`](Self::deregister), and any driver error, with the buffer.
    #[allow(clippy::result_large_err, reason = "the buffer comes back")]
    pub fn into_memory(mut self) -> Result<DeviceBuffer<T>, Refused<Self>> {
        match self.deregister().and_then(|()| self.flush()) {
            Ok(()) => {}
            // Nothing else could get the memory out.
            Err(Error::CudaMem(error)) if error.kind() == ErrorKind::NotSupported => {}
            Err(error) => return Err(Refused::new(error, self)),
        }
        let mut this = ManuallyDrop::new(self);
        drop(mem::take(&mut this.registrations));
        // SAFETY: the destructor does not run, so nothing uses the field again.
        Ok(unsafe { ManuallyDrop::take(&mut this.memory) })
    }

    /// Makes what network cards have written visible to work that is submitted from now on.
    fn flush(&self) -> Result<()> {
        if !self.is_for_network_card || !self.is_exposed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let context = self.stream().context();
        if context.device().ordinal() == self.device {
            return Ok(context.flush_gpu_direct_writes(FlushScope::Owner)?);
        }
        // The stream is of a peer. The memory's own device flushes, for all to see.
        let owner = context.device().driver().device(self.device as usize)?;
        let context = owner.primary_context()?;
        Ok(context.flush_gpu_direct_writes(FlushScope::AllDevices)?)
    }
}

impl<T: Pod> Drop for Buffer<T> {
    fn drop(&mut self) {
        if is_forked() {
            // The registrations are the parent's; cuda-mem knows by itself what to do with the memory.
            self.registrations.abandon();
        } else if self.registrations.end().is_err() {
            // A network card may still write there.
            LEAKED.fetch_add(self.memory.size_bytes() as u64, Ordering::Relaxed);
            return;
        }
        // SAFETY: this is the destructor, and the field is not used again.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

impl<T: Pod> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("memory", &*self.memory)
            .field("device", &self.device)
            .field("registrations", &self.registrations.count())
            .finish_non_exhaustive()
    }
}
