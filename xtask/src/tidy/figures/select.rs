//! Reading the values of a figure out of a report.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::number::numbers;

/// Where in a report the values are: objects of its JSON, or lines of its text.
#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Selector {
    /// Keys and values of an object at any depth, or of objects around it. A list of values stands for one
    /// object each.
    #[serde(default, rename = "where")]
    pub(super) objects: OneOrMany<Map<String, Value>>,
    /// The number in it; dots lead into objects and lists inside it.
    #[serde(default)]
    pub(super) field: OneOrMany<String>,
    /// The start of a line of a text report, or a part of it if no line starts so, before its numbers.
    #[serde(default)]
    pub(super) line: OneOrMany<String>,
    /// Which of the numbers after that part, counted from 1; needed where there are more than one.
    #[serde(default)]
    pub(super) column: OneOrMany<usize>,
    /// The start of a heading (`==` or `--`) of a text report: only what is below it counts.
    #[serde(default)]
    pub(super) section: OneOrMany<String>,
    /// What becomes of several values.
    pub(super) pick: Option<Pick>,
}

/// How several values become those that the text shows.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pick {
    /// The least and the greatest.
    Range,
    Min,
    Max,
    Median,
    Mean,
    Sum,
    /// The first over the second.
    Ratio,
}

/// `x` or `[x, y]`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> OneOrMany<T> {
    pub(super) fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// The values that the text of a figure has to show, `shown` of them.
pub(super) fn values(
    selector: &Selector,
    reports: &[&str],
    shown: usize,
) -> Result<Vec<f64>, String> {
    let mut parts = Vec::new();
    for report in reports {
        match selector.section.as_slice() {
            [] => parts.push((*report).to_owned()),
            headings => {
                for heading in headings {
                    parts.push(section(report, heading)?);
                }
            }
        }
    }
    let mut groups = Vec::new();
    for part in parts {
        groups.extend(if selector.line.as_slice().is_empty() {
            from_objects(selector, &part)?
        } else {
            from_lines(selector, &part)?
        });
    }
    let Some(pick) = selector.pick else {
        return groups.into_iter().map(only).collect();
    };
    if let Some(group) = groups.iter().find(|group| group.values.is_empty()) {
        return Err(format!("nothing matches {}", group.what));
    }
    let all = || groups.iter().flat_map(|group| group.values.iter().copied());
    Ok(match pick {
        Pick::Range => vec![min(all()), max(all())],
        Pick::Ratio => vec![ratio(
            &groups
                .into_iter()
                .map(only)
                .collect::<Result<Vec<_>, _>>()?,
        )?],
        // One for each selector where the text shows as many, else one for all of them.
        _ if shown == groups.len() => groups.iter().map(|g| reduce(pick, &g.values)).collect(),
        _ => vec![reduce(pick, &all().collect::<Vec<_>>())],
    })
}

/// What one selector found.
struct Group {
    what: String,
    values: Vec<f64>,
}

fn only(group: Group) -> Result<f64, String> {
    match group.values[..] {
        [value] => Ok(value),
        [] => Err(format!("nothing matches {}", group.what)),
        _ => Err(format!(
            "{} matches {} times; select more closely, or `pick` one",
            group.what,
            group.values.len()
        )),
    }
}

fn ratio(values: &[f64]) -> Result<f64, String> {
    match values {
        [over, under] if *under != 0.0 => Ok(over / under),
        _ => Err("a ratio needs two values".to_owned()),
    }
}

fn min(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}

fn max(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NEG_INFINITY, f64::max)
}

fn reduce(pick: Pick, values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    match pick {
        Pick::Min => min(values.iter().copied()),
        Pick::Max => max(values.iter().copied()),
        Pick::Sum => sum,
        Pick::Mean => sum / values.len() as f64,
        Pick::Median | Pick::Range | Pick::Ratio => {
            let mut sorted = values.to_vec();
            sorted.sort_by(f64::total_cmp);
            let middle = sorted.len() / 2;
            if sorted.len().is_multiple_of(2) {
                f64::midpoint(sorted[middle - 1], sorted[middle])
            } else {
                sorted[middle]
            }
        }
    }
}

/// From the heading, which may have several lines, to the next one of its kind.
fn section(report: &str, heading: &str) -> Result<String, String> {
    let kind = heading
        .get(..2)
        .ok_or("a heading starts with `==` or `--`")?;
    let lines: Vec<_> = report.lines().collect();
    let find = |fits: &dyn Fn(&str) -> bool| -> Vec<usize> {
        let found = (0..lines.len()).filter(|at| fits(lines[*at]));
        found.collect()
    };
    let mut found = find(&|line| line == heading);
    if found.is_empty() {
        found = find(&|line| line.starts_with(heading));
    }
    let [at] = found[..] else {
        let many = found.len();
        return Err(format!("{many} lines start with the heading `{heading}`"));
    };
    let below = lines[at..].iter().skip_while(|line| line.starts_with(kind));
    let part = below.take_while(|line| !line.starts_with(kind));
    Ok(part.copied().collect::<Vec<_>>().join("\n"))
}

/// A whole report, or the lines of a text that are JSON.
fn documents(report: &str) -> Result<Vec<Value>, String> {
    if let Ok(whole) = serde_json::from_str(report) {
        return Ok(vec![whole]);
    }
    let lines = report.lines().filter(|line| line.starts_with('{'));
    let documents: Result<Vec<_>, _> = lines.map(serde_json::from_str).collect();
    match documents {
        Ok(documents) if !documents.is_empty() => Ok(documents),
        Ok(_) => Err("there is no JSON".to_owned()),
        Err(error) => Err(format!("a line is not JSON: {error}")),
    }
}

fn from_objects(selector: &Selector, report: &str) -> Result<Vec<Group>, String> {
    let everything = [Map::new()];
    let wanted = match selector.objects.as_slice() {
        [] => &everything[..],
        some => some,
    };
    if selector.field.as_slice().is_empty() {
        return Err("`where` needs a `field`, and a text report a `line`".to_owned());
    }
    let documents = documents(report)?;
    let mut groups = Vec::new();
    for keys in wanted.iter().flat_map(one_by_one) {
        for field in selector.field.as_slice() {
            let mut values = Vec::new();
            for document in &documents {
                collect(document, &mut Vec::new(), &keys, field, &mut values);
            }
            let keys = Value::Object(keys.clone());
            groups.push(Group {
                what: format!("{keys} with `{field}`"),
                values,
            });
        }
    }
    Ok(groups)
}

/// `{ a = 1, b = [2, 3] }` is `{ a = 1, b = 2 }` and `{ a = 1, b = 3 }`.
fn one_by_one(keys: &Map<String, Value>) -> Vec<Map<String, Value>> {
    let mut all = vec![Map::new()];
    for (key, value) in keys {
        let choices = match value {
            Value::Array(list) => &list[..],
            one => std::slice::from_ref(one),
        };
        let longer = all.iter().flat_map(|map| {
            choices.iter().map(|choice| {
                let mut map = map.clone();
                map.insert(key.clone(), choice.clone());
                map
            })
        });
        all = longer.collect();
    }
    all
}

/// The field of every object that has the keys, or has them around it.
fn collect<'a>(
    value: &'a Value,
    around: &mut Vec<&'a Map<String, Value>>,
    keys: &Map<String, Value>,
    field: &str,
    values: &mut Vec<f64>,
) {
    match value {
        Value::Object(object) => {
            around.push(object);
            let nearest = |key| around.iter().rev().find_map(|object| object.get(key));
            let mut wanted = keys.iter();
            if wanted.all(|(key, value)| nearest(key).is_some_and(|found| is_same(found, value))) {
                let inner = field.split('.').try_fold(value, step_into);
                values.extend(inner.and_then(Value::as_f64));
            }
            for inner in object.values() {
                collect(inner, around, keys, field, values);
            }
            around.pop();
        }
        Value::Array(list) => {
            for inner in list {
                collect(inner, around, keys, field, values);
            }
        }
        _ => {}
    }
}

/// To a key of an object, or a place in a list, counted from 0.
fn step_into<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Array(list) => list.get(key.parse::<usize>().ok()?),
        other => other.get(key),
    }
}

/// 1 and 1.0 are the same here.
fn is_same(found: &Value, wanted: &Value) -> bool {
    match (found.as_f64(), wanted.as_f64()) {
        (Some(found), Some(wanted)) => found == wanted,
        _ => found == wanted,
    }
}

fn from_lines(selector: &Selector, report: &str) -> Result<Vec<Group>, String> {
    let lines: Vec<_> = report.lines().map(in_one_space).collect();
    let mut groups = Vec::new();
    for part in selector.line.as_slice() {
        let part = in_one_space(part);
        let found: Vec<_> = lines.iter().filter_map(|line| after(line, &part)).collect();
        let best = found.iter().map(|(fit, _)| *fit).max();
        let found = found.iter().filter(|(fit, _)| Some(*fit) == best);
        let rows: Vec<_> = found.map(|(_, rest)| numbers(rest)).collect();
        let columns = match selector.column.as_slice() {
            [] if rows.iter().all(|row| row.len() == 1) => &[1],
            [] => {
                return Err(format!(
                    "more than one number follows `{part}`: say which by `column`"
                ));
            }
            columns => columns,
        };
        for column in columns {
            let place = column.checked_sub(1);
            let cells = rows
                .iter()
                .map(|row| row.get(place?).map(|number| number.value));
            let values: Option<Vec<_>> = cells.collect();
            groups.push(Group {
                what: format!("the line `{part}`"),
                values: values.ok_or(format!("`{part}` is not followed by {column} numbers"))?,
            });
        }
    }
    Ok(groups)
}

fn in_one_space(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What follows `part` in the line, if it is there as whole words, and how well it fits: best if the line
/// starts with it, and then if a number follows at once.
fn after<'a>(line: &'a str, part: &str) -> Option<((bool, bool), &'a str)> {
    line.match_indices(part).find_map(|(at, _)| {
        let rest = &line[at + part.len()..];
        let whole =
            (at == 0 || line[..at].ends_with(' ')) && (rest.is_empty() || rest.starts_with(' '));
        let next = rest.trim_start_matches([' ', '+', '-']);
        let fit = (at == 0, next.starts_with(|c: char| c.is_ascii_digit()));
        whole.then_some((fit, rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"rows": [
        {"subject": "pool", "bytes": 256, "ns": 609.4, "round": 1},
        {"subject": "pool", "bytes": 256, "ns": 640.0, "round": 2},
        {"subject": "arena", "bytes": 256, "ns": 14.2, "round": 1, "left": null}
    ], "totals": {"passed": 7}}"#;

    const TEXT: &str = "== first\npool   own   1   1.46   1.00\npool   own  16   0.27   0.01\n\
        == second\npool   own   1   1.05   1.00\n{\"way\": \"copies\", \"ns\": 6.7}\n";

    fn read(selector: &str, report: &str, shown: usize) -> Result<Vec<f64>, String> {
        let selector = toml::from_str(selector).expect("a selector");
        values(&selector, &[report], shown)
    }

    #[test]
    fn one_object_is_found_by_its_keys() {
        let one = "where = { subject = 'pool', round = 2 }\nfield = 'ns'";
        assert_eq!(read(one, JSON, 1), Ok(vec![640.0]));
        assert_eq!(read("field = 'totals.passed'", JSON, 1), Ok(vec![7.0]));
        assert_eq!(read("field = 'rows.1.ns'", JSON, 1), Ok(vec![640.0]));
        let nested = r#"[{"name": "a", "rows": [{"b": 1}]}, {"name": "c", "rows": [{"b": 2}]}]"#;
        let inside = "where = { name = 'c' }\nfield = 'b'";
        assert_eq!(read(inside, nested, 1), Ok(vec![2.0]));
        let two = "where = [{ subject = 'arena' }, { round = 2 }]\nfield = 'ns'";
        assert_eq!(read(two, JSON, 2), Ok(vec![14.2, 640.0]));
        let list = "where = { subject = 'pool', round = [2, 1] }\nfield = 'ns'";
        assert_eq!(read(list, JSON, 2), Ok(vec![640.0, 609.4]));
    }

    #[test]
    fn too_many_and_too_few_are_errors() {
        let error = |selector: &str| read(selector, JSON, 1).expect_err("not one value");
        assert!(error("where = { subject = 'pool' }\nfield = 'ns'").contains("2 times"));
        assert!(error("where = { subject = 'rmm' }\nfield = 'ns'").contains("nothing"));
        assert!(error("where = { subject = 'arena' }\nfield = 'left'").contains("nothing"));
        assert!(
            error("where = { subject = 'rmm' }\nfield = 'ns'\npick = 'max'").contains("nothing")
        );
        assert!(error("where = { subject = 'arena' }").contains("field"));
        assert!(error("line = 'gone'").contains("nothing"));
    }

    #[test]
    fn several_values_become_what_is_shown() {
        let pick = |pick: &str, shown| {
            let selector = format!("where = {{ bytes = 256 }}\nfield = 'ns'\npick = '{pick}'");
            read(&selector, JSON, shown).expect("all match")
        };
        assert_eq!(pick("range", 2), [14.2, 640.0]);
        assert_eq!(pick("median", 1), [609.4]);
        assert!((pick("sum", 1)[0] - 1263.6).abs() < 1e-9);
        let each =
            "where = [{ subject = 'pool' }, { subject = 'arena' }]\nfield = 'ns'\npick = 'mean'";
        assert_eq!(read(each, JSON, 2), Ok(vec![624.7, 14.2]));
        let ratio = "where = [{ round = 2 }, { subject = 'arena' }]\nfield = 'ns'\npick = 'ratio'";
        assert_eq!(read(ratio, JSON, 1), Ok(vec![640.0 / 14.2]));
    }

    #[test]
    fn lines_are_found_by_whole_words_within_a_section() {
        let line = "section = '== first'\nline = 'pool own 1'\ncolumn = 1";
        assert_eq!(read(line, TEXT, 1), Ok(vec![1.46]));
        let line = "section = '== second'\nline = 'own 1'\ncolumn = 2";
        assert_eq!(read(line, TEXT, 1), Ok(vec![1.0]));
        let start = "line = 'own 1'\ncolumn = 1";
        assert_eq!(read(start, "over own 1 3 4\nown 1 5 6", 1), Ok(vec![5.0]));
        let lines = "own 12\nown, with 7\nown with more 8";
        assert_eq!(read("line = 'own'", lines, 1), Ok(vec![12.0]));
        let twice = read("line = 'pool own 1'\ncolumn = 1", TEXT, 1);
        assert!(twice.is_err_and(|error| error.contains("2 times")));
        let both = "section = '== first'\nline = ['own 16', 'own 1']\ncolumn = [2, 1]";
        assert_eq!(read(both, TEXT, 4), Ok(vec![0.01, 0.27, 1.0, 1.46]));
        assert!(read("line = 'own 16'\ncolumn = 3", TEXT, 1).is_err());
        let vague = read("section = '== first'\nline = 'pool own 1'", TEXT, 1);
        assert!(vague.is_err_and(|error| error.contains("column")));
        let each = "section = ['== second', '== first']\nline = 'own 1'\ncolumn = 1";
        assert_eq!(read(each, TEXT, 2), Ok(vec![1.05, 1.46]));
        assert!(read("section = '== third'\nline = 'own'", TEXT, 1).is_err());
    }

    #[test]
    fn json_lines_of_a_text_are_read_too() {
        let object = "where = { way = 'copies' }\nfield = 'ns'";
        assert_eq!(read(object, TEXT, 1), Ok(vec![6.7]));
        assert!(read(object, "plain text", 1).is_err());
    }
}
