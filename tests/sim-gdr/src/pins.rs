//! Handles, pins and mappings: the bookkeeping of the library and of the module.
//!
//! The simulated driver is never called with the table locked, because it calls [`on_free`] with its own lock held.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulong};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::gdr::{
    GDR_PIN_FLAG_DEFAULT, GDR_PIN_FLAG_FORCE_PCIE, GPU_PAGE_SIZE, gdr_info_v2_t, gdr_mapping_type_t,
};
use cuda_sim_support::page::host_page;

use crate::configuration::Configuration;
use crate::driver::{Driver, Part};
use crate::export::Answer;
use crate::window::Window;

const NONE: gdr_mapping_type_t = gdr_mapping_type_t::GDR_MAPPING_TYPE_NONE;
const WC: gdr_mapping_type_t = gdr_mapping_type_t::GDR_MAPPING_TYPE_WC;
const CACHING: gdr_mapping_type_t = gdr_mapping_type_t::GDR_MAPPING_TYPE_CACHING;

/// An open handle. The real one also starts with a descriptor, and programs have read it.
#[derive(Debug)]
#[repr(C)]
struct Opened {
    device: File,
    process: u32,
    is_dma_buf: bool,
}

/// Pinned memory.
#[derive(Debug)]
struct Pin {
    owner: usize,
    /// The requested range, followed by the whole pages around it.
    asked: (u64, u64),
    start: u64,
    len: u64,
    /// The kind of its mapping.
    kind: gdr_mapping_type_t,
    window: Option<Window>,
    /// Whether the driver revoked it.
    is_invalid: bool,
    dma_buf: Option<OwnedFd>,
}

#[derive(Debug)]
struct Table {
    opened: BTreeMap<usize, Box<Opened>>,
    pins: BTreeMap<c_ulong, Pin>,
    last: c_ulong,
}

static TABLE: Mutex<Table> = Mutex::new(Table {
    opened: BTreeMap::new(),
    pins: BTreeMap::new(),
    last: 0,
});

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pages(start: u64, len: u64, page: u64) -> Answer<(u64, u64)> {
    let first = start & !(page - 1);
    let end = start.checked_add(len).ok_or(libc::EINVAL)?;
    let end = end.checked_next_multiple_of(page).ok_or(libc::EINVAL)?;
    Ok((first, end - first))
}

impl Table {
    /// A handle opened by the program. The module knows the process that opened it.
    fn opened(&self, owner: usize) -> Answer<&Opened> {
        let opened = self.opened.get(&owner).ok_or(libc::EINVAL)?;
        if !opened.is_dma_buf && opened.process != std::process::id() {
            return Err(libc::EACCES);
        }
        Ok(opened)
    }

    fn pin(&mut self, owner: usize, handle: c_ulong) -> Answer<&mut Pin> {
        let pin = self.pins.get_mut(&handle);
        pin.filter(|pin| pin.owner == owner).ok_or(libc::EINVAL)
    }

    fn unpin(&mut self, owner: usize, handle: c_ulong) -> Answer {
        self.pin(owner, handle)?;
        let answer = self.opened(owner).map(|_| ());
        if let Some(pin) = self.pins.remove(&handle)
            && let Some(window) = pin.window
            && answer.is_ok()
        {
            match pin.dma_buf {
                Some(_) => window.unmap()?,
                None => window.invalidate(),
            }
        }
        answer
    }
}

impl Pin {
    /// The kind that the module reports, which knows more than the library.
    fn kind_now(&self) -> gdr_mapping_type_t {
        match self.window {
            Some(_) if !self.is_invalid => self.kind,
            _ => NONE,
        }
    }

    /// The range of a new mapping of `size` bytes.
    fn range_to_map(&self, size: u64) -> Answer<(u64, u64)> {
        let offset = self.asked.0 - self.start;
        let len = size
            .checked_next_multiple_of(host_page())
            .ok_or(libc::EINVAL)?;
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        // Both a mapping by the module and a file mapping must start at a page.
        if self.is_invalid || offset != 0 || len == 0 || !is_inside {
            return Err(libc::EINVAL);
        }
        Ok((self.start, len))
    }
}

/// Opens a handle. The error is the errno, if the library sets one.
pub(crate) fn open() -> Result<usize, Option<c_int>> {
    let configuration = Configuration::get();
    let by_module = match configuration.open_error {
        _ if configuration.knows_dma_buf() && configuration.wants_dma_buf => {
            Err(Some(libc::ENOTSUP))
        }
        Some(code) => Err(Some(code)),
        // Version 1 of the library does not check.
        None if configuration.version >= (2, 0) && configuration.driver_version < (2, 0) => {
            Err(None)
        }
        None => Ok(()),
    };
    let has_dma_buf = || Driver::get().is_ok_and(Driver::has_dma_buf_mmap);
    let is_dma_buf = match by_module {
        Ok(()) => false,
        Err(_) if configuration.knows_dma_buf() && has_dma_buf() => true,
        Err(code) => return Err(code),
    };
    // Represents the module's device.
    let device = File::options().read(true).write(true).open("/dev/null");
    let device = device.map_err(|error| error.raw_os_error())?;
    let opened = Box::new(Opened {
        device,
        process: std::process::id(),
        is_dma_buf,
    });
    let owner = std::ptr::from_ref(&*opened).expose_provenance();
    table().opened.insert(owner, opened);
    Ok(owner)
}

pub(crate) fn close(owner: usize) -> Answer {
    let mut table = table();
    table.opened.get(&owner).ok_or(libc::EINVAL)?;
    let pins = table.pins.iter();
    let its: Vec<c_ulong> = pins
        .filter(|(_, pin)| pin.owner == owner)
        .map(|(handle, _)| *handle)
        .collect();
    for handle in its {
        table.unpin(owner, handle)?;
    }
    table.opened.remove(&owner);
    Ok(())
}

/// Pins memory. The token and the address space are arguments of the call's first version.
pub(crate) fn pin(
    owner: usize,
    asked: (u64, u64),
    (token, space): (u64, u32),
    flags: u32,
) -> Answer<c_ulong> {
    let configuration = Configuration::get();
    let is_dma_buf = table().opened(owner)?.is_dma_buf;
    let is_coherent = configuration.mapping == CACHING;
    let forces_pcie = flags == GDR_PIN_FLAG_FORCE_PCIE;
    let is_known = flags == GDR_PIN_FLAG_DEFAULT || forces_pcie;
    let is_forbidden = !is_dma_buf
        && (token != 0
            || space != 0
            || forces_pcie
                && !(configuration.is_persistent
                    && is_coherent
                    && configuration.driver_version >= (2, 5)));
    if !is_known || is_forbidden || asked.0 == 0 {
        return Err(libc::EINVAL);
    }
    let page = if is_dma_buf {
        host_page()
    } else {
        GPU_PAGE_SIZE
    };
    let (start, len) = pages(asked.0, asked.1, page)?;
    let kind = match (is_dma_buf, is_coherent) {
        _ if forces_pcie => WC,
        (true, false) => WC,
        (true, true) => CACHING,
        (false, _) => configuration.mapping,
    };
    let driver = Driver::get()?;
    let dma_buf = if is_dma_buf {
        Some(driver.dma_buf(start, len, forces_pcie)?)
    } else {
        None
    };
    let handle = {
        let mut table = table();
        table.last += 1;
        let handle = table.last;
        table.pins.insert(
            handle,
            Pin {
                owner,
                asked,
                start,
                len,
                kind,
                window: None,
                is_invalid: false,
                dma_buf,
            },
        );
        handle
    };
    // After the insertion, so that a concurrent free is noticed.
    if !is_dma_buf && let Err(code) = driver.check_direct(asked.0, asked.1) {
        table().pins.remove(&handle);
        return Err(code);
    }
    Ok(handle)
}

pub(crate) fn unpin(owner: usize, handle: c_ulong) -> Answer {
    table().unpin(owner, handle)
}

/// Maps pinned memory, if the mapping is of the wanted kind.
pub(crate) fn map(
    owner: usize,
    handle: c_ulong,
    size: usize,
    wanted: Option<gdr_mapping_type_t>,
) -> Answer<u64> {
    let (start, len) = {
        let mut table = table();
        if table.pin(owner, handle)?.window.is_some() {
            return Err(libc::EAGAIN);
        }
        table.opened(owner)?;
        let pin = table.pin(owner, handle)?;
        if wanted.is_some_and(|wanted| wanted != pin.kind) {
            return Err(libc::EINVAL);
        }
        let (start, len) = pin.range_to_map(size as u64)?;
        if let Some(file) = &pin.dma_buf {
            let window = Window::of_file(file, 0, len)?;
            pin.window = Some(window);
            return Ok(window.base);
        }
        (start, len)
    };
    let (driver, mut parts) = (Driver::get()?, Vec::<Part>::new());
    let mut at = start;
    while at < start + len {
        let part = driver.part(at, start + len - at)?;
        at += part.len;
        parts.push(part);
    }
    let window = Window::new(&parts)?;
    let mut table = table();
    match table.pin(owner, handle) {
        Ok(pin) if !pin.is_invalid && pin.window.is_none() => {
            pin.window = Some(window);
            Ok(window.base)
        }
        // The memory was freed in the meantime.
        _ => {
            window.unmap()?;
            Err(libc::EAGAIN)
        }
    }
}

pub(crate) fn unmap(owner: usize, handle: c_ulong, base: u64, size: usize) -> Answer {
    let mut table = table();
    let pin = table.pin(owner, handle)?;
    let len = (size as u64).checked_next_multiple_of(host_page());
    let window = pin.window.ok_or(libc::EINVAL)?;
    if window.base != base || Some(window.len) != len {
        return Err(libc::EINVAL);
    }
    window.unmap()?;
    pin.window = None;
    Ok(())
}

/// EINVAL unless the memory is mapped, according to the library.
pub(crate) fn check_mapped(handle: c_ulong) -> Answer {
    let table = table();
    let pin = table.pins.get(&handle).ok_or(libc::EINVAL)?;
    pin.window.map(|_| ()).ok_or(libc::EINVAL)
}

pub(crate) fn callback_flag(owner: usize, handle: c_ulong) -> Answer<bool> {
    let mut table = table();
    table.opened(owner)?;
    Ok(table.pin(owner, handle)?.is_invalid)
}

pub(crate) fn info(owner: usize, handle: c_ulong) -> Answer<gdr_info_v2_t> {
    let mut table = table();
    let is_dma_buf = table.opened(owner)?.is_dma_buf;
    let pin = table.pin(owner, handle)?;
    let kind = pin.kind_now();
    // Pinning takes some time.
    let time = u32::from(!is_dma_buf);
    Ok(gdr_info_v2_t {
        va: pin.start,
        mapped_size: pin.len,
        page_size: if is_dma_buf {
            host_page()
        } else {
            GPU_PAGE_SIZE
        } as u32,
        tm_cycles: u64::from(time) * 1000,
        cycles_per_ms: time * 1_000_000,
        bits: u32::from(kind != NONE) | u32::from(kind == WC) << 1,
        mapping_type: kind,
    })
}

/// Whether dma-bufs replace the module.
pub(crate) fn uses_dma_buf(owner: usize) -> Answer<bool> {
    Ok(table().opened(owner)?.is_dma_buf)
}

/// Called when the simulated driver frees memory, with its own lock held. Persistent pins stay.
pub(crate) extern "C" fn on_free(start: u64, len: u64) {
    if Configuration::get().is_persistent {
        return;
    }
    let end = start.saturating_add(len);
    for pin in table().pins.values_mut() {
        let (asked, size) = pin.asked;
        let is_hit = asked < end && start < asked.saturating_add(size);
        if is_hit && !pin.is_invalid && pin.dma_buf.is_none() {
            pin.is_invalid = true;
            if let Some(window) = pin.window {
                window.invalidate();
            }
        }
    }
}

/// Number of pins in this process, including invalidated ones.
#[unsafe(no_mangle)]
extern "C" fn simgdr_pins() -> u64 {
    table().pins.len() as u64
}

/// Number of these that are mapped, according to the library.
#[unsafe(no_mangle)]
extern "C" fn simgdr_mappings() -> u64 {
    let table = table();
    let mapped = table.pins.values().filter(|pin| pin.window.is_some());
    mapped.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_rounded_to_whole_pages() {
        assert_eq!(pages(70_000, 1, GPU_PAGE_SIZE), Ok((65_536, 65_536)));
        assert_eq!(pages(65_536, 65_537, GPU_PAGE_SIZE), Ok((65_536, 131_072)));
        assert_eq!(pages(u64::MAX, 2, GPU_PAGE_SIZE), Err(libc::EINVAL));
    }
}
