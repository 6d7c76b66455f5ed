//! Launching kernels.

use cuda_driver_sys::{CUdevice_attribute, CUresult};

use super::argument::{Arguments, sealed::Spot};
use super::function::Function;
use crate::error::{Error, Result};
use crate::stream::Stream;
use crate::{raw, recording};

/// How many threads a launch has: blocks, and threads of each block, in up to three dimensions; and shared memory.
///
/// ```
/// use cuda_mem::Launch;
///
/// let launch = Launch::over(1000, 256); // a thread for each of 1000 elements
/// assert_eq!((launch.grid, launch.block), ([4, 1, 1], [256, 1, 1]));
/// let launch = Launch::new([2, 3, 1], [32, 4, 1]).shared(1024);
/// assert_eq!(launch.shared, 1024);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Launch {
    /// Blocks, by dimension. None at all, in any dimension: nothing is launched.
    pub grid: [u32; 3],
    /// Threads of a block, by dimension.
    pub block: [u32; 3],
    /// Bytes of shared memory of a block, beside what the kernel itself asks for.
    pub shared: u32,
}

impl Launch {
    /// So many blocks of so many threads.
    #[must_use]
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            grid,
            block,
            shared: 0,
        }
    }

    /// Blocks of so many threads in one dimension, with a thread for each of so many elements. The last block has
    /// threads too many. A launch of more blocks than a grid can have (2^31) is refused.
    #[must_use]
    pub fn over(elements: usize, threads: u32) -> Self {
        let blocks = (elements as u64).div_ceil(u64::from(threads.max(1)));
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        Self::new([blocks, 1, 1], [threads, 1, 1])
    }

    /// With so many bytes of shared memory a block.
    #[must_use]
    pub fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }
}

impl Function {
    /// Launches the kernel in the order of the stream. The host does not wait, but for code that has to be
    /// [loaded](Self::preload) first. Buffers of other streams are lent to this one: two driver calls at each
    /// end. Without any blocks nothing is launched.
    ///
    /// # Safety
    ///
    /// The arguments must be what the kernel takes, in number, type and order. It must touch only memory that is
    /// there until it has run: buffers among the arguments are. It must not write to memory that it was given by
    /// `&`, or that others use at the same time.
    ///
    /// Number and sizes of the arguments are checked from CUDA 12.4 on; types cannot be.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the stream is of another context, arguments do
    /// not fit, or the kernel or device cannot run such blocks: the limits are in the text.
    /// [`Capturing`](crate::ErrorKind::Capturing) on a stream that this crate captures. Else as the driver
    /// answers, also for faults of earlier work.
    #[doc(alias("cuLaunchKernel", "<<<>>>"))]
    pub unsafe fn launch<'a>(
        &self,
        stream: &'a Stream,
        launch: Launch,
        arguments: impl Arguments<'a>,
    ) -> Result<()> {
        if stream.context() != self.context() {
            return Err(Error::invalid(format!(
                "{self:?} cannot run on {stream:?}, which is of another context; load it there too"
            )));
        }
        recording::refuse(self.table(), stream.as_raw())?;
        if launch.grid.contains(&0) {
            return Ok(());
        }
        arguments.with(stream, &mut |places| {
            self.check_arguments(places)?;
            let mut pointers = [std::ptr::null_mut(); MOST];
            for (pointer, place) in pointers.iter_mut().zip(places) {
                *pointer = place.0;
            }
            let _outside = recording::outside(self.table(), stream.as_raw())?;
            let _current = stream.bind()?;
            // SAFETY: the code is held and of the stream's context, which is current; the arguments are held, and
            // the caller vouches for what they are and for what the kernel does.
            unsafe {
                raw::module::launch(
                    self.table(),
                    self.as_raw(),
                    launch.grid,
                    launch.block,
                    launch.shared,
                    stream.as_raw(),
                    &mut pointers,
                )
            }
            .map_err(|error| self.explain(launch, error))
        })
    }

    fn check_arguments(&self, places: &[Spot]) -> Result<()> {
        let Some(wanted) = self.parameters() else {
            return Ok(());
        };
        if wanted.len() == places.len() && wanted.iter().zip(places).all(|(w, p)| *w == p.1) {
            return Ok(());
        }
        let given: Vec<usize> = places.iter().map(|place| place.1).collect();
        Err(Error::invalid(format!(
            "{self:?} takes arguments of {wanted:?} bytes, and was given {given:?}"
        )))
    }

    /// Adds what would have been possible to a refusal.
    #[cold]
    fn explain(&self, launch: Launch, error: Error) -> Error {
        let refusals = [
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            CUresult::CUDA_ERROR_INVALID_CONTEXT,
        ];
        if !error.code().is_some_and(|code| refusals.contains(&code)) {
            return error;
        }
        error.asked(|| {
            let number = |limit: Result<u32>| limit.map_or("?".to_owned(), |limit| limit.to_string());
            let device = |attribute| {
                let limit = self.context().device().attribute(attribute);
                number(limit.map(|limit| limit.unwrap_or(0).unsigned_abs()))
            };
            use CUdevice_attribute as A;
            format!(
                "{self:?} with a grid of {:?}, blocks of {:?} threads and {} bytes of shared memory. A block of it \
                 has at most {} threads, of the device's [{}, {}, {}] by dimension, and {} bytes from a launch; a \
                 grid [{}, {}, {}] blocks",
                launch.grid,
                launch.block,
                launch.shared,
                number(self.max_threads()),
                device(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
                device(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                device(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
                number(self.max_dynamic_shared()),
                device(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
                device(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                device(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
            )
        })
    }
}

/// Arguments of a launch at most.
const MOST: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_over_elements_has_a_thread_for_each() {
        assert_eq!(Launch::over(0, 256).grid, [0, 1, 1]);
        assert_eq!(Launch::over(1, 256).grid, [1, 1, 1]);
        assert_eq!(Launch::over(256, 256).grid, [1, 1, 1]);
        assert_eq!(Launch::over(257, 256).grid, [2, 1, 1]);
        assert_eq!(Launch::over(usize::MAX, 1).grid, [u32::MAX, 1, 1]);
        assert_eq!(Launch::over(5, 0).block, [0, 1, 1]);
    }
}
