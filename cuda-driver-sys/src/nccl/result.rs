//! The result codes of NCCL.

use std::fmt;

/// What a function of NCCL answered. An integer and no enum: a code that is newer than this list is kept and shown by its
/// number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ncclResult_t(pub u32);

macro_rules! codes {
    ($($name:ident = $code:literal, $meaning:literal;)*) => {
        #[allow(non_upper_case_globals, reason = "NCCL's names")]
        impl ncclResult_t {
            $(
                #[doc = concat!($meaning, ".")]
                pub const $name: Self = Self($code);
            )*
        }

        const fn lookup(code: u32) -> Option<(&'static str, &'static str)> {
            match code {
                $($code => Some((stringify!($name), $meaning)),)*
                _ => None,
            }
        }
    };
}

codes! {
    ncclSuccess = 0, "the call succeeded";
    ncclUnhandledCudaError = 1, "a call of CUDA failed within NCCL";
    ncclSystemError = 2, "a call of the system failed within NCCL";
    ncclInternalError = 3, "NCCL met a state that it does not know";
    ncclInvalidArgument = 4, "an argument is out of range or malformed";
    ncclInvalidUsage = 5, "the call is not possible in this state, or the ranks do not agree";
    ncclRemoteError = 6, "another rank ended or failed, or the network to it did";
    ncclInProgress = 7, "the work goes on in the background";
    ncclTimeout = 8, "there was no answer in time";
}

impl ncclResult_t {
    /// The name of this code, such as `ncclRemoteError`; `None` for one that is newer than these bindings. Never calls the
    /// library.
    ///
    /// ```
    /// use cuda_driver_sys::nccl::ncclResult_t;
    /// assert_eq!(ncclResult_t(6).name(), Some("ncclRemoteError"));
    /// assert_eq!(ncclResult_t(31337).name(), None);
    /// ```
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match lookup(self.0) {
            Some((name, _)) => Some(name),
            None => None,
        }
    }

    /// One line about this code.
    #[must_use]
    pub const fn meaning(self) -> Option<&'static str> {
        match lookup(self.0) {
            Some((_, meaning)) => Some(meaning),
            None => None,
        }
    }
}

/// `ncclRemoteError (6): another rank ended or failed, or the network to it did`.
impl fmt::Display for ncclResult_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match lookup(self.0) {
            Some((name, meaning)) => write!(f, "{name} ({}): {meaning}", self.0),
            None => write!(f, "the code {}, which is newer than this list", self.0),
        }
    }
}

impl fmt::Debug for ncclResult_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "ncclResult_t({})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_shown_by_name_number_and_meaning() {
        assert_eq!(
            ncclResult_t::ncclSystemError.to_string(),
            "ncclSystemError (2): a call of the system failed within NCCL"
        );
        assert_eq!(format!("{:?}", ncclResult_t(7)), "ncclInProgress");
    }

    #[test]
    fn an_unknown_code_keeps_its_number() {
        let code = ncclResult_t(54321);
        assert!(code.to_string().contains("54321"), "{code}");
        assert_eq!(format!("{code:?}"), "ncclResult_t(54321)");
        assert!(code.meaning().is_none());
    }
}
