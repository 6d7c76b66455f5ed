//! Code as the simulator sees it: kernels by their declarations, or why it was refused.

use std::ffi::CString;

use cuda_driver_sys::CUresult;

use super::declaration::Variable;
use crate::export::Answer;

/// The compute capability of the simulated devices.
pub(super) const DEVICE_TARGET: u32 = 90;

/// A parsed text.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub(super) entries: Vec<Entry>,
    pub(super) variables: Vec<Variable>,
}

impl Code {
    /// The index of the kernel with this name.
    pub(super) fn find(&self, name: &str) -> Answer<usize> {
        let mut entries = self.entries.iter();
        let place = entries.position(|entry| entry.name.as_bytes() == name.as_bytes());
        place.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
    }

    /// Refuses a variable with the name of a kernel or of another variable.
    pub(super) fn check_name(&self, variable: &Variable, line: usize) -> Result<(), Refusal> {
        let is_kernel = self.entries.iter().any(|it| it.name == variable.name);
        if is_kernel || self.has_variable(variable) {
            return Err(Refusal::syntax(
                line,
                "a variable with the name of another one",
            ));
        }
        Ok(())
    }

    /// Whether another variable has the name of this one, and at least one of them wants it for itself.
    pub(super) fn has_variable(&self, variable: &Variable) -> bool {
        let mut same = self.variables.iter().filter(|it| it.name == variable.name);
        same.any(|it| !it.is_weak || !variable.is_weak)
    }
}

/// A kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) name: CString,
    pub(super) parameters: Vec<Parameter>,
    /// Statically allocated bytes of each kind of memory.
    pub(super) shared: u32,
    pub(super) local: u32,
    /// Threads per block, if declared.
    pub(super) max_threads: Option<u32>,
    /// `.target`, as a number: 70 for `sm_70`.
    pub(super) target: u32,
}

/// Position of a parameter in the argument buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) offset: usize,
    pub(super) size: usize,
}

/// Why a text was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: CUresult,
    /// The line, counted from 1; 0 if it is not text.
    pub(super) line: usize,
    pub(super) what: String,
}

impl Refusal {
    pub(super) fn syntax(line: usize, what: impl Into<String>) -> Self {
        Self {
            code: CUresult::CUDA_ERROR_INVALID_PTX,
            line,
            what: what.into(),
        }
    }

    /// Refuses data that is not code.
    pub(super) fn image(what: impl Into<String>) -> Self {
        Self {
            code: CUresult::CUDA_ERROR_INVALID_IMAGE,
            line: 0,
            what: what.into(),
        }
    }

    /// Refuses two linker inputs with the same kernel or variable.
    pub(super) fn twice(name: &str) -> Self {
        Self {
            code: CUresult::CUDA_ERROR_INVALID_SOURCE,
            line: 1,
            what: format!("`{name}` is in two inputs"),
        }
    }

    /// The log message.
    pub(super) fn log(&self) -> String {
        match self.line {
            // A guess: a driver may report nothing for data that is not text.
            0 => format!("error: {}\n", self.what),
            line => format!("ptx input, line {line}; error: {}\n", self.what),
        }
    }
}
