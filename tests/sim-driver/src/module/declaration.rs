//! Declarations of variables in PTX, and their initial values.

use std::ffi::CString;

use super::code::Refusal;
use super::expression::{Rest, constant, number};
use super::ptx::{size_of_type, unexpected};
use super::tokens::Token;

/// A variable in the memory of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: CString,
    pub(super) align: usize,
    pub(super) size: usize,
    /// The first bytes that were given; the others are zero.
    pub(super) contents: Vec<u8>,
    /// Whether it is in managed memory.
    pub(super) is_managed: bool,
    /// Whether another text may declare it, too.
    pub(super) is_weak: bool,
}

/// A guess: larger variables and alignments are refused as wrong PTX.
pub(super) const LARGEST: usize = 1 << 31;
pub(super) const LARGEST_ALIGNMENT: usize = 1 << 20;

/// Types that the host does not use by their address.
const OPAQUE: [&str; 3] = [".texref", ".samplerref", ".surfref"];

/// The element of a variable.
#[derive(Clone, Copy, Debug)]
struct Element<'a> {
    kind: &'a str,
    size: usize,
}

/// The variables of one declaration, from after `.global` or `.const` to before the semicolon.
///
/// Addresses are not known here: as an initial value they are zero.
pub(super) fn variables(statement: &[Token<'_>], line: usize) -> Result<Vec<Variable>, Refusal> {
    let mut rest = Rest::new(statement, line);
    // The number of a bank of constant memory.
    if rest.takes("[") {
        rest.take()?;
        rest.expect("]")?;
    }
    let (mut align, mut vector, mut is_managed) = (None, 1, false);
    let mut element = None;
    while let Some(token) = rest.take_if(|token| token.text.starts_with('.')) {
        match token.text {
            ".align" => align = Some(alignment(&mut rest)?),
            ".attribute" => is_managed = rest.group()?.contains(&".managed"),
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            text if OPAQUE.contains(&text) => return Ok(Vec::new()),
            text => {
                let size = size_of_type(text).ok_or_else(|| unexpected(token, "a type"))?;
                element = Some(Element { kind: text, size });
            }
        }
    }
    let Some(element) = element else {
        return Err(Refusal::syntax(line, "a variable without a type"));
    };
    let mut all = Vec::new();
    loop {
        let mut variable = declarator(&mut rest, element, vector)?;
        variable.align = align.unwrap_or(element.size * vector);
        variable.is_managed = is_managed;
        all.push(variable);
        if rest.is_empty() {
            return Ok(all);
        }
        rest.expect(",")?;
    }
}

fn alignment(rest: &mut Rest<'_, '_>) -> Result<usize, Refusal> {
    let token = rest.take()?;
    let align = number(token.text).and_then(|align| usize::try_from(align).ok());
    align
        .filter(|align| align.is_power_of_two() && *align <= LARGEST_ALIGNMENT)
        .ok_or_else(|| unexpected(token, "an alignment"))
}

/// A name with its lengths and initial values.
fn declarator(
    rest: &mut Rest<'_, '_>,
    element: Element<'_>,
    vector: usize,
) -> Result<Variable, Refusal> {
    let name = rest.take()?;
    if !name.is_name() {
        return Err(unexpected(name, "the name of a variable"));
    }
    let too_large = || unexpected(name, "a variable that fits the memory");
    // From the outermost in; 0 is a length that the values determine.
    let mut lengths = Vec::new();
    while rest.takes("[") {
        if rest.takes("]") {
            if !lengths.is_empty() {
                return Err(unexpected(name, "an array whose other lengths are known"));
            }
            lengths.push(0);
            continue;
        }
        let length = constant(rest, &["]"])?;
        rest.expect("]")?;
        let length = usize::try_from(length).ok().filter(|length| *length > 0);
        lengths.push(length.ok_or_else(|| unexpected(name, "an array with elements"))?);
    }
    if vector > 1 {
        lengths.push(vector);
    }
    let mut known = lengths.iter().skip_while(|length| **length == 0);
    let known = known.try_fold(element.size, |size, length| size.checked_mul(*length));
    let known = known
        .filter(|size| *size <= LARGEST)
        .ok_or_else(too_large)?;
    let mut contents = Vec::new();
    let mut rows = 0;
    if rest.takes("=") {
        rows = values(rest, element, &lengths, &mut contents, 0)?;
    }
    let size = match lengths.first() {
        Some(0) if rows == 0 => return Err(unexpected(name, "an array with a length")),
        Some(0) => known
            .checked_mul(rows)
            .filter(|size| *size <= LARGEST)
            .ok_or_else(too_large)?,
        _ => known,
    };
    Ok(Variable {
        name: CString::new(name.text).unwrap_or_default(),
        size,
        contents,
        ..Variable::default()
    })
}

/// Reads one value, or a list in braces, for an array with these lengths that begins at an offset. Returns the number of
/// the outermost elements that have values.
fn values(
    rest: &mut Rest<'_, '_>,
    element: Element<'_>,
    lengths: &[usize],
    contents: &mut Vec<u8>,
    start: usize,
) -> Result<usize, Refusal> {
    let Some((outer, inner)) = lengths.split_first() else {
        let bytes = value(rest, element)?;
        put(contents, start, &bytes);
        return Ok(1);
    };
    let brace = rest.take()?;
    if brace.text != "{" {
        return Err(unexpected(brace, "a list of initial values"));
    }
    // Elements of this list, each an array of the inner lengths.
    let step: usize = inner.iter().product::<usize>() * element.size;
    let limit = if *outer == 0 { LARGEST / step } else { *outer };
    // Single values may stand for the elements of several inner arrays in turn.
    let mut at = 0;
    loop {
        if rest.takes("}") {
            break;
        }
        if at >= limit * step {
            return Err(unexpected(brace, "no more initial values than elements"));
        }
        if !inner.is_empty() && rest.peek() == Some("{") {
            at = at.next_multiple_of(step);
            values(rest, element, inner, contents, start + at)?;
            at += step;
        } else {
            let bytes = value(rest, element)?;
            put(contents, start + at, &bytes);
            at += element.size;
        }
        if !rest.takes(",") {
            rest.expect("}")?;
            break;
        }
    }
    Ok(at.div_ceil(step))
}

fn put(contents: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if contents.len() < end {
        contents.resize(end, 0);
    }
    contents[at..end].copy_from_slice(bytes);
}

/// The bytes of one value.
fn value(rest: &mut Rest<'_, '_>, element: Element<'_>) -> Result<Vec<u8>, Refusal> {
    let value = rest.until(&[",", "}"])?;
    // The address of a variable or a part of it, perhaps with an offset.
    if value.tokens.iter().any(Token::is_name) {
        return Ok(vec![0; element.size]);
    }
    let mut value = value;
    let first = value.first()?;
    if let Some(bits) = real(&mut value, element.kind) {
        return match value.is_empty() {
            true => Ok(bits),
            false => Err(unexpected(first, "a number")),
        };
    }
    if element.kind.starts_with(".f") {
        return Err(unexpected(first, "a floating-point number"));
    }
    let number = constant(&mut value, &[])?;
    let bytes = number.to_le_bytes();
    Ok(bytes[..element.size.min(bytes.len())].to_vec())
}

/// The bytes of a floating-point literal; `None`, with nothing taken, if it is another value.
fn real(rest: &mut Rest<'_, '_>, kind: &str) -> Option<Vec<u8>> {
    let (sign, text) = match rest.tokens {
        [minus, number, ..] if minus.text == "-" => (-1.0, number.text),
        [number, ..] => (1.0, number.text),
        [] => return None,
    };
    let digits = text.get(2..);
    let single = |digits| u32::from_str_radix(digits, 16).ok().map(f32::from_bits);
    let double = |digits| u64::from_str_radix(digits, 16).ok().map(f64::from_bits);
    let bytes = match (text.get(..2), kind) {
        // The bits as they are: a conversion would change some.
        (Some("0f" | "0F"), ".f32") => {
            let bits = single(digits?)?.to_bits();
            let sign = if sign < 0.0 { 1 << 31 } else { 0 };
            (bits ^ sign).to_le_bytes().to_vec()
        }
        (Some("0f" | "0F"), ".f64") => (sign * f64::from(single(digits?)?)).to_le_bytes().to_vec(),
        (Some("0d" | "0D"), ".f32") => ((sign * double(digits?)?) as f32).to_le_bytes().to_vec(),
        (Some("0d" | "0D"), ".f64") => (sign * double(digits?)?).to_le_bytes().to_vec(),
        (_, ".f32") => ((sign * text.parse::<f64>().ok()?) as f32)
            .to_le_bytes()
            .to_vec(),
        (_, ".f64") => (sign * text.parse::<f64>().ok()?).to_le_bytes().to_vec(),
        _ => return None,
    };
    rest.tokens = &rest.tokens[if sign < 0.0 { 2 } else { 1 }..];
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn try_of(text: &str) -> Result<Vec<Variable>, Refusal> {
        variables(&tokens(text).expect("tokens"), 1)
    }

    fn of(text: &str) -> Vec<(String, usize, usize)> {
        let all = try_of(text).expect("understood").into_iter();
        all.map(|it| (it.name.into_string().expect("text"), it.align, it.size))
            .collect()
    }

    /// The bytes of the last variable.
    fn bytes(text: &str) -> Vec<u8> {
        let mut all = try_of(text).expect("understood");
        let last = all.pop().expect("one");
        let mut bytes = last.contents;
        assert!(bytes.len() <= last.size, "{text}");
        bytes.resize(last.size, 0);
        bytes
    }

    #[test]
    fn variables_have_a_name_a_size_and_an_alignment() {
        let one = |name: &str, align, size| vec![(name.to_owned(), align, size)];
        assert_eq!(of(".u32 a"), one("a", 4, 4));
        assert_eq!(of(".align 16 .b8 t[20]"), one("t", 16, 20));
        assert_eq!(of(".v2 .f64 p"), one("p", 16, 16));
        assert_eq!(of(".u16 rows[2][3]"), one("rows", 2, 12));
        assert_eq!(of("[3] .b8 a[4 * (1 << 4) - 1]"), one("a", 1, 63));
        let two = [("a".into(), 1, 1), ("b".into(), 1, 3)];
        assert_eq!(of(".u8 a = 1, b[3] = {2}"), two);
        assert_eq!(of(".texref picture"), []);
        assert_eq!(of(".samplerref s = { addr_mode_0 = clamp_to_border }"), []);
        assert_eq!(of(".attribute(.unified(19, 95)) .u32 a"), one("a", 4, 4));
    }

    #[test]
    fn initial_values_are_bytes_in_order() {
        assert_eq!(bytes(".u32 a = 0x01020304"), [4, 3, 2, 1]);
        assert_eq!(bytes(".s16 a = -2"), [0xfe, 0xff]);
        assert_eq!(bytes(".u8 a[2][2] = {{1, 2}, {3, 010}}"), [1, 2, 3, 8]);
        assert_eq!(bytes(".u8 a[2][2] = {1, 2, 3, 4}"), [1, 2, 3, 4]);
        assert_eq!(bytes(".u8 a[3][2] = {{1}, {2}, {3}}"), [1, 0, 2, 0, 3, 0]);
        assert_eq!(bytes(".u16 a[] = {1, 2U}"), [1, 0, 2, 0]);
        assert_eq!(bytes(".u8 a[][2] = {{1}, {2, 3}}"), [1, 0, 2, 3]);
        assert_eq!(bytes(".v2 .u8 a = {8, 9}"), [8, 9]);
        assert_eq!(bytes(".u8 a[2] = {1 + 2 * 3, ~5 & 0xf}"), [7, 10]);
        assert_eq!(bytes(".u8 a[1 << 20] = {1}").len(), 1 << 20);
    }

    #[test]
    fn floating_point_keeps_its_bits() {
        assert_eq!(bytes(".f32 a = 0f3F800000"), 1_f32.to_le_bytes());
        assert_eq!(bytes(".f32 a = 0f7F800001"), 0x7f80_0001_u32.to_le_bytes());
        assert_eq!(bytes(".f32 a = -0f3F800000"), (-1_f32).to_le_bytes());
        assert_eq!(bytes(".f64 a = -1.5"), (-1.5_f64).to_le_bytes());
        assert_eq!(bytes(".f32 a = 0d3FF0000000000000"), 1_f32.to_le_bytes());
        assert_eq!(bytes(".f64 a = 2"), 2_f64.to_le_bytes());
    }

    #[test]
    fn addresses_are_zero_and_one_element_each() {
        let seven = [[0; 8], 7_u64.to_le_bytes()].concat();
        for text in [
            "other",
            "other+8",
            "generic(other)",
            "generic(other)+8",
            "-other",
        ] {
            let text = format!(".u64 a[] = {{{text}, 7}}");
            assert_eq!(bytes(&text), seven, "{text}");
        }
        assert_eq!(
            bytes(".u8 a[] = {0xFF(other), 0xFF00(other), 5}"),
            [0, 0, 5]
        );
    }

    #[test]
    fn managed_ones_say_so() {
        for text in [
            ".attribute(.managed)",
            ".attribute(.managed, .unified(1, 2))",
        ] {
            let all = try_of(&format!("{text} .align 4 .u32 a")).expect("understood");
            assert!(all[0].is_managed, "{text}");
        }
    }

    #[test]
    fn what_is_no_variable_is_refused() {
        for text in [
            "",
            ".u32",
            ".u63 a",
            "a",
            ".u32 3",
            ".u32 = 3",
            ".u32 a b",
            ".u32 a,",
            ".u32 a, , b",
            ".u32 a[x]",
            ".u32 a[0]",
            ".u32 a[-1]",
            ".u32 a[2",
            ".u32 a 2]",
            ".u32 a[]",
            ".u32 a[2][]",
            ".u32 a[0xffffffff]",
            ".b8 a[65536][65536][65536][65536]",
            ".align 3 .u32 a",
            ".align 0 .u32 a",
            ".align 9223372036854775809 .u32 a",
            ".attribute(a",
            ".u8 a = \"x\"",
            ".u32 a[2] = {1, 2, 3}",
            ".u32 a[2] = {1, 2",
            ".u32 a[2] = 1",
            ".u32 a = {1}",
            ".u32 a = ",
            ".u32 a = 1 +",
            ".u32 a = 1 2",
            ".u32 a = 1 / 0",
            ".f32 a = 1 + 2",
            ".f16 a = 1.0",
        ] {
            assert!(try_of(text).is_err(), "{text}");
        }
    }
}
