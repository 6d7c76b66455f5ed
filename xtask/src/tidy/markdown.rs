//! What of a Markdown file is text and not code.

/// The lines outside fenced code, with their numbers and where they begin.
pub(super) fn lines_outside_fences(text: &str) -> Vec<(usize, usize, &str)> {
    let mut lines = Vec::new();
    let mut fence: Option<&str> = None;
    let mut start = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let trimmed = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|m| trimmed.starts_with(m));
        match (fence, mark) {
            (None, Some(_)) => fence = mark,
            (Some(open), Some(close)) if open == close => fence = None,
            (None, None) => lines.push((index + 1, start, line.trim_end_matches(['\r', '\n']))),
            _ => {}
        }
        start += line.len();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_lines_are_left_out() {
        let text = "a\n```md\nb\n~~~\n```\nc\r\n";
        assert_eq!(lines_outside_fences(text), [(1, 0, "a"), (6, 18, "c")]);
    }
}
