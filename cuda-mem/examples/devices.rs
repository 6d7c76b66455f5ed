//! The devices of this machine, before and after one of them is touched, and what each step takes of its memory.
//!
//! ```sh
//! cargo run --example devices              # touches the last device
//! cargo run --example devices -- 0         # touches device 0
//! CUDA_SIM_DEVICES=8 cargo run --example devices
//! ```

use std::io::{self, Write as _};

use cuda_mem::{Device, Driver, Error, ErrorKind, Image, Launch, MemoryPool, Nvml, Result, Stream};

const KERNELS: &str = include_str!("../../tests/data/kernels.ptx");

fn main() -> Result<()> {
    cuda_sim::use_if_no_driver();
    nvidia_ml_sim::use_if_no_nvml();
    let nvml = Nvml::load()
        .inspect_err(|error| println!("without NVML: {error}"))
        .ok();
    let driver = Driver::load()?;
    let visibility = driver.visibility();
    println!("CUDA {}; {}", driver.version(), visibility.at_start());
    if let Some(changed) = visibility.changed() {
        println!("{changed}");
    }
    if cuda_sim::is_simulator(driver.library_path()) {
        println!("simulated: NVML does not follow what is used");
    }
    let devices = driver.devices()?;
    let scene = Scene { nvml, devices };
    scene.table()?;

    let last = scene.devices.len().saturating_sub(1);
    let asked = std::env::args().nth(1).map(|text| text.parse());
    let ordinal = asked.transpose().map_err(|_| {
        Error::new(
            ErrorKind::InvalidValue,
            "the argument must be a device's number",
        )
    })?;
    let device = driver.device(ordinal.unwrap_or(last))?;
    println!("\nnow {device:?} is used");
    scene.touch(&device)?;
    println!();
    scene.table()
}

struct Scene {
    nvml: Option<Nvml>,
    devices: Vec<Device>,
}

impl Scene {
    fn table(&self) -> Result<()> {
        println!(
            "{:>7} {:>5} {:<42} {:<18} {:<24} {:>12} {:>12} {:>5} {:>8}",
            "ordinal", "NVML", "UUID", "PCI", "name", "free, MiB", "total, MiB", "MIG", "context"
        );
        for device in &self.devices {
            let seen = self
                .nvml
                .as_ref()
                .map(|nvml| device.nvml(nvml))
                .transpose()?;
            // What only NVML tells without a context is a dash without it.
            let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            let memory = seen.map(|seen| seen.memory()).transpose()?;
            let mig = seen.map(|seen| seen.mig_mode()).transpose()?.flatten();
            println!(
                "{:>7} {:>5} {:<42} {:<18} {:<24} {:>12} {:>12} {:>5} {:>8}",
                device.ordinal(),
                cell(
                    seen.and_then(|seen| seen.index().ok())
                        .map(|index| index.to_string())
                ),
                device.uuid()?.to_string(),
                device.pci_id()?.to_string(),
                device.name()?,
                cell(memory.map(|memory| (memory.free >> 20).to_string())),
                device.total_memory()? >> 20,
                cell(mig.map(|mig| if mig.enabled { "on" } else { "off" }.to_owned())),
                if device.has_active_context()? {
                    "active"
                } else {
                    "none"
                },
            );
        }
        Ok(())
    }

    /// Uses a device step by step.
    fn touch(&self, device: &Device) -> Result<()> {
        let mut before = self.used()?;
        let mut step = |what: &str| -> Result<()> {
            let now = self.used()?;
            print!("{what:<44}");
            for (device, (before, now)) in self.devices.iter().zip(before.iter().zip(&now)) {
                let mib = (*now as i64 - *before as i64) as f64 / f64::from(1 << 20);
                print!(" {}: {mib:+.1} MiB", device.ordinal());
            }
            println!();
            before = now;
            // One line after the other, also where it is not a terminal.
            let _ = io::stdout().flush();
            Ok(())
        };
        let context = device.primary_context()?;
        step("the primary context is retained")?;
        let stream = context.stream()?;
        step("a stream is made")?;
        let module = context.load(&Image::ptx(KERNELS)?)?;
        step("code is loaded")?;
        let fill = module.function("fill")?;
        step("a kernel is found")?;
        let pool = MemoryPool::builder(device).build()?;
        step("a pool is made")?;
        let mut words = pool.alloc::<u32>(&stream, 1 << 20)?;
        step("4 MiB are allocated from it")?;
        // SAFETY: `fill` takes an address of so many words, a word, and their number.
        unsafe {
            fill.launch(
                &stream,
                Launch::over(1 << 20, 256),
                (&mut words, 7u32, 1u64 << 20),
            )
        }?;
        stream.synchronize()?;
        step("the kernel has filled them")?;
        assert!(words.to_vec()?.iter().all(|word| *word == 7));
        end(words, pool, &stream)?;
        step("all of the pool is given back")?;
        drop((fill, module, stream, context));
        step("nothing is left")
    }

    /// Bytes in use on each device, as NVML says; zeros without it.
    fn used(&self) -> Result<Vec<u64>> {
        let used = |device: &Device| match &self.nvml {
            Some(nvml) => Ok(device.nvml(nvml)?.memory()?.used),
            None => Ok(0),
        };
        self.devices.iter().map(used).collect()
    }
}

fn end(words: cuda_mem::DeviceBuffer<u32>, pool: MemoryPool, stream: &Stream) -> Result<()> {
    drop(words);
    stream.synchronize()?;
    drop(pool);
    Ok(())
}
