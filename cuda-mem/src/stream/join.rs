//! Ordering one stream after another.

use cuda_driver_sys::CUevent;

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::telemetry::event;
use crate::driver::raw;
use crate::stream::launches;
use crate::stream::{Stream, StreamRef};

impl Stream {
    /// Makes all later work in this stream wait for what is in `earlier` now. The host does not wait. Nothing happens
    /// if both are the same stream.
    ///
    /// Makes two driver calls; the event comes from a cache. Makes more once this process has launched or uploaded a
    /// graph through this crate: drivers lose waits whose event is reused while another thread launches or uploads a
    /// graph in the waiting stream (measured), so each wait then has its own event. Do not make a stream wait while
    /// another library launches a graph in it on another thread.
    ///
    /// # Errors
    ///
    /// [`Capturing`](crate::ErrorKind::Capturing) while this crate captures one of the streams;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if one is another thread's [own
    /// stream](crate::Context::per_thread_stream), or if they are of two drivers; otherwise any driver error. The
    /// streams may be of two devices.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn wait_for<'a>(&self, earlier: impl Into<StreamRef<'a>>) -> Result<()> {
        order(earlier.into(), self.as_ref())
    }
}

impl Stream {
    /// Makes all later work in `others` wait for what is in this stream now, to spread work over several streams. The
    /// host does not wait. This stream is marked once, however many others there are; if it is among them, it is
    /// skipped.
    ///
    /// # Errors
    ///
    /// As [`wait_for`](Self::wait_for). Streams before the one that failed do wait.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// # let context = cuda_mem::Driver::load()?.device(0)?.primary_context()?;
    /// let (main, a, b) = (context.stream()?, context.stream()?, context.stream()?);
    /// main.fork([&a, &b])?; // what comes to `a` and `b` runs after what is in `main` …
    /// main.join([&a, &b])?; // … and what comes to `main` after both
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn fork<'a>(&self, others: impl IntoIterator<Item = &'a Stream>) -> Result<()> {
        let earlier = self.as_ref();
        let mut others = others.into_iter().filter(|other| *other != self).peekable();
        if others.peek().is_none() {
            return Ok(());
        }
        let mark = Mark::after(earlier)?;
        others.try_for_each(|other| mark.make_wait(other.as_ref()))
    }

    /// Makes all later work in this stream wait for what is in each of `others` now. The host does not wait.
    ///
    /// # Errors
    ///
    /// As [`wait_for`](Self::wait_for). Streams before the one that failed are waited for.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn join<'a>(&self, others: impl IntoIterator<Item = &'a Stream>) -> Result<()> {
        others
            .into_iter()
            .try_for_each(|other| self.wait_for(other))
    }
}

impl StreamRef<'_> {
    /// See [`Stream::wait_for`].
    ///
    /// # Errors
    ///
    /// As for that method.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn wait_for<'a>(&self, earlier: impl Into<StreamRef<'a>>) -> Result<()> {
        order(earlier.into(), *self)
    }
}

/// Orders later work in `later` after what is in `earlier` now.
pub(crate) fn order(earlier: StreamRef<'_>, later: StreamRef<'_>) -> Result<()> {
    if earlier == later {
        return Ok(());
    }
    check_driver(earlier, later)?;
    Mark::after(earlier)?.make_wait(later)
}

/// As [`order`], where it can be put off: an error of kind [`Capturing`](crate::ErrorKind::Capturing) if only one of the streams is
/// captured. The driver would draw the later one into the graph, so that its work is no longer done, or spoil the capture of
/// the later one.
pub(crate) fn order_outside_captures(earlier: StreamRef<'_>, later: StreamRef<'_>) -> Result<()> {
    if earlier == later {
        return Ok(());
    }
    let is_captured = |stream: StreamRef<'_>| match stream.refuse_captured("") {
        Err(error) if error.kind() == ErrorKind::Capturing => Ok(true),
        answer => answer.map(|()| false),
    };
    // Those of other threads cannot be asked, nor ordered.
    let can_be_asked = !earlier.is_foreign() && !later.is_foreign();
    if can_be_asked && is_captured(earlier)? != is_captured(later)? {
        return Err(Error::capturing(format!(
            "one of {earlier} and {later} is being captured into a graph, and the other is not, so neither can wait for the \
             other"
        )));
    }
    order(earlier, later)
}

fn check_driver(earlier: StreamRef<'_>, later: StreamRef<'_>) -> Result<()> {
    let driver = earlier.context().driver();
    driver.require_same(later.context().driver(), format_args!("the two streams"))
}

/// A point in a stream that others can be made to wait for. The event returns to the cache, unless a graph was
/// launched or uploaded.
struct Mark<'a> {
    stream: StreamRef<'a>,
    event: CUevent,
}

impl<'a> Mark<'a> {
    /// After everything that is in the stream now.
    fn after(stream: StreamRef<'a>) -> Result<Self> {
        let open = stream.submit()?;
        let event = stream.context().take_event()?;
        let mark = Self { stream, event };
        // SAFETY: the event is of the stream's context and held by nobody else; the stream is live.
        unsafe { raw::event::record(open.queue(), event) }?;
        Ok(mark)
    }

    fn make_wait(&self, later: StreamRef<'_>) -> Result<()> {
        check_driver(self.stream, later)?;
        event!(TRACE, stream = %later, earlier = %self.stream, "a stream waits");
        let open = later.submit()?;
        let _turn = launches::wait(later)?;
        // SAFETY: the event was recorded by `after`, and both handles are live. The driver notes the recording at this
        // call, so the event may be used again at once, unless a graph is launched or uploaded (R179).
        unsafe { raw::stream::wait(open.queue(), self.event) }
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        let context = self.stream.context();
        if launches::have_been() {
            context.end_event(self.event);
        } else {
            context.give_event(self.event);
        }
    }
}
