//! The error of an operation that consumes its object.

use std::fmt;

use super::Error;

/// The failure of a consuming operation. It returns the object, so that nothing is lost.
pub struct Failed<T> {
    /// Why it failed.
    pub error: Error,
    /// The object, unchanged. `None` if the driver may have released it despite the error, as when it reports an
    /// earlier fault: releasing it again could release what belongs to another owner by now, so it is given up.
    pub object: Option<T>,
}

impl<T> Failed<T> {
    pub(crate) fn new(error: Error, object: T) -> Self {
        Self {
            error,
            object: Some(object),
        }
    }

    pub(crate) fn lost(error: Error) -> Self {
        Self {
            error,
            object: None,
        }
    }

    /// Replaces the object by the value that it is part of.
    pub(crate) fn map<U>(self, whole: impl FnOnce(T) -> U) -> Failed<U> {
        Failed {
            error: self.error,
            object: self.object.map(whole),
        }
    }
}

/// For callers that want the error and drop the object.
impl<T> From<Failed<T>> for Error {
    fn from(failed: Failed<T>) -> Self {
        failed.error
    }
}

/// The message, as for [`Error`]; `{:#?}` prints the structure, with the type of the object instead of its contents,
/// which need not be printable.
impl<T> fmt::Debug for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        let object = self.object.as_ref();
        let object = object.map(|_| std::any::type_name::<T>());
        f.debug_struct("Failed")
            .field("error", &self.error)
            .field("object", &object)
            .finish()
    }
}

impl<T> fmt::Display for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

// No source, as for `Error`.
impl<T> std::error::Error for Failed<T> {}
