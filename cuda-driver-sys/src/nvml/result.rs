//! The result codes of NVML.

use std::fmt;

/// What a function of NVML answered. An integer and no enum: a code that is newer than this list is
/// kept and shown by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct nvmlReturn_t(pub u32);

macro_rules! codes {
    ($($(#[$docs:meta])* $name:ident = $code:literal, $meaning:literal;)*) => {
        impl nvmlReturn_t {
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
    NVML_SUCCESS = 0, "the call succeeded";
    NVML_ERROR_UNINITIALIZED = 1, "nvmlInit has not run in this process";
    NVML_ERROR_INVALID_ARGUMENT = 2, "an argument is out of range or malformed";
    NVML_ERROR_NOT_SUPPORTED = 3, "the device or its driver cannot tell or do this";
    NVML_ERROR_NO_PERMISSION = 4, "this user may not ask or do this";
    NVML_ERROR_ALREADY_INITIALIZED = 5, "starting more than once is fine today; an old code";
    NVML_ERROR_NOT_FOUND = 6, "nothing fits what was looked for";
    NVML_ERROR_INSUFFICIENT_SIZE = 7, "the place for the answer is too small";
    NVML_ERROR_INSUFFICIENT_POWER = 8, "a power cable of the device is not connected";
    NVML_ERROR_DRIVER_NOT_LOADED = 9, "the kernel module of the driver is not loaded";
    NVML_ERROR_TIMEOUT = 10, "there was no answer in time";
    NVML_ERROR_IRQ_ISSUE = 11, "the kernel found a fault with the interrupts of a device";
    NVML_ERROR_LIBRARY_NOT_FOUND = 12, "a library that NVML needs is not there";
    NVML_ERROR_FUNCTION_NOT_FOUND = 13, "this version of NVML has no such function";
    NVML_ERROR_CORRUPTED_INFOROM = 14, "the memory that describes the board is corrupt";
    NVML_ERROR_GPU_IS_LOST = 15, "the device has fallen off the bus or cannot be reached";
    NVML_ERROR_RESET_REQUIRED = 16, "the device has to be reset before it can be used";
    NVML_ERROR_OPERATING_SYSTEM = 17, "the operating system refused to reach the device";
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
        "library and kernel module are of two driver versions, as after an update without a reboot";
    NVML_ERROR_IN_USE = 19, "the device is in use";
    NVML_ERROR_MEMORY = 20, "there is not enough memory for the call";
    NVML_ERROR_NO_DATA = 21, "there is no data yet";
    NVML_ERROR_VGPU_ECC_NOT_SUPPORTED = 22, "error correction keeps virtual GPUs from this";
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23, "something other than memory ran out";
    NVML_ERROR_FREQ_NOT_SUPPORTED = 24, "the device has no such frequency";
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25, "the library knows no such version of a struct";
    NVML_ERROR_DEPRECATED = 26, "the function does nothing any more";
    NVML_ERROR_NOT_READY = 27, "the device is not ready";
    NVML_ERROR_GPU_NOT_FOUND = 28, "there is no such GPU";
    NVML_ERROR_INVALID_STATE = 29, "the device is in no state for this";
    NVML_ERROR_UNKNOWN = 999, "something went wrong inside the driver";
}

impl nvmlReturn_t {
    /// The name of this code, such as `NVML_ERROR_GPU_IS_LOST`; `None` for one that is newer than
    /// these bindings. Never calls the library.
    ///
    /// ```
    /// use cuda_driver_sys::nvml::nvmlReturn_t;
    /// assert_eq!(nvmlReturn_t(15).name(), Some("NVML_ERROR_GPU_IS_LOST"));
    /// assert_eq!(nvmlReturn_t(31337).name(), None);
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

/// `NVML_ERROR_NOT_FOUND (6): nothing fits what was looked for`.
impl fmt::Display for nvmlReturn_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match lookup(self.0) {
            Some((name, meaning)) => write!(f, "{name} ({}): {meaning}", self.0),
            None => write!(f, "the code {}, which is newer than this list", self.0),
        }
    }
}

impl fmt::Debug for nvmlReturn_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "nvmlReturn_t({})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_shown_by_name_number_and_meaning() {
        assert_eq!(
            nvmlReturn_t::NVML_ERROR_NOT_FOUND.to_string(),
            "NVML_ERROR_NOT_FOUND (6): nothing fits what was looked for"
        );
        assert_eq!(nvmlReturn_t(999).name(), Some("NVML_ERROR_UNKNOWN"));
    }

    #[test]
    fn an_unknown_code_keeps_its_number() {
        let code = nvmlReturn_t(54321);
        assert!(code.to_string().contains("54321"), "{code}");
        assert_eq!(format!("{code:?}"), "nvmlReturn_t(54321)");
        assert!(code.meaning().is_none());
    }
}
