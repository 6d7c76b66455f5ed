//! No hand-written Rust file outgrows what a reader can hold in mind.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use super::Finding;
use super::source::Rust;

const LIMIT: usize = 400;

pub(super) fn check(file: &Rust) -> Option<Finding> {
    let lines = code_lines(file.code.to_token_stream());
    (lines > LIMIT).then(|| {
        Finding::new(
            &file.path,
            1,
            format!("{lines} lines of code, the limit is {LIMIT}"),
            "split the file by idea",
        )
    })
}

/// Lines with code on them: not blank, not a comment.
fn code_lines(tokens: TokenStream) -> usize {
    let mut lines = BTreeSet::new();
    collect(tokens, &mut lines);
    lines.len()
}

fn collect(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#') {
            // An inner attribute has an exclamation mark before its brackets.
            let bang = tokens
                .next_if(|next| matches!(next, TokenTree::Punct(punct) if punct.as_char() == '!'));
            if tokens.next_if(is_comment).is_some() {
                continue;
            }
            lines.extend(bang.map(|bang| bang.span().start().line));
        }
        match &token {
            TokenTree::Group(group) => {
                lines.insert(group.span_open().start().line);
                collect(group.stream(), lines);
                lines.insert(group.span_close().end().line);
            }
            other => lines.extend(other.span().start().line..=other.span().end().line),
        }
    }
}

/// The parser turns a documentation comment into `#[doc = "…"]`.
fn is_comment(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else {
        return false;
    };
    let mut inside = group.stream().into_iter();
    matches!(inside.next(), Some(TokenTree::Ident(name)) if name == "doc")
        && matches!(inside.next(), Some(TokenTree::Punct(punct)) if punct.as_char() == '=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        code_lines(Rust::parse("a.rs", text).code.to_token_stream())
    }

    #[test]
    fn blank_lines_comments_and_tests_do_not_count() {
        let text = "//! Docs\n//! and more.\n\n/* a\n   block */\n/// Docs.\n#[inline] // three\n\
            fn f() {\n    // why\n    let text = \"two\nlines\";\n\n}\n\
            #[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        assert_eq!(count(text), 5);
    }

    #[test]
    fn a_file_past_the_limit_is_found() {
        let at = "fn f() {}\n".repeat(LIMIT);
        let past = format!("{at}fn g() {{}}\n");
        assert_eq!(check(&Rust::parse("a.rs", &at)), None);
        assert!(check(&Rust::parse("a.rs", &past)).is_some());
    }
}
