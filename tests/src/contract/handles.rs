//! Sharing memory between processes through handles of Windows.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle, RawHandle};
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::driver::Location;
use cuda_mem::interop::{EventHandle, ImportedPool, SharedBuffer};
use cuda_mem::mapped::{AddressRange, PhysicalMemory};
use cuda_mem::{Access, DeviceBuffer, ErrorKind, Stream};
use windows_sys::Win32::Foundation::{DUPLICATE_SAME_ACCESS, DuplicateHandle};
use windows_sys::Win32::System::Threading::GetCurrentProcess;

use super::imports::ensure_same_memory;
use crate::environment::Environment;
use crate::handles;
use crate::own_process::spawned;
use crate::two::{command, is_other};

/// Gives another process a handle of its own, and returns its number there.
fn duplicate_into(process: &Child, handle: &OwnedHandle) -> Result<usize> {
    // SAFETY: no preconditions.
    let this = unsafe { GetCurrentProcess() };
    let mut there: RawHandle = std::ptr::null_mut();
    // SAFETY: all handles are open, and the place is valid for a write.
    let done = unsafe {
        DuplicateHandle(
            this,
            handle.as_raw_handle(),
            process.as_raw_handle(),
            &raw mut there,
            0,
            0,
            DUPLICATE_SAME_ACCESS,
        )
    };
    ensure!(done != 0, "{}", std::io::Error::last_os_error());
    Ok(there.addr())
}

/// Sends the other process the number of its handle, and bytes.
fn tell(process: &mut Child, handle: usize, bytes: &[u8]) -> Result<()> {
    let input = process.stdin.as_mut().context("no standard input")?;
    writeln!(input, "{handle}")?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(input, "{hex}")?;
    Ok(())
}

/// Receives both, in the other process.
fn hear() -> Result<(OwnedHandle, Vec<u8>)> {
    let mut lines = BufReader::new(std::io::stdin()).lines();
    let mut line = || -> Result<String> { Ok(lines.next().context("no line")??) };
    let number: usize = line()?.trim().parse()?;
    let hex = line()?;
    let digits: Vec<char> = hex.trim().chars().collect();
    let bytes = digits.chunks(2).map(|pair| {
        let pair: String = pair.iter().collect();
        u8::from_str_radix(&pair, 16)
    });
    let bytes = bytes.collect::<Result<_, _>>()?;
    // SAFETY: the first process has duplicated it into this one, for nobody else.
    let handle = unsafe { OwnedHandle::from_raw_handle(std::ptr::without_provenance_mut(number)) };
    Ok((handle, bytes))
}

/// Runs the second process of a test to its end, with what `share` gives it.
fn with_other(name: &str, share: impl FnOnce(&mut Child) -> Result<()>) -> Result<()> {
    let mut command = command(name)?;
    command.stdin(Stdio::piped());
    let mut child = spawned(&mut command)?;
    let shared = share(&mut child);
    drop(child.stdin.take());
    let status = child.wait()?;
    let mut text = String::new();
    if let Some(output) = &mut child.stdout {
        output.read_to_string(&mut text)?;
    }
    if let Some(output) = &mut child.stderr {
        output.read_to_string(&mut text)?;
    }
    shared.with_context(|| text.clone())?;
    ensure!(
        status.success() && text.contains("1 passed"),
        "the other process ({status}):\n{text}"
    );
    Ok(())
}

#[apply(case)]
fn two_processes_read_and_write_one_buffer(env: &Environment) -> Result<()> {
    let name = "handles::two_processes_read_and_write_one_buffer";
    let stream = env.stream()?;
    if is_other(name) {
        let (handle, bytes) = hear()?;
        let pool = ImportedPool::from_handle(&env.device()?, &handle)?;
        let shared = SharedBuffer::from_bytes(&bytes)?;
        // SAFETY: the first process keeps the buffer until this one has ended.
        let mut view = unsafe { pool.import::<u32>(&stream, &shared) }?;
        ensure!(view.to_vec()? == [7; 1000]);
        view.fill(9)?;
        view.free().map_err(cuda_mem::Error::from)?;
        stream.synchronize()?;
        return Ok(());
    }
    let pool = env.shareable_pool()?;
    let handle = pool.export_handle()?;
    let buffer = pool.alloc_from(&stream, &[7_u32; 1000])?;
    stream.synchronize()?;
    let shared = buffer.export()?.to_bytes();
    with_other(name, |child| {
        let number = duplicate_into(child, &handle)?;
        tell(child, number, &shared)
    })?;
    ensure!(buffer.to_vec()? == [9; 1000]);
    Ok(())
}

/// Physical memory, mapped for the device.
fn mapped(memory: &PhysicalMemory, stream: &Stream) -> Result<DeviceBuffer<u8>> {
    let range = AddressRange::reserve(memory.driver(), memory.size_bytes(), 0)?;
    let mapping = range.map(0, memory)?;
    mapping.set_access([(Location::Device(stream.device()), Access::ReadWrite)])?;
    let (address, len) = (mapping.address(), usize::try_from(memory.size_bytes())?);
    // SAFETY: the buffer keeps the mapping, and every use of it is synchronised before its end.
    Ok(unsafe { DeviceBuffer::borrow_raw(stream, address, len, mapping) })
}

#[apply(case)]
fn two_processes_map_the_same_memory(env: &Environment) -> Result<()> {
    let name = "handles::two_processes_map_the_same_memory";
    let stream = env.stream()?;
    if is_other(name) {
        let (handle, bytes) = hear()?;
        let bytes = u64::from_le_bytes(bytes.as_slice().try_into()?);
        let memory = handles::import_memory(env.driver, &handle, bytes)?;
        ensure!(memory.export_handle().is_err(), "an import is exported");
        let mut view = mapped(&memory, &stream)?;
        ensure!(view.to_vec()?.iter().all(|byte| *byte == 3));
        view.fill(4)?;
        stream.synchronize()?;
        return Ok(());
    }
    let memory = PhysicalMemory::builder(&env.device()?)
        .handle_types(handles::KIND)
        .build(1 << 20)?;
    let handle = memory.export_handle()?;
    let mut view = mapped(&memory, &stream)?;
    view.fill(3)?;
    stream.synchronize()?;
    with_other(name, |child| {
        let number = duplicate_into(child, &handle)?;
        tell(child, number, &memory.size_bytes().to_le_bytes())
    })?;
    ensure!(view.to_vec()?.iter().all(|byte| *byte == 4));
    Ok(())
}

#[apply(case)]
fn a_pool_is_imported_where_it_was_exported(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.shareable_pool()?, env.stream()?);
    let imported = ImportedPool::from_handle(&env.device()?, pool.export_handle()?)?;
    ensure_same_memory(&pool, &imported, &stream)
}

#[apply(case)]
fn what_is_no_pool_is_refused(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let file: OwnedHandle = std::fs::File::open(std::env::current_exe()?)?.into();
    let memory = PhysicalMemory::builder(&device)
        .handle_types(handles::KIND)
        .build(1)?;
    drop(memory.export_handle()?);
    let found = ImportedPool::from_handle(&device, &file).map(drop);
    let kind = found.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::InvalidValue), "{kind:?}");
    let found = env.pool()?.export_handle().map(drop);
    let kind = found.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::InvalidValue), "{kind:?}");
    Ok(())
}

/// Its bytes go to another process as those of a buffer do.
#[apply(case)]
fn an_event_is_exported(env: &Environment) -> Result<()> {
    let event = env.context()?.interprocess_event()?;
    let handle = event.export()?;
    // SAFETY: they come from `to_bytes` of a live event just now.
    let read = unsafe { EventHandle::from_bytes(&handle.to_bytes()) }?;
    ensure!(read == handle);
    Ok(())
}
