//! No other CUDA binding enters through a dependency: everything here is built on our own.
//!
//! cargo-deny cannot state this rule, because it matches whole names.

use super::Finding;
use super::source::Text;

/// How the names of this workspace's own packages begin. They have no source.
const OURS: [&str; 2] = ["cuda-mem", "cuda-sim"];

pub(super) fn check(file: &Text) -> Vec<Finding> {
    if file.path != "Cargo.lock" {
        return Vec::new();
    }
    let lock: toml::Table = match toml::from_str(&file.text) {
        Ok(lock) => lock,
        Err(error) => {
            let what = format!("this is not a lock file: {}", error.message());
            return vec![Finding::new(&file.path, 1, what, "run `cargo update -w`")];
        }
    };
    let packages = lock.get("package").and_then(toml::Value::as_array);
    packages
        .into_iter()
        .flatten()
        .filter_map(|package| {
            let name = package.get("name")?.as_str()?;
            let local = package.get("source").is_none();
            let ours = local && OURS.iter().any(|prefix| name.starts_with(prefix));
            (binds_cuda(name) && !ours).then_some(name)
        })
        .map(|name| {
            Finding::new(
                &file.path,
                line_of(&file.text, name),
                format!("the package `{name}` is another CUDA binding"),
                "use cuda-driver-sys instead; `cargo tree -i` tells who needs it",
            )
        })
        .collect()
}

fn binds_cuda(name: &str) -> bool {
    name.contains("cuda") || name == "cust" || name.starts_with("cust_")
}

fn line_of(text: &str, package: &str) -> usize {
    let entry = format!("name = \"{package}\"");
    text.lines()
        .position(|line| line == entry)
        .map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str], source: &str) -> Vec<usize> {
        let mut text = "version = 4\n".to_owned();
        for name in names {
            text += &format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\n{source}\n");
        }
        let path = "Cargo.lock".to_owned();
        let findings = check(&Text { path, text });
        findings.into_iter().map(|found| found.line).collect()
    }

    const REGISTRY: &str = "source = \"registry+https://example.org/index\"";

    #[test]
    fn other_bindings_are_found() {
        let names = [
            "cudarc",
            "custom",
            "cust",
            "cust_raw",
            "cuda-oxide",
            "cubecl-cuda",
            "rustacuda_core",
        ];
        assert_eq!(found(&names, REGISTRY), [3, 11, 15, 19, 23, 27]);
        assert_eq!(found(&["cudarc"], ""), [3], "a copy in this repository");
        assert_eq!(found(&["cuda-mem"], REGISTRY), [3]);
    }

    #[test]
    fn our_own_crates_are_fine() {
        assert_eq!(
            found(&["cuda-mem-driver-sys", "cuda-mem", "cuda-sim"], ""),
            [0; 0]
        );
        assert_eq!(found(&["serde", "custom"], REGISTRY), [0; 0]);
    }
}
