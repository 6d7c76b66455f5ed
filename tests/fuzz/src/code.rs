//! What the simulated driver is given: code, and the variables that set it up.

/// Reads bytes as an image of code, and a text as every variable.
///
/// # Panics
///
/// If reading does, or a value is taken that makes no sense.
pub fn check(data: &[u8]) {
    let kernels = cuda_sim::texts::kernels(data);
    if let Err(line) = kernels {
        let lines = data.iter().filter(|byte| **byte == b'\n').count() + 1;
        assert!(line <= lines, "line {line} of {lines}");
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    // A list of variables, or one value for all of them.
    let look_up = |name: &str| match text.split_once('=') {
        None => Some(text.to_owned()),
        Some(_) => text.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key == name).then(|| value.to_owned())
        }),
    };
    let setup = cuda_sim::texts::configuration(look_up);
    assert!(
        setup.devices <= 64 && setup.instances <= 7 * 64,
        "{setup:?}"
    );
    assert!(
        setup
            .complaints
            .iter()
            .all(|complaint| !complaint.is_empty())
    );
}
