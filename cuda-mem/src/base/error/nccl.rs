//! Failures of NCCL.

use cuda_driver_sys::nccl::ncclResult_t;

use super::{Cause, Error, ErrorKind};

impl Error {
    /// `words` are NCCL's own about its last failure, if it has any.
    pub(crate) fn nccl(function: &'static str, code: ncclResult_t, words: Option<String>) -> Self {
        Self::from(Cause::Nccl {
            function,
            code,
            words,
            asked: None,
        })
    }

    pub(crate) fn nccl_lacks(function: &'static str) -> Self {
        Self::from(Cause::NcclLacks(function))
    }

    /// A wait for others was given up before anything was changed.
    pub(crate) fn not_in_time(text: String) -> Self {
        Self::from(Cause::NotInTime(text))
    }

    /// Whether a stream was waited for in vain, and nothing was changed.
    pub(crate) fn is_held_up(&self) -> bool {
        matches!(self.cause(), Cause::NotInTime(_))
    }

    /// NCCL's own result code, if NCCL was called.
    #[must_use]
    pub fn nccl_code(&self) -> Option<ncclResult_t> {
        match self.cause() {
            Cause::Nccl { code, .. } => Some(*code),
            _ => None,
        }
    }
}

pub(super) fn kind_of_nccl(code: ncclResult_t) -> ErrorKind {
    match code {
        ncclResult_t::ncclInvalidArgument | ncclResult_t::ncclInvalidUsage => {
            ErrorKind::InvalidValue
        }
        ncclResult_t::ncclRemoteError => ErrorKind::PeerGone,
        ncclResult_t::ncclInProgress => ErrorKind::NotReady,
        ncclResult_t::ncclTimeout => ErrorKind::TimedOut,
        _ => ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_nccl_says_function_code_words_and_request() {
        let words = Some("peer 1 closed its socket".to_owned());
        let error = Error::nccl("ncclAllReduce", ncclResult_t::ncclRemoteError, words)
            .asked(|| "rank 0 of 2".to_owned());
        assert_eq!(error.kind(), ErrorKind::PeerGone);
        assert_eq!(error.function(), Some("ncclAllReduce"));
        assert_eq!(error.nccl_code(), Some(ncclResult_t(6)));
        assert_eq!(error.code(), None, "no code of the driver");
        let text = error.to_string();
        for part in [
            "ncclAllReduce",
            "(6)",
            "rank 0 of 2",
            "the last that NCCL said in this process: peer 1 closed its socket",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn an_unknown_code_of_nccl_is_kept() {
        let error = Error::nccl("ncclGetVersion", ncclResult_t(54321), None);
        assert_eq!(error.kind(), ErrorKind::Other);
        assert!(error.to_string().contains("54321"), "{error}");
        let error = Error::nccl_lacks("ncclCommWindowRegister");
        assert_eq!(error.kind(), ErrorKind::SymbolMissing);
        assert!(
            error.to_string().contains("ncclCommWindowRegister"),
            "{error}"
        );
    }
}
