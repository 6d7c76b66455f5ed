//! Launching kernels.

use std::fmt;

use cuda_driver_sys::{CUdevice_attribute, CUresult};

use super::argument::{Arguments, sealed::Spot};
use super::function::Function;
use crate::base::error::{Error, Result};
use crate::driver::raw;
use crate::stream::Stream;

/// The configuration of a launch: blocks and threads per block, in up to three dimensions, and shared memory.
///
/// ```
/// use cuda_mem::kernel::Launch;
///
/// let launch = Launch::over(1000, 256); // a thread for each of 1000 elements
/// assert_eq!((launch.grid, launch.block), ([4, 1, 1], [256, 1, 1]));
/// let launch = Launch::new([2, 3, 1], [32, 4, 1]).shared(1024);
/// assert_eq!(launch.shared, 1024);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Launch {
    /// Blocks, by dimension. If any dimension is 0, nothing is launched.
    pub grid: [u32; 3],
    /// Threads of a block, by dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
}

impl Launch {
    /// This many blocks of this many threads.
    #[must_use]
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            grid,
            block,
            shared: 0,
        }
    }

    /// One-dimensional blocks of this size, with one thread per element. The last block may have excess threads. A
    /// launch of more blocks than a grid can have (2^31) is refused.
    #[must_use]
    pub fn over(elements: usize, threads: u32) -> Self {
        let blocks = (elements as u64).div_ceil(u64::from(threads.max(1)));
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        Self::new([blocks, 1, 1], [threads, 1, 1])
    }

    /// Sets the bytes of dynamic shared memory per block.
    #[must_use]
    pub fn shared(mut self, bytes: u32) -> Self {
        self.shared = bytes;
        self
    }
}

impl Function {
    /// Launches the kernel in the order of the stream. The host waits only for code that has to be
    /// [loaded](Self::preload) first. Memory of other streams is bound to this one; the beginning costs as much as
    /// [`Stream::wait_for`](crate::Stream::wait_for), the end two queries more.
    /// With zero blocks nothing is launched.
    ///
    /// # Safety
    ///
    /// The arguments must be what the kernel takes, in number, type and order. It must access only memory that stays
    /// allocated until it has run; buffers among the arguments do. It must not write to memory that was passed by `&`
    /// or that others use at the same time.
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
                "{self} cannot run on {stream}, which is of another context; load it there too"
            )));
        }
        stream.as_ref().refuse_recorded()?;
        if launch.grid.contains(&0) {
            return Ok(());
        }
        arguments.with(stream, &mut |places| {
            self.check_arguments(places)?;
            let mut pointers = [std::ptr::null_mut(); MOST];
            for (pointer, place) in pointers.iter_mut().zip(places) {
                *pointer = place.0;
            }
            let open = stream.as_ref().submit_bound()?;
            // SAFETY: the code is held and of the stream's context, which is current; the arguments are held, and
            // the caller vouches for what they are and for what the kernel does.
            unsafe {
                raw::module::launch(
                    open.queue(),
                    self.as_raw(),
                    launch.grid,
                    launch.block,
                    launch.shared,
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
            "{self} takes arguments of {wanted:?} bytes, and was given {given:?}"
        )))
    }

    /// Adds why it was refused: what the driver's log says, which limit is exceeded, and all of them.
    #[cold]
    fn explain(&self, launch: Launch, error: Error) -> Error {
        let refusals = [
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            CUresult::CUDA_ERROR_INVALID_CONTEXT,
        ];
        let is_refusal = error.code().is_some_and(|code| refusals.contains(&code));
        // First: what is asked below may be refused too.
        let error = self.context().driver().explain(error);
        error.asked(|| {
            if !is_refusal {
                return self.to_string();
            }
            let limits = self.limits();
            let exceeded = limits.exceeded(&launch);
            let colon = if exceeded.is_empty() { "" } else { ": " };
            format!(
                "{self} with a grid of {} blocks, {} threads a block and {} bytes of shared memory{colon}{}. {limits}",
                Sizes(launch.grid.map(Some)),
                Sizes(launch.block.map(Some)),
                launch.shared,
                exceeded.join("; ")
            )
        })
    }

    /// What launches of it may ask for.
    fn limits(&self) -> Limits {
        let device = |attribute| {
            let limit = self.context().device().attribute(attribute).ok()?;
            limit.map(i32::unsigned_abs)
        };
        use CUdevice_attribute as A;
        Limits {
            threads: self.max_threads().ok(),
            block: [
                device(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
                device(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                device(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
            ],
            grid: [
                device(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
                device(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                device(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
            ],
            shared: self.max_dynamic_shared().ok(),
        }
    }
}

/// What a launch of a kernel may ask for; `None` where the driver does not tell.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Threads of a block.
    threads: Option<u32>,
    /// Threads of a block, by dimension.
    block: [Option<u32>; 3],
    /// Blocks, by dimension.
    grid: [Option<u32>; 3],
    /// Bytes of shared memory of a block that come from the launch.
    shared: Option<u32>,
}

const DIMENSIONS: [&str; 3] = ["first", "second", "third"];

impl Limits {
    /// Where a launch asks for more.
    fn exceeded(&self, launch: &Launch) -> Vec<String> {
        if launch.block.contains(&0) {
            return vec!["it asks for a block without threads".to_owned()];
        }
        let mut exceeded = Vec::new();
        let mut check = |asked: u64, what: String, limit: Option<u32>| {
            if let Some(limit) = limit
                && asked > u64::from(limit)
            {
                exceeded.push(format!("{asked} {what} are more than {limit}"));
            }
        };
        let threads = launch.block.iter().map(|size| u64::from(*size));
        let threads = threads.fold(1, u64::saturating_mul);
        check(threads, "threads a block".to_owned(), self.threads);
        for (index, dimension) in DIMENSIONS.iter().enumerate() {
            let what = format!("threads in a block's {dimension} dimension");
            check(launch.block[index].into(), what, self.block[index]);
        }
        for (index, dimension) in DIMENSIONS.iter().enumerate() {
            let what = format!("blocks in the grid's {dimension} dimension");
            check(launch.grid[index].into(), what, self.grid[index]);
        }
        let what = "bytes of shared memory".to_owned();
        check(launch.shared.into(), what, self.shared);
        exceeded
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "A block of it has at most {} threads, by dimension {}, and {} bytes of shared memory from a launch; a grid \
             {} blocks",
            Size(self.threads),
            Sizes(self.block),
            Size(self.shared),
            Sizes(self.grid)
        )
    }
}

/// A number, or `?`.
struct Size(Option<u32>);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(size) => size.fmt(f),
            None => f.write_str("?"),
        }
    }
}

/// `4 x 1 x 1`.
struct Sizes([Option<u32>; 3]);

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.0.map(Size);
        write!(f, "{x} x {y} x {z}")
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

    #[test]
    fn a_limit_that_is_exceeded_is_named() {
        let limits = Limits {
            threads: Some(1024),
            block: [Some(1024), Some(1024), Some(64)],
            grid: [Some(u32::MAX >> 1), Some(65_535), None],
            shared: Some(48 << 10),
        };
        let exceeded = |grid, block| {
            limits
                .exceeded(&Launch::new(grid, block).shared(1))
                .join("; ")
        };
        assert_eq!(exceeded([1; 3], [1024, 1, 1]), "");
        assert_eq!(
            exceeded([1, 1, u32::MAX], [1; 3]),
            "",
            "unknown is no limit"
        );
        assert_eq!(
            exceeded([1; 3], [1, 0, 1]),
            "it asks for a block without threads"
        );
        assert_eq!(
            exceeded([1, 65_536, 1], [1, 32, 65]),
            "2080 threads a block are more than 1024; 65 threads in a block's third dimension are more than 64; \
             65536 blocks in the grid's second dimension are more than 65535"
        );
        let huge = Launch::new([1; 3], [u32::MAX; 3]).shared(u32::MAX);
        let exceeded = limits.exceeded(&huge);
        assert_eq!(exceeded.len(), 5);
        assert_eq!(
            exceeded[4],
            "4294967295 bytes of shared memory are more than 49152"
        );
        assert_eq!(
            limits.to_string(),
            "A block of it has at most 1024 threads, by dimension 1024 x 1024 x 64, and 49152 bytes of shared memory \
             from a launch; a grid 2147483647 x 65535 x ? blocks"
        );
    }
}
