//! The numbers by which libraries name streams to each other.

use std::any::Any;
use std::ptr;

use cuda_driver_sys::CUstream;

use crate::base::error::{Error, Result};
use crate::stream::Stream;
use crate::stream::context::Context;

const LEGACY: i64 = 1;
const PER_THREAD: i64 = 2;

/// A stream as another library names it, and so what has to be done when memory changes hands.
///
/// A consumer gives the number of its stream to the producer (`__dlpack__(stream=…)`), who makes that stream wait for
/// the data; the array interface has the number of the producer's stream, for which the consumer waits.
///
/// ```
/// use cuda_mem::interop::dlpack::ExchangeStream;
///
/// # cuda_sim::use_if_no_driver();
/// # let device = cuda_mem::Driver::load()?.device(0)?;
/// # let context = device.primary_context()?;
/// # let stream = context.stream()?;
/// let mut buffer = device.default_pool()?.alloc_zeroed::<f32>(&stream, 6)?;
/// // A consumer calls `__dlpack__(stream=1)`.
/// // SAFETY: the number is that of a default stream.
/// if let Some(consumer) = unsafe { ExchangeStream::of_dlpack(Some(1))?.stream(&context, ()) } {
///     buffer.set_stream(&consumer)?; // it waits for the data, and the free waits for its work
/// }
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeStream {
    /// No stream: nothing has to be ordered, because the other library sees to it.
    Unordered,
    /// The legacy default stream.
    Legacy,
    /// The default stream of the calling thread.
    PerThread,
    /// The stream with this handle.
    Handle(i64),
}

impl ExchangeStream {
    /// What the `stream` of `__dlpack__` means: nothing or 1 is the legacy default stream, 2 the thread's, −1 asks for
    /// no ordering.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for 0, which could be either default stream, and for other
    /// negative numbers.
    pub fn of_dlpack(number: Option<i64>) -> Result<Self> {
        match number {
            None => Ok(Self::Legacy),
            Some(-1) => Ok(Self::Unordered),
            Some(number) => Self::named(number, "-1 for no ordering, "),
        }
    }

    /// What the `stream` of `__cuda_array_interface__` means: nothing asks for no ordering, 1 is the legacy default
    /// stream, 2 the thread's.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for 0, which could be either default stream, and for negative
    /// numbers.
    pub fn of_array_interface(number: Option<i64>) -> Result<Self> {
        number.map_or(Ok(Self::Unordered), |number| Self::named(number, ""))
    }

    fn named(number: i64, also: &str) -> Result<Self> {
        match number {
            ..=0 => Err(Error::invalid(format!(
                "{number} names no stream in this exchange; there are {also}1 for the legacy default stream, 2 for the \
                 thread's, and handles"
            ))),
            LEGACY => Ok(Self::Legacy),
            PER_THREAD => Ok(Self::PerThread),
            handle => Ok(Self::Handle(handle)),
        }
    }

    /// How another library may call this stream. A thread's own stream has that name on that thread only.
    #[must_use]
    pub fn of(stream: &Stream) -> Self {
        // The driver's handles of the default streams are the same numbers.
        match stream.as_raw().addr() as i64 {
            LEGACY => Self::Legacy,
            PER_THREAD => Self::PerThread,
            handle => Self::Handle(handle),
        }
    }

    /// The number for `__dlpack__`.
    #[must_use]
    pub fn for_dlpack(self) -> i64 {
        self.for_array_interface().unwrap_or(-1)
    }

    /// The number for `__cuda_array_interface__`; `None` for no ordering.
    #[must_use]
    pub fn for_array_interface(self) -> Option<i64> {
        match self {
            Self::Unordered => None,
            Self::Legacy => Some(LEGACY),
            Self::PerThread => Some(PER_THREAD),
            Self::Handle(handle) => Some(handle),
        }
    }

    /// The stream, to be ordered with others; `None` if nothing has to be. `owner` is kept as long as the stream, if it
    /// is the other library's: see [`Stream::borrow_raw`].
    ///
    /// # Safety
    ///
    /// A handle is that of a live stream of `context` while `owner` is kept.
    #[must_use]
    pub unsafe fn stream(self, context: &Context, owner: impl Any + Send + Sync) -> Option<Stream> {
        match self {
            Self::Unordered => None,
            Self::Legacy => Some(context.legacy_stream()),
            Self::PerThread => Some(context.per_thread_stream()),
            Self::Handle(handle) => {
                let raw: CUstream = ptr::with_exposed_provenance_mut(handle as usize);
                // SAFETY: the caller vouches for the handle, which is that of no default stream.
                Some(unsafe { Stream::borrow_raw(context, raw, owner) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_dlpack_say_what_to_do() {
        let meaning = |number| ExchangeStream::of_dlpack(number).ok();
        assert_eq!(meaning(None), Some(ExchangeStream::Legacy));
        assert_eq!(meaning(Some(-1)), Some(ExchangeStream::Unordered));
        assert_eq!(meaning(Some(1)), Some(ExchangeStream::Legacy));
        assert_eq!(meaning(Some(2)), Some(ExchangeStream::PerThread));
        assert_eq!(meaning(Some(0x7f00)), Some(ExchangeStream::Handle(0x7f00)));
        for number in [0, -2, i64::MIN] {
            let error = ExchangeStream::of_dlpack(Some(number)).expect_err("refused");
            assert_eq!(error.kind(), crate::ErrorKind::InvalidValue);
            assert!(error.to_string().contains("-1 for no ordering"), "{error}");
        }
    }

    #[test]
    fn numbers_of_the_array_interface_say_what_to_do() {
        let meaning = |number| ExchangeStream::of_array_interface(number).ok();
        assert_eq!(meaning(None), Some(ExchangeStream::Unordered));
        assert_eq!(meaning(Some(1)), Some(ExchangeStream::Legacy));
        assert_eq!(meaning(Some(2)), Some(ExchangeStream::PerThread));
        assert_eq!(meaning(Some(3)), Some(ExchangeStream::Handle(3)));
        for number in [0, -1] {
            assert_eq!(meaning(Some(number)), None);
        }
    }

    #[test]
    fn numbers_lead_there_and_back() {
        for stream in [
            ExchangeStream::Unordered,
            ExchangeStream::Legacy,
            ExchangeStream::PerThread,
            ExchangeStream::Handle(0x7f00),
        ] {
            assert_eq!(
                ExchangeStream::of_dlpack(Some(stream.for_dlpack())).ok(),
                Some(stream)
            );
            let number = stream.for_array_interface();
            assert_eq!(
                ExchangeStream::of_array_interface(number).ok(),
                Some(stream)
            );
        }
    }
}
