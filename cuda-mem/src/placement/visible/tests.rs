//! Every documented value, every reason, and random values against a model that shares nothing with the
//! parser.

// It asks C's library, which the crate has on Unix only.
#[cfg(unix)]
mod model;

#[cfg(unix)]
use proptest::prelude::*;

use super::*;
#[cfg(unix)]
use crate::arena::random::cases;

use EndReason as Why;
use VisibleDevice::{Gpu, Mig};

const UUIDS: [&str; 8] = [
    "GPU-9e8d35e3-0000-0000-0000-000000000000",
    "GPU-47aa0000-0000-0000-0000-000000000001",
    "GPU-47bb0000-0000-0000-0000-000000000002",
    "GPU-5a000000-0000-0000-0000-000000000003",
    "GPU-6a000000-0000-0000-0000-000000000004",
    "GPU-7a000000-0000-0000-0000-000000000005",
    "GPU-8a000000-0000-0000-0000-000000000006",
    "GPU-9a000000-0000-0000-0000-000000000007",
];

fn machine(devices: usize) -> Vec<Identity> {
    UUIDS[..devices]
        .iter()
        .copied()
        .map(Identity::new)
        .collect()
}

/// Device 1 has MIG on and three instances, device 2 has it on and none.
fn with_mig() -> Vec<Identity> {
    let instance = |uuid: Option<&str>, gpu_instance, compute_instance| MigIdentity {
        uuid: uuid.map(|uuid| format!("MIG-{uuid}-0000-0000-0000-000000000000")),
        gpu_instance,
        compute_instance,
    };
    let mut machine = machine(4);
    machine[1] = machine[1].clone().with_mig([
        instance(Some("aa100000"), 1, 0),
        instance(Some("aa200000"), 1, 10),
        instance(None, 13, 0),
    ]);
    machine[2] = machine[2].clone().with_mig([]);
    machine
}

fn gpus(devices: &[usize]) -> Vec<VisibleDevice> {
    devices.iter().copied().map(Gpu).collect()
}

/// Which item ended the list, and why.
type End = (usize, EndReason);

#[test]
fn the_documented_values() {
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    let ended = |item, reason| Some((item, reason));
    let beyond = Why::Beyond { devices: 8 };
    let values: [(Option<&str>, &[usize], Option<End>); 14] = [
        (None, &all, None),
        (Some(""), &[], None),
        (Some("0,1,2,-1,3"), &[0, 1, 2], ended(4, Why::Negative)),
        (Some("0, 1, 2, -1, 3"), &[0, 1, 2], ended(4, Why::Negative)),
        (Some("0,2,-1,1"), &[0, 2], ended(3, Why::Negative)),
        (Some("-1"), &[], ended(1, Why::Negative)),
        (Some("0,1,2,1"), &[], None),
        (Some("2, +3, -0, 5"), &[2, 3, 0, 5], None),
        (Some("1gpu2,2ampere"), &[1, 2], None),
        (Some("one,two,3"), &[], ended(1, Why::NotANumber)),
        (Some("4,3,two,one"), &[4, 3], ended(3, Why::NotANumber)),
        (Some("0,9,1"), &[0], ended(2, beyond)),
        (Some("GPU-9e8d35e3,MIG-1"), &[0], ended(2, Why::UnknownUuid)),
        (
            Some("GPU-9e8d35e3, GPU-47aa"),
            &[0],
            ended(2, Why::LeadingBlank),
        ),
    ];
    for (value, devices, ended) in values {
        let visible = Visibility::parse(value, &machine(8));
        assert_eq!(visible.devices(), gpus(devices), "{value:?}");
        let by = visible.ended_by().map(|ended| (ended.item, ended.reason));
        assert_eq!(by, ended, "{value:?}");
        let twice = (value == Some("0,1,2,1")).then_some(Repeated { first: 2, again: 4 });
        assert_eq!(visible.repeated(), twice, "{value:?}");
    }
}

#[test]
fn what_the_documents_leave_open() {
    let beyond = Why::Beyond { devices: 8 };
    for (value, devices, ended) in [
        ("99999999999999999999", &[][..], Some((1, Why::Negative))),
        ("18446744073709551616,0", &[], Some((1, Why::Negative))),
        ("4294967297", &[1], None),
        ("1,-99999999999999999999", &[1], Some((2, Why::Negative))),
        ("0x1,1", &[0, 1], None),
        ("1,,2", &[1], Some((2, Why::Empty))),
        ("1,", &[1], Some((2, Why::Empty))),
        (",1", &[], Some((1, Why::Empty))),
        (" ", &[], Some((1, Why::Empty))),
        ("\t1,\t2", &[1, 2], None),
        ("--1", &[], Some((1, Why::NotANumber))),
        ("+-1", &[], Some((1, Why::NotANumber))),
        ("0,gpu-9e", &[0], Some((2, Why::NotANumber))),
        ("gpu-9e8d35e3", &[], Some((1, Why::NotANumber))),
        (" GPU-9e8d35e3", &[], Some((1, Why::NotANumber))),
        ("GPU-9E8D35E3", &[0], None),
        ("GPU-9-e--8-", &[0], None),
        (
            "GPU-9e8d35e300000000000000000000000000x,GPU-5a",
            &[0, 3],
            None,
        ),
        ("GPU-9e8d35e3-0000-0000-0000-000000000000x", &[0], None),
        (
            "GPU-9e8d35e3-0000-0000-0000-00000000000x",
            &[],
            Some((1, Why::UnknownUuid)),
        ),
        ("GPU-9e8dx", &[], Some((1, Why::UnknownUuid))),
        ("GPU-9e8d ", &[], Some((1, Why::UnknownUuid))),
        ("GPU-5a,GPU-9e8d_35e3", &[3], Some((2, Why::UnknownUuid))),
        ("GPU-5a,MIG-9e", &[3, 0], None),
        ("MIG-5a", &[3], None),
        ("GPU-5a,MIG-5a", &[], None),
        ("GPU-GPU-5a", &[], Some((1, Why::UnknownUuid))),
        ("GPU-5a,1", &[3], Some((2, Why::UnknownUuid))),
        ("GPU-5a,", &[3], Some((2, Why::Empty))),
        ("GPU-5a,GPU-ff", &[3], Some((2, Why::UnknownUuid))),
        (
            "GPU-5a,GPU-47",
            &[3],
            Some((2, Why::AmbiguousUuid { matches: 2 })),
        ),
        ("GPU--", &[], Some((1, Why::AmbiguousUuid { matches: 8 }))),
        ("GPU-", &[], Some((1, Why::UnknownUuid))),
        ("GPU-5a,GPU-", &[3], Some((2, Why::UnknownUuid))),
        ("GPU-5a,GPU-5a0", &[], None),
        ("0,9,0", &[0], Some((2, beyond))),
    ] {
        let visible = Visibility::parse(Some(value), &machine(8));
        assert_eq!(visible.devices(), gpus(devices), "{value:?}");
        let by = visible.ended_by().map(|ended| (ended.item, ended.reason));
        assert_eq!(by, ended, "{value:?}");
    }
    let one = Visibility::parse(Some("GPU--"), &machine(1));
    assert_eq!(one.devices(), [Gpu(0)], "the beginning of the only one");
}

#[test]
fn mig_instances_have_two_names_and_a_process_sees_one() {
    let machine = with_mig();
    let instance = |instance| vec![Mig { gpu: 1, instance }];
    let gpu = UUIDS[1];
    let ambiguous = |matches| Err(Why::AmbiguousUuid { matches });
    for (value, expected) in [
        ("MIG-aa1", Ok(instance(0))),
        ("MIG-aa2", Ok(instance(1))),
        ("MIG-aa", ambiguous(2)),
        ("MIG-", Err(Why::UnknownUuid)),
        ("MIG--", ambiguous(6)),
        ("MIG-bb", Err(Why::UnknownUuid)),
        (&format!("MIG-{gpu}/1/0"), Ok(instance(0))),
        (&format!("MIG-{gpu}/1/10"), Ok(instance(1))),
        ("MIG-GPU-47aa/13/0", Ok(instance(2))),
        (&format!("MIG-{gpu}/1/1"), Err(Why::UnknownUuid)),
        (&format!("MIG-{gpu}/01/0"), Err(Why::UnknownUuid)),
        (&format!("MIG-{gpu}/+1/0"), Err(Why::UnknownUuid)),
        (&format!("MIG-{gpu}/1"), Err(Why::UnknownUuid)),
        ("MIG-GPU-47aa", Err(Why::UnknownUuid)),
        ("1", Ok(instance(0))),
        ("GPU-47aa", Ok(instance(0))),
        ("2", Err(Why::NoInstance)),
        ("0,3", Ok(gpus(&[0, 3]))),
        ("GPU-aa1", Ok(instance(0))),
    ] {
        let visible = Visibility::parse(Some(value), &machine);
        match expected {
            Ok(devices) => {
                assert_eq!(visible.devices(), devices, "{visible}");
                assert!(visible.left_out().is_empty(), "{visible}");
            }
            Err(reason) => {
                let ended = visible.ended_by().map(|ended| ended.reason);
                assert_eq!(ended, Some(reason), "{visible}");
            }
        }
    }
    let two = Visibility::parse(Some("MIG-aa2,MIG-aa1"), &machine);
    assert_eq!(two.devices(), instance(1));
    assert_eq!(two.left_out(), instance(0));
    let twice = Visibility::parse(Some("MIG-aa1,MIG-GPU-47aa/1/0"), &machine);
    assert!(twice.devices().is_empty() && twice.repeated().is_some());
    let mixed = Visibility::parse(Some("0,1,3"), &machine);
    assert_eq!(mixed.devices(), instance(0));
    assert_eq!(mixed.left_out(), gpus(&[0, 3]));
}

#[test]
fn the_outcome_is_told_in_sentences() {
    let order = " Numbers follow CUDA_DEVICE_ORDER (FASTEST_FIRST unless it says PCI_BUS_ID), and not the \
                 order of nvidia-smi and NVML; a UUID names the same device everywhere.";
    let told = |value: Option<&str>| {
        let text = Visibility::parse(value, &machine(8)).to_string();
        let text = text.strip_prefix("CUDA_VISIBLE_DEVICES").map(str::to_owned);
        text.expect("it begins with the name")
    };
    assert_eq!(
        told(Some("0,9,1")),
        format!(
            "=0,9,1: device 0 is visible. The list ends at item 2, \"9\": the machine has 8 \
             devices.{order}"
        )
    );
    assert_eq!(
        told(Some("2,1,1")),
        format!(
            "=2,1,1: no device is visible. Items 2 and 3 name the same device, and then the driver shows \
             none; name each device once.{order}"
        )
    );
    assert_eq!(
        told(Some("GPU-5a,GPU-47aa,GPU-9e, GPU-6a")),
        "=GPU-5a,GPU-47aa,GPU-9e, GPU-6a: device 3, device 1 and device 0 are visible. The list ends at \
         item 4, \" GPU-6a\": there is a blank before it, which UUIDs may not have."
    );
    assert_eq!(
        told(Some("")),
        " is empty: no device is visible. Unset it to see all devices."
    );
    assert!(told(None).starts_with(" is not set: device 0, device 1, "));
    assert_eq!(
        Visibility::parse(Some("MIG-aa1,MIG-aa2"), &with_mig()).to_string(),
        "CUDA_VISIBLE_DEVICES=MIG-aa1,MIG-aa2: MIG instance 0 of device 1 is visible. A process sees one \
         MIG instance and no GPU beside it: MIG instance 1 of device 1 is left out."
    );
}

#[test]
fn the_environment_is_told_with_its_order() {
    let visibility = |devices: Option<&str>, order: Option<&str>| Visibility {
        devices: devices.map(OsString::from),
        order: order.map(OsString::from),
    };
    for (devices, order, text) in [
        (None, None, "CUDA_VISIBLE_DEVICES is not set"),
        (Some(""), None, "CUDA_VISIBLE_DEVICES is empty"),
        (
            Some("1,0"),
            Some("PCI_BUS_ID"),
            "CUDA_VISIBLE_DEVICES=1,0, CUDA_DEVICE_ORDER=PCI_BUS_ID",
        ),
    ] {
        assert_eq!(visibility(devices, order).to_string(), text);
    }
    let changed = VisibilityChanged {
        at_start: visibility(Some("0"), None),
        now: visibility(Some("1"), None),
    };
    assert!(
        changed.to_string().starts_with(
            "when the driver was initialised, CUDA_VISIBLE_DEVICES=0; now CUDA_VISIBLE_DEVICES=1. The \
             driver reads this once"
        ),
        "{changed}"
    );
}

#[test]
fn how_many_a_value_can_leave_is_known_without_the_machine() {
    for (value, most) in [
        (None, None),
        (Some(""), Some(0)),
        (Some("0"), Some(1)),
        (Some("0,9,1"), Some(3)),
        (Some("0,1,x,2"), Some(2)),
        (Some("GPU-1,GPU-2,MIG-1, GPU-3"), Some(3)),
        (Some("GPU-1,MIG-1,GPU-1"), Some(2)),
    ] {
        let visibility = Visibility {
            devices: value.map(OsString::from),
            order: None,
        };
        assert_eq!(visibility.at_most(), most, "{value:?}");
    }
}

/// Values made of what matters to a driver, so that most are nearly good.
#[cfg(unix)]
fn values() -> impl Strategy<Value = String> {
    let pieces = [
        "0",
        "1",
        "2",
        "3",
        "7",
        "8",
        "12",
        ",",
        ",",
        ",",
        ",",
        " ",
        "\t",
        "\u{a0}",
        "+",
        "-",
        "x",
        "gpu",
        "GPU-",
        "MIG-",
        "GPU-47",
        "GPU-47aa",
        "GPU-9e",
        "GPU-5a",
        "MIG-aa",
        "MIG-aa1",
        "MIG-aa2",
        "MIG-GPU-47aa",
        "GPU-9E8D35E3000000000000000000000000",
        "0000-0000-0000-000000000000",
        "GPU--",
        "/1/0",
        "/13/0",
        "/",
        "é",
        "99999999999999999999",
        "-4294967295",
        "4294967297",
    ];
    let piece = prop::sample::select(pieces.to_vec());
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

#[cfg(unix)]
#[test]
fn random_values_fit_the_model() {
    let machines = [machine(0), machine(1), machine(4), machine(8), with_mig()];
    let strategy = (values(), prop::sample::select(machines.to_vec()));
    cases(20_000, &strategy, |(value, machine)| {
        let visible = Visibility::parse(Some(&value), &machine);
        prop_assert_eq!(visible.devices(), model::visible(&value, &machine));
        prop_assert!(
            visible.devices().len() <= parse::at_most(Some(&value)).unwrap_or(usize::MAX),
            "{}",
            visible
        );
        // What ended the list, or the repetition, is there to be seen.
        if let Some(ended) = visible.ended_by() {
            prop_assert_eq!(value.split(',').nth(ended.item - 1), Some(&*ended.text));
        } else if visible.repeated().is_none() {
            let items = value.split(',').filter(|_| !value.is_empty()).count();
            let named = visible.devices().len() + visible.left_out().len();
            prop_assert_eq!(named, items);
        }
        Ok(())
    });
}
