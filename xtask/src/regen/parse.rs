//! What is in the header: bindgen's reading of it, and the versions of every function.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use syn::{ForeignItem, ForeignItemFn, Item};

use super::header::{Header, Version};

/// One exported symbol of the driver.
pub(crate) struct Function {
    /// The real symbol, such as `cuMemAlloc_v2`.
    pub(crate) symbol: String,
    pub(crate) declaration: ForeignItemFn,
    /// The first CUDA version whose driver exports it.
    pub(crate) since: Version,
    /// Whether C programs reach it with the macros of this header's public face.
    pub(crate) public: bool,
}

/// Everything that the generated files say.
pub(crate) struct Api {
    /// Sorted by symbol.
    pub(crate) functions: Vec<Function>,
    /// Types and constants, in bindgen's order.
    pub(crate) items: Vec<Item>,
    /// The name a C program writes → the symbol it stands for.
    pub(crate) spellings: BTreeMap<String, String>,
    /// What the header has and the bindings have not, with the reason.
    pub(crate) left_out: Vec<(String, String)>,
}

pub(crate) fn parse(header: &Header, bitfields: &[String]) -> Result<Api> {
    clang_sys::load().map_err(|why| {
        anyhow::anyhow!(
            "bindgen needs libclang with its own headers, and there is none ({why}). \
             Install it (Debian and Ubuntu: apt-get install libclang-dev; Fedora: dnf install clang-devel; \
             macOS: brew install llvm) or point LIBCLANG_PATH at the folder that holds libclang.so"
        )
    })?;
    // With these macros the header also declares what it keeps for NVIDIA's own use: the older
    // ABI of every function that has a newer one, and the per-thread-stream twins.
    let every = bindings(header, bitfields, true)?;
    let public = symbols(&bindings(header, bitfields, false)?);

    let since = first_versions(
        symbols(&every).iter().map(String::as_str),
        &versions(&header.typedefs),
    )?;
    let mut functions = Vec::new();
    let mut items = Vec::new();
    for item in every.items {
        match item {
            Item::ForeignMod(block) => {
                for declaration in block.items {
                    let ForeignItem::Fn(declaration) = declaration else {
                        bail!("cuda.h declares something other than a function");
                    };
                    let symbol = declaration.sig.ident.to_string();
                    functions.push(Function {
                        since: since[&symbol],
                        public: public.contains(&symbol),
                        symbol,
                        declaration,
                    });
                }
            }
            other => items.push(other),
        }
    }
    functions.sort_by(|a, b| a.symbol.cmp(&b.symbol));
    functions.dedup_by(|a, b| a.symbol == b.symbol);
    if let Some(missing) = public
        .iter()
        .find(|name| !functions.iter().any(|f| &&f.symbol == name))
    {
        bail!("{missing} is public but was not found among all declarations");
    }
    Ok(Api {
        spellings: spellings(&header.text, &public),
        left_out: left_out(&header.text, &items),
        functions,
        items,
    })
}

fn bindings(header: &Header, bitfields: &[String], internal: bool) -> Result<syn::File> {
    let mut builder = bindgen::Builder::default()
        .header(header.path.display().to_string())
        .allowlist_file("(.*/)?cuda\\.h")
        .generate_comments(false)
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .derive_default(true)
        .derive_debug(true)
        .impl_debug(true)
        .layout_tests(true)
        .merge_extern_blocks(true)
        .use_core()
        .rust_target(bindgen::RustTarget::stable(85, 0).map_err(|e| anyhow::anyhow!("{e}"))?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::None);
    for pattern in bitfields {
        builder = builder.bitfield_enum(pattern);
    }
    if internal {
        builder = builder.clang_args([
            "-D__CUDA_API_VERSION_INTERNAL",
            "-D__CUDA_API_VERSION_INTERNAL_ODR",
        ]);
    }
    let text = builder
        .generate()
        .with_context(|| {
            format!(
                "bindgen could not read {}; when a system header is missing, install libclang with \
                 its headers (Debian and Ubuntu: apt-get install libclang-dev)",
                header.path.display()
            )
        })?
        .to_string();
    syn::parse_file(&text).context("bindgen wrote something that is not Rust")
}

fn symbols(file: &syn::File) -> BTreeSet<String> {
    file.items
        .iter()
        .filter_map(|item| match item {
            Item::ForeignMod(block) => Some(&block.items),
            _ => None,
        })
        .flatten()
        .filter_map(|item| match item {
            ForeignItem::Fn(f) => Some(f.sig.ident.to_string()),
            _ => None,
        })
        .collect()
}

/// (function, per-thread suffix) → the driver version of each of its ABIs, oldest first.
type Versions = BTreeMap<(String, String), BTreeSet<u32>>;

/// Reads names such as `PFN_cuMemPrefetchAsync_v12020_ptsz`.
fn versions(typedefs: &str) -> Versions {
    let mut found = Versions::new();
    for token in typedefs.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let Some(name) = token.strip_prefix("PFN_") else {
            continue;
        };
        let (name, twin) = split_twin(name);
        let Some((base, version)) = name.rsplit_once("_v") else {
            continue;
        };
        if let Ok(version) = version.parse() {
            found
                .entry((base.to_owned(), twin.to_owned()))
                .or_default()
                .insert(version);
        }
    }
    found
}

/// The first version of each symbol: of one function's symbols, oldest first, the n-th belongs
/// to the n-th oldest ABI of its typedefs. An old header may lack symbols that its typedefs
/// still list, so the two are paired from the newest down.
fn first_versions<'a>(
    symbols: impl IntoIterator<Item = &'a str>,
    versions: &Versions,
) -> Result<BTreeMap<String, Version>> {
    let mut families: BTreeMap<(String, String), Vec<(u32, &str)>> = BTreeMap::new();
    for symbol in symbols {
        let (name, twin) = split_twin(symbol);
        let (base, revision) = split_revision(name);
        families
            .entry((base.to_owned(), twin.to_owned()))
            .or_default()
            .push((revision, symbol));
    }
    let mut first = BTreeMap::new();
    for (family, mut members) in families {
        members.sort_unstable();
        let known = versions.get(&family);
        let mut newest_down = known.into_iter().flatten().rev();
        for (_, symbol) in members.iter().rev() {
            let version = newest_down
                .next()
                .with_context(|| format!("cudaTypedefs.h has no version for {symbol}"))?;
            first.insert((*symbol).to_owned(), Version(*version));
        }
    }
    Ok(first)
}

/// `cuMemAlloc_v2` is revision 2 of `cuMemAlloc`; a bare name is revision 1.
fn split_revision(name: &str) -> (&str, u32) {
    name.rsplit_once("_v")
        .and_then(|(base, digits)| Some((base, digits.parse().ok()?)))
        .unwrap_or((name, 1))
}

fn split_twin(name: &str) -> (&str, &str) {
    for twin in ["_ptsz", "_ptds"] {
        if let Some(base) = name.strip_suffix(twin) {
            return (base, twin);
        }
    }
    (name, "")
}

/// Reads `#define cuMemAlloc cuMemAlloc_v2` and the forms wrapped in the per-thread macros.
fn spellings(text: &str, public: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut spelled: BTreeMap<String, String> =
        public.iter().map(|s| (s.clone(), s.clone())).collect();
    for line in text.lines() {
        let mut words = line
            .trim()
            .strip_prefix("#define ")
            .unwrap_or("")
            .split_whitespace();
        let (Some(name), Some(target)) = (words.next(), words.next()) else {
            continue;
        };
        let target = target
            .strip_prefix("__CUDA_API_PTSZ(")
            .or_else(|| target.strip_prefix("__CUDA_API_PTDS("))
            .and_then(|rest| rest.strip_suffix(')'))
            .unwrap_or(target);
        if name.starts_with("cu") && name != target && public.contains(target) {
            spelled.remove(target);
            spelled.insert(name.to_owned(), target.to_owned());
        }
    }
    spelled
}

/// Object-like macros with a value that bindgen could not turn into a constant.
fn left_out(text: &str, items: &[Item]) -> Vec<(String, String)> {
    let constants: BTreeSet<String> = items
        .iter()
        .filter_map(|item| match item {
            Item::Const(constant) => Some(constant.ident.to_string()),
            _ => None,
        })
        .collect();
    let mut found: Vec<(String, String)> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("#define "))
        .filter_map(|rest| rest.split_once(char::is_whitespace))
        .filter(|(name, value)| name.starts_with("CU") && !value.trim().is_empty())
        .filter(|(name, _)| !name.contains('(') && *name != "CUDAAPI" && !constants.contains(*name))
        .map(|(name, value)| (name.to_owned(), why_left_out(value.trim())))
        .collect();
    found.sort();
    found.dedup();
    found
}

fn why_left_out(value: &str) -> String {
    if value.starts_with("((") {
        "a cast, written by hand in compat.rs".to_owned()
    } else {
        format!("not an integer but another name for {value}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_the_order_of_revisions() {
        let typedefs = "(CUDAAPI *PFN_cuMemPrefetchAsync_v8000)( (CUDAAPI *PFN_cuMemPrefetchAsync_v12020)( \
                        PFN_cuMemPrefetchAsync_v8000_ptsz PFN_cuMemPrefetchAsync_v12020_ptsz";
        let known = versions(typedefs);
        let names = [
            "cuMemPrefetchAsync",
            "cuMemPrefetchAsync_v2",
            "cuMemPrefetchAsync_v2_ptsz",
        ];
        let first = first_versions(names, &known).expect("all three are known");
        assert_eq!(first["cuMemPrefetchAsync"], Version(8000));
        assert_eq!(first["cuMemPrefetchAsync_v2"], Version(12020));
        assert_eq!(first["cuMemPrefetchAsync_v2_ptsz"], Version(12020));
        assert!(first_versions(["cuNothing"], &known).is_err());
    }

    #[test]
    fn spellings_follow_the_macros_of_the_header() {
        let public = ["cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuInit"]
            .map(str::to_owned)
            .into();
        let text = "#define cuMemAlloc   cuMemAlloc_v2\n#define cuMemcpyHtoD __CUDA_API_PTDS(cuMemcpyHtoD_v2)\n";
        let found = spellings(text, &public);
        assert_eq!(found["cuMemAlloc"], "cuMemAlloc_v2");
        assert_eq!(found["cuMemcpyHtoD"], "cuMemcpyHtoD_v2");
        assert_eq!(found["cuInit"], "cuInit");
        assert_eq!(found.len(), 3);
    }
}
