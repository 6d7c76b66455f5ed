//! What goes through a window arrives as it was, wherever it begins.

use anyhow::{Result, ensure};
use cuda_mem::DeviceBuffer;
use cuda_mem::cpu_mapping::{CpuMappingKind, CpuMappingOptions};

use super::{kinds, memory, open, walking_bit};
use crate::environment::Environment;

/// As gdrcopy's: 256 KiB and 16 bytes, in whole pages of the GPU.
const BYTES: usize = ((256 << 10) + 16_usize).next_multiple_of(64 << 10);

const OFFSETS: [usize; 10] = [1, 2, 3, 4, 5, 6, 7, 11, 129, 1023];

/// No driver copies through the window, whatever the size.
fn unlimited(kind: CpuMappingKind) -> CpuMappingOptions {
    CpuMappingOptions::new()
        .only([kind])
        .write_limit(usize::MAX)
        .read_limit(usize::MAX)
}

#[apply(case)]
fn data_validation(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let expected = walking_bit(BYTES);
    for kind in kinds(&stream)? {
        let mut buffer = memory::<u8>(&stream, kind, BYTES)?;
        single_words(&mut buffer, kind)?;
        // Whole and back, by the driver and through the window.
        buffer.zero()?;
        let mut window = unlimited(kind).open(&mut buffer)?;
        window.write(0, &expected)?;
        let mut seen = vec![0; BYTES];
        window.read(0, &mut seen)?;
        ensure!(seen == expected, "{kind}: through the window");
        window.close()?;
        ensure!(buffer.to_vec()? == expected, "{kind}: by the driver");
        // With offsets on the mapping, on the host's side, and on both.
        for offset in OFFSETS {
            for (there, here) in [(offset, 0), (0, offset), (offset, offset)] {
                offsets(&mut buffer, kind, &expected, there, here)?;
            }
        }
    }
    Ok(())
}

/// Copies have a stream and pinned memory, which their context keeps for the next window.
#[apply(case_of_sim_alone)]
fn what_copies_need_ends_with_the_handles_of_the_context(env: &Environment) -> Result<()> {
    let (control, kind) = (env.control()?, CpuMappingKind::Copies);
    let _other = env.context()?;
    let stream = env.stream()?;
    for _ in 0..2 {
        let mut buffer = memory::<u8>(&stream, kind, 4096)?;
        open(&mut buffer, kind)?.write(0, &[1; 100])?;
        let live = control.live();
        ensure!((live.streams, live.host_allocations) == (2, 1), "{live:?}");
    }
    drop(stream);
    let live = control.live();
    ensure!((live.streams, live.host_allocations) == (0, 0), "{live:?}");
    Ok(())
}

/// Single stores of a word each, at places far apart.
fn single_words(buffer: &mut DeviceBuffer<u8>, kind: CpuMappingKind) -> Result<()> {
    buffer.zero()?;
    let mut expected = vec![0; BYTES];
    let mut window = unlimited(kind).open(buffer)?;
    for word in 1..=1000_u32 {
        // No place comes twice: the stride has no divisor in common with the number of words.
        let place = word as usize * 8191 % (BYTES / 4) * 4;
        window.write_bytes(place, &word.to_le_bytes())?;
        expected[place..place + 4].copy_from_slice(&word.to_le_bytes());
    }
    window.close()?;
    ensure!(buffer.to_vec()? == expected, "{kind}: single words");
    Ok(())
}

fn offsets(
    buffer: &mut DeviceBuffer<u8>,
    kind: CpuMappingKind,
    expected: &[u8],
    there: usize,
    here: usize,
) -> Result<()> {
    // Shorter than the whole, so that debug builds are quick; the rest must stay as it is.
    let len = 20_000;
    buffer.zero()?;
    let mut window = unlimited(kind).open(buffer)?;
    window.write(there, &expected[here..here + len])?;
    let mut seen = vec![0; here + len + 1];
    window.read(there, &mut seen[here..here + len])?;
    ensure!(
        seen[here..here + len] == expected[here..here + len],
        "{kind} {there} {here}"
    );
    ensure!(seen[..here].iter().all(|byte| *byte == 0) && seen[here + len] == 0);
    window.close()?;
    let all = buffer.to_vec()?;
    ensure!(
        all[there..there + len] == expected[here..here + len],
        "{kind} {there} {here}"
    );
    ensure!(all[..there].iter().all(|byte| *byte == 0) && all[there + len] == 0);
    Ok(())
}

#[apply(case)]
fn elements_of_all_sizes_arrive_at_once(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    macro_rules! check {
        ($kind:expr, $($type:ty = $value:expr;)*) => {$({
            let mut buffer = memory::<$type>(&stream, $kind, 9)?;
            buffer.zero()?;
            let mut window = open(&mut buffer, $kind)?;
            let value: $type = $value;
            window.store(4, value)?;
            ensure!(window.load(4)? == value);
            ensure!(window.load(3)? == <$type>::default());
            window.write(6, &[value, value])?;
            window.close()?;
            let zero = <$type>::default();
            let expected = [zero, zero, zero, zero, value, zero, value, value, zero];
            ensure!(buffer.to_vec()? == expected, "{} {}", $kind, stringify!($type));
        })*};
    }
    for kind in kinds(&stream)? {
        check!(kind,
            u8 = 0x12; i16 = -2; u32 = 0x1234_5678; f32 = 1.5; u64 = u64::MAX - 1; f64 = -0.25;
            [u8; 2] = [1, 2]; [u16; 4] = [1, 2, 3, 4]; [u8; 4] = [9, 8, 7, 6];
        );
    }
    Ok(())
}

#[apply(case)]
fn beyond_the_limits_the_driver_copies(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let bytes = walking_bit(300_000);
    for kind in kinds(&stream)? {
        let mut buffer = memory::<u8>(&stream, kind, bytes.len())?;
        for limit in [0, 1, 4096, 100_000] {
            buffer.zero()?;
            let options = CpuMappingOptions::new().only([kind]);
            let options = options.write_limit(limit).read_limit(limit);
            let mut window = options.open(&mut buffer)?;
            // Pieces on both sides of the limit, one after the other over each other's ends.
            let mut start = 0;
            for len in [1, 4095, 4096, 4097, 65_536, 65_537, 100_000, 100_001] {
                let len = len.min(bytes.len() - start);
                window.write(start, &bytes[start..start + len])?;
                let mut seen = vec![0; len];
                window.read(start, &mut seen)?;
                ensure!(
                    seen == bytes[start..start + len],
                    "{kind}, limit {limit}, {len} B"
                );
                start += len * 2 / 3;
            }
            let end = (start + 100_001).min(bytes.len());
            window.close()?;
            ensure!(
                buffer.to_vec()?[..start] == bytes[..start],
                "{kind}, limit {limit} to {end}"
            );
        }
    }
    Ok(())
}
