//! Text that must not be committed: paths of one machine, and work left for later.

use super::Finding;
use super::source::Text;

/// The parts are joined here so that this file does not find itself.
const FOLDERS: [&str; 3] = [
    concat!("/", "work/"),
    concat!("/", "root/"),
    concat!("/", "Users/"),
];

/// A user's name follows.
const HOME: &str = concat!("/", "home/");

const LEFT_FOR_LATER: [&str; 5] = [
    concat!("todo", "!"),
    concat!("unimplemented", "!"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("#[", "ignore"),
];

pub(super) fn check(file: &Text) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for (text, remedy) in found(line) {
            let what = format!("`{text}` must not be committed");
            findings.push(Finding::new(&file.path, index + 1, what, remedy));
        }
    }
    findings
}

fn found(line: &str) -> Vec<(&'static str, &'static str)> {
    const PATH: &str = "write the path relative to the repository";
    const LATER: &str = "do the work, or describe it in an issue";
    let folders = FOLDERS
        .into_iter()
        .filter(|folder| line.contains(folder))
        .map(|folder| (folder, PATH));
    let home = names_a_home(line).then_some((HOME, PATH));
    let later = LEFT_FOR_LATER
        .into_iter()
        .filter(|text| has_word(line, text))
        .map(|text| (text, LATER));
    folders.chain(home).chain(later).collect()
}

/// `…/name/` follows; a bare mention of the folder, or a variable after it, is fine.
fn names_a_home(line: &str) -> bool {
    line.match_indices(HOME).any(|(at, _)| {
        let rest = &line[at + HOME.len()..];
        let name = rest
            .find(|c: char| !(c.is_alphanumeric() || "_.-".contains(c)))
            .unwrap_or(rest.len());
        name > 0 && rest[name..].starts_with('/')
    })
}

/// Whether `text` stands in `line` and is not part of a longer name.
fn has_word(line: &str, text: &str) -> bool {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(text).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + text.len()..].chars().next();
        let open = !text.ends_with(in_name);
        !before.is_some_and(in_name) && (open || !after.is_some_and(in_name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let file = Text {
            path: "a.rs".to_owned(),
            text: text.to_owned(),
        };
        check(&file).into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn every_text_is_found() {
        for text in FOLDERS.into_iter().chain(LEFT_FOR_LATER) {
            assert_eq!(lines(&format!("fine\n  {text} here")), [2], "{text}");
        }
        assert_eq!(lines(&format!("-I{HOME}ann/include")), [1]);
        assert_eq!(lines(&format!("{}(\"later\")", LEFT_FOR_LATER[0])), [1]);
        assert_eq!(
            lines(&format!("    {} = \"slow\"]", LEFT_FOR_LATER[4])),
            [1]
        );
    }

    #[test]
    fn longer_names_and_relative_paths_are_fine() {
        let word = LEFT_FOR_LATER[3];
        assert_eq!(
            lines(&format!(
                "a{word}b {word}_A; {HOME}$USER/x; ~{HOME} target/frame{}",
                "work/"
            )),
            [0; 0]
        );
    }
}
