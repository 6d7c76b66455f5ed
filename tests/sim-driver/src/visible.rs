//! `CUDA_VISIBLE_DEVICES`: which devices a process sees, and in which order.

/// The devices to show, as indexes into `uuids` (texts such as `GPU-9e8d35e3-…`).
pub(crate) fn visible(value: Option<&str>, uuids: &[String]) -> Vec<usize> {
    let Some(value) = value else {
        return (0..uuids.len()).collect();
    };
    let by_uuid = value.starts_with("GPU-") || value.starts_with("MIG-");
    let find = |item: &str| {
        if by_uuid {
            find_uuid(item, uuids)
        } else {
            number(item).filter(|index| *index < uuids.len())
        }
    };
    // The first item that names no device ends the list.
    let found: Vec<usize> = value.split(',').map_while(find).collect();
    let repeats = (1..found.len()).any(|at| found[..at].contains(&found[at]));
    if repeats { Vec::new() } else { found }
}

/// The one device whose UUID begins so. The simulator has no MIG instances.
fn find_uuid(item: &str, uuids: &[String]) -> Option<usize> {
    if !item.starts_with("GPU-") {
        return None;
    }
    let mut matching = (0..uuids.len()).filter(|index| uuids[*index].starts_with(item));
    let found = matching.next()?;
    matching.next().is_none().then_some(found)
}

/// As `strtoul` reads the beginning of a text.
fn number(item: &str) -> Option<usize> {
    let item = item.trim_start();
    let (negative, digits) = match item.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, item.strip_prefix('+').unwrap_or(item)),
    };
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    let value = digits[..end].parse().ok()?;
    (!negative || value == 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuids() -> Vec<String> {
        ["GPU-9e8d35e3", "GPU-47aa", "GPU-47bb", "GPU-5"]
            .iter()
            .map(|uuid| format!("{uuid}-0000"))
            .chain((4..8).map(|index| format!("GPU-f{index}")))
            .collect()
    }

    #[test]
    fn the_documented_vectors() {
        let vectors: &[(Option<&str>, &[usize])] = &[
            (None, &[0, 1, 2, 3, 4, 5, 6, 7]),
            (Some(""), &[]),
            (Some("0,1,2,-1,3"), &[0, 1, 2]),
            (Some("0, 1, 2, -1, 3"), &[0, 1, 2]),
            (Some("0,2,-1,1"), &[0, 2]),
            (Some("-1"), &[]),
            (Some("0,1,2,1"), &[]),
            (Some("2, +3, -0, 5"), &[2, 3, 0, 5]),
            (Some("1gpu2,2ampere"), &[1, 2]),
            (Some("one,two,3"), &[]),
            (Some("4,3,two,one"), &[4, 3]),
            (Some("0,9,1"), &[0]),
            (Some("GPU-9e8d35e3,MIG-1"), &[0]),
            (Some("GPU-9e8d35e3, GPU-47aa"), &[0]),
            (Some("GPU-47bb,GPU-9e"), &[2, 0]),
            (Some("GPU-47"), &[]),
            (Some("GPU-9e,GPU-9e8d"), &[]),
        ];
        for (value, expected) in vectors {
            assert_eq!(visible(*value, &uuids()), *expected, "{value:?}");
        }
    }
}
