//! An error of an operation that consumes what it was called on.

use std::fmt;

use super::Error;

/// A consuming operation failed and gives back what it was called on, so that nothing is lost.
pub struct Failed<T> {
    /// Why it failed.
    pub error: Error,
    /// The object, as it was before. `None` if the driver may have released it although it answered
    /// an error, as it does when it reports an earlier fault: releasing it again could release what
    /// somebody else has got since, so it is given up.
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

    /// The same of what the object is a part of.
    pub(crate) fn map<U>(self, whole: impl FnOnce(T) -> U) -> Failed<U> {
        Failed {
            error: self.error,
            object: self.object.map(whole),
        }
    }
}

/// For callers who want the error and drop the object.
impl<T> From<Failed<T>> for Error {
    fn from(failed: Failed<T>) -> Self {
        failed.error
    }
}

/// The message, as of [`Error`]; `{:#?}` prints the structure, with the type of the object and not what is in
/// it, which need not be printable.
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

// No source, as of `Error`.
impl<T> std::error::Error for Failed<T> {}
