//! Kernel launches: checked at submission, executed by the stream.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{CUfunction, CUlaunchAttributeID, CUlaunchConfig, CUresult, CUstream};

use super::FunctionId;
use super::attributes::MAX_THREADS;
use super::code::{Entry, Parameter};
use super::occupancy::{Limits, MULTIPROCESSORS};
use super::work::Work;
use crate::context::ContextId;
use crate::export::{Answer, Call, INVALID_VALUE, In, Out, exports};
use crate::memory::bytes;
use crate::state::{State, state};

/// Maximum grid and block dimensions, as in the device's attributes.
const LARGEST_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const LARGEST_BLOCK: [u32; 3] = [MAX_THREADS, MAX_THREADS, 64];

/// The names in the extra list of a launch, stored as pointers.
const END: usize = 0;
const BUFFER: usize = 1;
const BUFFER_SIZE: usize = 2;

/// The list that names an argument buffer and the place of its size.
pub(crate) fn extra_list(buffer: u64, size: u64) -> [u64; 5] {
    [BUFFER as u64, buffer, BUFFER_SIZE as u64, size, END as u64]
}

/// The configuration of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchConfiguration {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    /// Dynamic shared memory.
    pub(crate) dynamic: c_uint,
    pub(crate) is_cooperative: bool,
}

/// Pointers to the arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    /// One pointer per argument.
    pub(crate) each: Out<*mut c_void>,
    /// Alternatively, a list that refers to one buffer with all of them.
    pub(crate) extra: Out<*mut c_void>,
}

/// A launch that was checked.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) function: FunctionId,
    pub(crate) context: ContextId,
    pub(crate) configuration: LaunchConfiguration,
    pub(crate) work: Work,
    /// The argument buffer, and where each argument lies in it.
    pub(crate) arguments: Vec<u8>,
    pub(crate) places: Vec<Parameter>,
    /// Whether they came as a buffer.
    pub(crate) has_buffer: bool,
}

impl LaunchConfiguration {
    fn check(&self, limits: &Limits) -> Answer {
        let fits = |sizes: [u32; 3], largest: [u32; 3]| {
            let mut pairs = sizes.iter().zip(largest);
            pairs.all(|(size, largest)| (1..=largest).contains(size))
        };
        let threads: u32 = self
            .block
            .iter()
            .fold(1, |all, size| all.saturating_mul(*size));
        if !fits(self.grid, LARGEST_GRID)
            || !fits(self.block, LARGEST_BLOCK)
            || threads > limits.threads
            || self.dynamic > limits.dynamic
        {
            return Err(INVALID_VALUE);
        }
        // Documented: all blocks of such a grid must be resident at once.
        let blocks: u64 = self.grid.iter().map(|size| u64::from(*size)).product();
        let at_once = limits.blocks(threads, self.dynamic.into()) * MULTIPROCESSORS;
        if self.is_cooperative && blocks > at_once.into() {
            return Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        Ok(())
    }
}

impl Arguments {
    /// The kernel's argument buffer.
    fn read(self, entry: &Entry) -> Answer<Vec<u8>> {
        let places = &entry.parameters;
        let end = places.last().map_or(0, |last| last.offset + last.size);
        let (has_each, has_extra) = (self.each.required().is_ok(), self.extra.required().is_ok());
        match (has_each, has_extra) {
            // Documented: exactly one of them. A guess: a kernel without parameters needs neither.
            (true, true) => Err(INVALID_VALUE),
            (false, false) if end == 0 => Ok(Vec::new()),
            (false, false) => Err(INVALID_VALUE),
            (true, false) => {
                let mut all = vec![0; end];
                for (index, place) in places.iter().enumerate() {
                    let argument: *mut c_void = self.each.at(index).as_input().read()?;
                    // Measured: null is detected.
                    if argument.is_null() {
                        return Err(INVALID_VALUE);
                    }
                    let value = bytes::read(argument.expose_provenance() as u64, place.size);
                    all[place.offset..][..place.size].copy_from_slice(&value);
                }
                Ok(all)
            }
            (false, true) => self.read_extra(end),
        }
    }

    fn read_extra(self, end: usize) -> Answer<Vec<u8>> {
        let (mut buffer, mut size) = (std::ptr::null_mut::<c_void>(), None);
        let mut at = 0;
        loop {
            let name: *mut c_void = self.extra.at(at).as_input().read()?;
            if name.addr() == END {
                break;
            }
            let value: *mut c_void = self.extra.at(at + 1).as_input().read()?;
            match name.addr() {
                BUFFER => buffer = value,
                BUFFER_SIZE => size = Some(In::new(value.cast::<usize>().cast_const()).read()?),
                _ => return Err(INVALID_VALUE),
            }
            at += 2;
        }
        let size = size.ok_or(INVALID_VALUE)?;
        if buffer.is_null() {
            return Err(INVALID_VALUE);
        }
        // Measured: extra bytes are refused, missing ones are accepted. A guess: they are zero.
        if size > end {
            return Err(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        let mut all = Vec::from(bytes::read(buffer.expose_provenance() as u64, size));
        all.resize(end, 0);
        Ok(all)
    }
}

impl State {
    /// Checks the launch of a function, or of a library kernel, in a context.
    pub(crate) fn prepare_launch(
        &mut self,
        function: CUfunction,
        context: ContextId,
        configuration: LaunchConfiguration,
        arguments: Arguments,
    ) -> Answer<Prepared> {
        let id = self.function_in(function, context)?;
        let found = self.modules.functions.get(&id);
        let found = found.ok_or(super::INVALID_HANDLE)?;
        let module = self.modules.modules.get(&found.module);
        // Measured: the error for a stream of another context.
        let module = module.filter(|module| module.context == context);
        let variables = Arc::clone(&module.ok_or(super::INVALID_HANDLE)?.variables);
        let has_buffer = arguments.extra.required().is_ok();
        let arguments = arguments.read(found.entry()?);
        let entry = found.entry()?.clone();
        configuration.check(&self.limits(id)?)?;
        let arguments = arguments?;
        let work = Work::new(&entry, configuration, &arguments, &variables);
        // A guess: a launch loads the code if necessary, even during a capture.
        self.load_function(id);
        Ok(Prepared {
            function: id,
            context,
            configuration,
            work,
            arguments,
            places: entry.parameters,
            has_buffer,
        })
    }
}

/// Launches a function, or a library kernel in the context of the stream.
///
/// Measured: on a stream that the program created, no context has to be current.
fn launch(
    function: CUfunction,
    configuration: LaunchConfiguration,
    (stream, call): (CUstream, Call),
    arguments: Arguments,
) -> Answer {
    let mut state = state()?;
    let stream = state.resolve(stream, call)?;
    let context = state.stream(stream)?.context;
    let prepared = state.prepare_launch(function, context, configuration, arguments)?;
    // Also while it is captured, so that the program learns it at once.
    prepared.work.check()?;
    if state.is_recording(stream)? {
        return state.record_kernel(stream, prepared);
    }
    let at = state.begin(stream)?;
    state.perform_kernel(at, stream, prepared.work)
}

/// A launch configured by a struct.
fn launch_with(
    config: In<CUlaunchConfig>,
    function: CUfunction,
    call: Call,
    arguments: Arguments,
) -> Answer {
    let config = config.read()?;
    let mut is_cooperative = false;
    for attribute in In::new(config.attrs.cast_const()).read_all(config.numAttrs as usize)? {
        // A guess: all other attributes are accepted and have no effect.
        if attribute.id == CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE {
            // SAFETY: the caller guarantees that the kind says which field is set.
            is_cooperative = unsafe { attribute.value.cooperative } != 0;
        }
    }
    let how = LaunchConfiguration {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        dynamic: config.sharedMemBytes,
        is_cooperative,
    };
    launch(function, how, (config.hStream, call), arguments)
}

exports! {
    plain fn cuLaunchKernel(
        call, function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, dynamic: c_uint, stream: CUstream,
        each: Out<*mut c_void>, extra: Out<*mut c_void>
    ) twin cuLaunchKernel_ptsz {
        let how = LaunchConfiguration {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic,
            is_cooperative: false,
        };
        launch(function, how, (stream, call), Arguments { each, extra })
    }

    plain fn cuLaunchKernelEx(
        call, config: In<CUlaunchConfig>, function: CUfunction, each: Out<*mut c_void>,
        extra: Out<*mut c_void>
    ) twin cuLaunchKernelEx_ptsz {
        launch_with(config, function, call, Arguments { each, extra })
    }

    plain fn cuLaunchCooperativeKernel(
        call, function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, dynamic: c_uint, stream: CUstream,
        each: Out<*mut c_void>
    ) twin cuLaunchCooperativeKernel_ptsz {
        let how = LaunchConfiguration {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            dynamic,
            is_cooperative: true,
        };
        launch(function, how, (stream, call), Arguments { each, extra: Out::none() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        threads: 1024,
        shared: 0,
        dynamic: 48 << 10,
    };

    fn check(grid: [u32; 3], block: [u32; 3], dynamic: u32, is_cooperative: bool) -> Answer {
        let configuration = LaunchConfiguration {
            grid,
            block,
            dynamic,
            is_cooperative,
        };
        configuration.check(&LIMITS)
    }

    #[test]
    fn sizes_have_limits() {
        let one = [1; 3];
        assert_eq!(
            check([i32::MAX as u32, 65_535, 65_535], one, 0, false),
            Ok(())
        );
        assert_eq!(check(one, [16, 1, 64], 48 << 10, false), Ok(()));
        let refused = [
            check([0, 1, 1], one, 0, false),
            check([1, 65_536, 1], one, 0, false),
            check([1 << 31, 1, 1], one, 0, false),
            check(one, [1, 1, 0], 0, false),
            check(one, [1, 1, 65], 0, false),
            check(one, [1025, 1, 1], 0, false),
            check(one, [64, 32, 1], 0, false),
            check(one, one, (48 << 10) + 1, false),
        ];
        assert_eq!(refused, [Err(INVALID_VALUE); 8]);
    }

    #[test]
    fn a_cooperative_grid_is_on_the_device_at_once() {
        let too_large = Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        assert_eq!(check([264, 1, 1], [1024, 1, 1], 0, true), Ok(()));
        assert_eq!(check([265, 1, 1], [1024, 1, 1], 0, true), too_large);
        assert_eq!(check([265, 1, 1], [1024, 1, 1], 0, false), Ok(()));
    }
}
