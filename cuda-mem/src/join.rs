//! Ordering one stream after another.

use crate::error::{Error, Result};
use crate::raw;
use crate::stream::{Stream, StreamRef};

impl Stream {
    /// Makes everything that comes to this stream from now on wait for what is in `earlier` now.
    /// The host does not wait. Nothing happens if both are the same stream.
    ///
    /// Two driver calls; the event comes from a cache.
    ///
    /// # Errors
    ///
    /// As the driver answers. The streams may be of two devices of one driver.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn wait_for<'a>(&self, earlier: impl Into<StreamRef<'a>>) -> Result<()> {
        order(earlier.into(), self.as_ref())
    }
}

impl StreamRef<'_> {
    /// See [`Stream::wait_for`].
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn wait_for<'a>(&self, earlier: impl Into<StreamRef<'a>>) -> Result<()> {
        order(earlier.into(), *self)
    }
}

/// Orders what comes to `later` after what is in `earlier`.
pub(crate) fn order(earlier: StreamRef<'_>, later: StreamRef<'_>) -> Result<()> {
    if earlier == later {
        return Ok(());
    }
    let driver = earlier.context().driver();
    if driver != later.context().driver() {
        return Err(Error::invalid(
            "the two streams belong to two drivers".to_owned(),
        ));
    }
    let event = earlier.context().take_event()?;
    let record = || {
        let _current = earlier.enter()?;
        // SAFETY: the event is of the stream's context and held by nobody else; the stream is live.
        unsafe { raw::event::record(driver.table(), event, earlier.as_raw()) }
    };
    let wait = || {
        let _current = later.enter()?;
        // SAFETY: the event was recorded just now, and both handles are live. The driver notes the
        // recording at this call, so the event may be used again at once.
        unsafe { raw::stream::wait(driver.table(), later.as_raw(), event) }
    };
    let outcome = record().and_then(|()| wait());
    earlier.context().give_event(event);
    outcome
}
