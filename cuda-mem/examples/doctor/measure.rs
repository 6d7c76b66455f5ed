//! Cost of an allocation from the default resource and without pools.

use std::time::Instant;

use cuda_mem::memory::DirectResource;
use cuda_mem::{Device, Resource, Result, Stream};

const PAIRS: usize = 1000;
const BATCHES: usize = 9;
const BYTES: usize = 1 << 20;

/// Nanoseconds for allocating and dropping a buffer.
pub(crate) struct Times {
    pub(crate) default: f64,
    pub(crate) direct: f64,
    /// Free device memory before the measurement.
    pub(crate) free_memory: u64,
}

impl Times {
    /// How many times slower the fallback is.
    pub(crate) fn ratio(&self) -> f64 {
        self.direct / self.default.max(f64::MIN_POSITIVE)
    }
}

/// The method, in words.
pub(crate) fn method() -> String {
    format!(
        "host time of {PAIRS} pairs of allocating 1 MiB and dropping it on one idle stream, divided by \
         {PAIRS}; median of {BATCHES} batches after one to warm up; the two resources take turns. \
         Without pools both are cuMemAlloc"
    )
}

/// Creates the device's context, and releases it at the end.
pub(crate) fn run(device: Device) -> Result<Times> {
    let context = device.primary_context()?;
    let stream = context.stream()?;
    let free_memory = context.memory_info()?.free;
    let default = device.default_resource()?;
    let direct = Resource::new(DirectResource::new(device));
    let (mut default_ns, mut direct_ns) = (Vec::new(), Vec::new());
    for batch in 0..=BATCHES {
        let times = (time(&default, &stream)?, time(&direct, &stream)?);
        // The first batch maps memory and raises clocks.
        if batch > 0 {
            default_ns.push(times.0);
            direct_ns.push(times.1);
        }
    }
    // The memory it keeps is of no use here any more, and others may need it.
    stream.synchronize()?;
    cuda_mem::MemoryResource::trim_to(&default, 0)?;
    Ok(Times {
        default: median(default_ns),
        direct: median(direct_ns),
        free_memory,
    })
}

fn time(resource: &Resource, stream: &Stream) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..PAIRS {
        drop(resource.alloc::<u8>(stream, BYTES)?);
    }
    let taken = start.elapsed();
    // Untimed, so that neither pays for the other's frees.
    stream.synchronize()?;
    Ok(taken.as_nanos() as f64 / PAIRS as f64)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}
