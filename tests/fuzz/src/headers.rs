//! What is read of NVIDIA's header files to make the bindings.

use std::collections::BTreeSet;

// The program that makes them is not a library, and would bring the C compiler's along.
#[path = "../../../xtask/src/regen/text.rs"]
#[allow(dead_code, unreachable_pub, reason = "written for that program")]
mod text;

/// Reads a text both as `cuda.h` and as `cudaTypedefs.h`.
///
/// # Panics
///
/// If a symbol has a version that the text does not name, or a spelling stands for no symbol.
pub fn check(data: &[u8]) {
    let Ok(header) = std::str::from_utf8(data) else {
        return;
    };
    if let Some(version) = text::version(header) {
        assert!(!version.to_string().is_empty());
    }
    let words = || header.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let symbols: BTreeSet<String> = words()
        .filter(|word| word.starts_with("cu"))
        .map(str::to_owned)
        .collect();
    let known = text::versions(header);
    // All together have versions only if each one has.
    for symbol in &symbols {
        let Ok(first) = text::first_versions([&**symbol], &known) else {
            continue;
        };
        assert_eq!(first.len(), 1, "{symbol}");
        let version = first[symbol].0.to_string();
        let is_named = words().any(|word| word.starts_with("PFN_cu") && word.contains(&version));
        assert!(is_named, "{symbol}: {version}");
    }
    if let Ok(first) = text::first_versions(symbols.iter().map(String::as_str), &known) {
        assert_eq!(first.len(), symbols.len());
    }
    for (spelling, symbol) in text::spellings(header, &symbols) {
        assert!(spelling.starts_with("cu") && symbols.contains(&symbol));
    }
    let left_out = text::left_out(header, &BTreeSet::new());
    for (name, why) in left_out {
        assert!(name.starts_with("CU") && header.contains(&name) && !why.is_empty());
    }
}
