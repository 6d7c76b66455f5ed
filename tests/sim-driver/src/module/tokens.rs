//! The tokens of a PTX text.

use super::code::Refusal;

/// One word, number or symbol, and its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: usize,
}

impl Token<'_> {
    /// Whether it can be a name.
    pub(super) fn is_name(&self) -> bool {
        self.text
            .starts_with(|c: char| c.is_ascii_alphabetic() || "_$%".contains(c))
            && !self.text.contains('.')
    }
}

fn is_part_of_a_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_$%.".contains(&byte)
}

/// Splits a text into tokens, without comments and whitespace.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Refusal> {
    let bytes = text.as_bytes();
    let mut all = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(&byte) = bytes.get(at) {
        let rest = &text[at..];
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            let end = rest.find("*/");
            end.ok_or_else(|| Refusal::syntax(line, "a comment has no end"))? + 2
        } else if byte == b'"' {
            let end = rest[1..].find(['"', '\n']).map(|end| end + 1);
            let end = end.filter(|end| rest.as_bytes()[*end] == b'"');
            end.ok_or_else(|| Refusal::syntax(line, "a string has no end"))? + 1
        } else if is_part_of_a_word(byte) {
            word(rest)
        } else if byte.is_ascii() {
            1
        } else {
            return Err(Refusal::syntax(line, "a character that PTX does not have"));
        };
        let token = &text[at..at + len];
        if !byte.is_ascii_whitespace() && !token.starts_with("//") && !token.starts_with("/*") {
            all.push(Token { text: token, line });
        }
        line += token.matches('\n').count();
        at += len;
    }
    Ok(all)
}

/// The length of the word at the start of a text: `%tid.x`, `7.0`, `st.shared::cta.u32`.
fn word(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut len = 0;
    loop {
        let rest = &bytes[len..];
        match rest {
            [byte, ..] if is_part_of_a_word(*byte) => len += 1,
            [b':', b':', byte, ..] if byte.is_ascii_alphabetic() => len += 2,
            _ => return len,
        }
    }
}

/// Instructions, up to their first dot.
const INSTRUCTIONS: &str = "abs activemask add addc alloca and applypriority atom bar barrier bfe \
    bfi bfind bmsk bra brev brkpt brx call clusterlaunchcontrol clz cnot copysign cos cp \
    createpolicy cvt cvta discard div dp2a dp4a elect ex2 exit fence fma fns getctarank \
    griddepcontrol isspacep istypep ld ldmatrix ldu lg2 lop3 mad mad24 madc mapa match max mbarrier \
    membar min mma mov movmatrix mul mul24 multimem nanosleep neg not or pmevent popc prefetch \
    prefetchu prmt rcp red redux rem ret rsqrt sad selp set setmaxnreg setp shf shfl shl shr sin \
    slct sqrt st stackrestore stacksave stmatrix sub subc suld suq sured sust szext tanh tcgen05 \
    tensormap testp tex tld4 trap txq vabsdiff vabsdiff2 vabsdiff4 vadd vadd2 vadd4 vavrg2 vavrg4 \
    vmad vmax vmax2 vmax4 vmin vmin2 vmin4 vote vset vset2 vset4 vshl vshr vsub vsub2 vsub4 wgmma \
    wmma xor";

/// What a statement inside a function may start with, besides an instruction.
const DIRECTIVES: &str = ".branchtargets .callprototype .calltargets .const .global .local .param \
    .pragma .reg .shared .tex";

/// Whether a statement may start with this word.
pub(super) fn begins_a_statement(word: &str) -> bool {
    if word.starts_with('.') {
        return DIRECTIVES.split_whitespace().any(|known| known == word);
    }
    let name = word.split('.').next();
    INSTRUCTIONS
        .split_whitespace()
        .any(|known| Some(known) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<(&str, usize)> {
        let tokens = tokens(text).expect("tokens");
        tokens
            .iter()
            .map(|token| (token.text, token.line))
            .collect()
    }

    #[test]
    fn comments_go_and_lines_are_counted() {
        let text =
            "// one\n.version 7.0 /* two\n three */ L:\n@%p st.shared::cta.u32 [%d+4], %tid.x;";
        assert_eq!(
            texts(text),
            [
                (".version", 2),
                ("7.0", 2),
                ("L", 3),
                (":", 3),
                ("@", 4),
                ("%p", 4),
                ("st.shared::cta.u32", 4),
                ("[", 4),
                ("%d", 4),
                ("+", 4),
                ("4", 4),
                ("]", 4),
                (",", 4),
                ("%tid.x", 4),
                (";", 4),
            ]
        );
    }

    #[test]
    fn what_is_left_open_is_refused_with_its_line() {
        for (text, line) in [("\n/* ", 2), ("a \"b\n\"", 1), ("\n\n.entry é", 3)] {
            assert_eq!(tokens(text).expect_err("refused").line, line, "{text:?}");
        }
    }

    #[test]
    fn instructions_are_known_by_their_first_part() {
        assert!(begins_a_statement("ld.param.u64") && begins_a_statement("ret"));
        assert!(begins_a_statement(".reg") && !begins_a_statement(".entry"));
        assert!(!begins_a_statement("ld_param") && !begins_a_statement("return"));
    }
}
