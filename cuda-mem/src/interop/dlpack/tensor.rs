//! A tensor that is owned, whoever made it.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::abi::{DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, TensorFlags};
use crate::base::error::{Error, Failed, Result};
use crate::base::report;

/// A tensor for another library, or from one. Dropping it calls its deleter, which gives the memory back.
///
/// [`new`](Self::new) and [`builder`](Self::builder) make one of a [`DeviceBuffer`](crate::DeviceBuffer), and
/// [`into_raw`](Self::into_raw) hands it out. To use the memory of another library, see
/// [`ImportedTensor`](super::ImportedTensor).
///
/// In a fork nothing is given back: the memory belongs to the parent.
#[must_use = "dropping it gives the memory back"]
pub struct ManagedTensor(NonNull<DLManagedTensorVersioned>);

// SAFETY: the struct is only read, and its deleter may be called on any thread: `export` requires elements that may be
// dropped there, and `from_raw` demands it of its caller.
unsafe impl Send for ManagedTensor {}
// SAFETY: a shared borrow only reads the struct, which nobody writes meanwhile.
unsafe impl Sync for ManagedTensor {}

impl ManagedTensor {
    /// Takes over a tensor: from now on nobody else may call its deleter. For one that
    /// [`ImportedTensor::from_raw`](super::ImportedTensor::from_raw) has refused, or that is not needed after all.
    ///
    /// # Safety
    ///
    /// The pointer is not null, and points to a tensor that nobody else will read or delete. Its deleter may be called
    /// on any thread.
    pub unsafe fn from_raw(raw: *mut DLManagedTensorVersioned) -> Self {
        // SAFETY: the caller vouches that it is not null.
        Self(unsafe { NonNull::new_unchecked(raw) })
    }

    /// As [`from_raw`](Self::from_raw), for a tensor in the form before DLPack 1.0. It gets a version; nothing is
    /// copied but the description.
    ///
    /// # Safety
    ///
    /// The same conditions, and the tensor's description must be valid.
    pub unsafe fn from_raw_unversioned(raw: *mut DLManagedTensor) -> Self {
        // SAFETY: the caller vouches that the description is there.
        let dl_tensor = unsafe { (*raw).dl_tensor };
        let versioned = DLManagedTensorVersioned {
            version: DLPackVersion::CURRENT,
            manager_ctx: raw.cast(),
            deleter: Some(delete_unversioned),
            flags: TensorFlags::empty(),
            dl_tensor,
        };
        Self(NonNull::from(Box::leak(Box::new(versioned))))
    }

    /// Hands the tensor out. Whoever gets it calls its deleter once, on any thread; or make it a `ManagedTensor` again
    /// with [`from_raw`](Self::from_raw).
    ///
    /// In Python this is what a capsule with the name `dltensor_versioned` holds.
    #[must_use = "nobody else gives the memory back"]
    pub fn into_raw(self) -> *mut DLManagedTensorVersioned {
        ManuallyDrop::new(self).0.as_ptr()
    }

    /// Hands the tensor out in the form before DLPack 1.0, for consumers that know no other: a capsule with the name
    /// `dltensor`.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported), with the tensor, if it has flags, such as read-only: this form
    /// has none.
    pub fn into_raw_unversioned(self) -> Result<*mut DLManagedTensor, Failed<Self>> {
        let described = match self.tensor() {
            Some(tensor) if self.flags().is_empty() => Ok(*tensor),
            Some(_) => Err(Error::not_supported(format!(
                "a tensor without a version cannot say that it has {:?}; hand it out with a version, or without \
                 these flags",
                self.flags()
            ))),
            None => Err(other_version(self.version())),
        };
        let dl_tensor = match described {
            Ok(tensor) => tensor,
            Err(error) => return Err(Failed::new(error, self)),
        };
        let unversioned = DLManagedTensor {
            dl_tensor,
            manager_ctx: self.into_raw().cast(),
            deleter: Some(delete_versioned),
        };
        Ok(Box::into_raw(Box::new(unversioned)))
    }

    /// The pointer, which this value still owns.
    #[must_use]
    pub fn as_raw(&self) -> *mut DLManagedTensorVersioned {
        self.0.as_ptr()
    }

    /// The version that the tensor follows.
    #[must_use]
    pub fn version(&self) -> DLPackVersion {
        // SAFETY: the struct lives as long as this value, and every version has this field in this place.
        unsafe { (*self.0.as_ptr()).version }
    }

    /// The tensor's flags.
    #[must_use]
    pub fn flags(&self) -> TensorFlags {
        // SAFETY: as in `version`.
        unsafe { (*self.0.as_ptr()).flags }
    }

    /// The tensor's description; `None` if it follows another major version, and so cannot be read.
    #[must_use]
    pub fn tensor(&self) -> Option<&DLTensor> {
        if self.version().major != DLPackVersion::CURRENT.major {
            return None;
        }
        // SAFETY: the struct lives as long as this value, and is of this version; nobody writes to it.
        Some(unsafe { &(*self.0.as_ptr()).dl_tensor })
    }
}

impl Drop for ManagedTensor {
    fn drop(&mut self) {
        report::release("DLPack tensor", || {
            // SAFETY: this value owns the tensor, and ends here.
            unsafe { delete(self.0) };
            Ok(())
        });
    }
}

/// Calls a tensor's deleter.
///
/// # Safety
///
/// The tensor is the caller's, who does not use it afterwards.
pub(super) unsafe fn delete(raw: NonNull<DLManagedTensorVersioned>) {
    let raw = raw.as_ptr();
    // SAFETY: the caller owns the tensor, and every version has this field in this place.
    if let Some(deleter) = unsafe { (*raw).deleter } {
        // SAFETY: called once, by its owner.
        unsafe { deleter(raw) };
    }
}

/// The deleter of a tensor that got a version here.
unsafe extern "C" fn delete_unversioned(raw: *mut DLManagedTensorVersioned) {
    if raw.is_null() {
        return;
    }
    report::release("DLPack tensor", || {
        // SAFETY: `from_raw_unversioned` made this box, and a deleter is called once.
        let versioned = unsafe { Box::from_raw(raw) };
        let inner: *mut DLManagedTensor = versioned.manager_ctx.cast();
        // SAFETY: `from_raw_unversioned` took this tensor over, and nobody else deletes it.
        if let Some(deleter) = unsafe { (*inner).deleter } {
            // SAFETY: called once, by its owner.
            unsafe { deleter(inner) };
        }
        Ok(())
    });
}

/// The deleter of a tensor that has lost its version here.
unsafe extern "C" fn delete_versioned(raw: *mut DLManagedTensor) {
    if raw.is_null() {
        return;
    }
    report::release("DLPack tensor", || {
        // SAFETY: `into_raw_unversioned` made this box, and a deleter is called once.
        let unversioned = unsafe { Box::from_raw(raw) };
        // SAFETY: `into_raw_unversioned` put the tensor here, and nobody else has it.
        drop(unsafe { ManagedTensor::from_raw(unversioned.manager_ctx.cast()) });
        Ok(())
    });
}

#[cold]
pub(super) fn other_version(found: DLPackVersion) -> Error {
    Error::not_supported(format!(
        "the tensor follows DLPack {}.{}, and only {}.x is understood; ask its producer for that version",
        found.major,
        found.minor,
        DLPackVersion::CURRENT.major
    ))
}

impl fmt::Debug for ManagedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedTensor")
            .field("version", &self.version())
            .field("flags", &self.flags())
            .field("tensor", &self.tensor())
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<ManagedTensor>();
};
