//! Models: functions of the program that do the work of its own kernels.
//!
//! They are found by the kernel's name when it is launched or captured, and may be given before `cuInit`, so they are
//! not part of the state.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::CUresult;

use super::code::Entry;
use super::kernel::Use;
use super::launch::LaunchConfiguration;
use super::variable::Placed;
use crate::abi::{LaunchParameter, ModelFunction, Release};
use crate::callback::Inside;
use crate::export::Answer;

/// Size of a pointer among the arguments.
const POINTER: usize = 8;

/// The largest alignment of a parameter.
const ALIGNMENT: usize = align_of::<u128>();

/// A function of the program, and its argument.
#[derive(Debug)]
pub(crate) struct Model {
    pub(super) function: ModelFunction,
    pub(super) user: *mut c_void,
    release: Option<Release>,
}

// SAFETY: `simcuda_kernel` calls the function on threads of the simulator; its contract requires an argument that may
// be used there.
unsafe impl Send for Model {}
// SAFETY: as above, also on several threads at once.
unsafe impl Sync for Model {}

impl Model {
    pub(crate) fn new(
        function: ModelFunction,
        user: *mut c_void,
        release: Option<Release>,
    ) -> Self {
        Self {
            function,
            user,
            release,
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // The driver may be locked.
            let _inside = Inside::begin();
            // SAFETY: the program gave this function for this argument, and no launch refers to the model any more.
            unsafe { release(self.user) };
        }
    }
}

static MODELS: Mutex<BTreeMap<CString, Arc<Model>>> = Mutex::new(BTreeMap::new());

fn models() -> MutexGuard<'static, BTreeMap<CString, Arc<Model>>> {
    MODELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the kernels of this name a model. Submitted and captured launches keep the earlier one.
pub(crate) fn register(name: &CStr, model: Model) {
    let earlier = models().insert(name.to_owned(), Arc::new(model));
    // Released here, where the models are not locked.
    drop(earlier);
}

/// Removes a model. NOT_FOUND if there is none.
pub(crate) fn remove(name: &CStr) -> Answer {
    let earlier = models().remove(name);
    earlier.map(drop).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
}

/// A launch of a kernel that has a model.
#[derive(Debug)]
pub(crate) struct ModelCall {
    pub(super) model: Arc<Model>,
    pub(super) name: CString,
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared_bytes: u32,
    pub(super) arguments: ArgumentBuffer,
    pub(super) parameters: Vec<LaunchParameter>,
    /// Those of the kernel's module.
    pub(super) variables: Arc<[Placed]>,
}

/// An argument buffer, aligned for every parameter.
#[derive(Debug)]
pub(crate) struct ArgumentBuffer {
    units: Vec<u128>,
    len: usize,
}

impl ArgumentBuffer {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let units = bytes.chunks(ALIGNMENT).map(|chunk| {
            let mut unit = [0; ALIGNMENT];
            unit[..chunk.len()].copy_from_slice(chunk);
            u128::from_ne_bytes(unit)
        });
        Self {
            units: units.collect(),
            len: bytes.len(),
        }
    }

    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.units.as_ptr().cast()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The word at a multiple of its size.
    fn word(&self, offset: usize) -> u64 {
        let unit = self.units.get(offset / ALIGNMENT).copied();
        let bytes = unit.unwrap_or_default().to_ne_bytes();
        let word = bytes[offset % ALIGNMENT..].first_chunk::<POINTER>();
        word.map_or(0, |word| u64::from_ne_bytes(*word))
    }
}

impl ModelCall {
    /// The launch of a kernel with these arguments, if it has a model.
    pub(super) fn new(
        entry: &Entry,
        configuration: LaunchConfiguration,
        arguments: &[u8],
        variables: &Arc<[Placed]>,
    ) -> Option<Self> {
        let model = Arc::clone(models().get(&entry.name)?);
        let places = entry.parameters.iter();
        let parameters = places.map(|place| LaunchParameter {
            offset: place.offset,
            size: place.size,
        });
        Some(Self {
            model,
            name: entry.name.clone(),
            grid: configuration.grid,
            block: configuration.block,
            shared_bytes: configuration.dynamic,
            arguments: ArgumentBuffer::new(arguments),
            parameters: parameters.collect(),
            variables: Arc::clone(variables),
        })
    }

    /// Everything among the arguments that may be a pointer, also in structures.
    pub(super) fn pointers(&self) -> Vec<Use> {
        let places = self.parameters.iter();
        let offsets = places.flat_map(|place| {
            let first = place.offset.next_multiple_of(POINTER);
            let end = place.offset + place.size;
            (first..end)
                .step_by(POINTER)
                .filter(move |offset| offset + POINTER <= end)
        });
        let addresses = offsets.map(|offset| self.arguments.word(offset));
        addresses
            .map(|address| Use {
                what: "kernel argument",
                address,
                len: 1,
            })
            .collect()
    }
}
