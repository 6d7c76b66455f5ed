//! Packed logs, told by their first bytes: names lie, and pipes have none.

use std::cell::Cell;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Without the first byte, whose low half is free: a frame with something else than data.
const ZSTD_SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];

/// Packed logs may unpack to this many bytes, however few they are.
const FREE: u64 = 16 << 20;
/// To more, only if they are not more than this many times as large. Logs of programs pack to a tenth.
const MOST_TIMES: u64 = 200;

/// The bytes of the log itself. What is read of it stays in proportion to the bytes of `packed`.
pub(crate) fn unpack<'a>(mut packed: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let start = packed.fill_buf()?;
    let is_gzip = start.starts_with(&GZIP);
    let skippable = start.first().is_some_and(|first| first & 0xf0 == 0x50)
        && start.get(1..4) == Some(&ZSTD_SKIPPABLE[..]);
    let is_zstd = start.starts_with(&ZSTD) || skippable;
    if !is_gzip && !is_zstd {
        return Ok(Box::new(packed));
    }
    let taken = Rc::new(Cell::new(0));
    let packed = Counted {
        source: packed,
        taken: Rc::clone(&taken),
    };
    Ok(if is_gzip {
        Box::new(Bounded::new(MultiGzDecoder::new(packed), taken))
    } else {
        Box::new(Bounded::new(Frames::Between(packed), taken))
    })
}

/// Counts what is taken out of a source.
struct Counted<R> {
    source: R,
    taken: Rc<Cell<u64>>,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.taken.set(self.taken.get() + read as u64);
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.source.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.source.consume(bytes);
        self.taken.set(self.taken.get() + bytes as u64);
    }
}

/// Fails before more comes out than is in proportion to what went in: every row takes memory, and a
/// few kilobytes can stand for any number of rows.
struct Bounded<R> {
    unpacked: R,
    /// Packed bytes that went in.
    taken: Rc<Cell<u64>>,
    given: u64,
}

impl<R> Bounded<R> {
    fn new(unpacked: R, taken: Rc<Cell<u64>>) -> Self {
        Self {
            unpacked,
            taken,
            given: 0,
        }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.unpacked.read(buffer)?;
        self.given += read as u64;
        if self.given > FREE + self.taken.get().saturating_mul(MOST_TIMES) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "it unpacks to more than {MOST_TIMES} times its bytes; if it is to be trusted, \
                     unpack it first"
                ),
            ));
        }
        Ok(read)
    }
}

/// All frames of a zstd file, one after the other: tools that pack in parallel write many. The decoder
/// reads one.
enum Frames<R: BufRead> {
    Between(R),
    Inside(R, Box<FrameDecoder>),
    /// At the end, or after an error.
    Over,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(self, Self::Over) {
                Self::Over => return Ok(0),
                Self::Between(source) => *self = next(source)?,
                Self::Inside(mut source, mut frame) => {
                    while frame.can_collect() == 0 && !frame.is_finished() {
                        let one = BlockDecodingStrategy::UptoBlocks(1);
                        frame
                            .decode_blocks(&mut source, one)
                            .map_err(io::Error::other)?;
                    }
                    let read = frame.read(buffer)?;
                    if read > 0 || buffer.is_empty() {
                        *self = Self::Inside(source, frame);
                        return Ok(read);
                    }
                    check(&frame)?;
                    *self = Self::Between(source);
                }
            }
        }
    }
}

fn next<R: BufRead>(mut source: R) -> io::Result<Frames<R>> {
    loop {
        if source.fill_buf()?.is_empty() {
            return Ok(Frames::Over);
        }
        let mut decoder = Box::new(FrameDecoder::new());
        match decoder.init(&mut source) {
            Ok(()) => return Ok(Frames::Inside(source, decoder)),
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                let skipped = io::copy(
                    &mut source.by_ref().take(u64::from(length)),
                    &mut io::sink(),
                )?;
                if skipped < u64::from(length) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// The decoder computes the checksum and leaves it to the caller to compare.
fn check(frame: &FrameDecoder) -> io::Result<()> {
    match (
        frame.get_checksum_from_data(),
        frame.get_calculated_checksum(),
    ) {
        (Some(written), Some(found)) if written != found => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the checksum of a zstd frame is wrong",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    fn unpacked(packed: &[u8]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        unpack(packed)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn all_parts_of_all_packings_are_read() {
        let (first, second) = (b"first ".repeat(50_000), b"second".to_vec());
        let both = [first.clone(), second.clone()].concat();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&both).expect("packed");
        let gzip = gzip.finish().expect("packed");
        let skippable = [0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        let frames = [&skippable[..], &zstd(&first), &skippable, &zstd(&second)].concat();
        for packed in [both.clone(), gzip, zstd(&both), frames] {
            assert_eq!(unpacked(&packed).expect("unpacked"), both);
        }
    }

    #[test]
    fn a_few_bytes_that_unpack_to_very_many_are_refused() {
        let many = vec![b'0'; 1 << 20];
        let copies = (FREE >> 19) as usize;
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        for _ in 0..copies {
            gzip.write_all(&many).expect("packed");
        }
        let gzip = gzip.finish().expect("packed");
        let zstd = zstd(&many).repeat(copies);
        for packed in [gzip, zstd] {
            let mut unpacked = unpack(&packed[..]).expect("a packed log");
            let error = io::copy(&mut unpacked, &mut io::sink()).expect_err("too many");
            assert!(error.to_string().contains("unpack it first"), "{error}");
        }
    }

    #[test]
    fn what_is_cut_off_or_changed_is_refused() {
        // Nothing that packs well, so that each byte matters.
        let mut state = 1_u32;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(5000)
        .collect();
        let whole = zstd(&bytes);
        for len in [5, 100, whole.len() - 1] {
            assert!(unpacked(&whole[..len]).is_err(), "{len}");
        }
        let mut changed = whole.clone();
        changed[2500] ^= 1;
        assert!(unpacked(&changed).is_err());
        assert!(unpacked(&[&whole[..], b"and more"].concat()).is_err());
        assert!(unpacked(&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1]).is_err());
    }
}
