//! The measurements: from the device by kernels, from the host by loads and stores or by copies.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::kernel::{Function, Image, Launch};
use cuda_mem::sys::{self, CUmemLocationType, CUresult};
use cuda_mem::{Device, DeviceBuffer, Stream};
use serde_json::{Value, json};

use super::common::middle;
use super::kinds::{ALL, Home, Kind, Source, Words};
use super::ring;

pub(crate) const METHOD: &str = "medians over repeats, one thread of the host. Before each repeat managed memory is \
     prefetched to where it is to be found, untimed. device GB/s: a kernel fills the memory (writes), or copies it to memory \
     of a pool (reads): the first pass, launched and waited for, and then the mean of a batch of passes (64 MiB, 1 to 64 of \
     them), launched together and waited for once. device launch: a kernel that writes one word, launched and waited for. \
     device step: one thread of the device follows a ring through the memory, a word of every 128 bytes in scattered order, \
     each load waiting for the last; 2000 steps less a launch of none, for each step. host GB/s: stores into the memory, \
     loads from it: the first pass, and the mean of as large a batch; small sizes are answered by the caches of the host. \
     host step: the host follows the same ring, 2000 steps; only sizes beyond its caches show the memory. Memory that the \
     host does not reach is copied from and to ordinary memory, each copy waited for, and has no host step; a copy of one \
     word is told instead. allocate: allocate, free and wait";

const SIZES: [usize; 7] = [
    4 << 10,
    64 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
    16 << 20,
    256 << 20,
];

/// Repeats last this long, within these limits on their number.
const TIME: Duration = Duration::from_millis(60);
const REPEATS: std::ops::RangeInclusive<usize> = 5..=200;

/// Number of steps in a walk.
const STEPS: u64 = 2000;

struct Bench {
    stream: Stream,
    fill: Function,
    copy: Function,
    /// Not on the simulator, which only knows the test kernels.
    chase: Option<Function>,
}

/// The memory of a row.
struct Subject {
    kind: Kind,
    words: Words,
    /// A buffer of the same size in a pool.
    aside: DeviceBuffer<u32>,
}

/// The measurements, and the kinds that were left out, with the reason.
pub(crate) fn all(device: &Device, is_simulated: bool) -> Result<(Vec<Value>, Vec<String>)> {
    let context = device.primary_context()?;
    let text = include_str!("../../../tests/data/kernels.ptx");
    let module = context.load(&Image::ptx(text)?)?;
    let chase = if is_simulated {
        None
    } else {
        let module = context.load(&Image::ptx(include_str!("chase.ptx"))?)?;
        Some(module.function("chase")?)
    };
    let bench = Bench {
        stream: context.stream()?,
        fill: module.function("fill")?,
        copy: module.function("copy")?,
        chase,
    };
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    if is_simulated {
        left_out.push("device step: the simulator does not run this kernel".to_owned());
    }
    for kind in ALL {
        let tried = kind.open(device).and_then(|source| {
            source.allocate(&bench.stream, 1)?;
            Ok(source)
        });
        let source = match tried {
            Ok(source) => source,
            Err(error) => {
                left_out.push(format!("{}: {error:#}", kind.name()));
                continue;
            }
        };
        for bytes in SIZES {
            eprintln!("{}, {bytes} bytes", kind.name());
            let row = bench.row(kind, &source, bytes);
            rows.push(row.with_context(|| format!("{}, {bytes} bytes", kind.name()))?);
        }
    }
    for line in &left_out {
        eprintln!("left out: {line}");
    }
    Ok((rows, left_out))
}

/// Runs `work` repeatedly, each time after `prepare`, and returns the medians of its results.
fn repeated<const N: usize>(
    subject: &mut Subject,
    prepare: impl Fn(&mut Subject) -> Result<()>,
    mut work: impl FnMut(&mut Subject) -> Result<[f64; N]>,
) -> Result<[f64; N]> {
    prepare(subject)?;
    work(subject)?; // the first one pays for page faults and code loading
    let (start, mut rounds) = (Instant::now(), Vec::new());
    while rounds.len() < *REPEATS.start()
        || (start.elapsed() < TIME && rounds.len() < *REPEATS.end())
    {
        prepare(subject)?;
        rounds.push(work(subject)?);
    }
    Ok(std::array::from_fn(|at| {
        middle(rounds.iter().map(|round| round[at]).collect())
    }))
}

fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

impl Bench {
    fn subject(&self, kind: Kind, source: &Source, len: usize) -> Result<Subject> {
        let pool = self.stream.device().default_resource()?;
        let mut subject = Subject {
            kind,
            words: source.allocate(&self.stream, len)?,
            aside: pool.alloc(&self.stream, len)?,
        };
        subject.words.fill(1)?;
        self.stream.synchronize()?;
        Ok(subject)
    }

    fn row(&self, kind: Kind, source: &Source, bytes: usize) -> Result<Value> {
        let len = bytes / size_of::<u32>();
        let stream = &self.stream;
        let subject = &mut self.subject(kind, source, len)?;
        let place = |subject: &mut Subject| self.place(subject);
        let batch = ((64 << 20) / bytes).clamp(1, 64);
        let [launch] = repeated(subject, place, |it| Ok([self.passes(it, 1, 1, true)?]))?;
        let mut device = |writes| {
            repeated(subject, place, |it| {
                let first = self.passes(it, len, 1, writes)?;
                Ok([first, self.passes(it, len, batch, writes)?])
            })
        };
        let (write, read) = (device(true)?, device(false)?);
        let mut own = vec![3; len];
        let mut host = |writes| {
            repeated(subject, place, |it| {
                let first = self.host_passes(it, &mut own, 1, writes)?;
                Ok([first, self.host_passes(it, &mut own, batch, writes)?])
            })
        };
        let (host_write, host_read) = (host(true)?, host(false)?);
        let word = if kind.is_of_host() {
            None
        } else {
            let (mut own, mut single) = ([3], self.subject(kind, source, 1)?);
            let mut word = |writes| {
                let nothing = |_: &mut Subject| Ok(());
                repeated(&mut single, nothing, |it| {
                    Ok([self.host_passes(it, &mut own, 1, writes)?])
                })
            };
            Some((word(true)?[0], word(false)?[0]))
        };
        // The walks follow a ring, which is written now.
        subject.words.copy_from(&ring::ring(len))?;
        let step = match &self.chase {
            Some(chase) => Some(self.walk(chase, subject, ring::end(len, STEPS))?),
            None => None,
        };
        let host_step = match kind.is_of_host() {
            true => Some(self.host_walk(subject, ring::end(len, STEPS))?),
            false => None,
        };
        let [allocate] = repeated(
            subject,
            |_| Ok(()),
            |_| {
                let taken = seconds(|| {
                    drop(source.allocate(stream, len)?);
                    Ok(stream.synchronize()?)
                })?;
                Ok([taken])
            },
        )?;
        let gigabytes = |seconds: f64| bytes as f64 / seconds / 1e9;
        Ok(json!({
            "kind": kind.name(),
            "bytes": bytes,
            "host_access": if kind.is_of_host() { "direct" } else { "via copy" },
            "allocate_us": allocate * 1e6,
            "device_first_write_gb_s": gigabytes(write[0]),
            "device_first_read_gb_s": gigabytes(read[0]),
            "device_write_gb_s": gigabytes(write[1]),
            "device_read_gb_s": gigabytes(read[1]),
            "device_launch_us": launch * 1e6,
            "device_step_ns": step.map(|step| step * 1e9),
            "host_first_write_gb_s": gigabytes(host_write[0]),
            "host_first_read_gb_s": gigabytes(host_read[0]),
            "host_write_gb_s": gigabytes(host_write[1]),
            "host_read_gb_s": gigabytes(host_read[1]),
            "host_step_ns": host_step.map(|step| step * 1e9),
            "host_word_write_us": word.map(|(write, _)| write * 1e6),
            "host_word_read_us": word.map(|(_, read)| read * 1e6),
        }))
    }

    /// Moves managed memory to where it must reside.
    fn place(&self, subject: &mut Subject) -> Result<()> {
        let Some(home) = subject.kind.home() else {
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
        let (address, bytes) = (subject.words.as_raw(), subject.words.size_bytes());
        let prefetch = device.driver().table().cuMemPrefetchAsync_v2;
        let prefetch = prefetch.context("prefetching to a place needs CUDA 12.2")?;
        let (place, stream) = (sys::location(place, id), self.stream.as_raw());
        // SAFETY: managed memory that stays valid, and a live stream.
        let code = unsafe { prefetch(address, bytes, place, 0, stream) };
        ensure!(code == CUresult::CUDA_SUCCESS, "cuMemPrefetchAsync: {code}");
        Ok(self.stream.synchronize()?)
    }

    /// Seconds of a kernel's pass over `len` words, averaged over `passes` passes.
    fn passes(&self, it: &mut Subject, len: usize, passes: usize, writes: bool) -> Result<f64> {
        let (launch, count) = (Launch::over(len, 256), len as u64);
        let taken = seconds(|| {
            for _ in 0..passes {
                if writes {
                    let arguments = (&mut it.words, 7_u32, count);
                    // SAFETY: `fill` takes an address of that many words, a word, and their number.
                    unsafe { self.fill.launch(&self.stream, launch, arguments) }?;
                } else {
                    let arguments = (&mut it.aside, &it.words, count);
                    // SAFETY: `copy` takes two addresses of that many words, and their number.
                    unsafe { self.copy.launch(&self.stream, launch, arguments) }?;
                }
            }
            Ok(self.stream.synchronize()?)
        })?;
        Ok(taken / passes as f64)
    }

    /// Seconds per step of one device thread.
    fn walk(&self, chase: &Function, subject: &mut Subject, end: u32) -> Result<f64> {
        let taken = repeated(
            subject,
            |subject| self.place(subject),
            |it| {
                let mut walk = |steps: u64| {
                    seconds(|| {
                        let arguments = (&it.words, &mut it.aside, steps);
                        // SAFETY: `chase` takes the address of a ring of words, the address of one word, and a number.
                        unsafe { chase.launch(&self.stream, Launch::over(1, 1), arguments) }?;
                        Ok(self.stream.synchronize()?)
                    })
                };
                let launch = walk(0)?;
                let taken = walk(STEPS)? - launch;
                Ok([taken / STEPS as f64])
            },
        )?;
        let mut seen = vec![0; subject.aside.len()];
        subject.aside.copy_to(&mut seen)?;
        ensure!(seen[0] == end, "the walk ended at {}, not {end}", seen[0]);
        Ok(taken[0])
    }

    /// The memory as a host slice.
    fn slice<'a>(&self, words: &'a mut Words) -> Result<&'a mut [u32]> {
        self.stream.synchronize()?;
        let address: *mut u32 = std::ptr::with_exposed_provenance_mut(words.as_raw() as usize);
        // SAFETY: the kind says that the host can access this memory at this address; the buffer has that many words
        // and is borrowed as long, and the device's work on it is done.
        Ok(unsafe { std::slice::from_raw_parts_mut(address, words.len()) })
    }

    /// Seconds of a host pass over as many words as `own` has.
    fn host_passes(
        &self,
        it: &mut Subject,
        own: &mut [u32],
        passes: usize,
        writes: bool,
    ) -> Result<f64> {
        let taken = if it.kind.is_of_host() {
            let there = &mut self.slice(&mut it.words)?[..own.len()];
            seconds(|| {
                for _ in 0..passes {
                    if writes {
                        black_box(&mut *there).copy_from_slice(black_box(own));
                    } else {
                        black_box(&mut *own).copy_from_slice(black_box(there));
                    }
                }
                Ok(())
            })?
        } else {
            seconds(|| {
                for _ in 0..passes {
                    if writes {
                        it.words.copy_from(own)?;
                    } else {
                        it.words.copy_to(own)?;
                    }
                }
                Ok(self.stream.synchronize()?)
            })?
        };
        Ok(taken / passes as f64)
    }

    /// Seconds per step of the host.
    fn host_walk(&self, subject: &mut Subject, end: u32) -> Result<f64> {
        let [taken] = repeated(
            subject,
            |subject| self.place(subject),
            |it| {
                let there = self.slice(&mut it.words)?;
                let mut at = 0;
                let taken = seconds(|| {
                    for _ in 0..STEPS {
                        at = black_box(there[at as usize]);
                    }
                    Ok(())
                })?;
                ensure!(at == end, "the walk ended at {at}, not {end}");
                Ok([taken / STEPS as f64])
            },
        )?;
        Ok(taken)
    }
}
