//! Lists the devices of this machine before and after one of them is used, and the memory that each step takes.
//!
//! ```sh
//! cargo run --example devices                   # uses the last device
//! cargo run --example devices -- --device 0
//! CUDA_SIM_DEVICES=8 cargo run --example devices   # eight simulated ones, without a GPU
//! ```

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use cuda_mem::kernel::{Image, Launch};
use cuda_mem::placement::Nvml;
use cuda_mem::{Device, MemoryPool};
use cuda_mem_console::{EXIT_CODES, OneDeviceOption, bytes, say, table};

const KERNELS: &str = include_str!("../../tests/data/kernels.ptx");

/// Shows the devices, uses one of them, and says what each step takes of their memory
#[derive(Debug, Parser)]
#[command(name = "devices", after_help = EXIT_CODES)]
struct Args {
    #[command(flatten)]
    device: OneDeviceOption,
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    nvidia_ml_sim::use_if_no_nvml();
    let backend = cuda_mem_console::open()?;
    let driver = backend.driver;
    let asked = args.device.of(driver)?;
    let used = *asked.last().context("the driver has no device")?;
    // The NVML of a machine with GPUs does not know simulated ones.
    let nvml = Nvml::load().and_then(|nvml| used.nvml(&nvml).map(|_| nvml));
    let nvml = match nvml {
        Ok(nvml) => Some(nvml),
        Err(error) => {
            say!("memory in use is not known without NVML")?;
            eprintln!("NVML: {error}");
            None
        }
    };
    let visibility = driver.visibility();
    say!(
        "driver: {}, CUDA {}; {}",
        backend.name(),
        driver.version(),
        visibility.at_start()
    )?;
    if let Some(changed) = visibility.changed() {
        say!("{changed}")?;
    }
    let devices = driver.devices()?;
    let machine = Machine { nvml, devices };
    machine.show()?;

    say!("\nnow {used} is used; what changes is shown for each device")?;
    if backend.simulated {
        say!("(simulated: contexts, streams and code take no memory)")?;
    }
    machine.touch(&used)?;
    say!("")?;
    machine.show()
}

struct Machine {
    nvml: Option<Nvml>,
    devices: Vec<Device>,
}

impl Machine {
    fn show(&self) -> Result<()> {
        let mut identities = table(["device", "NVML", "UUID", "PCI"]);
        let header = ["device", "name", "free", "total", "MIG", "context"];
        let mut states = table(header);
        for device in &self.devices {
            // Without a context, only NVML reports these.
            let unknown = || "-".to_owned();
            let (mut index, mut free, mut mig) = (unknown(), unknown(), unknown());
            if let Some(nvml) = &self.nvml {
                let seen = device.nvml(nvml)?;
                index = seen
                    .index()
                    .map_or_else(|_| unknown(), |index| index.to_string());
                free = bytes(seen.memory()?.free);
                let on =
                    |mode: cuda_mem::placement::MigMode| if mode.enabled { "on" } else { "off" };
                mig = seen
                    .mig_mode()?
                    .map_or_else(unknown, |mode| on(mode).to_owned());
            }
            let ordinal = device.ordinal().to_string();
            identities.add_row([
                ordinal.clone(),
                index,
                device.uuid()?.to_string(),
                device.pci_id()?.to_string(),
            ]);
            let context = if device.has_active_context()? {
                "active"
            } else {
                "none"
            };
            states.add_row([
                ordinal,
                device.name()?,
                free,
                bytes(device.total_memory()?),
                mig,
                context.to_owned(),
            ]);
        }
        say!("\n{identities}\n\n{states}")
    }

    /// Uses a device step by step.
    fn touch(&self, device: &Device) -> Result<()> {
        let mut before = self.used()?;
        let mut step = |what: &str| -> Result<()> {
            let now = self.used()?;
            let changes = self.devices.iter().zip(before.iter().zip(&now));
            let changes: Vec<String> = changes
                .filter(|(_, (before, now))| before != now)
                .map(|(device, (before, now))| {
                    let sign = if now > before { '+' } else { '-' };
                    format!("{device} {sign}{}", bytes(now.abs_diff(*before)))
                })
                .collect();
            before = now;
            let first = changes.first().map_or("-", String::as_str);
            say!("  {what:<42} {first}")?;
            // Other programs may use the other devices.
            for other in changes.iter().skip(1) {
                say!("  {:<42} {other}", "")?;
            }
            Ok(())
        };
        let context = device.primary_context()?;
        step("the primary context is retained")?;
        let stream = context.stream()?;
        step("a stream is created")?;
        let module = context.load(&Image::ptx(KERNELS)?)?;
        step("code is loaded")?;
        let fill = module.function("fill")?;
        step("a kernel is found")?;
        let pool = MemoryPool::builder(device).build()?;
        step("a pool is created")?;
        let mut words = pool.alloc::<u32>(&stream, 1 << 20)?;
        step("4 MiB are allocated from it")?;
        // SAFETY: `fill` takes the address of that many words, a word, and their number.
        unsafe {
            fill.launch(
                &stream,
                Launch::over(1 << 20, 256),
                (&mut words, 7u32, 1u64 << 20),
            )
        }?;
        stream.synchronize()?;
        step("the kernel has filled them")?;
        ensure!(
            words.to_vec()?.iter().all(|word| *word == 7),
            "the kernel wrote something else"
        );
        drop(words);
        stream.synchronize()?;
        drop(pool);
        step("the pool is dropped")?;
        drop((fill, module, stream, context));
        step("everything else is dropped")
    }

    /// Bytes in use on each device according to NVML, or zeros without it.
    fn used(&self) -> Result<Vec<u64>> {
        let used = |device: &Device| match &self.nvml {
            Some(nvml) => Ok(device.nvml(nvml)?.memory()?.used),
            None => Ok(0),
        };
        self.devices.iter().map(used).collect()
    }
}
