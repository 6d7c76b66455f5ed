//! The training run that comes with the repository.

use std::path::{Path, PathBuf};

const NAME: &str = "gpt2-train-varlen.csv.gz";

/// The recorded log: in the folder `data` of the bundle that the running program lies in, or else in the
/// source.
#[must_use]
pub fn recorded() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let bundle = program.parent().and_then(Path::parent);
    bundle
        .map(|bundle| bundle.join("data").join(NAME))
        .filter(|path| path.is_file())
        .unwrap_or_else(|| {
            let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data");
            data.canonicalize().unwrap_or(data).join(NAME)
        })
}
