//! Values of `CUDA_VISIBLE_DEVICES`: three readers that were written apart have to agree.

use cuda_mem::placement::{Identity, MigIdentity, Visibility, VisibleDevice};

// Of the parser's own tests.
#[path = "../../../cuda-mem/src/placement/visible/tests/model.rs"]
mod model;

/// What the machines have: for each device its UUID, and its instances if MIG is on. The first byte of an
/// input says how many of them there are.
const DEVICES: [(&str, Option<&[&str]>); 6] = [
    ("GPU-9e8d35e3-0000-0000-0000-000000000000", None),
    (
        "GPU-47aa0000-0000-0000-0000-000000000001",
        Some(&[
            "MIG-aa100000-0000-0000-0000-000000000000",
            "MIG-aa200000-0000-0000-0000-000000000000",
        ]),
    ),
    ("GPU-47bb0000-0000-0000-0000-000000000002", Some(&[])),
    ("GPU-5a000000-0000-0000-0000-000000000003", None),
    ("GPU-6a000000-0000-0000-0000-000000000004", None),
    ("GPU-7a000000-0000-0000-0000-000000000005", None),
];

/// Compares the parser with its model and with the simulated driver.
///
/// # Panics
///
/// If they do not agree, or what is said of the value is not in it.
pub fn check(data: &[u8]) {
    let Some((first, value)) = data.split_first() else {
        return;
    };
    // No variable has a zero inside.
    let (Ok(value), false) = (std::str::from_utf8(value), value.contains(&0)) else {
        return;
    };
    let devices = &DEVICES[..usize::from(*first) % (DEVICES.len() + 1)];
    let has_mig = first & 0x80 != 0;
    let machine: Vec<Identity> = devices
        .iter()
        .map(|(uuid, mig)| {
            let identity = Identity::new(*uuid);
            match mig.filter(|_| has_mig) {
                None => identity,
                Some(mig) => identity.with_mig((1..).zip(mig).map(|(number, uuid)| MigIdentity {
                    uuid: Some((*uuid).to_owned()),
                    gpu_instance: number,
                    compute_instance: 0,
                })),
            }
        })
        .collect();
    let visible = Visibility::parse(Some(value), &machine);
    assert_eq!(
        visible.devices(),
        model::visible(value, &machine),
        "the model, {value:?}"
    );
    let simulated = devices
        .iter()
        .map(|(uuid, mig)| (*uuid, mig.filter(|_| has_mig)));
    let shown = cuda_sim::texts::visible(value, simulated);
    let shown: Vec<VisibleDevice> = shown
        .into_iter()
        .map(|(gpu, instance)| match instance {
            None => VisibleDevice::Gpu(gpu),
            Some(instance) => VisibleDevice::Mig { gpu, instance },
        })
        .collect();
    assert_eq!(visible.devices(), shown, "the simulator, {value:?}");
    if let Some(ended) = visible.ended_by() {
        assert_eq!(value.split(',').nth(ended.item - 1), Some(&*ended.text));
    }
    assert!(!visible.to_string().is_empty());
}
