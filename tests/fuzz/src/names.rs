//! Names of devices, as drivers, NVML and people write them.

use cuda_mem::driver::{PciId, Uuid};
use cuda_mem::ledger::LedgerLevel;

/// Reads a name. One that is accepted means the same when it is written as we write it.
///
/// # Panics
///
/// If it does not.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(uuid) = text.parse::<Uuid>() {
        let digits = text.get(4..).expect("a prefix");
        let written = uuid.to_string();
        assert!(
            written.ends_with(&digits.to_ascii_lowercase()),
            "{text:?}: {written}"
        );
        assert_eq!(written.parse::<Uuid>().expect("our own"), uuid);
    }
    if let Ok(place) = text.parse::<PciId>() {
        assert_eq!(
            place.to_string().parse::<PciId>().expect("our own"),
            place,
            "{text:?}"
        );
    }
    // It only must not panic.
    drop(text.parse::<LedgerLevel>());
}
