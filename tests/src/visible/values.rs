//! Values of the variable, made from the devices of a machine.

use cuda_mem::placement::Identity;

/// Those of the documents, and what they leave open.
const PLAIN: &[&str] = &[
    "",
    "0,1,2,-1,3",
    "0, 1, 2, -1, 3",
    "0,2,-1,1",
    "-1",
    "0,1,2,1",
    "2, +3, -0, 5",
    "1gpu2,2ampere",
    "0gpu2,1ampere",
    "one,two,3",
    "4,3,two,one",
    "0,one,1",
    "0,9,1",
    "NoDevFiles",
    // Blanks, and items that are not there.
    " ",
    "\t0,\t1",
    "\n0",
    "0 ,1",
    "0 1",
    "0;1",
    "1,,0",
    "0,,1",
    "0,",
    ",0",
    ",",
    "\u{a0}0",
    // Signs.
    "+0",
    "-0",
    "--1",
    "--0",
    "+-1",
    "+-0",
    "-+0",
    "- 0",
    "-",
    "+",
    // Repetitions.
    "0,0",
    "0,+0",
    "0,-0",
    "0,00",
    "0,0,x",
    "0,x,0",
    "0,-1,0",
    "x,0,0",
    // Other bases and forms.
    "0x1",
    "0x0,1",
    "01",
    "010",
    "1e0",
    "0.5",
    "\u{661}",
    // Large numbers, some of which are small in fewer bits.
    "2147483648",
    "4294967295",
    "4294967296",
    "4294967297",
    "-4294967295",
    "-4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-18446744073709551615",
    "-18446744073709551616",
    "9223372036854775807",
    "9223372036854775808",
    "9223372036854775809",
    "-9223372036854775807",
    "-9223372036854775808",
    "-9223372036854775809",
    "99999999999999999999",
    "0,99999999999999999999",
    "-99999999999999999999",
    // UUIDs that are none.
    "GPU-",
    "GPU",
    "MIG-",
    "MIG-00000000-0000-0000-0000-000000000000",
    "MIG-GPU-00000000-0000-0000-0000-000000000000/1/0",
    "GPU-x",
    "GPU-,0",
    "GPU--",
    "GPU- ",
];

/// Values for this machine; `None` is no variable.
pub(super) fn of(machine: &[Identity]) -> Vec<Option<String>> {
    let mut values = vec![None];
    values.extend(PLAIN.iter().map(|value| Some((*value).to_owned())));
    values.extend(numbers(machine.len()).into_iter().map(Some));
    values.extend(uuids(machine).into_iter().map(Some));
    let mut seen = std::collections::HashSet::new();
    values.retain(|value| seen.insert(value.clone()));
    values
}

/// What depends on how many devices there are.
fn numbers(count: usize) -> Vec<String> {
    let last = count - 1;
    let list = |numbers: &mut dyn Iterator<Item = usize>| {
        numbers
            .map(|number| number.to_string())
            .collect::<Vec<_>>()
            .join(",")
    };
    let all = list(&mut (0..count));
    vec![
        list(&mut (0..count).rev()),
        format!("{all},-1,0"),
        format!("{all},{count}"),
        format!("{all},{last}"),
        format!("{last}, +0"),
        format!("{last},-0"),
        format!("{last}gpu{count},0ampere"),
        format!("{last},two,0"),
        format!("0,{count},1"),
        format!("0,{count},0"),
        format!("{count},0"),
        format!("{last}"),
        format!("00{last}"),
        format!("0x{last}"),
        all,
    ]
}

fn uuids(machine: &[Identity]) -> Vec<String> {
    let first = machine[0].uuid();
    let last = machine[machine.len() - 1].uuid();
    let all: Vec<&str> = machine.iter().map(Identity::uuid).collect();
    let mut reversed = all.clone();
    reversed.reverse();
    let short = &first[.."GPU-".len() + 8];
    let unique = &first[..unique(first, &all)];
    // Two begin so, where there are two; the last character that they share.
    let shared = &first[..self::unique(first, &all) - 1];
    let digits = &first["GPU-".len()..];
    let mut values = vec![
        all.join(","),
        reversed.join(","),
        all.join(", "),
        format!("{},{first}", all.join(",")),
        format!("{first},MIG-{digits}"),
        format!("MIG-{digits},{first}"),
        format!("{first},MIG-{}", &last["GPU-".len()..]),
        format!("MIG-{first}/0/0"),
        format!("{first},0"),
        format!("0,{first}"),
        format!("{first},{first}"),
        format!("{first},{short}"),
        format!("{first},x,{first}"),
        format!("{first},"),
        format!("{first},,{last}"),
        format!("{first} ,{last}"),
        format!("{first}\t"),
        format!("{first},\t{last}"),
        format!(" {first}"),
        format!("{first}0"),
        format!("{first}x"),
        format!("GPU-{}", digits.to_uppercase()),
        format!("gpu-{digits}"),
        format!("Gpu-{digits}"),
        format!("GPU-{}", digits.replace('-', "")),
        digits.to_owned(),
        format!("{first},GPU-"),
        format!("{last},{shared}"),
        format!("{last},{unique}"),
        format!("{last},gpu-{digits}"),
        format!("{last},GPU-ffffffff-ffff-ffff-ffff-ffffffffffff,{first}"),
    ];
    values.extend(spellings(first, digits, short));
    let abbreviations = [first, short, unique, shared, &first[..first.len() - 1]];
    values.extend(abbreviations.map(str::to_owned));
    values
}

/// Ways to write the first UUID that are not `nvidia-smi`'s, and ways to name it twice in them.
fn spellings(first: &str, digits: &str, short: &str) -> Vec<String> {
    let bare = digits.replace('-', "");
    let (head, rest) = bare.split_at(3);
    let mut values = vec![
        format!("MIG-{digits}"),
        format!("MIG-{digits},0"),
        format!("{first},MIG-ffffffff-ffff-ffff-ffff-ffffffffffff"),
        format!("{first},MIG-"),
        format!("{first},MIG-x"),
        format!("{first},MIG-{}", &bare[..8]),
        format!("{first},x,MIG-{digits}"),
        format!("{first},GPU-x"),
        format!("{first},GPU-x,{first}"),
        format!("{first}x,{first}"),
        format!("{first},GPU-{}", digits.to_uppercase()),
        format!("{first},{short}x"),
        format!("GPU-GPU-{digits}"),
        format!("GPU--{digits}"),
        format!("GPU- {digits}"),
        format!("GPU-+{digits}"),
        format!("GPU-0x{bare}"),
        format!("GPU-x{bare}"),
        format!("GPU-{{{digits}}}"),
        format!("GPU-{head}-{rest}"),
        format!("GPU-{head}--{rest}"),
        format!("GPU-{head}_{rest}"),
        format!("GPU-{head} {rest}"),
        format!("GPU-{head}x{rest}"),
        format!("GPU-{bare}0"),
        format!("GPU-{bare}-0"),
        format!("GPU-{}", &bare[..31]),
        format!("{short}-0000"),
        format!("{}0", &first[..first.len() - 1]),
        format!("{}x", &first[..first.len() - 1]),
    ];
    for end in [
        "x", " ", "\t", "-", "--", "_", "/", "/0", ".", "g", "-x", "- ",
    ] {
        values.push(format!("{short}{end}"));
        values.push(format!("GPU-{head}{end}"));
    }
    values
}

/// How many bytes of a UUID no other one begins with.
fn unique(uuid: &str, all: &[&str]) -> usize {
    let is_unique = |end: &usize| {
        let others = all.iter().filter(|other| **other != uuid);
        others
            .clone()
            .all(|other| !other.starts_with(&uuid[..*end]))
    };
    ("GPU-".len() + 1..uuid.len())
        .find(is_unique)
        .unwrap_or(uuid.len())
}

/// What names instances, in both spellings.
pub(super) fn of_instances(machine: &[Identity]) -> Vec<Option<String>> {
    let mut values = Vec::new();
    let mut names = Vec::new();
    for identity in machine {
        for mig in identity.mig().unwrap_or_default() {
            let uuid = mig.uuid.clone().unwrap_or_default();
            let (gpu, part) = (mig.gpu_instance, mig.compute_instance);
            let long = format!("MIG-{}/{gpu}/{part}", identity.uuid());
            values.push(format!("{uuid},{long}"));
            values.push(format!("{long}0"));
            values.push(format!("{},{}", &uuid[..12], identity.uuid()));
            values.push(format!("MIG-{}", identity.uuid()));
            values.push(format!("MIG-{}/{gpu}/{part}", &identity.uuid()[..12]));
            names.extend([uuid, long]);
        }
    }
    for pair in names.windows(2) {
        values.push(pair.join(","));
    }
    values.extend(names);
    values.into_iter().map(Some).collect()
}
