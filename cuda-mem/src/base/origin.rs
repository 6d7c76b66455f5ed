//! The place in the program that an allocation is attributed to. Calls through a trait object lose their caller, so
//! public functions record it for the functions they call.

use std::cell::Cell;
use std::panic::Location;

thread_local! {
    static ORIGIN: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// Restores the place that was recorded before.
#[derive(Debug)]
pub(crate) struct Noted(Option<&'static Location<'static>>);

/// Records the caller of the function that calls this.
#[inline]
#[track_caller]
pub(crate) fn note() -> Noted {
    Noted(ORIGIN.replace(Some(Location::caller())))
}

/// As [`note`], unless a place is already recorded.
#[inline]
#[track_caller]
pub(crate) fn note_if_none() -> Noted {
    let before = ORIGIN.get();
    ORIGIN.set(Some(before.unwrap_or(Location::caller())));
    Noted(before)
}

/// The recorded place, or else the caller of the function that calls this.
#[inline]
#[track_caller]
pub(crate) fn current() -> &'static Location<'static> {
    ORIGIN.get().unwrap_or(Location::caller())
}

impl Drop for Noted {
    #[inline]
    fn drop(&mut self) {
        ORIGIN.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn outer() -> (u32, u32) {
        let _noted = note();
        let inside = current().line();
        (inside, Location::caller().line())
    }

    #[test]
    fn what_is_noted_is_the_callers_place_and_only_for_so_long() {
        let (inside, caller) = outer();
        assert_eq!(inside, caller);
        assert_eq!(current().line(), line!());
    }
}
