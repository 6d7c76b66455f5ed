//! Packed logs, told by their first bytes: names lie, and pipes have none.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Without the first byte, whose low half is free: a frame with something else than data.
const ZSTD_SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];

/// The bytes of the log itself.
pub(crate) fn unpack<'a>(mut packed: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let start = packed.fill_buf()?;
    if start.starts_with(&GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(packed)));
    }
    let skippable = start.first().is_some_and(|first| first & 0xf0 == 0x50)
        && start.get(1..4) == Some(&ZSTD_SKIPPABLE[..]);
    if start.starts_with(&ZSTD) || skippable {
        return Ok(Box::new(Frames::Between(packed)));
    }
    Ok(Box::new(packed))
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
