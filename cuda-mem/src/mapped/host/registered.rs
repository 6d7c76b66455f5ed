//! Memory of the program, registered with the driver.

use crate::driver::device::write_flags;
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bitflags::bitflags;
use bytemuck::Pod;
use cuda_driver_sys::{CUdevice_attribute, CUdeviceptr, CudaVersion};

use super::device_address;
use super::in_flight::{HostMemory, InFlightBuffer, sealed};
use crate::base::error::{Error, Failed, Result, took_effect};
use crate::base::report;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::memory::resource::require_known;
use crate::stream::Stream;
use crate::stream::context::Context;
use crate::stream::recording;

bitflags! {
    /// How memory is registered. The default is [`PORTABLE`](Self::PORTABLE) and [`MAPPED`](Self::MAPPED).
    ///
    /// ```
    /// use cuda_mem::mapped::RegisterFlags;
    /// assert_eq!(RegisterFlags::default(), RegisterFlags::PORTABLE | RegisterFlags::MAPPED);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RegisterFlags: u32 {
        /// Registered for every context of the process, not only for the current one.
        #[doc(alias = "CU_MEMHOSTREGISTER_PORTABLE")]
        const PORTABLE = 1;
        /// The devices get an address for it, so that kernels can use it.
        #[doc(alias = "CU_MEMHOSTREGISTER_DEVICEMAP")]
        const MAPPED = 2;
        /// Devices only read it. Not supported on all systems
        /// (`CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED`); CUDA 11.1.
        #[doc(alias = "CU_MEMHOSTREGISTER_READ_ONLY")]
        const READ_ONLY = 8;
    }
}

/// The names of its flags.
impl fmt::Display for RegisterFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_flags(f, self)
    }
}

impl Default for RegisterFlags {
    fn default() -> Self {
        Self::PORTABLE | Self::MAPPED
    }
}

/// Memory of the program that is registered with the driver until this guard is dropped: devices copy it at full speed
/// and without the host's help. The guard dereferences to the slice. From [`Context::register`] and
/// [`Context::register_boxed`].
///
/// The slice can be copied like any other, and the copy waits. Memory without a limited lifetime, such as a box, can
/// also be [lent](Self::lend) to a stream, for copies that do not wait and for kernels.
///
/// Registering does not wait for devices; unregistering, also by dropping the guard, waits for their streams.
///
/// Whole pages are pinned, so register large slices; for small ones use a
/// [`PinnedBuffer`](crate::mapped::PinnedBuffer). If a guard is leaked, the slice stays registered as long as the
/// context: its address range must then not be returned to the system, because copies of memory placed there later
/// would go wrong.
///
/// ```
/// # use cuda_mem::{Driver, MemoryPool};
/// # use cuda_mem::mapped::RegisterFlags;
/// # cuda_sim::use_if_no_driver();
/// # let device = Driver::load()?.device(0)?;
/// # let context = device.primary_context()?;
/// # let stream = context.stream()?;
/// # let pool = MemoryPool::builder(&device).build()?;
/// let mut numbers = vec![1.0f32; 1 << 20];
/// {
///     let mut numbers = context.register(&mut numbers, RegisterFlags::default())?;
///     let buffer = pool.alloc_from(&stream, &numbers)?;
///     numbers.fill(0.0);
///     buffer.copy_to(&mut numbers)?;
/// }                                       // unregistered here
/// assert_eq!(numbers[0], 1.0);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
///
/// While it is registered, the slice is borrowed by the guard:
///
/// ```compile_fail,E0506
/// # use cuda_mem::Context;
/// # use cuda_mem::mapped::RegisterFlags;
/// # fn example(context: Context) -> Result<(), cuda_mem::Error> {
/// let mut numbers = [1u32; 1000];
/// let registered = context.register(&mut numbers, RegisterFlags::default())?;
/// numbers[0] = 2; // error: borrowed
/// drop(registered);
/// # Ok(())
/// # }
/// ```
///
/// A stream could still use borrowed memory after the borrow ends, so it cannot be lent:
///
/// ```compile_fail,E0597
/// # use cuda_mem::{Context, Stream};
/// # use cuda_mem::mapped::RegisterFlags;
/// # fn example(context: Context, stream: Stream) -> Result<(), cuda_mem::Error> {
/// let mut numbers = [1u32; 1000];
/// let registered = context.register(&mut numbers, RegisterFlags::default())?;
/// registered.lend(&stream)?; // error: does not live long enough
/// # Ok(())
/// # }
/// ```
#[must_use = "the memory is registered only while the guard lives"]
pub struct Registered<'a, T: Pod> {
    at: NonNull<T>,
    len: usize,
    context: Context,
    flags: RegisterFlags,
    /// Registered with the driver: there are bytes, and they were not unregistered.
    is_registered: bool,
    /// The memory belongs to a box.
    is_boxed: bool,
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: it is as an exclusive borrow of the slice, and registrations may be ended on any thread.
unsafe impl<T: Pod + Send> Send for Registered<'_, T> {}
// SAFETY: a shared borrow only reads.
unsafe impl<T: Pod + Sync> Sync for Registered<'_, T> {}

impl Context {
    /// Registers a slice with the driver until the guard is dropped. No driver call if it is empty.
    ///
    /// # Errors
    ///
    /// [`AlreadyRegistered`](crate::ErrorKind::AlreadyRegistered) if a part of it is registered already;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if a part of it is pinned memory of the driver, and for flags
    /// other than [`RegisterFlags`]; [`NotSupported`](crate::ErrorKind::NotSupported) for
    /// [`READ_ONLY`](RegisterFlags::READ_ONLY) where the device does not support it;
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the system cannot pin that much; otherwise as the driver
    /// answers.
    #[doc(alias("cuMemHostRegister", "cudaHostRegister"))]
    #[track_caller]
    pub fn register<'a, T: Pod>(
        &self,
        memory: &'a mut [T],
        flags: RegisterFlags,
    ) -> Result<Registered<'a, T>> {
        let at = NonNull::from(&mut *memory).cast();
        // SAFETY: the guard has the exclusive borrow of the slice for its lifetime.
        unsafe { self.register_at(at, memory.len(), flags) }
    }

    /// Registers a slice that the guard owns. [`unregister`](Registered::unregister) returns it.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register). The box comes back with the error.
    ///
    /// ```
    /// # use cuda_mem::{Driver, MemoryPool};
    /// # use cuda_mem::mapped::RegisterFlags;
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let context = device.primary_context()?;
    /// # let stream = context.stream()?;
    /// # let pool = MemoryPool::builder(&device).build()?;
    /// let numbers = vec![7u32; 1 << 20].into_boxed_slice();
    /// let mut buffer = pool.alloc::<u32>(&stream, 1 << 20)?;
    ///
    /// let lent = context.register_boxed(numbers, RegisterFlags::default())?.lend(&stream)?;
    /// lent.copy_to(&mut buffer)?;             // does not wait
    /// let numbers = lent.take_back()?.unregister()?;
    /// # assert_eq!(numbers.as_deref(), Some(&buffer.to_vec()?[..]));
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuMemHostRegister", "cudaHostRegister"))]
    #[track_caller]
    pub fn register_boxed<T: Pod>(
        &self,
        memory: Box<[T]>,
        flags: RegisterFlags,
    ) -> Result<Registered<'static, T>, Failed<Box<[T]>>> {
        let len = memory.len();
        let raw = Box::into_raw(memory);
        // SAFETY: the pointer comes from a box, so it is not null.
        let at = unsafe { NonNull::new_unchecked(raw) }.cast();
        // SAFETY: the guard owns the memory from now on.
        match unsafe { self.register_at(at, len, flags) } {
            Ok(mut registered) => {
                registered.is_boxed = true;
                Ok(registered)
            }
            Err(error) if error.had_no_effect() || error.is_out_of_memory() => {
                // SAFETY: the box that was taken apart above; the driver does not know the memory.
                Err(Failed::new(error, unsafe { Box::from_raw(raw) }))
            }
            // The driver may have registered it despite the error, so the memory leaks.
            Err(error) => Err(Failed::lost(error)),
        }
    }

    /// # Safety
    ///
    /// `at` must be that of `len` elements which are the guard's alone while it lives.
    #[track_caller]
    unsafe fn register_at<'a, T: Pod>(
        &self,
        at: NonNull<T>,
        len: usize,
        flags: RegisterFlags,
    ) -> Result<Registered<'a, T>> {
        let bytes = len * size_of::<T>();
        if bytes > 0 {
            require_known(flags, RegisterFlags::all())?;
            self.require_read_only(flags)?;
            let table = self.driver().table();
            let _current = self.bind()?;
            // SAFETY: this context is current, and the caller vouches for the memory, which a guard keeps
            // until it is unregistered.
            recording::relaxed_while_capturing(table, || unsafe {
                raw::host::register(table, at.as_ptr().cast(), bytes, flags.bits())
            })
            .map_err(|error| error.asked(|| format!("{bytes} bytes at {at:p}, {flags}")))?;
        }
        let registered = Registered {
            at,
            len,
            context: self.clone(),
            flags,
            is_registered: bytes > 0,
            is_boxed: false,
            memory: PhantomData,
        };
        if bytes > 0 {
            ledger::insert(registered.item());
        }
        Ok(registered)
    }

    /// Some drivers answer NOT_SUPPORTED for other reasons too.
    fn require_read_only(&self, flags: RegisterFlags) -> Result<()> {
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
        if !flags.contains(RegisterFlags::READ_ONLY)
            || self
                .device()
                .query_since(attribute, CudaVersion::new(11, 1))?
                .unwrap_or(0)
                != 0
        {
            return Ok(());
        }
        Err(Error::not_supported(format!(
            "{} cannot register memory for devices that only read (READ_ONLY); register it without that \
             flag",
            self.device()
        )))
    }
}

impl<T: Pod> Registered<'_, T> {
    /// Number of bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The context that it was registered in, which it keeps alive.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The flags that it was registered with.
    #[must_use]
    pub fn flags(&self) -> RegisterFlags {
        self.flags
    }

    fn raw(&self) -> *mut c_void {
        self.at.as_ptr().cast()
    }

    /// The address of the memory on the device of `context`, which may differ from the host's; 0 if there are no bytes.
    /// A failure to [map](RegisterFlags::MAPPED) it is only reported here.
    ///
    /// If you pass it to a device, make sure that the host neither uses the slice nor drops the guard until the device
    /// is done. [`lend`](Self::lend) ensures that by itself.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the context is of another driver, or the memory is not
    /// mapped for it; otherwise any driver error.
    #[doc(alias = "cuMemHostGetDevicePointer")]
    pub fn device_address(&self, context: &Context) -> Result<CUdeviceptr> {
        let drivers = (self.context.driver(), context.driver());
        drivers.0.require_same(
            drivers.1,
            format_args!("the registered memory and the context"),
        )?;
        if !self.is_registered {
            return Ok(0);
        }
        // SAFETY: the memory is registered with this driver.
        unsafe { device_address(context, self.raw()) }
    }

    /// Ends the registration, as dropping does, and returns the result: the memory if it was a box, `None` if it was
    /// borrowed. Waits for all streams of the device, whatever work they have.
    ///
    /// # Errors
    ///
    /// [`NotRegistered`](crate::ErrorKind::NotRegistered) if other code has already unregistered it; otherwise as the
    /// driver answers. The guard comes back with the error, unless the driver may have ended the registration anyway.
    #[doc(alias("cuMemHostUnregister", "cudaHostUnregister"))]
    pub fn unregister(mut self) -> Result<Option<Box<[T]>>, Failed<Self>> {
        match self.release() {
            Ok(()) => Ok(self.take_box()),
            Err(error) if self.is_registered => Err(Failed::new(error, self)),
            Err(error) => {
                // It is unknown whether devices still access the memory of a box, so it leaks.
                self.is_boxed = false;
                Err(Failed::lost(error))
            }
        }
    }

    /// The entry in the ledger.
    fn item(&self) -> Item {
        Item::new(LedgerKind::RegisteredMemory, self.at.as_ptr())
            .of(self.context.driver())
            .bytes(self.size_bytes())
    }

    /// Ends the registration, if there is one; afterwards there is none, unless the driver certainly did nothing.
    fn release(&mut self) -> Result<()> {
        if !self.is_registered {
            return Ok(());
        }
        let table = self.context.driver().table();
        let _current = self.context.bind()?;
        let item = self.item();
        let noted = ledger::remove(&item);
        // SAFETY: the memory was registered in this context, which is current; streams that used it were
        // waited for when the memory came back.
        let ended = recording::with_relaxed_capture_mode(table, || unsafe {
            raw::host::unregister(table, self.raw())
        });
        if took_effect(&ended) {
            self.is_registered = false;
        } else {
            ledger::restore(&item, noted);
        }
        ended
    }

    /// Unregisters directly, without the precautions of [`release`](Self::release), after that failed: the borrow ends
    /// now, so even an invalidated capture does less harm. Returns whether it worked.
    fn release_bare(&mut self) -> bool {
        let table = self.context.driver().table();
        let item = self.item();
        let noted = ledger::remove(&item);
        // SAFETY: as in `release`, which had no effect. Without its context the driver may refuse.
        self.is_registered = unsafe { raw::host::unregister(table, self.raw()) }.is_err();
        if self.is_registered {
            ledger::restore(&item, noted);
        }
        !self.is_registered
    }

    /// Takes the box, if there is one.
    fn take_box(&mut self) -> Option<Box<[T]>> {
        if !mem::take(&mut self.is_boxed) {
            return None;
        }
        let slice = NonNull::slice_from_raw_parts(self.at, self.len);
        self.at = NonNull::dangling();
        self.len = 0;
        // SAFETY: `register_boxed` took a box of this slice apart, and nobody has the memory any more.
        Some(unsafe { Box::from_raw(slice.as_ptr()) })
    }
}

impl<T: Pod + Send + Sync> Registered<'static, T> {
    /// Lends the memory to a stream: copies and kernels there use it without the host waiting. The host can access it
    /// again after [`take_back`](InFlightBuffer::take_back).
    ///
    /// # Errors
    ///
    /// As [`device_address`](Self::device_address). The guard comes back with the error.
    #[doc(alias = "cuMemHostGetDevicePointer")]
    pub fn lend(self, stream: &Stream) -> Result<InFlightBuffer<Self>, Failed<Self>> {
        match self.device_address(stream.context()) {
            // SAFETY: nobody else ever uses the memory: it is a box, or borrowed for good.
            Ok(address) => Ok(unsafe { InFlightBuffer::new(self, address, stream) }),
            Err(error) => Err(Failed::new(error, self)),
        }
    }
}

impl<T: Pod + Send + Sync> HostMemory for Registered<'static, T> {}

impl<T: Pod + Send + Sync> sealed::Range for Registered<'static, T> {
    type Element = T;

    fn range(&self) -> (NonNull<T>, usize) {
        (self.at, self.len)
    }

    fn is_writable(&self) -> bool {
        !self.flags.contains(RegisterFlags::READ_ONLY)
    }
}

impl<T: Pod> Deref for Registered<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the slice is this guard's alone, and no stream has it, as it is not in flight.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for Registered<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and this is the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T: Pod> Drop for Registered<'_, T> {
    fn drop(&mut self) {
        report::release("registered memory", || {
            let ended = self.release();
            if ended.is_ok() || self.is_registered && self.release_bare() {
                drop(self.take_box());
            }
            ended
        });
        // A box is still there if that failed: devices may access it, so it leaks.
    }
}

impl<T: Pod> fmt::Debug for Registered<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("address", &self.at)
            .field("len", &self.len)
            .field("element", &std::any::type_name::<T>())
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}
