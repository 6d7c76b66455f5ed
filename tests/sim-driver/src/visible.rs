//! `CUDA_VISIBLE_DEVICES`: which devices a process sees, and in which order.
//!
//! The rules were measured on H200s with driver 580 and, for MIG, follow NVIDIA's guide; what neither covers is marked
//! as a guess. Written independently of the parser in `cuda-mem`, which is compared with this one.

/// Names of a device of the machine.
#[derive(Debug)]
pub(crate) struct Gpu {
    /// Text such as `GPU-9e8d35e3-…`.
    pub(crate) uuid: String,
    /// With MIG on, text such as `MIG-…` for each instance. Instances are numbered from 1 here, and each has only
    /// compute instance 0.
    pub(crate) instances: Option<Vec<String>>,
}

/// A visible device: its index in the machine, and its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) gpu: usize,
    pub(crate) instance: Option<usize>,
}

/// The visible devices.
pub(crate) fn visible(value: Option<&str>, machine: &[Gpu]) -> Vec<Shown> {
    let found: Vec<Shown> = match value {
        None => (0..machine.len())
            .filter_map(|gpu| whole(gpu, machine))
            .collect(),
        // The first item without a matching device ends the list.
        Some(value) => {
            let by_name = name(value).is_some();
            value
                .split(',')
                .map_while(|item| match by_name {
                    false => whole(number(item)?, machine),
                    true => find(name(item)?, machine),
                })
                .collect()
        }
    };
    if (1..found.len()).any(|at| found[..at].contains(&found[at])) {
        return Vec::new();
    }
    // One instance per process. A guess: the first one, and no whole device beside it.
    match found.iter().find(|shown| shown.instance.is_some()) {
        Some(first) => vec![*first],
        None => found,
    }
}

/// A device seen by a process that does not name an instance: with MIG on, its first one. A guess: with MIG on and no
/// instance it is not visible.
fn whole(gpu: usize, machine: &[Gpu]) -> Option<Shown> {
    let instance = match &machine.get(gpu)?.instances {
        None => None,
        Some(instances) if instances.is_empty() => return None,
        Some(_) => Some(0),
    };
    Some(Shown { gpu, instance })
}

/// The rest of a name after either prefix, whichever it is.
fn name(item: &str) -> Option<&str> {
    item.strip_prefix("GPU-")
        .or_else(|| item.strip_prefix("MIG-"))
}

/// The only device with that name. Guesses: GPUs and instances differ by their digits alone; the older form of instance
/// names may abbreviate the UUID, but not the numbers.
fn find(name: &str, machine: &[Gpu]) -> Option<Shown> {
    let place = name.strip_prefix("GPU-").and_then(|of| of.split_once('/'));
    let mut found = None;
    for (gpu, names) in machine.iter().enumerate() {
        let mut matching: Vec<Option<Shown>> = Vec::new();
        if place.is_none() && begins(&names.uuid, name) {
            matching.push(whole(gpu, machine));
        }
        for (instance, uuid) in names.instances.iter().flatten().enumerate() {
            let matches = match place {
                None => begins(uuid, name),
                Some((of, at)) => begins(&names.uuid, of) && at == format!("{}/0", instance + 1),
            };
            let instance = Some(instance);
            matching.extend(matches.then_some(Some(Shown { gpu, instance })));
        }
        for shown in matching {
            if found.replace(shown).is_some() {
                return None;
            }
        }
    }
    found.flatten()
}

/// Whether a UUID starts with these digits, in either case and with dashes anywhere. Anything after all of its digits
/// is ignored.
fn begins(uuid: &str, with: &str) -> bool {
    let own = uuid[4..].chars().filter(|c| *c != '-');
    let mut pairs = own.zip(with.chars().filter(|c| *c != '-'));
    !with.is_empty() && pairs.all(|(own, other)| own.eq_ignore_ascii_case(&other))
}

/// Parses a leading number like `strtoul` with base 10, cut to an `int` (measured).
fn number(item: &str) -> Option<usize> {
    let item = item.trim_start_matches([' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
    let (sign, digits) = match item.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, item.strip_prefix('+').unwrap_or(item)),
    };
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    if end == 0 {
        return None;
    }
    let value = match digits[..end].parse::<i128>() {
        Ok(value) if value <= i128::from(u64::MAX) => sign * value,
        // Out of range yields the largest value, which is -1 as an `int`.
        _ => -1,
    };
    usize::try_from(value as i32).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Vec<Gpu> {
        ["GPU-9e8d35e3", "GPU-47aa", "GPU-47bb", "GPU-5"]
            .iter()
            .map(|uuid| format!("{uuid}-0000"))
            .chain((4..8).map(|index| format!("GPU-f{index}")))
            .map(|uuid| Gpu {
                uuid,
                instances: None,
            })
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
            (Some("GPU-9E8D,MIG-5"), &[0, 3]),
            (Some("GPU-9-e,MIG-9e8d"), &[]),
            (Some("GPU-5,GPU-"), &[3]),
            (Some("GPU-5x"), &[]),
            (Some("GPU-50000x"), &[3]),
            (Some("GPU-9e8d35e3, GPU-47aa"), &[0]),
            (Some("GPU-47bb,GPU-9e"), &[2, 0]),
            (Some("GPU-47"), &[]),
            (Some("GPU-9e,GPU-9e8d"), &[]),
            (Some("99999999999999999999"), &[]),
            (Some("0x1,1"), &[0, 1]),
            (Some("1,,2"), &[1]),
            (Some("\t1,\u{a0}2"), &[1]),
            (Some("+-1"), &[]),
            (Some("é"), &[]),
        ];
        for (value, expected) in vectors {
            let shown = visible(*value, &machine());
            assert!(shown.iter().all(|shown| shown.instance.is_none()));
            let shown: Vec<usize> = shown.iter().map(|shown| shown.gpu).collect();
            assert_eq!(shown, *expected, "{value:?}");
        }
    }

    #[test]
    fn one_instance_is_shown() {
        let mut machine = machine();
        machine[1].instances = Some(vec!["MIG-a1".into(), "MIG-a2".into()]);
        machine[2].instances = Some(Vec::new());
        for (value, expected) in [
            (None, Some((1, 0))),
            (Some("1"), Some((1, 0))),
            (Some("0,1"), Some((1, 0))),
            (Some("GPU-47aa"), Some((1, 0))),
            (Some("MIG-a2,MIG-a1"), Some((1, 1))),
            (Some("MIG-GPU-47aa/2/0"), Some((1, 1))),
            (Some("MIG-GPU-47aa-0000/1/0"), Some((1, 0))),
            (Some("MIG-GPU-47aa/3/0"), None),
            (Some("MIG-a"), None),
            (Some("MIG-a1,MIG-a1"), None),
            (Some("2"), None),
        ] {
            let shown = visible(value, &machine);
            assert!(shown.len() <= 1, "{value:?}");
            let shown = shown.first().map(|shown| (shown.gpu, shown.instance));
            let expected = expected.map(|(gpu, instance)| (gpu, Some(instance)));
            assert_eq!(shown, expected, "{value:?}");
        }
    }
}
