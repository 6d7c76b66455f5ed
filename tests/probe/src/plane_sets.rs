//! Memsets in two dimensions.

use anyhow::Result;

use crate::environment::{Environment, cu, name};
use crate::gate::while_held;

/// Bytes of a row, and of all rows.
const PITCH: usize = 64;
const LEN: usize = 16 * PITCH;

/// Memsets in two dimensions: 10 x 4 elements at (2, 1) of rows of 64 bytes.
pub(crate) fn memsets(env: &Environment) -> Result<()> {
    let (stream, block) = (env.stream()?, env.plain(LEN)?);
    let size_of = |bits: u32| bits as usize / 8;
    let set = |bits: u32, at: u64, pitch: usize, width: usize, height: usize, later: bool| match (
        bits, later,
    ) {
        (8, false) => cu!(env, cuMemsetD2D8_v2(at, pitch, 7, width, height)),
        (16, false) => cu!(env, cuMemsetD2D16_v2(at, pitch, 0x0707, width, height)),
        (_, false) => cu!(env, cuMemsetD2D32_v2(at, pitch, 0x0707_0707, width, height)),
        (8, true) => cu!(env, cuMemsetD2D8Async(at, pitch, 7, width, height, stream)),
        (16, true) => cu!(
            env,
            cuMemsetD2D16Async(at, pitch, 0x0707, width, height, stream)
        ),
        (_, true) => cu!(
            env,
            cuMemsetD2D32Async(at, pitch, 0x0707_0707, width, height, stream)
        ),
    };
    for bits in [8, 16, 32] {
        let size = size_of(bits);
        let at = block + (PITCH + 2 * size) as u64;
        let cases: [(&str, u64, usize, usize, usize); 15] = [
            ("right", at, PITCH, 10, 4),
            ("no width", at, PITCH, 0, 4),
            ("no height", at, PITCH, 10, 0),
            ("one row, pitch 0", at, 0, 10, 1),
            ("pitch 0", at, 0, 10, 4),
            ("pitch below the width", at, 10 * size - 1, 10, 4),
            ("pitch of the width", at, 10 * size, 10, 4),
            ("an odd pitch", at, 63, 10, 4),
            ("an odd address", at + 1, PITCH, 10, 4),
            (
                "to the end",
                block + LEN as u64 - 10 * size as u64,
                PITCH,
                10,
                1,
            ),
            (
                "past the end",
                block + LEN as u64 - 10 * size as u64 + size as u64,
                PITCH,
                10,
                1,
            ),
            (
                "last row past the end",
                block + 13 * PITCH as u64,
                PITCH,
                10,
                4,
            ),
            ("null", 0, PITCH, 10, 4),
            ("a pitch past the end", at, LEN * 2, 10, 2),
            ("a size that overflows", at, PITCH, usize::MAX / 2, 4),
        ];
        for (part, at, pitch, width, height) in cases {
            for later in [false, true] {
                env.fine("cuMemsetD8", cu!(env, cuMemsetD8_v2(block, 1, LEN)))?;
                env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
                let code = set(bits, at, pitch, width, height, later);
                let waited = cu!(env, cuCtxSynchronize());
                let mut seen = vec![0_u8; LEN];
                let code_back = cu!(env, cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), block, LEN));
                env.fine("cuMemcpyDtoH", code_back)?;
                let written = seen.iter().filter(|byte| **byte == 7).count();
                let way = if later { ", async" } else { "" };
                env.say(
                    format!("{bits} bits{way}, {part}"),
                    format!("{}, {}, {written} bytes", name(code), name(waited)),
                );
            }
        }
        let (code, waited) = while_held(env, stream, || set(bits, at, PITCH, 10, 4, true))?;
        env.say(
            format!("{bits} bits, held"),
            format!("{}, {waited}", name(code)),
        );
        env.synchronise(stream)?;
    }
    Ok(())
}
