//! Inputs without a fuzzer: good ones, changed a little, and the same in every run.

/// As many inputs as asked for: each good one as it is, and then changed ones in turn.
pub fn of(good: &[Vec<u8>], count: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let whole = good.iter().cloned();
    let changed = (0..).map(move |index| {
        let mut bytes = good[index % good.len()].clone();
        for _ in 0..=random.below(4) {
            change(&mut bytes, good, &mut random);
        }
        bytes
    });
    whole.chain(changed).take(count)
}

/// One step: of the bits, of the length, or a part of another input.
fn change(bytes: &mut Vec<u8>, good: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let len = random.below(bytes.len() - at + 1).min(40);
    match random.below(7) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..at + len)),
        2 => {
            let copy = bytes[at..at + len].to_vec();
            bytes.splice(at..at, copy);
        }
        3 => {
            let other = &good[random.below(good.len())];
            let from = random.below(other.len() + 1);
            let to = other.len().min(from + 1 + random.below(40));
            bytes.splice(at..at + len.min(to - from), other[from..to].iter().copied());
        }
        4 => {
            const NOTABLE: &[&[u8]] = &[
                b"",
                b",",
                b"\n",
                b"\"",
                b"-1",
                b" ",
                b"0x",
                b"\xff",
                b"\0",
                b"/1/0",
                b"99999999999999999999",
                b"18446744073709551615",
                b"4294967295",
                b"(nil)",
                b"{",
                b"}",
                b"[",
                b";",
            ];
            let notable = NOTABLE[random.below(NOTABLE.len())];
            bytes.splice(at..at, notable.iter().copied());
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}

/// xorshift64.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }
}
