//! Constant expressions of PTX, and the tokens that they are made of.

use super::code::Refusal;
use super::ptx::unexpected;
use super::tokens::Token;

/// What is left of a statement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest<'a, 'b> {
    pub(super) tokens: &'b [Token<'a>],
    /// Where something is missing at the end.
    line: usize,
}

impl<'a, 'b> Rest<'a, 'b> {
    pub(super) fn new(tokens: &'b [Token<'a>], line: usize) -> Self {
        let line = tokens.last().map_or(line, |token| token.line);
        Self { tokens, line }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.tokens.first().map(|token| token.text)
    }

    pub(super) fn first(&self) -> Result<Token<'a>, Refusal> {
        let missing = || Refusal::syntax(self.line, "the statement ends too early");
        self.tokens.first().copied().ok_or_else(missing)
    }

    pub(super) fn take(&mut self) -> Result<Token<'a>, Refusal> {
        let first = self.first()?;
        self.tokens = &self.tokens[1..];
        Ok(first)
    }

    pub(super) fn take_if(&mut self, wanted: impl Fn(&Token<'a>) -> bool) -> Option<Token<'a>> {
        self.first().ok().filter(wanted)?;
        self.take().ok()
    }

    pub(super) fn takes(&mut self, text: &str) -> bool {
        self.take_if(|token| token.text == text).is_some()
    }

    pub(super) fn expect(&mut self, text: &str) -> Result<(), Refusal> {
        let token = self.take()?;
        if token.text == text {
            Ok(())
        } else {
            Err(unexpected(token, &format!("`{text}`")))
        }
    }

    /// The texts between parentheses, also those of inner ones.
    pub(super) fn group(&mut self) -> Result<Vec<&'a str>, Refusal> {
        let mut all = Vec::new();
        self.expect("(")?;
        let mut depth = 1;
        while depth > 0 {
            let token = self.take()?;
            match token.text {
                "(" => depth += 1,
                ")" => depth -= 1,
                text => all.push(text),
            }
        }
        Ok(all)
    }

    /// What comes before one of these, outside of parentheses; at least one token.
    pub(super) fn until(&mut self, ends: &[&str]) -> Result<Self, Refusal> {
        self.first()?;
        let mut depth = 0_i64;
        let len = self.tokens.iter().position(|token| {
            match token.text {
                "(" => depth += 1,
                ")" => depth -= 1,
                _ => {}
            }
            depth == 0 && ends.contains(&token.text)
        });
        let (part, rest) = self.tokens.split_at(len.unwrap_or(self.tokens.len()));
        if part.is_empty() {
            return Err(unexpected(self.first()?, "a value"));
        }
        self.tokens = rest;
        Ok(Self {
            tokens: part,
            line: self.line,
        })
    }
}

/// An integer as PTX writes it: decimal, hexadecimal, octal or binary, perhaps unsigned by a `U`.
pub(super) fn number(text: &str) -> Option<i128> {
    let text = text.strip_suffix('U').unwrap_or(text);
    let parsed = match text.get(..2) {
        Some("0x" | "0X") => u64::from_str_radix(&text[2..], 16),
        Some("0b" | "0B") => u64::from_str_radix(&text[2..], 2),
        _ if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8),
        _ => text.parse(),
    };
    parsed.ok().map(i128::from)
}

/// The value of a constant expression that ends before one of `ends`, or with the tokens. As in C, in the 64 bits of
/// PTX; comparisons and conditions are not known here.
pub(super) fn constant(rest: &mut Rest<'_, '_>, ends: &[&str]) -> Result<i128, Refusal> {
    let value = sum(rest, 0)?;
    match rest.tokens.first() {
        Some(token) if !ends.contains(&token.text) => Err(unexpected(*token, "an operator")),
        _ => Ok(value),
    }
}

/// Operators from the weakest to the strongest. Shifts are two tokens.
const OPERATORS: [&[&str]; 6] = [
    &["|"],
    &["^"],
    &["&"],
    &["<", ">"],
    &["+", "-"],
    &["*", "/", "%"],
];

/// Operands that are joined by operators of a strength, or stronger ones.
fn sum(rest: &mut Rest<'_, '_>, strength: usize) -> Result<i128, Refusal> {
    let Some(operators) = OPERATORS.get(strength) else {
        return operand(rest);
    };
    let mut left = sum(rest, strength + 1)?;
    while let Some(operator) = rest.take_if(|token| operators.contains(&token.text)) {
        if operator.text == "<" || operator.text == ">" {
            rest.expect(operator.text)?;
        }
        let right = sum(rest, strength + 1)?;
        left = apply(left, operator, right)?;
    }
    Ok(left)
}

fn apply(left: i128, operator: Token<'_>, right: i128) -> Result<i128, Refusal> {
    let shift = || u32::try_from(right).ok().filter(|shift| *shift < 64);
    let value = match operator.text {
        "|" => Some(left | right),
        "^" => Some(left ^ right),
        "&" => Some(left & right),
        "<" => shift().map(|shift| left << shift),
        ">" => shift().map(|shift| left >> shift),
        "+" => Some(left + right),
        "-" => Some(left - right),
        "*" => left.checked_mul(right),
        "/" => left.checked_div(right),
        _ => left.checked_rem(right),
    };
    // Two values of at most 64 bits and a sign fit any of these but a long chain.
    let fits = value.filter(|value| value.unsigned_abs() <= u128::from(u64::MAX));
    fits.ok_or_else(|| unexpected(operator, "an expression with a value of 64 bits"))
}

fn operand(rest: &mut Rest<'_, '_>) -> Result<i128, Refusal> {
    let token = rest.take()?;
    match token.text {
        "-" => Ok(-operand(rest)?),
        "+" => operand(rest),
        "~" => Ok(!operand(rest)?),
        "!" => Ok(i128::from(operand(rest)? == 0)),
        "(" => {
            let value = sum(rest, 0)?;
            rest.expect(")")?;
            Ok(value)
        }
        text => number(text).ok_or_else(|| unexpected(token, "a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn of(text: &str) -> Option<i128> {
        let tokens = tokens(text).expect("tokens");
        constant(&mut Rest::new(&tokens, 1), &[]).ok()
    }

    #[test]
    fn operators_bind_as_in_c() {
        for (text, value) in [
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("7 - 2 - 1", 4),
            ("1 << 2 + 1", 8),
            ("6 & 3 | 8", 10),
            ("5 ^ 1 & 1", 4),
            ("~0 & 0xff", 255),
            ("-7 / 2", -3),
            ("7 % 4", 3),
            ("!3 + !0", 1),
            ("0b101 + 010 + 0x10U", 29),
        ] {
            assert_eq!(of(text), Some(value), "{text}");
        }
    }

    #[test]
    fn what_has_no_value_is_refused() {
        for text in [
            "", "1 +", "1 2", "1 / 0", "1 % 0", "1 << 64", "(1", "1)", "x", "1 < 2",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
        let huge = "0xffffffffffffffff * 0xffffffffffffffff";
        assert_eq!(of(huge), None);
    }
}
