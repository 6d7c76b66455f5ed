//! Parsing of untrusted bytes from another process. No driver, no descriptors.

use crate::base::error::{Error, Result};

/// The first bytes of every message.
const MAGIC: [u8; 3] = *b"cum";

/// Changes with the meaning of the bytes.
const VERSION: u8 = 2;

const SUM: usize = 8;

/// Wraps `body` with its kind, the layout version, and a checksum over all of it. The checksum detects accidents, not
/// malice.
pub(super) fn seal(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MAGIC.len() + 2 + body.len() + SUM);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[VERSION, kind]);
    bytes.extend_from_slice(body);
    let sum = sum(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Unwraps what [`seal`] made: the kind, and the body.
pub(super) fn open<'a>(what: &str, bytes: &'a [u8]) -> Result<(u8, &'a [u8])> {
    let refuse = |why: &str| {
        let len = bytes.len();
        Err(Error::invalid(format!(
            "{what}: {why} ({len} bytes); send it again as it was made"
        )))
    };
    let Some((inner, written)) = bytes.split_last_chunk::<SUM>() else {
        return refuse("too short");
    };
    let Some((head, body)) = inner.split_first_chunk::<5>() else {
        return refuse("too short");
    };
    let &[a, b, c, version, kind] = head;
    if [a, b, c] != MAGIC {
        return refuse("it is something else");
    }
    if version != VERSION {
        return refuse("it is of another version of this crate");
    }
    if sum(inner) != u64::from_le_bytes(*written) {
        return refuse("it was cut or changed on the way");
    }
    Ok((kind, body))
}

/// FNV-1a.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;

    #[test]
    fn what_was_sealed_opens_and_nothing_else_does() {
        let whole = seal(7, b"body");
        assert_eq!(open("it", &whole).expect("whole"), (7, &b"body"[..]));
        for len in 0..whole.len() {
            let error = open("it", &whole[..len]).expect_err("cut");
            assert_eq!(error.kind(), ErrorKind::InvalidValue, "{len}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(open("it", &changed).is_err(), "{at}");
        }
        let mut longer = whole;
        longer.push(0);
        assert!(open("it", &longer).is_err());
    }
}
