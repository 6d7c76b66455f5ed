//! Lines of allocation logs in RMM's format. Formatting is most of what a log costs, so it is done by hand.

#![forbid(unsafe_code)]

/// The first line of RMM's logs.
pub(crate) const RMM_HEADER: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream\n";
/// The first line of the recorder's logs.
pub(super) const HEADER: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream,Origin\n";

/// How exact the time of a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fraction {
    Micros,
    Nanos,
}

/// The fields that both formats have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) thread: u64,
    /// Nanoseconds since 1970.
    pub(crate) time: u64,
    pub(crate) action: &'static str,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
}

impl Line {
    /// Appends the fields, without the end of the line.
    pub(crate) fn write(&self, line: &mut Vec<u8>, fraction: Fraction) {
        let (seconds, nanos) = (
            self.time / 1_000_000_000 % 86_400,
            self.time % 1_000_000_000,
        );
        decimal(line, self.thread, 1);
        line.push(b',');
        decimal(line, seconds / 3600, 2);
        line.push(b':');
        decimal(line, seconds / 60 % 60, 2);
        line.push(b':');
        decimal(line, seconds % 60, 2);
        line.push(b'.');
        match fraction {
            Fraction::Micros => decimal(line, nanos / 1000, 6),
            Fraction::Nanos => decimal(line, nanos, 9),
        }
        line.push(b',');
        line.extend_from_slice(self.action.as_bytes());
        line.push(b',');
        hexadecimal(line, self.address);
        line.push(b',');
        decimal(line, self.bytes, 1);
        line.push(b',');
        hexadecimal(line, self.stream);
    }
}

/// Appends a field of text, in quotes if it needs them. Ends of lines become spaces, for readers that go by lines.
pub(super) fn text(line: &mut Vec<u8>, text: &str) {
    if text.contains(['\n', '\r']) {
        return self::text(line, &text.replace(['\n', '\r'], " "));
    }
    if !text.contains(['"', ',']) {
        line.extend_from_slice(text.as_bytes());
        return;
    }
    line.push(b'"');
    line.extend_from_slice(text.replace('"', "\"\"").as_bytes());
    line.push(b'"');
}

/// Appends a number with at least `digits` digits.
fn decimal(line: &mut Vec<u8>, number: u64, digits: usize) {
    number_in::<10>(line, number, digits);
}

fn hexadecimal(line: &mut Vec<u8>, number: u64) {
    line.extend_from_slice(b"0x");
    number_in::<16>(line, number, 1);
}

fn number_in<const BASE: u64>(line: &mut Vec<u8>, mut number: u64, digits: usize) {
    // The most digits that there are.
    let mut text = [b'0'; 20];
    let mut start = text.len();
    while number > 0 {
        start -= 1;
        text[start] = b"0123456789abcdef"[(number % BASE) as usize];
        number /= BASE;
    }
    line.extend_from_slice(&text[start.min(text.len() - digits)..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_rmm_writes_it() {
        let failure = Line {
            thread: 3,
            time: ((10 * 60 + 58) * 60 + 16) * 1_000_000_000 + 42_000,
            action: "allocate failure",
            address: 0,
            bytes: 1 << 40,
            stream: 0x7f00,
        };
        let free = Line {
            thread: 0,
            time: 7,
            action: "free",
            address: u64::MAX,
            bytes: u64::MAX,
            stream: 0,
        };
        let mut lines = Vec::new();
        failure.write(&mut lines, Fraction::Micros);
        lines.push(b'\n');
        free.write(&mut lines, Fraction::Nanos);
        assert_eq!(
            String::from_utf8_lossy(&lines),
            "3,10:58:16.000042,allocate failure,0x0,1099511627776,0x7f00\n\
             0,00:00:00.000000007,free,0xffffffffffffffff,18446744073709551615,0x0"
        );
    }

    #[test]
    fn text_is_quoted_where_it_has_to_be() {
        let quoted = |of: &str| {
            let mut line = Vec::new();
            text(&mut line, of);
            String::from_utf8_lossy(&line).into_owned()
        };
        assert_eq!(quoted("src/main.rs:12"), "src/main.rs:12");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(quoted("a\nb"), "a b");
    }
}
