//! The images that a program loads: PTX text, or the simulated linker's output.

use std::ffi::{c_uint, c_void};
use std::path::Path;
use std::sync::Arc;

use cuda_driver_sys::{CUjit_option, CUresult};

use super::code::{Code, Refusal};
use super::ptx::{newest_of, parse};
use crate::export::{Answer, INVALID_VALUE, In, Out, Value};
use crate::knobs::Knobs;
use crate::memory::{bytes, pointer};

const ELF: [u8; 4] = *b"\x7fELF";
const FATBIN: [u8; 4] = [0x50, 0xed, 0x55, 0xba];
/// Follows the ELF magic number; only the simulated linker writes it.
const LINKED: [u8; 12] = *b"cuda-sim PTX";

const MACHINE_CODE: &str = "the simulated driver runs no machine code (cubin, fatbin); load PTX";

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

/// The texts of an image of at most `len` bytes. Reads only as much as needed to identify it.
pub(super) fn texts(image: *const c_void, len: usize) -> Result<Vec<String>, Refusal> {
    let cut = || Refusal::image("the image ends too early");
    let byte = |at: usize| match at {
        at if at < len => {
            let byte = In::new(image.cast::<u8>().wrapping_add(at)).read();
            byte.map_err(|_| cut())
        }
        _ => Err(cut()),
    };
    let has = |at: usize, expected: &[u8]| {
        let mut places = (at..).zip(expected);
        places.all(|(at, expected)| byte(at) == Ok(*expected))
    };
    if has(0, &ELF) {
        // Real machine code contains nothing that the simulator could run.
        if !has(ELF.len(), &LINKED) {
            return Err(Refusal::image(MACHINE_CODE));
        }
        let start = ELF.len() + LINKED.len();
        let mut size = [0; 8];
        for (at, place) in size.iter_mut().enumerate() {
            *place = byte(start + at)?;
        }
        let start = start + size.len();
        let end = start.saturating_add(u64::from_le_bytes(size) as usize);
        let all = (start..end).map(byte).collect::<Result<Vec<u8>, _>>()?;
        let all = String::from_utf8(all).map_err(|_| not_text())?;
        return Ok(all.split_terminator('\0').map(str::to_owned).collect());
    }
    if has(0, &FATBIN) {
        return Err(Refusal::image(MACHINE_CODE));
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
    Ok(vec![text])
}

/// Parses all texts, and collects their kernels.
pub(super) fn understand(texts: &[String]) -> Result<Code, Refusal> {
    let newest = newest_of(Knobs::get().version);
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
    let understood = texts(image, len).and_then(|texts| understand(&texts));
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

    fn of(bytes: &[u8]) -> Result<Vec<String>, CUresult> {
        texts(bytes.as_ptr().cast(), bytes.len()).map_err(|refusal| refusal.code)
    }

    const INVALID_IMAGE: CUresult = CUresult::CUDA_ERROR_INVALID_IMAGE;

    #[test]
    fn a_text_ends_at_its_zero_or_with_its_bytes() {
        assert_eq!(of(b".version\0more"), Ok(vec![".version".to_owned()]));
        assert_eq!(of(b".version"), Ok(vec![".version".to_owned()]));
        assert_eq!(of(b""), Err(INVALID_IMAGE));
    }

    #[test]
    fn only_what_the_simulated_linker_made_is_taken_for_a_cubin() {
        let inputs = ["one".to_owned(), "two".to_owned()];
        assert_eq!(of(&linked(&inputs)), Ok(inputs.to_vec()));
        assert_eq!(of(b"\x7fELF\x02\x01\x01\x33\x07"), Err(INVALID_IMAGE));
        assert_eq!(of(&FATBIN), Err(INVALID_IMAGE));
        let cut = linked(&inputs);
        assert_eq!(of(&cut[..cut.len() - 1]), Err(INVALID_IMAGE));
    }
}
