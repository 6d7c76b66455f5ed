//! Variables that code declares outside its kernels: in a text, and in the memory of a module.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use cuda_driver_sys::CUdeviceptr;

use super::code::Refusal;
use super::ptx::{size_of_type, unexpected};
use super::tokens::Token;
use super::{INVALID_HANDLE, LibraryId, ModuleId};
use crate::context::ContextId;
use crate::export::{Answer, INVALID_VALUE, In, Out};
use crate::memory::bytes;
use crate::state::State;

/// A variable in the memory of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: CString,
    pub(super) align: usize,
    /// The initial bytes, as many as it has.
    pub(super) contents: Vec<u8>,
    /// Whether it is in managed memory.
    pub(super) is_managed: bool,
}

/// A variable that has memory.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    name: CString,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(super) is_managed: bool,
}

impl Placed {
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name.as_bytes() == name.as_bytes()
    }

    /// Writes what the program wants to know of it.
    pub(super) fn write(&self, address: Out<CUdeviceptr>, size: Out<usize>) {
        address.write_if_wanted(self.address);
        size.write_if_wanted(self.size as usize);
    }
}

/// The name that is asked for. Measured: one of the two results may be left out.
pub(super) fn name(
    address: Out<CUdeviceptr>,
    size: Out<usize>,
    name: In<c_char>,
) -> Answer<String> {
    if address.required().is_err() && size.required().is_err() {
        return Err(INVALID_VALUE);
    }
    let name = name.text()?;
    if name.is_empty() {
        return Err(INVALID_VALUE);
    }
    Ok(name)
}

impl State {
    /// The variable of a module with this name.
    pub(super) fn variable(&self, module: ModuleId, name: &str) -> Answer<&Placed> {
        let module = self.modules.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let mut variables = module.variables.iter();
        // Measured: the error if it is the name of a kernel.
        let missing = match module.code.find(name) {
            Ok(_) => INVALID_VALUE,
            Err(missing) => missing,
        };
        variables.find(|it| it.is_named(name)).ok_or(missing)
    }

    /// The variables of a library in managed memory, which get it on first use.
    pub(super) fn managed_variables_of(&mut self, library: LibraryId) -> Answer<Arc<[Placed]>> {
        let found = self.modules.libraries.get(&library).ok_or(INVALID_HANDLE)?;
        if let Some(managed) = &found.managed {
            return Ok(Arc::clone(managed));
        }
        let code = found.code.clone()?;
        let managed = self.place(code.variables.iter().filter(|it| it.is_managed), None, 0)?;
        if let Some(found) = self.modules.libraries.get_mut(&library) {
            found.managed = Some(Arc::clone(&managed));
        }
        Ok(managed)
    }

    /// Gives variables memory with their initial bytes. Measured: those in managed memory belong to no context.
    pub(super) fn place<'a>(
        &mut self,
        variables: impl Iterator<Item = &'a Variable>,
        context: Option<ContextId>,
        device: usize,
    ) -> Answer<Arc<[Placed]>> {
        let mut all = Vec::new();
        for variable in variables {
            let size = variable.contents.len() as u64;
            let at = (context.filter(|_| !variable.is_managed), device);
            match self.allocate_variable(size, variable.align as u64, at) {
                Ok(address) => {
                    bytes::write(address, &variable.contents);
                    all.push(Placed {
                        name: variable.name.clone(),
                        address,
                        size,
                        is_managed: variable.is_managed,
                    });
                }
                Err(code) => {
                    for placed in &all {
                        self.free_allocation(placed.address);
                    }
                    return Err(code);
                }
            }
        }
        Ok(all.into())
    }
}

/// The largest variable. A guess: what is larger is refused as a text is.
const LARGEST: usize = 1 << 31;

/// The variables of one declaration, from after `.global` or `.const` to before the semicolon.
///
/// The address of another variable is not known here: as an initial value it is zero.
pub(super) fn variables(statement: &[Token<'_>]) -> Result<Vec<Variable>, Refusal> {
    let mut rest = Rest {
        tokens: statement,
        line: statement.last().map_or(1, |token| token.line),
    };
    let (mut align, mut vector, mut is_managed) = (None, 1, false);
    let mut kind = None;
    while let Some(token) = rest.take_if(|token| token.text.starts_with('.')) {
        match token.text {
            ".align" => align = Some(rest.number()?.max(1)),
            ".attribute" => is_managed = rest.group()?.contains(&".managed"),
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            text => {
                let size = size_of_type(text).ok_or_else(|| unexpected(token, "a type"))?;
                kind = Some((text, size));
            }
        }
    }
    // An opaque type is written as a name.
    let Some((kind, size)) = kind else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    while let Some(token) = rest.take() {
        let mut count = vector;
        while rest.take_text("[") {
            // The first length may be left to the initial values.
            count *= if rest.peek() == Some("]") {
                0
            } else {
                rest.number()?
            };
            rest.take_text("]");
        }
        let mut contents = Vec::new();
        if rest.take_text("=") {
            contents = rest.values(kind, size)?;
        }
        let bytes = count.saturating_mul(size);
        let bytes = if bytes == 0 { contents.len() } else { bytes };
        if bytes > LARGEST {
            return Err(unexpected(token, "a variable that fits the memory"));
        }
        contents.resize(bytes, 0);
        all.push(Variable {
            name: CString::new(token.text).unwrap_or_default(),
            align: align.unwrap_or(size * vector),
            contents,
            is_managed,
        });
        rest.take_text(",");
    }
    Ok(all)
}

/// What is left of a statement.
struct Rest<'a, 'b> {
    tokens: &'b [Token<'a>],
    /// That of the last token, for what is missing.
    line: usize,
}

impl<'a> Rest<'a, '_> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.first().map(|token| token.text)
    }

    fn second(&self) -> Option<&'a str> {
        self.tokens.get(1).map(|token| token.text)
    }

    fn take(&mut self) -> Option<Token<'a>> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(*first)
    }

    fn take_if(&mut self, wanted: impl Fn(&Token<'a>) -> bool) -> Option<Token<'a>> {
        if wanted(self.tokens.first()?) {
            self.take()
        } else {
            None
        }
    }

    fn take_text(&mut self, text: &str) -> bool {
        self.take_if(|token| token.text == text).is_some()
    }

    fn number(&mut self) -> Result<usize, Refusal> {
        let token = self
            .take()
            .ok_or_else(|| Refusal::syntax(self.line, "a number is missing"))?;
        let number = integer(token.text).and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| unexpected(token, "a number"))
    }

    /// The texts between parentheses.
    fn group(&mut self) -> Result<Vec<&'a str>, Refusal> {
        let mut all = Vec::new();
        self.take_text("(");
        while let Some(token) = self.take() {
            if token.text == ")" {
                return Ok(all);
            }
            all.push(token.text);
        }
        Err(Refusal::syntax(self.line, "`)` is missing"))
    }

    /// Initial values, one or a list of lists in braces, as bytes in order.
    fn values(&mut self, kind: &str, size: usize) -> Result<Vec<u8>, Refusal> {
        let mut bytes = Vec::new();
        let mut depth = 0_usize;
        let mut sign = 1;
        while let Some(token) = self.tokens.first().copied() {
            match token.text {
                "," if depth == 0 => break,
                "{" => depth += 1,
                "}" => depth = depth.saturating_sub(1),
                "," | "+" => {}
                "-" => sign = -sign,
                "(" | ")" | "generic" => {}
                // An address, perhaps with an offset.
                _ if token.is_name() => {
                    bytes.extend(std::iter::repeat_n(0, size));
                    if self.second() == Some("+") {
                        self.take();
                        self.take();
                    }
                }
                text => {
                    let value = value(text, kind, sign);
                    let value = value.ok_or_else(|| unexpected(token, "an initial value"))?;
                    bytes.extend(&value.to_le_bytes()[..size.min(16)]);
                    sign = 1;
                }
            }
            self.take();
        }
        Ok(bytes)
    }
}

/// An integer as PTX writes it: decimal, hexadecimal, octal or binary, perhaps unsigned by a `U`.
fn integer(text: &str) -> Option<i128> {
    let text = text.trim_end_matches('U');
    let parsed = match text.get(..2) {
        Some("0x" | "0X") => u64::from_str_radix(&text[2..], 16),
        Some("0b" | "0B") => u64::from_str_radix(&text[2..], 2),
        _ if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8),
        _ => text.parse(),
    };
    parsed.ok().map(i128::from)
}

/// The bits of a number in a type such as `.f32`.
fn value(text: &str, kind: &str, sign: i128) -> Option<i128> {
    let is_real = kind.starts_with(".f");
    let bits = match text.get(..2) {
        // The bits of a float and of a double.
        Some("0f" | "0F") => f64::from(f32::from_bits(u32::from_str_radix(&text[2..], 16).ok()?)),
        Some("0d" | "0D") => f64::from_bits(u64::from_str_radix(&text[2..], 16).ok()?),
        _ if is_real || text.contains('.') => text.parse().ok()?,
        _ => return integer(text).map(|number| number * sign),
    };
    let real = if sign < 0 { -bits } else { bits };
    match kind {
        ".f64" => Some(i128::from(real.to_bits())),
        ".f32" => Some(i128::from((real as f32).to_bits())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn of(text: &str) -> Vec<(String, usize, Vec<u8>)> {
        let tokens = tokens(text).expect("tokens");
        let all = variables(&tokens).expect("understood");
        all.into_iter()
            .map(|found| {
                (
                    found.name.into_string().expect("text"),
                    found.align,
                    found.contents,
                )
            })
            .collect()
    }

    fn one(text: &str) -> Vec<u8> {
        of(text).pop().expect("one").2
    }

    #[test]
    fn variables_have_a_name_a_size_and_an_alignment() {
        assert_eq!(of(".u32 a"), [("a".into(), 4, vec![0; 4])]);
        assert_eq!(of(".align 16 .b8 t[20]"), [("t".into(), 16, vec![0; 20])]);
        assert_eq!(of(".v2 .f64 p"), [("p".into(), 16, vec![0; 16])]);
        assert_eq!(one(".u16 rows[2][3]").len(), 12);
        let two = [("a".into(), 1, vec![1]), ("b".into(), 1, vec![2, 0, 0])];
        assert_eq!(of(".u8 a = 1, b[3] = {2}"), two);
        assert_eq!(of(".texref picture"), [("picture".into(), 8, vec![0; 8])]);
    }

    #[test]
    fn initial_values_are_bytes_in_order() {
        assert_eq!(one(".u32 a = 0x01020304"), [4, 3, 2, 1]);
        assert_eq!(one(".s16 a = -2"), [0xfe, 0xff]);
        assert_eq!(one(".u8 a[2][2] = {{1, 2}, {3, 010}}"), [1, 2, 3, 8]);
        assert_eq!(one(".u16 a[] = {1, 2U}"), [1, 0, 2, 0]);
        assert_eq!(one(".f32 a = 0f3F800000"), 1_f32.to_le_bytes());
        assert_eq!(one(".f64 a = -1.5"), (-1.5_f64).to_le_bytes());
        assert_eq!(one(".f32 a = 0d3FF0000000000000"), 1_f32.to_le_bytes());
        assert_eq!(
            one(".u64 a[2] = {generic(other), 7}"),
            [[0; 8], 7_u64.to_le_bytes()].concat()
        );
        assert_eq!(one(".u64 a[2] = {other+8, 7}").len(), 16);
    }

    #[test]
    fn managed_ones_say_so() {
        let tokens = tokens(".attribute(.managed) .align 4 .u32 a").expect("tokens");
        assert!(variables(&tokens).expect("understood")[0].is_managed);
    }

    #[test]
    fn what_is_no_variable_is_refused() {
        for text in [
            ".u63 a",
            ".u32 a[x]",
            ".u32 a[0xffffffff]",
            ".u8 a = \"x\"",
            ".attribute(a",
        ] {
            let tokens = tokens(text).expect("tokens");
            assert!(variables(&tokens).is_err(), "{text}");
        }
    }
}
