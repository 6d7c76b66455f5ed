//! A number at the beginning of a text, as the driver reads it: by C's `strtoul` with base 10, and then as an `int`.
//! So of a large number only the lower 32 bits count (measured).

#![forbid(unsafe_code)]

/// The number at the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// No number: neither digits nor a sign before them.
    None,
    /// A number below zero.
    Negative,
    /// This number.
    Value(u32),
}

impl Number {
    /// Reads blanks, one sign, and digits; ignores anything after them.
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
        let long = match digits[..end].parse::<u64>() {
            Ok(value) if is_negative => value.wrapping_neg(),
            Ok(value) => value,
            // C answers the largest there is, whatever the sign.
            Err(_) => u64::MAX,
        };
        let int = long as u32 as i32;
        u32::try_from(int).map_or(Self::Negative, Self::Value)
    }
}

/// Whether C treats the character as white space; other Unicode blanks do not count.
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
            ("2147483647", Number::Value(0x7fff_ffff)),
            ("2147483648", Number::Negative),
            ("4294967297", Number::Value(1)),
            ("-4294967295", Number::Value(1)),
            ("18446744073709551615", Number::Negative),
            ("99999999999999999999", Number::Negative),
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
