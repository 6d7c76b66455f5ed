//! Hides exports of a library, because an older one lacks newer symbols.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;

use libc::{Elf64_Phdr, Elf64_Sym};

use crate::page::host_page;

const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// One entry of the dynamic section.
#[derive(Clone, Copy)]
#[repr(C)]
struct Dyn {
    tag: u64,
    value: u64,
}

/// Hides exports of the library that contains `address`. Called from its initialisers, before any symbol lookup. Does
/// nothing in a program that only links the code.
pub fn hide_in_library(address: *const c_void, is_hidden: impl Fn(&str) -> bool) {
    if let Some(module) = Module::of(address).filter(|module| !module.is_program) {
        module.hide(is_hidden);
    }
}

/// A loaded object file.
struct Module {
    base: u64,
    dynamic: u64,
    is_program: bool,
}

/// Search key and result of [`Module::of`].
struct Search {
    address: u64,
    found: Option<Module>,
}

impl Module {
    /// The file that contains an address.
    fn of(address: *const c_void) -> Option<Self> {
        let mut search = Search {
            address: address.addr() as u64,
            found: None,
        };
        let data = (&raw mut search).cast::<c_void>();
        // SAFETY: `visit` obeys the contract of dl_iterate_phdr, and `data` outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), data) };
        search.found
    }

    /// Removes the names that `is_hidden` selects from the symbol table.
    fn hide(&self, is_hidden: impl Fn(&str) -> bool) {
        let (Some(symbols), Some(texts)) = (self.entry(DT_SYMTAB), self.entry(DT_STRTAB)) else {
            return;
        };
        let count = match (self.entry(DT_HASH), self.entry(DT_GNU_HASH)) {
            // The second word is the number of symbols.
            (Some(table), _) => u64::from(load::<u32>(table + 4)),
            (None, Some(table)) => count_gnu(table),
            (None, None) => return,
        };
        let size = size_of::<Elf64_Sym>() as u64;
        let pages = pages(symbols..symbols + count * size);
        if !protect(&pages, libc::PROT_READ | libc::PROT_WRITE) {
            eprintln!("cuda-sim: cannot hide symbols");
            return;
        }
        for index in 0..count {
            let at = symbols + index * size;
            let symbol: Elf64_Sym = load(at);
            if symbol.st_shndx == 0 {
                continue;
            }
            // SAFETY: the string table of a loaded file holds zero-terminated names, and
            // `st_name` is an offset into it.
            let name = unsafe { CStr::from_ptr(pointer(texts + u64::from(symbol.st_name))) };
            if name.to_str().is_ok_and(&is_hidden) {
                // Lookups skip undefined symbols, which have neither value nor section.
                let hidden = Elf64_Sym {
                    st_value: 0,
                    st_shndx: 0,
                    ..symbol
                };
                // SAFETY: the entry lies in the pages made writable above; no lookup reads a library whose initialisers
                // still run.
                unsafe { pointer::<Elf64_Sym>(at).write(hidden) };
            }
        }
        protect(&pages, libc::PROT_READ);
    }

    /// The address stored under a tag of the dynamic section.
    fn entry(&self, tag: u64) -> Option<u64> {
        let size = size_of::<Dyn>() as u64;
        let entries = (0..).map(|index| load::<Dyn>(self.dynamic + index * size));
        let entry = entries
            .take_while(|entry| entry.tag != 0)
            .find(|entry| entry.tag == tag)?;
        // glibc has already added the base, musl has not.
        let is_absolute = entry.value >= self.base;
        Some(if is_absolute {
            entry.value
        } else {
            self.base + entry.value
        })
    }
}

/// Called for each loaded file.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description.
    let info = unsafe { info.read() };
    // SAFETY: `Module::of` passes its `Search`, and waits until this returns.
    let search = unsafe { &mut *data.cast::<Search>() };
    let count = usize::from(info.dlpi_phnum);
    // SAFETY: the loader's description has that many headers.
    let headers: &[Elf64_Phdr] = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, count) };
    let base: u64 = info.dlpi_addr;
    let holds = headers.iter().any(|header| {
        let start = base + header.p_vaddr;
        header.p_type == libc::PT_LOAD && (start..start + header.p_memsz).contains(&search.address)
    });
    let dynamic = headers
        .iter()
        .find(|header| header.p_type == libc::PT_DYNAMIC);
    let (true, Some(dynamic)) = (holds, dynamic) else {
        return 0;
    };
    // SAFETY: the loader's names are zero-terminated, or null if there is none.
    let is_program = info.dlpi_name.is_null() || unsafe { info.dlpi_name.read() } == 0;
    search.found = Some(Module {
        base,
        dynamic: base + dynamic.p_vaddr,
        is_program,
    });
    1
}

/// Number of symbols in a GNU hash table, whose chains end with an odd hash.
fn count_gnu(table: u64) -> u64 {
    let word = |index: u64| u64::from(load::<u32>(table + index * 4));
    let (buckets, first, filter_words) = (word(0), word(1), word(2));
    let chains = 4 + filter_words * 2 + buckets;
    let last = (chains - buckets..chains).map(word).max().unwrap_or(0);
    if last < first {
        return first;
    }
    let mut index = last;
    while word(chains + index - first) & 1 == 0 {
        index += 1;
    }
    index + 1
}

/// Reads from this library's own tables.
fn load<T: Copy>(address: u64) -> T {
    // SAFETY: the addresses come from the headers of a loaded file, and the types match the ELF format.
    unsafe { pointer::<T>(address).read_unaligned() }
}

fn pointer<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// The pages that overlap a range.
fn pages(range: Range<u64>) -> Range<u64> {
    let page = host_page();
    range.start / page * page..range.end.next_multiple_of(page)
}

fn protect(pages: &Range<u64>, protection: c_int) -> bool {
    let len = (pages.end - pages.start) as usize;
    // SAFETY: the pages belong to this library, stay readable, and contain no code.
    unsafe { libc::mprotect(pointer(pages.start), len, protection) == 0 }
}
