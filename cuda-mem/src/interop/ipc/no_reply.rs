//! Where there are no channels, none is answered.

use crate::base::error::Error;
use crate::stream::Stream;

/// A buffer that was received through a channel: there is none.
#[derive(Debug)]
pub(super) enum Received {}

impl Received {
    pub(super) fn end(self, _: &Stream, _: Option<&Error>) {
        match self {}
    }

    pub(super) fn waits_to_end(&self) -> bool {
        match *self {}
    }

    pub(super) fn abandon(&self, _: &Error) {
        match *self {}
    }
}
