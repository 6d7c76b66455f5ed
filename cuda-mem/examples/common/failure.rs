//! Which of several ranks' errors is shown.

use anyhow::Error;
use cuda_mem::ErrorKind;

/// The error of the rank that failed by itself, if there is one: the others only miss that rank.
pub(crate) fn cause(errors: Vec<Error>) -> Option<Error> {
    errors.into_iter().min_by_key(is_consequence)
}

/// Whether another rank may have failed first.
fn is_consequence(error: &Error) -> bool {
    let kind = error.downcast_ref().map(cuda_mem::Error::kind);
    matches!(kind, Some(ErrorKind::TimedOut | ErrorKind::PeerGone))
}
