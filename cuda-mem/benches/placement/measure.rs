//! The measurements: from the device by kernels, from the host by loads and stores or by copies.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::sys::{self, CUmemLocationType, CUresult};
use cuda_mem::{Device, DeviceBuffer, Function, Image, Launch, Stream};
use serde_json::{Value, json};

use super::common::middle;
use super::kinds::{ALL, Home, Kind, Words};

pub(crate) const METHOD: &str = "medians over repeats, one thread. device GB/s: a kernel that fills (write) the memory, or copies it to memory of \
     a pool (read), launched in batches and waited for once. device us: one such kernel of one word, launched and waited for. host GB/s and ns: \
     stores into the memory and loads from it, all of it and one word; of memory that the host does not reach (via copy), copies from and to \
     ordinary memory, each waited for. allocate us: allocate, and free and wait. Managed memory is prefetched to its place before each repeat of \
     which it is the subject, untimed";

const SIZES: [usize; 5] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20];

/// Repeats go on for this long, but no fewer than these and no more than those.
const TIME: Duration = Duration::from_millis(60);
const REPEATS: std::ops::RangeInclusive<usize> = 5..=200;

struct Bench {
    stream: Stream,
    fill: Function,
    copy: Function,
}

pub(crate) fn all(device: &Device) -> Result<Vec<Value>> {
    let context = device.primary_context()?;
    let text = include_str!("../../../tests/data/kernels.ptx");
    let module = context.load(&Image::ptx(text)?)?;
    let bench = Bench {
        stream: context.stream()?,
        fill: module.function("fill")?,
        copy: module.function("copy")?,
    };
    let mut rows = Vec::new();
    for kind in ALL {
        for bytes in SIZES {
            eprintln!("{}, {bytes} bytes", kind.name());
            let row = bench.row(kind, bytes);
            rows.push(row.with_context(|| format!("{}, {bytes} bytes", kind.name()))?);
        }
    }
    Ok(rows)
}

/// Runs `work` again and again, after `prepare`, and gives the median of what it says it took.
fn repeated(
    mut prepare: impl FnMut() -> Result<()>,
    mut work: impl FnMut() -> Result<f64>,
) -> Result<f64> {
    prepare()?;
    work()?; // the first one pays for pages and code
    let (start, mut rounds) = (Instant::now(), Vec::new());
    while rounds.len() < *REPEATS.start()
        || (start.elapsed() < TIME && rounds.len() < *REPEATS.end())
    {
        prepare()?;
        rounds.push(work()?);
    }
    Ok(middle(rounds))
}

fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

impl Bench {
    fn row(&self, kind: Kind, bytes: usize) -> Result<Value> {
        let len = bytes / size_of::<u32>();
        let stream = &self.stream;
        let allocate = repeated(
            || Ok(()),
            || {
                seconds(|| {
                    drop(kind.allocate(stream, len)?);
                    Ok(stream.synchronize()?)
                })
            },
        )?;
        let mut words = kind.allocate(stream, len)?;
        let mut aside = stream
            .device()
            .default_resource()?
            .alloc::<u32>(stream, len)?;
        words.fill(1)?;
        stream.synchronize()?;
        let gigabytes = |seconds: f64| bytes as f64 / seconds / 1e9;
        let batch = ((64 << 20) / bytes).clamp(1, 64);
        let write = self.device(kind, &mut words, &mut aside, (len, batch), true)?;
        let read = self.device(kind, &mut words, &mut aside, (len, batch), false)?;
        let word_write = self.device(kind, &mut words, &mut aside, (1, 1), true)?;
        let word_read = self.device(kind, &mut words, &mut aside, (1, 1), false)?;
        let mut word = kind.allocate(stream, 1)?;
        word.fill(1)?;
        let host_write = self.host(kind, &mut words, len, true)?;
        let host_read = self.host(kind, &mut words, len, false)?;
        let host_word_write = self.host(kind, &mut word, 1, true)?;
        let host_word_read = self.host(kind, &mut word, 1, false)?;
        Ok(json!({
            "kind": kind.name(),
            "bytes": bytes,
            "host_access": if kind.is_of_host() { "direct" } else { "via copy" },
            "allocate_us": allocate * 1e6,
            "device_write_gb_s": gigabytes(write),
            "device_read_gb_s": gigabytes(read),
            "device_word_write_us": word_write * 1e6,
            "device_word_read_us": word_read * 1e6,
            "host_write_gb_s": gigabytes(host_write),
            "host_read_gb_s": gigabytes(host_read),
            "host_word_write_ns": host_word_write * 1e9,
            "host_word_read_ns": host_word_read * 1e9,
        }))
    }

    /// Managed memory goes where it belongs.
    fn place(&self, kind: Kind, words: &Words) -> Result<()> {
        let Some(home) = kind.home() else {
            return Ok(());
        };
        let device = self.stream.device();
        let (place, id) = match home {
            Home::Device => (
                CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                device.as_raw(),
            ),
            Home::Host => (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0),
        };
        let (address, bytes) = (words.as_raw(), words.size_bytes());
        let prefetch = device.driver().table().cuMemPrefetchAsync_v2;
        let prefetch = prefetch.context("prefetching to a place needs CUDA 12.2")?;
        // SAFETY: managed memory that lives on, and a live stream.
        let code = unsafe {
            prefetch(
                address,
                bytes,
                sys::location(place, id),
                0,
                self.stream.as_raw(),
            )
        };
        ensure!(code == CUresult::CUDA_SUCCESS, "cuMemPrefetchAsync: {code}");
        Ok(self.stream.synchronize()?)
    }

    /// Seconds that a kernel takes for so many words.
    fn device(
        &self,
        kind: Kind,
        words: &mut Words,
        aside: &mut DeviceBuffer<u32>,
        (len, batch): (usize, usize),
        writes: bool,
    ) -> Result<f64> {
        // Managed memory is wanted as it is at the first touch, so a batch of it is one.
        let batch = if kind.home().is_some() { 1 } else { batch };
        let launch = Launch::over(len, 256);
        let mut rounds = Vec::new();
        let start = Instant::now();
        while rounds.len() <= *REPEATS.start()
            || (start.elapsed() < TIME && rounds.len() < *REPEATS.end())
        {
            self.place(kind, words)?;
            let taken = seconds(|| {
                for _ in 0..batch {
                    let count = len as u64;
                    if writes {
                        // SAFETY: `fill` takes an address of so many words, a word, and their number.
                        unsafe {
                            self.fill
                                .launch(&self.stream, launch, (&mut ***words, 7_u32, count))
                        }?;
                    } else {
                        // SAFETY: `copy` takes two addresses of so many words, and their number.
                        unsafe {
                            self.copy
                                .launch(&self.stream, launch, (&mut *aside, &***words, count))
                        }?;
                    }
                }
                Ok(self.stream.synchronize()?)
            })?;
            rounds.push(taken / batch as f64);
        }
        rounds.remove(0);
        Ok(middle(rounds))
    }

    /// Seconds that the host takes for so many words.
    fn host(&self, kind: Kind, words: &mut Words, len: usize, writes: bool) -> Result<f64> {
        let mut own = vec![3_u32; len];
        if !kind.is_of_host() {
            return repeated(
                || Ok(()),
                || {
                    seconds(|| {
                        if writes {
                            words.copy_from(&own)?;
                        } else {
                            words.copy_to(&mut own)?;
                        }
                        Ok(self.stream.synchronize()?)
                    })
                },
            );
        }
        self.stream.synchronize()?;
        let address: *mut u32 = std::ptr::with_exposed_provenance_mut(words.as_raw() as usize);
        // SAFETY: the host reaches this memory at this address, the buffer has so many words and lives on, and the device is done with it.
        let there = unsafe { std::slice::from_raw_parts_mut(address, len) };
        // One word takes less than looking at the clock.
        let times = if len == 1 && kind.home().is_none() {
            1000
        } else {
            1
        };
        repeated(
            || self.place(kind, words),
            || {
                let taken = seconds(|| {
                    for _ in 0..times {
                        if writes {
                            black_box(&mut *there).copy_from_slice(black_box(&own));
                        } else {
                            black_box(&mut own).copy_from_slice(black_box(&*there));
                        }
                    }
                    Ok(())
                })?;
                Ok(taken / f64::from(times))
            },
        )
    }
}
