//! The simulator's view of PTX: the kernels of a text, their parameters, and whether it is valid. Instructions are
//! checked one by one: types, registers and labels are not checked, unlike in the driver's compiler.

use std::ffi::CString;

use cuda_driver_sys::CUresult;

use super::code::{Code, DEVICE_TARGET, Entry, Parameter, Refusal};
use super::declaration::variables;
use super::tokens::{Token, begins_a_statement, tokens};

/// The newest PTX version that a driver of this CUDA version supports.
pub(super) fn newest_of(version: u32) -> (u32, u32) {
    let (major, minor) = (version / 1000, version % 1000 / 10);
    match (major, minor) {
        (11, minor) => (7, minor),
        // Two CUDA versions share PTX 8.5.
        (12, minor) if minor > 5 => (8, minor - 1),
        (12, minor) => (8, minor),
        (major, minor) => (major.saturating_sub(4), minor),
    }
}

/// Parses a text.
pub(super) fn parse(text: &str, newest: (u32, u32)) -> Result<Code, Refusal> {
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
    };
    parser.version(newest)?;
    let target = parser.target()?;
    if parser.takes(".address_size") {
        let token = parser.next()?;
        if token.text != "64" {
            return Err(Refusal::syntax(token.line, "an address size other than 64"));
        }
    }
    parser.declarations(target)
}

/// A position in a text.
struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

/// Memory declared by statements.
#[derive(Clone, Copy, Debug, Default)]
struct Declared {
    shared: u32,
    local: u32,
}

/// Sizes saturate: a launch refuses what exceeds the device.
impl Declared {
    fn add_shared(&mut self, statement: &[Token<'_>]) {
        self.shared = self.shared.saturating_add(bytes_of(statement));
    }

    fn add_local(&mut self, statement: &[Token<'_>]) {
        self.local = self.local.saturating_add(bytes_of(statement));
    }
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn next(&mut self) -> Result<Token<'a>, Refusal> {
        let token = self.peek().ok_or_else(|| {
            let line = self.tokens.last().map_or(1, |token| token.line);
            Refusal::syntax(line, "the text ends too early")
        })?;
        self.at += 1;
        Ok(token)
    }

    fn takes(&mut self, text: &str) -> bool {
        let is_next = self.peek().is_some_and(|token| token.text == text);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, text: &str) -> Result<(), Refusal> {
        let token = self.next()?;
        if token.text == text {
            Ok(())
        } else {
            Err(unexpected(token, text))
        }
    }

    fn name(&mut self) -> Result<Token<'a>, Refusal> {
        let token = self.next()?;
        if token.is_name() {
            Ok(token)
        } else {
            Err(unexpected(token, "a name"))
        }
    }

    fn number(&mut self) -> Result<u32, Refusal> {
        let token = self.next()?;
        let number = match token.text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => token.text.parse(),
        };
        number.map_err(|_| unexpected(token, "a number"))
    }

    fn version(&mut self, newest: (u32, u32)) -> Result<(), Refusal> {
        self.expect(".version")?;
        let token = self.next()?;
        let parts = token.text.split_once('.');
        let parts =
            parts.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let version: (u32, u32) = parts.ok_or_else(|| unexpected(token, "a version"))?;
        if version > newest {
            let (major, minor) = newest;
            return Err(Refusal {
                code: CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                line: token.line,
                what: format!("version {} is newer than {major}.{minor}", token.text),
            });
        }
        Ok(())
    }

    fn target(&mut self) -> Result<u32, Refusal> {
        self.expect(".target")?;
        let token = self.name()?;
        let number = token.text.strip_prefix("sm_");
        let number = number.map(|text| text.trim_end_matches(['a', 'f']).parse::<u32>());
        let Some(Ok(target)) = number else {
            return Err(unexpected(token, "a target such as sm_70"));
        };
        while self.takes(",") {
            self.name()?;
        }
        // Measured: this error code, whether or not this PTX version has the target.
        if target > DEVICE_TARGET {
            let what = format!("{} is no target for sm_{DEVICE_TARGET}", token.text);
            return Err(Refusal::syntax(token.line, what));
        }
        Ok(target)
    }

    fn declarations(&mut self, target: u32) -> Result<Code, Refusal> {
        let mut code = Code::default();
        let mut shared = 0;
        while let Some(token) = self.peek() {
            self.at += 1;
            let before = self.at.checked_sub(2).map(|at| self.tokens[at].text);
            match token.text {
                ".visible" | ".extern" | ".weak" | ".common" => {}
                ".entry" => {
                    let entry = self.entry(target)?;
                    if code.entries.iter().any(|known| known.name == entry.name) {
                        return Err(Refusal::syntax(
                            token.line,
                            "an entry with the name of another",
                        ));
                    }
                    code.entries.push(entry);
                }
                ".func" => self.function()?,
                ".file" => self.skip_line(token.line),
                ".section" => {
                    self.next()?;
                    self.skip_between("{", "}")?;
                }
                ".shared" => {
                    shared = u32::saturating_add(shared, bytes_of(&self.statement(token)?));
                }
                ".global" | ".const" => {
                    let statement = self.statement(token)?;
                    let mut declared = variables(&statement, token.line)?;
                    // That of another text.
                    if before == Some(".extern") {
                        continue;
                    }
                    for variable in &mut declared {
                        variable.is_weak = matches!(before, Some(".weak" | ".common"));
                        code.check_name(variable, token.line)?;
                    }
                    code.variables.extend(declared);
                }
                ".tex" | ".pragma" | ".alias" => {
                    self.statement(token)?;
                }
                _ => return Err(unexpected(token, "a declaration")),
            }
        }
        // A guess: shared memory declared outside the kernels counts for each kernel.
        for entry in &mut code.entries {
            entry.shared = entry.shared.saturating_add(shared);
        }
        Ok(code)
    }

    fn entry(&mut self, target: u32) -> Result<Entry, Refusal> {
        let name = self.name()?;
        let mut entry = Entry {
            name: CString::new(name.text).unwrap_or_default(),
            target,
            ..Entry::default()
        };
        if self.takes("(") {
            entry.parameters = self.parameters()?;
        }
        loop {
            let token = self.next()?;
            match token.text {
                "{" => break,
                ".maxntid" | ".reqntid" => {
                    let mut threads = self.number()?;
                    while self.takes(",") {
                        threads = threads.saturating_mul(self.number()?);
                    }
                    entry.max_threads = Some(threads);
                }
                ".pragma" => {
                    self.statement(token)?;
                }
                ";" => return Err(unexpected(token, "the kernel's body")),
                text if text.starts_with('.') || text == "," => {}
                text if text.starts_with(|c: char| c.is_ascii_digit()) => {}
                _ => return Err(unexpected(token, "the kernel's body")),
            }
        }
        let declared = self.body()?;
        (entry.shared, entry.local) = (declared.shared, declared.local);
        Ok(entry)
    }

    /// From after the opening to after the closing parenthesis.
    fn parameters(&mut self) -> Result<Vec<Parameter>, Refusal> {
        let mut all: Vec<Parameter> = Vec::new();
        if self.takes(")") {
            return Ok(all);
        }
        loop {
            self.expect(".param")?;
            let (mut size, mut align) = (None, 1);
            while self.peek().is_some_and(|token| token.text.starts_with('.')) {
                let token = self.next()?;
                match token.text {
                    ".align" if size.is_none() => align = self.number()?.max(1) as usize,
                    // The alignment of a pointer's target.
                    ".align" => {
                        self.number()?;
                    }
                    ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
                    text => {
                        let found = size_of_type(text);
                        size = Some(found.ok_or_else(|| unexpected(token, "a type"))?);
                    }
                }
            }
            let name = self.name()?;
            let size = size.ok_or_else(|| unexpected(name, "a type"))?;
            align = align.max(size);
            let mut count = 1;
            if self.takes("[") {
                count = self.number()? as usize;
                self.expect("]")?;
            }
            let end = all.last().map_or(0, |last| last.offset + last.size);
            all.push(Parameter {
                offset: end.next_multiple_of(align),
                size: size * count,
            });
            let token = self.next()?;
            match token.text {
                "," => {}
                ")" => return Ok(all),
                _ => return Err(unexpected(token, "`,` or `)`")),
            }
        }
    }

    /// A device function.
    fn function(&mut self) -> Result<(), Refusal> {
        loop {
            let token = self.next()?;
            match token.text {
                "(" => {
                    self.at -= 1;
                    self.skip_between("(", ")")?;
                }
                "{" => return self.body().map(|_| ()),
                ";" => return Ok(()),
                text if text.starts_with(['.', ',']) || token.is_name() => {}
                text if text.starts_with(|c: char| c.is_ascii_digit()) => {}
                _ => return Err(unexpected(token, "a function")),
            }
        }
    }

    /// From after the opening to after the closing brace.
    fn body(&mut self) -> Result<Declared, Refusal> {
        let mut declared = Declared::default();
        let mut depth = 1;
        while depth > 0 {
            let mut token = self.next()?;
            match token.text {
                "{" => depth += 1,
                "}" => depth -= 1,
                ";" => {}
                ".loc" | ".file" => self.skip_line(token.line),
                _ if token.is_name() && self.takes(":") => {}
                _ => {
                    if token.text == "@" {
                        self.takes("!");
                        self.name()?;
                        token = self.next()?;
                    }
                    if !begins_a_statement(token.text) {
                        return Err(unexpected(token, "an instruction"));
                    }
                    let statement = self.statement(token)?;
                    match token.text {
                        ".shared" => declared.add_shared(&statement),
                        ".local" => declared.add_local(&statement),
                        _ => {}
                    }
                }
            }
        }
        Ok(declared)
    }

    /// Up to and including the semicolon.
    fn statement(&mut self, first: Token<'a>) -> Result<Vec<Token<'a>>, Refusal> {
        let mut all = Vec::new();
        let mut depth = 0_usize;
        loop {
            let missing = || Refusal::syntax(first.line, format!("`{}` has no `;`", first.text));
            let token = self.next().map_err(|_| missing())?;
            match token.text {
                "{" => depth += 1,
                "}" => depth = depth.checked_sub(1).ok_or_else(missing)?,
                ";" if depth == 0 => return Ok(all),
                _ => {}
            }
            all.push(token);
        }
    }

    fn skip_line(&mut self, line: usize) {
        while self.peek().is_some_and(|token| token.line == line) {
            self.at += 1;
        }
    }

    fn skip_between(&mut self, open: &str, close: &str) -> Result<(), Refusal> {
        self.expect(open)?;
        let mut depth = 1;
        while depth > 0 {
            let token = self.next()?;
            if token.text == open {
                depth += 1;
            } else if token.text == close {
                depth -= 1;
            }
        }
        Ok(())
    }
}

pub(super) fn unexpected(token: Token<'_>, wanted: &str) -> Refusal {
    let what = format!("`{}` where {wanted} should be", token.text);
    Refusal::syntax(token.line, what)
}

/// Size of a type such as `.u32`.
pub(super) fn size_of_type(text: &str) -> Option<usize> {
    match text {
        ".texref" | ".samplerref" | ".surfref" => Some(8),
        ".f16x2" | ".bf16x2" => Some(4),
        ".bf16" => Some(2),
        _ => match text.get(2..)? {
            "8" => Some(1),
            "16" => Some(2),
            "32" => Some(4),
            "64" => Some(8),
            "128" => Some(16),
            _ => None,
        }
        .filter(|_| [".b", ".u", ".s", ".f"].contains(&&text[..2])),
    }
}

/// Bytes that a declaration of variables requests, without padding.
fn bytes_of(statement: &[Token<'_>]) -> u32 {
    let (mut size, mut vector, mut total, mut current) = (0_u32, 1, 0_u32, 0_u32);
    let mut tokens = statement.iter().map(|token| token.text);
    while let Some(text) = tokens.next() {
        match text {
            ".align" => {
                tokens.next();
            }
            ".v2" => vector = 2,
            ".v4" => vector = 4,
            "[" => {
                let count = tokens.next().and_then(|text| text.parse().ok());
                current = current.saturating_mul(count.unwrap_or(0));
            }
            "]" | "," => {}
            text if text.starts_with('.') => {
                size = size_of_type(text).unwrap_or(0) as u32 * vector;
            }
            _ => {
                total = total.saturating_add(current);
                current = size;
            }
        }
    }
    total.saturating_add(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 7.0\n.target sm_70, debug\n.address_size 64\n";

    fn entries(text: &str) -> Vec<Entry> {
        let code = parse(&format!("{HEAD}{text}"), (9, 0));
        code.expect("understood").entries
    }

    fn refusal(text: &str) -> (CUresult, usize) {
        let refusal = parse(text, (9, 0)).expect_err("refused");
        assert!(refusal.log().contains(&format!("line {};", refusal.line)));
        (refusal.code, refusal.line)
    }

    #[test]
    fn more_memory_than_fits_a_number_is_the_largest_number() {
        let text = ".shared .b8 a[4294967295]; .shared .b8 b[4294967295]; .entry k { .shared .b8 c[4294967295]; \
                    .shared .b8 d[1]; .local .b8 e[4294967295]; .local .b8 f[1]; ret; }";
        let kernel = entries(text).pop().expect("one");
        assert_eq!((kernel.shared, kernel.local), (u32::MAX, u32::MAX));
    }

    #[test]
    fn the_kernels_of_the_tests_are_understood() {
        let text = include_str!("../../data/kernels.ptx");
        let code = parse(text, (7, 0)).expect("understood");
        let shapes: Vec<(&str, Vec<(usize, usize)>)> = code
            .entries
            .iter()
            .map(|entry| {
                let places = entry.parameters.iter();
                let places = places.map(|place| (place.offset, place.size)).collect();
                (entry.name.to_str().expect("text"), places)
            })
            .collect();
        let expected = [
            ("fill", vec![(0, 8), (8, 4), (16, 8)]),
            ("copy", vec![(0, 8), (8, 8), (16, 8)]),
            ("add", vec![(0, 8), (8, 8), (16, 8), (24, 8)]),
            ("spin", vec![(0, 8)]),
            ("answer", vec![(0, 8), (8, 8), (16, 8), (24, 8)]),
        ];
        assert_eq!(shapes, expected);
        assert_eq!(code.entries[0].target, 70);
    }

    #[test]
    fn parameters_lie_where_their_types_want_them() {
        let text = ".entry k(.param .u8 a, .param .align 8 .b8 b[12], .param .u16 c,
            .param .u64 .ptr .global .align 16 d, .param .f32 e) { ret; }";
        let places = entries(text)[0].parameters.clone();
        let places: Vec<_> = places.iter().map(|it| (it.offset, it.size)).collect();
        assert_eq!(places, [(0, 1), (8, 12), (20, 2), (24, 8), (32, 4)]);
    }

    #[test]
    fn what_compilers_write_is_understood() {
        let text = ".global .align 4 .b8 table[8] = {1, 2, 3};
            .extern .shared .align 16 .b8 dynamic[];
            .func (.param .b32 out) helper(.param .b32 in) { st.param.b32 [out], 1; ret; }
            .extern .func other(.param .b64 a);
            .visible .entry k() .maxntid 16, 8, 1 .minnctapersm 2
            {
                .reg .b64 %d<3>;
                .shared .align 4 .f32 tile[16][4];
                .shared .u32 one, .u32 two;
                .local .align 8 .b8 depot[24];
                .loc 1 7 3
            $L__1: @!%p bra $L__1;
                { .reg .b32 t; mov.b64 {t, t}, %d1; }
                call.uni (r), helper, (x);
                ret;
            }
            .file 1 \"somewhere.cu\"
            .section .debug_str { .b8 1, 2 \n .b8 3 }";
        let entry = &entries(text)[0];
        assert_eq!((entry.shared, entry.local), (264, 24));
        assert_eq!(entry.max_threads, Some(128));
    }

    #[test]
    fn mistakes_are_found_in_their_line() {
        let invalid = CUresult::CUDA_ERROR_INVALID_PTX;
        let with_head = |text: &str| refusal(&format!("{HEAD}{text}"));
        assert_eq!(refusal("\n.target sm_70"), (invalid, 2));
        assert_eq!(refusal("// nothing"), (invalid, 1));
        assert_eq!(refusal(".version 7"), (invalid, 1));
        assert_eq!(refusal(".version 7.0\n.target gpu"), (invalid, 2));
        assert_eq!(with_head(".entry (.param .u64 a) {}"), (invalid, 4));
        assert_eq!(with_head("\n.entry k(.param .u63 a) {}"), (invalid, 5));
        assert_eq!(with_head(".entry k(.param .u64 a {}"), (invalid, 4));
        assert_eq!(with_head(".entry k();"), (invalid, 4));
        assert_eq!(with_head(".entry k() {\n ret; "), (invalid, 5));
        assert_eq!(with_head(".entry k() {\n ret\n}"), (invalid, 5));
        assert_eq!(with_head(".entry k() {\n this is no ptx;\n}"), (invalid, 5));
        assert_eq!(with_head(".entry k() {}\n.entry k() {}"), (invalid, 5));
        assert_eq!(with_head("__global__ void k() {}"), (invalid, 4));
    }

    #[test]
    fn versions_and_targets_of_the_future_are_refused() {
        let (code, line) = refusal("// new\n.version 99.0\n.target sm_70");
        assert_eq!(
            (code, line),
            (CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 2)
        );
        for text in [
            ".version 9.0\n.target sm_999",
            ".version 7.0\n.target sm_120",
        ] {
            let (code, line) = refusal(text);
            assert_eq!(
                (code, line),
                (CUresult::CUDA_ERROR_INVALID_PTX, 2),
                "{text}"
            );
        }
        assert!(parse(".version 9.0\n.target sm_90a", (9, 0)).is_ok());
        assert!(parse(".version 9.0\n.target sm_90a", (8, 8)).is_err());
    }

    #[test]
    fn every_cuda_version_has_its_newest_ptx() {
        let newest = [11000, 11080, 12020, 12050, 12060, 12090, 13000, 13010].map(newest_of);
        let expected = [
            (7, 0),
            (7, 8),
            (8, 2),
            (8, 5),
            (8, 5),
            (8, 8),
            (9, 0),
            (9, 1),
        ];
        assert_eq!(newest, expected);
    }
}
