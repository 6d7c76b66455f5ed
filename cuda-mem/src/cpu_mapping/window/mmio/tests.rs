//! Tests the copies on ordinary memory against slices, and the split into accesses.

use bytemuck::Pod;
use proptest::prelude::prop_assert_eq;

use super::cut::LINE;
use super::*;
use crate::arena::random::cases;

/// Surrounds what a copy may write; no test pattern contains it.
const CANARY: u8 = 0xff;

#[derive(Clone, Copy, Debug)]
enum Direction {
    Store,
    Load,
}

const DIRECTIONS: [Direction; 2] = [Direction::Store, Direction::Load];

/// Every copy that this processor supports.
fn copies() -> impl Iterator<Item = (Routine, Direction)> {
    Routine::available().flat_map(|routine| DIRECTIONS.map(|direction| (routine, direction)))
}

/// # Safety
///
/// As for [`store`], with no device.
unsafe fn copy(kind: (Routine, Direction), to: *mut u8, from: *const u8, len: usize) {
    let (routine, direction) = kind;
    let copy = match direction {
        Direction::Store => store,
        Direction::Load => load,
    };
    // SAFETY: the caller's promises cover both directions.
    unsafe { copy(routine, to, from, len) }
    fence_after_store(false);
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; LINE]);

/// Bytes aligned to a line.
struct Bytes(Vec<Line>);

impl Bytes {
    /// At least `len` canary bytes.
    fn new(len: usize) -> Self {
        Self(vec![Line([CANARY; LINE]); len.div_ceil(LINE)])
    }

    fn all(&mut self) -> &mut [u8] {
        let len = self.0.len() * LINE;
        // SAFETY: the lines are contiguous, are bytes without gaps, and are borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

/// Two memory areas to copy between.
struct Sides {
    from: Bytes,
    to: Bytes,
    canaries: Vec<u8>,
}

/// What a copy did wrong, if anything.
type Verdict = Result<(), &'static str>;

impl Sides {
    /// For copies of up to `longest` bytes and offsets of up to two lines.
    fn new(longest: usize) -> Self {
        let len = longest + 4 * LINE;
        let (mut from, to) = (Bytes::new(len), Bytes::new(len));
        for (at, byte) in from.all().iter_mut().enumerate() {
            // Differs from neighbouring bytes and from other lines.
            *byte = ((at * 7 + at / 250) % 251) as u8;
        }
        Self {
            from,
            to,
            canaries: vec![CANARY; len],
        }
    }

    /// Copies `len` bytes, with the mapping at `mapping` bytes and the host side at `host` bytes past a line's start.
    fn check(
        &mut self,
        kind: (Routine, Direction),
        mapping: usize,
        host: usize,
        len: usize,
    ) -> Verdict {
        let (to_at, from_at) = match kind.1 {
            Direction::Store => (LINE + mapping, LINE + host),
            Direction::Load => (LINE + host, LINE + mapping),
        };
        let end = to_at + len;
        // Only one line on either side is checked.
        let seen = to_at - LINE..end + LINE;
        self.to.all()[seen.clone()].fill(CANARY);
        let to = self.to.all()[to_at..].as_mut_ptr();
        let from = self.from.all()[from_at..].as_ptr();
        // SAFETY: the processor supports the routine; both sides have `len` bytes from there.
        unsafe { copy(kind, to, from, len) };

        let (to, canaries) = (self.to.all(), &self.canaries[..LINE]);
        if to[seen.start..to_at] != *canaries {
            return Err("wrote before the start");
        }
        if to[end..seen.end] != *canaries {
            return Err("wrote behind the end");
        }
        if to[to_at..end] != self.from.all()[from_at..][..len] {
            return Err("copied other bytes");
        }
        Ok(())
    }

    fn expect(&mut self, kind: (Routine, Direction), mapping: usize, host: usize, len: usize) {
        if let Err(what) = self.check(kind, mapping, host, len) {
            panic!("{kind:?}, mapping + {mapping}, host + {host}, {len} bytes: {what}");
        }
    }
}

/// `step` under Miri, which is slow; otherwise 1.
fn step(step: usize) -> usize {
    if cfg!(miri) { step } else { 1 }
}

#[test]
fn every_byte_is_in_one_access_as_wide_as_its_place_allows() {
    for widest in [8, 16, 32, 64] {
        for address in (4096..4096 + LINE).step_by(step(7)) {
            for len in (0..=1024).step_by(step(61)) {
                let mut end = 0;
                cut(address, len, widest, |at, width| {
                    let place = || format!("{address} + {at} of {len}: {width} of {widest}");
                    let fits = |width: usize| {
                        width <= widest && width <= len - at && (address + at).is_multiple_of(width)
                    };
                    assert_eq!(at, end, "{}", place());
                    assert!(width.is_power_of_two() && fits(width), "{}", place());
                    assert!(!fits(width * 2), "{}", place());
                    end = at + width;
                });
                assert_eq!(end, len);
            }
        }
    }
}

#[test]
fn a_word_in_its_place_is_one_access() {
    for widest in [8, 16, 32, 64] {
        for word in [1, 2, 4, 8] {
            for address in (4096..4096 + 2 * LINE).step_by(word) {
                let mut accesses = Vec::new();
                cut(address, word, widest, |at, width| {
                    accesses.push((at, width))
                });
                assert_eq!(accesses, [(0, word)], "{word} bytes at {address}");
            }
        }
    }
}

#[test]
fn all_alignments_and_sizes_to_1_kib() {
    let mut sides = Sides::new(1024);
    for kind in copies() {
        for len in (0..=1024).step_by(step(73)) {
            for mapping in (0..LINE).step_by(step(11)) {
                // For each size, every alignment of either side occurs, with 17 differences between them.
                let host = (mapping * 5 + len) % 17;
                sides.expect(kind, mapping, host, len);
            }
        }
    }
}

#[test]
fn random_sizes_to_64_kib() {
    let longest = if cfg!(miri) { 1 << 11 } else { 1 << 16 };
    let sides = std::cell::RefCell::new(Sides::new(longest));
    let places = (0..=longest, 0..2 * LINE, 0..2 * LINE);
    cases(400, &places, |(len, mapping, host)| {
        for kind in copies() {
            let verdict = sides.borrow_mut().check(kind, mapping, host, len);
            prop_assert_eq!(verdict, Ok(()), "{:?}", kind);
        }
        Ok(())
    });
}

/// gdrcopy's test: a bit that walks through a buffer, stored and loaded back, at each of its offsets in the mapping, in
/// host memory and in both.
#[test]
fn data_validation() {
    const OFFSETS: [usize; 10] = [1, 2, 3, 4, 5, 6, 7, 11, 129, 1023];
    let size = if cfg!(miri) {
        1 << 11
    } else {
        (256 << 10) + 16
    };
    let mut sent = Bytes::new(size);
    for (at, byte) in sent.all().iter_mut().enumerate() {
        *byte = 1 << (at % 8);
    }
    let mut there = Bytes::new(size);
    for routine in Routine::available() {
        let both = OFFSETS.map(|offset| [(offset, 0), (0, offset), (offset, offset)]);
        for &(mapping, host) in [(0, 0)].iter().chain(both.as_flattened()) {
            let len = size - mapping.max(host);
            there.all().fill(CANARY);
            let mut back = Bytes::new(size);
            let middle = there.all()[mapping..].as_mut_ptr();
            let from = sent.all()[host..].as_ptr();
            // SAFETY: the processor supports the routine; both sides have `len` bytes from there.
            unsafe { copy((routine, Direction::Store), middle, from, len) };
            let to = back.all()[host..].as_mut_ptr();
            // SAFETY: as above.
            unsafe { copy((routine, Direction::Load), to, middle, len) };
            let place = format!("{routine}, mapping + {mapping}, host + {host}");
            assert!(
                sent.all()[host..][..len] == back.all()[host..][..len],
                "{place}"
            );
            assert!(
                there.all()[..mapping].iter().all(|byte| *byte == CANARY),
                "{place}"
            );
        }
    }
}

#[test]
fn nothing_is_touched_for_no_bytes() {
    for kind in copies() {
        for address in [0, 1, LINE] {
            let nowhere = std::ptr::without_provenance_mut(address);
            // SAFETY: a copy of 0 bytes accesses nothing.
            unsafe { copy(kind, nowhere, nowhere, 0) };
        }
    }
}

#[test]
fn a_value_goes_in_and_out_with_its_size() {
    fn there_and_back<T: Pod + PartialEq + fmt::Debug>(value: T) {
        let mut bytes = Bytes::new(LINE);
        let place = bytes.all()[8..].as_mut_ptr();
        // SAFETY: eight bytes are valid, at a multiple of eight.
        unsafe { store_once(place.cast(), value) };
        fence_after_store(true);
        fence_around_load();
        // SAFETY: as above.
        let back: T = unsafe { load_once(place.cast()) };
        assert_eq!(value, back);
        let end = 8 + size_of::<T>();
        assert_eq!(bytes.all()[8..end], *bytemuck::bytes_of(&value));
        assert_eq!([bytes.all()[7], bytes.all()[end]], [CANARY; 2]);
    }
    there_and_back(200_u8);
    there_and_back(-2_i16);
    there_and_back(1.5_f32);
    there_and_back(u64::MAX - 1);
    there_and_back([1_u16, 2, 3, 4]);
    there_and_back([7_u8; 4]);
}

#[test]
fn the_best_routine_is_there() {
    assert!(Routine::available().eq(Routine::ALL.into_iter().filter(|routine| routine.is_here())));
    assert_eq!(Routine::available().next(), Some(Routine::Plain));
    assert_eq!(Routine::available().last(), Some(Routine::best()));
    let has_vectors = cfg!(all(target_arch = "aarch64", not(miri)));
    assert!(!has_vectors || Routine::best() == Routine::Neon);
    let names = Routine::ALL.map(|routine| routine.to_string());
    assert_eq!(names, ["plain", "NEON", "SSE4.1", "AVX2", "AVX-512"]);
}

/// Inaccessible pages surround both sides. Miri does not support them.
#[cfg(all(unix, not(miri)))]
mod fenced {
    use std::ptr;

    use super::*;

    const PAGE: usize = 1 << 16;

    /// A page between two that cannot be read or written.
    struct Fenced(*mut u8);

    impl Fenced {
        fn new() -> Self {
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping at an address of the system's choice.
            let base =
                unsafe { libc::mmap(ptr::null_mut(), 3 * PAGE, libc::PROT_NONE, kind, -1, 0) };
            assert_ne!(base, libc::MAP_FAILED);
            let fenced = Self(base.cast());
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the middle of the mapping above, which nothing uses yet.
            let changed = unsafe { libc::mprotect(fenced.start().cast(), PAGE, access) };
            assert_eq!(changed, 0);
            fenced
        }

        fn start(&self) -> *mut u8 {
            self.0.wrapping_add(PAGE)
        }

        /// The address of the last `len` bytes.
        fn last(&self, len: usize) -> *mut u8 {
            self.start().wrapping_add(PAGE - len)
        }
    }

    impl Drop for Fenced {
        fn drop(&mut self) {
            // SAFETY: the mapping is this value's, and nothing points into it any more.
            unsafe { libc::munmap(self.0.cast(), 3 * PAGE) };
        }
    }

    #[test]
    fn nothing_outside_is_read_or_written() {
        let (to, from) = (Fenced::new(), Fenced::new());
        for kind in copies() {
            for len in 0..=600 {
                for (to, from) in [
                    (to.start(), from.start()),
                    (to.last(len), from.last(len)),
                    (to.start(), from.last(len)),
                    (to.last(len), from.start()),
                ] {
                    // SAFETY: the processor supports the routine; `len` bytes are valid on both sides.
                    unsafe { copy(kind, to, from, len) };
                }
            }
        }
    }
}
