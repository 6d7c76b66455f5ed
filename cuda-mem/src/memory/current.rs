//! The resource that containers use when none is given.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;

use crate::base::error::{Error, Result};
use crate::base::lock::SharedLock;
use crate::driver::device::Device;
use crate::memory::resource::{MemoryResource as _, Resource};

/// The resources set by the program, by device. Never dropped, so no destructor of it runs at process exit.
static SET: SharedLock<Vec<(Device, Resource)>> = SharedLock::new(Vec::new());

/// A resource selected by one thread.
struct Scope {
    number: u64,
    device: Device,
    resource: Resource,
}

thread_local! {
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
}

impl Device {
    /// The resource that containers of this device use when none is given: that of the innermost
    /// [scope](Self::use_resource) of this thread, otherwise the one [set](Self::set_current_resource) for the
    /// process, otherwise the [default](Self::default_resource).
    ///
    /// # Errors
    ///
    /// Same as [`default_resource`](Self::default_resource).
    pub fn current_resource(&self) -> Result<Resource> {
        // First, because it fails in a fork. A scope opened before the fork belongs to the parent.
        let set = SET.read()?;
        let scoped = SCOPES.try_with(|scopes| {
            let scopes = scopes.try_borrow().ok()?;
            let innermost = scopes.iter().rev().find(|scope| scope.device == *self)?;
            Some(innermost.resource.clone())
        });
        if let Ok(Some(resource)) = scoped {
            return Ok(resource);
        }
        if let Some((_, resource)) = set.iter().find(|(device, _)| device == self) {
            return Ok(resource.clone());
        }
        drop(set);
        self.default_resource()
    }

    /// Makes `resource` the current one of this device for the whole process. Existing containers keep theirs.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the device cannot access its memory.
    ///
    /// ```
    /// use cuda_mem::{Driver, Resource};
    /// use cuda_mem::memory::{DeviceVec, LimitAdaptor};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let limited = Resource::new(LimitAdaptor::new(device.default_resource()?, 1 << 20));
    /// device.set_current_resource(&limited)?;
    /// assert!(DeviceVec::<u8>::zeroed(&stream, 2 << 20).is_err());
    /// device.reset_current_resource()?;
    /// DeviceVec::<u8>::zeroed(&stream, 2 << 20)?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn set_current_resource(&self, resource: &Resource) -> Result<()> {
        self.require_reach_of(resource)?;
        self.replace_current(Some(resource.clone()))
    }

    /// Makes the [default](Self::default_resource) the current one again, for the whole process.
    ///
    /// # Errors
    ///
    /// [`Forked`](crate::ErrorKind::Forked) in a fork.
    pub fn reset_current_resource(&self) -> Result<()> {
        self.replace_current(None)
    }

    fn replace_current(&self, resource: Option<Resource>) -> Result<()> {
        let mut set = SET.write()?;
        let at = set.iter().position(|(device, _)| device == self);
        let before = at.map(|at| set.swap_remove(at));
        set.extend(resource.map(|resource| (*self, resource)));
        drop(set);
        // Not under the lock: its destructor may call back into this module.
        drop(before);
        Ok(())
    }

    /// Makes `resource` the current one of this device on this thread, until the guard is dropped. Scopes can be
    /// nested.
    ///
    /// # Errors
    ///
    /// Same as [`set_current_resource`](Self::set_current_resource).
    ///
    /// ```
    /// use cuda_mem::{Driver, Resource};
    /// use cuda_mem::memory::{DeviceVec, PinnedResource};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let device = driver.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let staging = {
    ///     let _pinned = device.use_resource(&Resource::new(PinnedResource::new(driver)))?;
    ///     DeviceVec::from_slice(&stream, &[1u8, 2, 3])?
    /// };
    /// assert_eq!(staging.device(), None); // it is the host's
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn use_resource(&self, resource: &Resource) -> Result<ScopedResource> {
        self.require_reach_of(resource)?;
        let number = NEXT.with(|next| next.replace(next.get() + 1));
        let scope = Scope {
            number,
            device: *self,
            resource: resource.clone(),
        };
        let opened = SCOPES.try_with(|scopes| scopes.borrow_mut().push(scope));
        if opened.is_err() {
            let text = "this thread is ending, and can have no scope any more".to_owned();
            return Err(Error::not_supported(text));
        }
        Ok(ScopedResource {
            number,
            not_send: PhantomData,
        })
    }

    fn require_reach_of(&self, resource: &Resource) -> Result<()> {
        if resource.memory_properties().reaches(*self) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{self} does not reach the memory of {resource:?}"
        )))
    }
}

/// A guard that keeps a resource current on this thread. From [`Device::use_resource`].
///
/// It cannot leave the thread that opened it:
///
/// ```compile_fail,E0277
/// # fn example(device: cuda_mem::Device, resource: cuda_mem::Resource) {
/// let scope = device.use_resource(&resource).unwrap();
/// std::thread::scope(|threads| {
///     threads.spawn(move || drop(scope)); // error: cannot be sent between threads
/// });
/// # }
/// ```
#[must_use = "the resource is current only while the guard lives"]
pub struct ScopedResource {
    number: u64,
    not_send: PhantomData<*mut ()>,
}

impl Drop for ScopedResource {
    fn drop(&mut self) {
        let removed = SCOPES.try_with(|scopes| {
            let mut scopes = scopes.try_borrow_mut().ok()?;
            let at = scopes
                .iter()
                .position(|scope| scope.number == self.number)?;
            Some(scopes.remove(at))
        });
        // Not while the list is borrowed: its destructor may call back into this module.
        drop(removed);
    }
}

impl fmt::Debug for ScopedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedResource").finish_non_exhaustive()
    }
}
