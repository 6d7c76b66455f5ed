//! A `std::function<bool(cudaStream_t)>` as libstdc++ lays it out, which is part of its stable interface.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use cuda_mem::sys::CUstream;

/// What the function holds, or a pointer to it.
type Data = MaybeUninit<[usize; 2]>;

type Manager = unsafe extern "C" fn(*mut Data, *const Data, c_int) -> bool;
type Invoker = unsafe extern "C-unwind" fn(*const Data, *mut CUstream) -> bool;

/// What a manager is asked to do.
const CLONE: c_int = 2;
const DESTROY: c_int = 3;

#[repr(C)]
#[derive(Debug)]
pub(super) struct Filter {
    data: Data,
    manager: Option<Manager>,
    invoker: Option<Invoker>,
}

const _: () = assert!(size_of::<Filter>() == 32);

// SAFETY: PyTorch calls its filters on whichever thread allocates.
unsafe impl Send for Filter {}

impl Filter {
    /// A copy of the function; `None` if it is empty, and on Windows, where PyTorch is built with another library than
    /// libstdc++.
    ///
    /// # Safety
    ///
    /// `from` is null or a live function of this type.
    pub(super) unsafe fn copied_from(from: *const c_void) -> Option<Self> {
        if cfg!(windows) {
            return None;
        }
        let from = from.cast::<Self>();
        // SAFETY: promised by the caller, in the words of the section above.
        let from = unsafe { from.as_ref() }?;
        let (manager, invoker) = (from.manager?, from.invoker?);
        let mut data = Data::uninit();
        // SAFETY: the manager is of this function, and constructs a copy of its data.
        unsafe { manager(&raw mut data, &raw const from.data, CLONE) };
        // libstdc++ itself moves functions by copying these bytes.
        Some(Self {
            data,
            manager: Some(manager),
            invoker: Some(invoker),
        })
    }

    pub(super) fn takes(&self, stream: CUstream) -> bool {
        let mut stream = stream;
        self.invoker
            // SAFETY: the invoker is of this function, and takes the argument by reference.
            .is_some_and(|invoker| unsafe { invoker(&raw const self.data, &raw mut stream) })
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if let Some(manager) = self.manager.take() {
            let data = &raw mut self.data;
            // SAFETY: the manager is of this function, and destroys its data once.
            unsafe { manager(data, data, DESTROY) };
        }
    }
}
