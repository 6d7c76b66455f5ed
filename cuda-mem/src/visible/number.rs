//! A number at the beginning of a text, as C's `strtoul` reads it with base 10.

#![forbid(unsafe_code)]

/// What is at the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// No number: neither digits nor a sign before them.
    None,
    /// A number below zero. C makes a large one of it.
    Negative,
    /// This number, or the largest there is if it is larger still.
    Value(u64),
}

impl Number {
    /// Blanks, one sign, digits; what follows them does not count.
    pub(super) fn at_start_of(text: &str) -> Self {
        let text = text.trim_start_matches(is_blank);
        let (is_negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = digits
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(digits.len());
        if end == 0 {
            return Self::None;
        }
        // Only too large a number fails here, and that is none of a device, whatever its size.
        match digits[..end].parse().unwrap_or(u64::MAX) {
            0 => Self::Value(0),
            _ if is_negative => Self::Negative,
            value => Self::Value(value),
        }
    }
}

/// What C calls white space; a text may hold other blanks, which are none to C.
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_does() {
        for (text, expected) in [
            ("7", Number::Value(7)),
            (" \t\n\r\x0b\x0c7", Number::Value(7)),
            ("+3", Number::Value(3)),
            ("-0", Number::Value(0)),
            ("-00x", Number::Value(0)),
            ("007", Number::Value(7)),
            ("0x1", Number::Value(0)),
            ("1gpu2", Number::Value(1)),
            ("2 3", Number::Value(2)),
            ("-1", Number::Negative),
            ("-99999999999999999999", Number::Negative),
            ("18446744073709551615", Number::Value(u64::MAX)),
            ("99999999999999999999", Number::Value(u64::MAX)),
            ("", Number::None),
            (" ", Number::None),
            ("one", Number::None),
            ("--1", Number::None),
            ("+-1", Number::None),
            ("- 1", Number::None),
            ("\u{a0}1", Number::None),
            ("\u{661}", Number::None),
        ] {
            assert_eq!(Number::at_start_of(text), expected, "{text:?}");
        }
    }
}
