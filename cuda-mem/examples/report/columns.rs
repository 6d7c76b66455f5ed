//! Numbers in columns, as bytes that pack well and that a browser decodes fast.

use serde::Serialize;

/// Where a column is among the bytes, and how to read it.
#[derive(Debug, Serialize)]
pub(crate) struct Column {
    at: usize,
    count: usize,
    form: &'static str,
}

/// The bytes of all columns, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    bytes: Vec<u8>,
}

impl Columns {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// One byte each.
    pub(crate) fn small(&mut self, values: impl Iterator<Item = u8>) -> Column {
        self.column("byte", values, |bytes, value| bytes.push(value))
    }

    /// Seven bits a byte, the lowest first; all bytes but the last of a number have the highest bit set.
    pub(crate) fn numbers(&mut self, values: impl Iterator<Item = u64>) -> Column {
        self.column("number", values, push)
    }

    /// Differences to the value before, positive or negative.
    pub(crate) fn steps(&mut self, values: impl Iterator<Item = u64>) -> Column {
        let mut before = 0;
        self.column("step", values, |bytes, value| {
            let step = value.wrapping_sub(before).cast_signed();
            before = value;
            // The sign is the lowest bit, so that small differences have few bits.
            push(bytes, ((step << 1) ^ (step >> 63)).cast_unsigned());
        })
    }

    fn column<T>(
        &mut self,
        form: &'static str,
        values: impl Iterator<Item = T>,
        mut write: impl FnMut(&mut Vec<u8>, T),
    ) -> Column {
        let at = self.bytes.len();
        let mut count = 0;
        for value in values {
            write(&mut self.bytes, value);
            count += 1;
        }
        Column { at, count, form }
    }
}

fn push(bytes: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}
