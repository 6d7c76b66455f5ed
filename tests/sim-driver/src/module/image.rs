//! The images that a program loads: PTX text, a cubin, or the simulated linker's output.

use std::ffi::{c_uint, c_void};
use std::path::Path;
use std::sync::Arc;

use cuda_driver_sys::{CUjit_option, CUresult};

use super::code::{Code, Refusal};
use super::cubin;
use super::ptx::{newest_of, parse};
use crate::configuration::Configuration;
use crate::export::{Answer, INVALID_VALUE, In, Out, Value};
use crate::memory::{bytes, pointer};

const ELF: [u8; 4] = *b"\x7fELF";
const FATBIN: [u8; 4] = [0x50, 0xed, 0x55, 0xba];
/// Follows the ELF magic number; only the simulated linker writes it.
const LINKED: [u8; 12] = *b"cuda-sim PTX";

const FAT: &str = "the simulated driver reads no fatbin; load a cubin or PTX";

/// What an image contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Texts(Vec<String>),
    Cubin(Vec<u8>),
}

impl Source {
    /// Its kernels and variables.
    pub(super) fn code(&self) -> Result<Code, Refusal> {
        match self {
            Self::Texts(texts) => understand(texts),
            Self::Cubin(bytes) => cubin::parse(bytes),
        }
    }
}

fn not_text() -> Refusal {
    Refusal::image("the image is neither a text nor a binary")
}

/// The simulated linker's output: it looks like a cubin, and contains the texts, each zero-terminated.
pub(super) fn linked(texts: &[String]) -> Vec<u8> {
    let texts: Vec<u8> = texts
        .iter()
        .flat_map(|text| [text.as_bytes(), b"\0"].concat())
        .collect();
    let len = texts.len() as u64;
    [&ELF[..], &LINKED, &len.to_le_bytes(), &texts].concat()
}

fn cut() -> Refusal {
    Refusal::image("the image ends too early")
}

/// The contents of an image of at most `len` bytes. Reads only as much as needed to identify it.
pub(super) fn source(image: *const c_void, len: usize) -> Result<Source, Refusal> {
    let byte = |at: usize| match at {
        at if at < len => {
            let byte = In::new(image.cast::<u8>().wrapping_add(at)).read();
            byte.map_err(|_| cut())
        }
        _ => Err(cut()),
    };
    let read = |start: usize, len: usize| -> Result<Vec<u8>, Refusal> {
        (start..start.saturating_add(len)).map(byte).collect()
    };
    let has = |at: usize, expected: &[u8]| {
        let mut places = (at..).zip(expected);
        places.all(|(at, expected)| byte(at) == Ok(*expected))
    };
    if has(0, &ELF) {
        let start = ELF.len() + LINKED.len();
        if has(ELF.len(), &LINKED) {
            let size = read(start, 8)?;
            let size = size
                .first_chunk()
                .map_or(0, |size| u64::from_le_bytes(*size));
            let texts = String::from_utf8(read(start + 8, size as usize)?);
            let texts = texts.map_err(|_| not_text())?;
            let texts = texts.split_terminator('\0');
            return Ok(Source::Texts(texts.map(str::to_owned).collect()));
        }
        let header = read(0, cubin::HEADER)?;
        let header = header.first_chunk().ok_or_else(cut)?;
        return Ok(Source::Cubin(read(0, cubin::len(header)?)?));
    }
    if has(0, &FATBIN) {
        return Err(Refusal::image(FAT));
    }
    let mut text = Vec::new();
    for at in 0..len {
        match byte(at)? {
            0 => break,
            // A guess: data that is not text is not an image.
            byte if !byte.is_ascii_graphic() && !byte.is_ascii_whitespace() && at < 4 => {
                return Err(not_text());
            }
            byte => text.push(byte),
        }
    }
    let text = String::from_utf8(text).map_err(|_| not_text())?;
    // Measured with a text that lacks this, and with an empty one.
    if !text.contains(".version") {
        return Err(Refusal::image("a text with no `.version` is no PTX"));
    }
    Ok(Source::Texts(vec![text]))
}

/// Parses all texts, and collects their kernels and variables.
pub(super) fn understand(texts: &[String]) -> Result<Code, Refusal> {
    let newest = newest_of(Configuration::get().version);
    let mut all = Code::default();
    for text in texts {
        let code = parse(text, newest)?;
        for entry in code.entries {
            if all.entries.iter().any(|known| known.name == entry.name) {
                let name = entry.name.to_string_lossy();
                return Err(Refusal::twice(&name));
            }
            all.entries.push(entry);
        }
        for variable in code.variables {
            if all.has_variable(&variable) {
                return Err(Refusal::twice(&variable.name.to_string_lossy()));
            }
            all.variables.push(variable);
        }
    }
    Ok(all)
}

/// Reads a file of the program.
pub(super) fn read_file(path: &str) -> Answer<Vec<u8>> {
    let read = std::fs::read(Path::new(path));
    read.map_err(|_| CUresult::CUDA_ERROR_FILE_NOT_FOUND)
}

/// Parses an image, and writes the result to the logs.
pub(super) fn load(image: *const c_void, len: usize, logs: &Logs) -> Answer<Arc<Code>> {
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    let understood = source(image, len).and_then(|source| source.code());
    logs.write(understood.as_ref().err())?;
    let code = understood.map_err(|refusal| refusal.code)?;
    Ok(Arc::new(code))
}

/// The program's log buffers.
#[derive(Clone, Debug, Default)]
pub(super) struct Logs {
    info: Buffer,
    error: Buffer,
}

/// A log buffer of the program.
#[derive(Clone, Debug, Default)]
struct Buffer {
    address: u64,
    room: usize,
    /// The option value that contained the buffer size; the used size is written back to it.
    used: Option<u64>,
}

impl Logs {
    /// Reads the options of a function. Options on code generation have no effect here.
    pub(super) fn from_options(
        count: c_uint,
        options: Out<CUjit_option>,
        values: Out<*mut c_void>,
    ) -> Answer<Self> {
        let mut logs = Self::default();
        let count = count as usize;
        let options = options.as_input().read_all(count)?;
        let given = values.as_input().read_all(count)?;
        for (index, (option, value)) in options.into_iter().zip(given).enumerate() {
            let address = value.expose_provenance() as u64;
            // A size is 32 bits in place of a pointer.
            let (room, used) = (address as u32 as usize, Some(values.at(index).address()));
            match option {
                CUjit_option::CU_JIT_INFO_LOG_BUFFER => logs.info.address = address,
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER => logs.error.address = address,
                CUjit_option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => {
                    (logs.info.room, logs.info.used) = (room, used);
                }
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => {
                    (logs.error.room, logs.error.used) = (room, used);
                }
                // Measured: an unknown option is refused.
                option if option.0 >= CUjit_option::CU_JIT_NUM_OPTIONS.0 => {
                    return Err(INVALID_VALUE);
                }
                _ => {}
            }
        }
        Ok(logs)
    }

    /// Writes the error, or empties both logs if there is none.
    pub(super) fn write(&self, refusal: Option<&Refusal>) -> Answer {
        self.info.write("")?;
        self.error
            .write(&refusal.map_or(String::new(), Refusal::log))
    }
}

impl Buffer {
    /// Writes a text and a zero, truncated if necessary.
    fn write(&self, text: &str) -> Answer {
        let mut used = 0;
        if self.address != 0 && self.room > 0 {
            let kept = text.len().min(self.room - 1);
            bytes::write(self.address, &[&text.as_bytes()[..kept], b"\0"].concat());
            // Measured: the zero counts in a truncated text, not in a complete one.
            used = text.len().min(self.room);
        }
        // A guess: the whole value is written.
        match self.used {
            Some(place) => Value::new(pointer(place)).write(used),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Result<Source, CUresult> {
        source(bytes.as_ptr().cast(), bytes.len()).map_err(|refusal| refusal.code)
    }

    fn texts(texts: &[&str]) -> Source {
        Source::Texts(texts.iter().map(|text| (*text).to_owned()).collect())
    }

    const INVALID_IMAGE: CUresult = CUresult::CUDA_ERROR_INVALID_IMAGE;
    const CUBIN: &[u8] = include_bytes!("../../data/bump-sm_90.cubin");

    #[test]
    fn a_text_ends_at_its_zero_or_with_its_bytes() {
        assert_eq!(of(b".version\0more"), Ok(texts(&[".version"])));
        assert_eq!(of(b".version"), Ok(texts(&[".version"])));
        assert_eq!(of(b""), Err(INVALID_IMAGE));
    }

    #[test]
    fn a_cubin_ends_where_its_header_says() {
        let longer = [CUBIN, b"more"].concat();
        assert_eq!(of(&longer), Ok(Source::Cubin(CUBIN.to_vec())));
        assert_eq!(of(&CUBIN[..CUBIN.len() - 1]), Err(INVALID_IMAGE));
        assert_eq!(of(b"\x7fELF\x02\x01\x01\x33\x07"), Err(INVALID_IMAGE));
        assert_eq!(of(&FATBIN), Err(INVALID_IMAGE));
    }

    #[test]
    fn what_the_simulated_linker_made_has_its_texts() {
        let made = linked(&["one".to_owned(), "two".to_owned()]);
        assert_eq!(of(&made), Ok(texts(&["one", "two"])));
        assert_eq!(of(&made[..made.len() - 1]), Err(INVALID_IMAGE));
    }
}
