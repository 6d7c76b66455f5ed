//! What CUDA's sample memMapIPCDrv shows.

use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::driver::{HandleTypes, Location};
use cuda_mem::interop::Channel;
use cuda_mem::kernel::Launch;
use cuda_mem::mapped::{AddressRange, PhysicalMemory};
use cuda_mem::{Access, Device, DeviceBuffer, MemoryPool};

use crate::environment::Environment;
use crate::modules::kernel;
use crate::two::{Other, go, two_processes, wait};

/// As in memMapIPCDrv: each process has memory on a device, imports that of all others, and runs a kernel over each.
#[apply(case)]
fn memory_goes_to_another_process(env: &Environment) -> Result<()> {
    let name = "processes::memory_goes_to_another_process";
    processes_share(env, name, |env| Ok(vec![env.device()?]))
}

#[apply(case_of_two)]
fn memory_of_each_device_goes_to_all_processes(env: &Environment) -> Result<()> {
    let name = "processes::memory_of_each_device_goes_to_all_processes";
    processes_share(env, name, |env| Ok(env.driver.devices()?))
}

const PROCESSES: usize = 3;
const LEN: usize = 10_000;

/// Memory of one process after the other, each with a piece on every device, mapped here.
struct Shared {
    pieces: Vec<DeviceBuffer<f32>>,
    devices: usize,
}

impl Shared {
    /// A piece of this process's own on each device, with a number in it that a kernel wrote.
    fn own(devices: &[Device], process: usize) -> Result<Vec<PhysicalMemory>> {
        let make = |(nth, device): (usize, &Device)| -> Result<_> {
            let memory = PhysicalMemory::builder(device)
                .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
                .build(3 << 20)?;
            let mut piece = mapped(&memory, device)?;
            let fill = kernel(piece.stream().context(), "fill")?;
            let stream = piece.stream().clone();
            let bits = first_number(process, nth).to_bits();
            // SAFETY: as the kernel says.
            unsafe {
                let arguments = (&mut piece, bits, LEN as u64);
                fill.launch(&stream, Launch::over(LEN, 256), arguments)
            }?;
            stream.synchronize()?;
            Ok(memory)
        };
        devices.iter().enumerate().map(make).collect()
    }

    /// All of them, in the order of the processes.
    fn map(memory: &[PhysicalMemory], devices: &[Device]) -> Result<Self> {
        let pieces = memory.iter().zip(devices.iter().cycle());
        Ok(Self {
            pieces: pieces
                .map(|(memory, device)| mapped(memory, device))
                .collect::<Result<_>>()?,
            devices: devices.len(),
        })
    }

    /// Adds this process's numbers to each piece, with a kernel of its device.
    fn add(&mut self, process: usize) -> Result<()> {
        let steps: Vec<f32> = (0..LEN).map(|at| step(process, at)).collect();
        for piece in &mut self.pieces {
            let stream = piece.stream().clone();
            let pool = MemoryPool::builder(&stream.device()).build()?;
            let steps = pool.alloc_from(&stream, &steps)?;
            let add = kernel(stream.context(), "add")?;
            let same = piece.as_raw();
            let arguments = (&mut *piece, same, &steps, LEN as u64);
            // SAFETY: as the kernel says, each of whose threads has a number of its own.
            unsafe { add.launch(&stream, Launch::over(LEN, 256), arguments) }?;
            stream.synchronize()?;
        }
        Ok(())
    }

    /// Every process has added to every piece.
    fn check(&self) -> Result<()> {
        for (nth, piece) in self.pieces.iter().enumerate() {
            let (process, device) = (nth / self.devices, nth % self.devices);
            let seen = piece.to_vec()?;
            for (at, seen) in seen.into_iter().enumerate() {
                let added: f32 = (0..PROCESSES).map(|process| step(process, at)).sum();
                let expected = first_number(process, device) + added;
                ensure!(
                    seen == expected,
                    "{at} of process {process}: {seen}, not {expected}"
                );
            }
        }
        Ok(())
    }
}

fn first_number(process: usize, device: usize) -> f32 {
    (process * 100 + device) as f32
}

fn step(process: usize, at: usize) -> f32 {
    (at * (process + 1)) as f32
}

fn mapped(memory: &PhysicalMemory, device: &Device) -> Result<DeviceBuffer<f32>> {
    let stream = device.primary_context()?.stream()?;
    let range = AddressRange::reserve(device.driver(), memory.size_bytes(), 0)?;
    let mapping = range.map(0, memory)?;
    ensure!(memory.location() == Location::Device(*device));
    // None at all changes nothing.
    mapping.set_access::<Location>([])?;
    ensure!(mapping.access(Location::Device(*device))? == Access::None);
    mapping.set_access([(Location::Device(*device), Access::ReadWrite)])?;
    mapping.set_access::<Location>([])?;
    ensure!(mapping.access(Location::Device(*device))? == Access::ReadWrite);
    let address = mapping.address();
    // SAFETY: the buffer keeps the mapping, and every use of it is synchronised before its end.
    Ok(unsafe { DeviceBuffer::borrow_raw(&stream, address, LEN, mapping) })
}

fn send(channel: &Channel, memory: &[&PhysicalMemory]) -> Result<()> {
    let descriptors = memory.iter().map(|memory| memory.export_fd());
    let descriptors = descriptors.collect::<Result<Vec<_>, _>>()?;
    pass_on(channel, memory[0].size_bytes(), &descriptors)
}

fn pass_on(channel: &Channel, bytes: u64, descriptors: &[OwnedFd]) -> Result<()> {
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    Ok(channel.send(&bytes.to_le_bytes(), &descriptors)?)
}

fn receive(channel: &Channel) -> Result<(u64, Vec<OwnedFd>)> {
    let message = channel.receive()?;
    let bytes = u64::from_le_bytes(message.bytes.as_slice().try_into()?);
    Ok((bytes, message.descriptors))
}

fn import(env: &Environment, bytes: u64, descriptors: &[OwnedFd]) -> Result<Vec<PhysicalMemory>> {
    let one = |descriptor: &OwnedFd| {
        let memory = PhysicalMemory::import_fd(env.driver, descriptor.as_fd(), bytes)?;
        ensure!(
            memory.export_fd().is_err(),
            "an import is not exported again"
        );
        Ok(memory)
    };
    descriptors.iter().map(one).collect()
}

type Devices = fn(&Environment) -> Result<Vec<Device>>;

/// The first process passes on what the others send, and says whose turn it is.
fn processes_share(env: &Environment, name: &str, devices: Devices) -> Result<()> {
    let others = |env: &Environment, channel: &Channel| other_process(env, channel, devices);
    let first = |env: &Environment, others: [&Other; PROCESSES - 1]| -> Result<()> {
        let devices = devices(env)?;
        let own = Shared::own(&devices, 0)?;
        let mut theirs = Vec::new();
        for (nth, other) in others.iter().enumerate() {
            other.channel.send(&[nth as u8 + 1], &[])?;
            theirs.push(receive(&other.channel)?);
        }
        for (nth, other) in others.iter().enumerate() {
            send(&other.channel, &own.iter().collect::<Vec<_>>())?;
            let (bytes, descriptors) = &theirs[others.len() - 1 - nth];
            pass_on(&other.channel, *bytes, descriptors)?;
        }
        let mut memory = own;
        for (bytes, descriptors) in &theirs {
            memory.extend(import(env, *bytes, descriptors)?);
        }
        let mut shared = Shared::map(&memory, &devices)?;
        drop((memory, theirs));
        shared.add(0)?;
        // Each in its turn, and then all look.
        for _ in 0..2 {
            for other in others {
                other.go()?;
                other.wait()?;
            }
        }
        shared.check()
    };
    two_processes(
        env,
        name,
        |env, second| {
            let inner = |env: &Environment, third: &Other| first(env, [second, third]);
            two_processes(env, name, inner, others)
        },
        others,
    )
}

fn other_process(env: &Environment, channel: &Channel, devices: Devices) -> Result<()> {
    let devices = devices(env)?;
    let number = channel.receive()?.bytes;
    let number = usize::from(*number.first().context("no number came")?);
    let own = Shared::own(&devices, number)?;
    send(channel, &own.iter().collect::<Vec<_>>())?;
    let mut all = Vec::new();
    for _ in 1..PROCESSES {
        let (bytes, descriptors) = receive(channel)?;
        ensure!(descriptors.len() == devices.len());
        all.push(import(env, bytes, &descriptors)?);
    }
    all.insert(number, own);
    let mut shared = Shared::map(&all.concat(), &devices)?;
    // The mappings are enough from now on.
    drop(all);
    wait(channel)?;
    shared.add(number)?;
    go(channel)?;
    wait(channel)?;
    shared.check()?;
    go(channel)
}
