//! What a cubin says of itself: its kernels with their parameters, and its variables. Its instructions cannot be run
//! here; a model can take the place of a kernel.

use std::ffi::CString;

use cuda_driver_sys::CUresult;
use object::elf::{ELFCLASS32, EM_CUDA, FileHeader64, STT_FUNC, STT_OBJECT};
use object::read::elf::{ElfFile64, FileHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, SymbolFlags};

use super::code::{Code, DEVICE_TARGET, Entry, Parameter, Refusal};
use super::declaration::{LARGEST, LARGEST_ALIGNMENT, Variable};

/// Size of the header that says how long a cubin is.
pub(super) const HEADER: usize = size_of::<FileHeader64<LittleEndian>>();

/// Where a file says how wide its addresses are.
const CLASS: usize = 4;
/// `STO_CUDA_ENTRY`: a function that can be launched.
const ENTRY: u8 = 0x10;

/// `ptxas` adds to the shared memory of a kernel for 9.0 what the device keeps of each block. Measured: the driver does
/// not count it.
const RESERVED: u64 = 1 << 10;

/// Attributes of a kernel, in `.nv.info.NAME`.
const MAX_THREADS: u8 = 0x05;
const PARAMETER: u8 = 0x17;
/// The format of attributes that have a length and a value of that length. All other attributes take four bytes.
const SIZED: u8 = 0x04;

const SECTIONS: [&str; 3] = [".nv.global", ".nv.global.init", ".nv.constant3"];

fn broken(error: object::Error) -> Refusal {
    Refusal::image(format!("the cubin cannot be read: {error}"))
}

fn header(bytes: &[u8]) -> Result<&FileHeader64<LittleEndian>, Refusal> {
    // Measured: this error for a file of 32 bits.
    if bytes.get(CLASS) == Some(&ELFCLASS32.0) {
        return Err(Refusal {
            code: CUresult::CUDA_ERROR_UNKNOWN,
            ..Refusal::image("the binary has addresses of 32 bits")
        });
    }
    FileHeader64::parse(bytes).map_err(broken)
}

/// The length of a cubin with this header: its tables are at its end.
pub(super) fn len(bytes: &[u8; HEADER]) -> Result<usize, Refusal> {
    let header = header(bytes)?;
    let end = |offset: u64, count: u16, size: u16| {
        let len = u64::from(count) * u64::from(size);
        offset.saturating_add(len)
    };
    let little = LittleEndian;
    let sections = end(
        header.e_shoff(little),
        header.e_shnum(little),
        header.e_shentsize(little),
    );
    let segments = end(
        header.e_phoff(little),
        header.e_phnum(little),
        header.e_phentsize(little),
    );
    Ok(usize::try_from(sections.max(segments)).unwrap_or(usize::MAX))
}

/// The compute capability that it was made for: 90 for `sm_90`.
fn target(header: &FileHeader64<LittleEndian>) -> u32 {
    let flags = header.e_flags(LittleEndian).0;
    // The place changed with CUDA 13.
    let shift = if header.e_ident().abi_version >= 8 {
        8
    } else {
        0
    };
    flags >> shift & 0xff
}

/// The compute capability of the PTX that it was made from, in the note of the compiler, after a header of 24 bytes and a
/// version of 2.
fn source_target(file: &File<'_>) -> Option<u32> {
    let section = file.section_by_name(".note.nv.cuinfo")?;
    let target = section.data().ok()?.get(26..)?.first_chunk()?;
    Some(u16::from_le_bytes(*target).into())
}

/// Reads a cubin.
pub(super) fn parse(bytes: &[u8]) -> Result<Code, Refusal> {
    let header = header(bytes)?;
    if header.e_machine(LittleEndian) != EM_CUDA {
        return Err(Refusal::image("the binary is for another processor"));
    }
    let target = target(header);
    // Measured with another major and with a later minor version.
    if target != DEVICE_TARGET {
        return Err(Refusal {
            code: CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
            ..Refusal::image(format!(
                "the cubin is for sm_{target}, the device is sm_{DEVICE_TARGET}"
            ))
        });
    }
    let file = File::parse(bytes).map_err(broken)?;
    let source = source_target(&file).unwrap_or(target);
    let mut code = Code::default();
    for symbol in file.symbols() {
        let SymbolFlags::Elf { st_info, st_other } = symbol.flags() else {
            continue;
        };
        let name = symbol.name().map_err(broken)?;
        match st_info.st_type() {
            STT_FUNC if st_other.0 & ENTRY != 0 => code.entries.push(entry(&file, name, source)?),
            STT_OBJECT => code.variables.extend(variable(&file, &symbol)?),
            _ => {}
        }
    }
    Ok(code)
}

type File<'a> = ElfFile64<'a, LittleEndian>;

fn entry(file: &File<'_>, name: &str, target: u32) -> Result<Entry, Refusal> {
    let mut entry = Entry {
        name: CString::new(name).unwrap_or_default(),
        target,
        ..Entry::default()
    };
    if let Some(section) = file.section_by_name(&format!(".nv.shared.{name}")) {
        let own = section.size().saturating_sub(RESERVED);
        entry.shared = u32::try_from(own).unwrap_or(u32::MAX);
    }
    if let Some(section) = file.section_by_name(&format!(".nv.info.{name}")) {
        attributes(section.data().map_err(broken)?, &mut entry);
        let mut end = 0;
        for place in &entry.parameters {
            if place.offset < end {
                return Err(Refusal::image(
                    "the cubin cannot be read: parameters overlap",
                ));
            }
            end = place.offset + place.size;
        }
    }
    Ok(entry)
}

/// Reads the attributes of a kernel, as far as they are whole.
fn attributes(mut bytes: &[u8], entry: &mut Entry) {
    let mut parameters: Vec<(u16, Parameter)> = Vec::new();
    while let [format, attribute, low, high, rest @ ..] = bytes {
        let len = usize::from(u16::from_le_bytes([*low, *high]));
        let len = if *format == SIZED { len } else { 0 };
        let Some((value, rest)) = rest.split_at_checked(len) else {
            break;
        };
        bytes = rest;
        let word = |index: usize| {
            let word = value.get(4 * index..)?.first_chunk()?;
            Some(u32::from_le_bytes(*word))
        };
        match *attribute {
            MAX_THREADS => {
                let threads = (0..3).filter_map(word);
                entry.max_threads = Some(threads.fold(1, u32::saturating_mul));
            }
            PARAMETER => {
                // An index, the number and the offset in 16 bits each, and the size in the upper bits.
                if let (Some(place), Some(flags)) = (word(1), word(2)) {
                    let parameter = Parameter {
                        offset: (place >> 16) as usize,
                        size: (flags >> 18) as usize,
                    };
                    parameters.push((place as u16, parameter));
                }
            }
            _ => {}
        }
    }
    parameters.sort_by_key(|(number, _)| *number);
    entry.parameters = parameters.into_iter().map(|(_, place)| place).collect();
}

/// A variable that the program may ask for. Measured with a text: also one that is not visible to other texts.
///
/// Managed ones are not known: nothing says of one that it is managed but its symbol, in a way that is not documented.
fn variable<'a>(
    file: &File<'a>,
    symbol: &impl ObjectSymbol<'a>,
) -> Result<Option<Variable>, Refusal> {
    let Some(index) = symbol.section_index() else {
        return Ok(None);
    };
    let section = file.section_by_index(index).map_err(broken)?;
    if !SECTIONS.contains(&section.name().map_err(broken)?) {
        return Ok(None);
    }
    let wrong = |what| Refusal::image(format!("the cubin cannot be read: a variable {what}"));
    let (start, size) = (symbol.address(), symbol.size());
    let end = start.checked_add(size).filter(|end| *end <= section.size());
    let end = end.ok_or_else(|| wrong("is not in its section"))?;
    // A section without bytes is zero.
    let bytes = section.data().map_err(broken)?;
    let contents = bytes.get(start as usize..end as usize).unwrap_or_default();
    let align = usize::try_from(section.align().max(1)).unwrap_or(usize::MAX);
    if size > LARGEST as u64 || !align.is_power_of_two() || align > LARGEST_ALIGNMENT {
        return Err(wrong("is too large"));
    }
    Ok(Some(Variable {
        name: CString::new(symbol.name().map_err(broken)?).unwrap_or_default(),
        align,
        size: size as usize,
        contents: contents.to_vec(),
        ..Variable::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUBIN: &[u8] = include_bytes!("../../data/bump-sm_90.cubin");
    const OLDER: &[u8] = include_bytes!("../../data/bump-sm_80.cubin");

    #[test]
    fn a_cubin_tells_its_kernels() {
        let code = parse(CUBIN).expect("understood");
        let [entry] = &code.entries[..] else {
            panic!("one kernel: {code:?}");
        };
        assert_eq!(entry.name.as_c_str(), c"bump");
        let places = entry.parameters.iter().map(|it| (it.offset, it.size));
        assert_eq!(places.collect::<Vec<_>>(), [(0, 8), (8, 12), (20, 1)]);
        assert_eq!((entry.shared, entry.target), (100, 70));
        assert_eq!(entry.max_threads, Some(128));
    }

    #[test]
    fn a_cubin_tells_its_variables() {
        let mut code = parse(CUBIN).expect("understood");
        code.variables
            .sort_by(|left, right| left.name.cmp(&right.name));
        let found: Vec<(&str, usize, &[u8])> = code
            .variables
            .iter()
            .map(|it| (it.name.to_str().expect("text"), it.size, &it.contents[..]))
            .collect();
        let mut table = [0; 1000];
        table[..4].copy_from_slice(&[1, 2, 3, 4]);
        let expected: [(&str, usize, &[u8]); 4] = [
            ("counter", 4, &[7, 0, 0, 0]),
            ("scale", 4, &[5, 0, 0, 0]),
            ("table", 1000, &table),
            ("zero", 4, &[]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn its_header_tells_its_length() {
        for bytes in [CUBIN, OLDER] {
            let header = bytes.first_chunk().expect("a header");
            assert_eq!(len(header).ok(), Some(bytes.len()));
        }
    }

    #[test]
    fn one_for_another_device_is_refused() {
        let refusal = parse(OLDER).expect_err("refused");
        assert_eq!(refusal.code, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
        assert!(refusal.what.contains("sm_80"), "{}", refusal.what);
    }

    #[test]
    fn a_variable_need_not_be_visible() {
        let symbol = find(&4_u64.to_le_bytes(), 20);
        let mut hidden = CUBIN.to_vec();
        for size in &symbol {
            // The binding of each variable of 4 bytes is local.
            hidden[size - 12] &= 0xf;
        }
        let code = parse(&hidden).expect("understood");
        assert_eq!(code.variables.len(), 4);
        assert_ne!(hidden, CUBIN);
    }

    #[test]
    fn the_place_of_the_target_changed_with_cuda_13() {
        let mut older = CUBIN.to_vec();
        let version = 8;
        older[version] = 7;
        older[48..52].copy_from_slice(&90_u32.to_le_bytes());
        assert!(parse(&older).is_ok());
        older[48] = 80;
        assert!(parse(&older).is_err());
    }

    #[test]
    fn a_cut_one_is_refused() {
        for end in 0..CUBIN.len() {
            // Behind the section table there are only segments, which are not read.
            assert!(parse(&CUBIN[..end]).is_err() || end >= 5640, "{end}");
        }
    }

    /// Every field of 8 bytes, alone and with each field of the symbols and sections beside it.
    #[test]
    fn a_changed_one_never_takes_more_memory_than_there_is() {
        let values = [0, 1, 3, 1 << 31, 1 << 40, u64::MAX];
        for at in (0..CUBIN.len() - 8).step_by(8) {
            for value in values {
                let mut bytes = CUBIN.to_vec();
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                if let Ok(code) = parse(&bytes) {
                    check(&code);
                }
            }
        }
        // The size of `zero`, and of its section.
        let symbol = find(&4_u64.to_le_bytes(), 20);
        for size in values {
            for at in symbol.clone() {
                for section in (0..CUBIN.len() - 8).step_by(8) {
                    let mut bytes = CUBIN.to_vec();
                    bytes[at..at + 8].copy_from_slice(&size.to_le_bytes());
                    bytes[section..section + 8].copy_from_slice(&size.to_le_bytes());
                    if let Ok(code) = parse(&bytes) {
                        check(&code);
                    }
                }
            }
        }
    }

    /// Where these bytes are in the symbol table, as far as it has this many symbols.
    fn find(wanted: &[u8], symbols: usize) -> Vec<usize> {
        let (start, len) = (0x3d8, 24 * symbols);
        let places = (start..start + len).step_by(8);
        places.filter(|at| &CUBIN[*at..*at + 8] == wanted).collect()
    }

    fn check(code: &Code) {
        for variable in &code.variables {
            assert!(variable.size <= LARGEST && variable.contents.len() <= variable.size);
            assert!(variable.align.is_power_of_two() && variable.align <= LARGEST_ALIGNMENT);
        }
        for entry in &code.entries {
            let mut end = 0;
            for place in &entry.parameters {
                assert!(place.offset >= end);
                end = place.offset + place.size;
            }
        }
    }
}
