//! What the sources say: the functions there are, which the raw layer calls, and the public items
//! that carry a function's name.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, Item, ItemImpl, Macro, Meta, Type, Visibility};

use crate::tidy::source::Rust;

/// The functions of cuda.h, each with its first CUDA version: 11020 is 11.2.
pub(super) type Functions = BTreeMap<String, u32>;

/// The name of a function in cuda.h: a symbol without its marks for newer ABIs and per-thread
/// default streams.
pub(super) fn base(symbol: &str) -> &str {
    let name = symbol.strip_suffix("_ptsz").unwrap_or(symbol);
    let name = name.strip_suffix("_ptds").unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((name, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

/// Reads the generated list of symbols.
pub(super) fn functions(versions: &str) -> Result<Functions> {
    let mut functions = Functions::new();
    for line in versions.lines() {
        let Some(rest) = line.trim().strip_prefix("Symbol::new(c\"") else {
            continue;
        };
        let (symbol, since) = rest
            .trim_end_matches("),")
            .split_once("\", ")
            .with_context(|| format!("a line of an unknown form: {line}"))?;
        let since: u32 = since.parse().with_context(|| line.to_owned())?;
        let known = functions.entry(base(symbol).to_owned()).or_insert(since);
        *known = since.min(*known);
    }
    if functions.is_empty() {
        bail!("the list of symbols has none");
    }
    Ok(functions)
}

/// What `cuda-mem` does with the driver's functions, by their names in cuda.h.
#[derive(Debug, Default)]
pub(super) struct Wrappers {
    /// Called by the raw layer.
    pub(super) called: BTreeSet<String>,
    /// Public items that carry the name: `DeviceBuffer::free`.
    pub(super) items: BTreeMap<String, BTreeSet<String>>,
}

pub(super) fn wrappers(files: &[Rust]) -> Wrappers {
    let mut found = Wrappers::default();
    for file in files {
        let Some(path) = file.path.strip_prefix("cuda-mem/src/") else {
            continue;
        };
        if file.test_only {
            continue;
        }
        if path.starts_with("driver/raw/") {
            Calls(&mut found.called).visit_file(&file.code);
        } else {
            let mut items = Items {
                of: None,
                found: &mut found.items,
            };
            items.visit_file(&file.code);
        }
    }
    found
}

/// Finds `call!(…, cuX(…))`.
struct Calls<'a>(&'a mut BTreeSet<String>);

impl<'ast> Visit<'ast> for Calls<'_> {
    fn visit_macro(&mut self, call: &'ast Macro) {
        if call.path.is_ident("call") {
            symbols(call.tokens.clone(), self.0);
        }
        visit::visit_macro(self, call);
    }
}

fn symbols(tokens: TokenStream, found: &mut BTreeSet<String>) {
    for token in tokens {
        if let TokenTree::Ident(name) = token {
            let name = name.to_string();
            if is_function(&name) {
                found.insert(base(&name).to_owned());
            }
        }
    }
}

/// `cuMemFree` and not `CUdevice`, `cuda` or `current`.
fn is_function(name: &str) -> bool {
    name.strip_prefix("cu")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Finds public items with `doc(alias)`.
struct Items<'a> {
    /// The type whose block this is.
    of: Option<String>,
    found: &'a mut BTreeMap<String, BTreeSet<String>>,
}

impl Items<'_> {
    fn note(&mut self, vis: &Visibility, attributes: &[Attribute], name: &str) {
        if !matches!(vis, Visibility::Public(_)) {
            return;
        }
        let item = match &self.of {
            Some(of) => format!("{of}::{name}"),
            None => name.to_owned(),
        };
        for alias in attributes.iter().flat_map(aliases) {
            let function = base(&alias).to_owned();
            self.found.entry(function).or_default().insert(item.clone());
        }
    }
}

impl<'ast> Visit<'ast> for Items<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Fn(item) => self.note(&item.vis, &item.attrs, &item.sig.ident.to_string()),
            Item::Struct(item) => self.note(&item.vis, &item.attrs, &item.ident.to_string()),
            Item::Enum(item) => self.note(&item.vis, &item.attrs, &item.ident.to_string()),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_impl(&mut self, block: &'ast ItemImpl) {
        let name = match &*block.self_ty {
            Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        let outside = std::mem::replace(&mut self.of, name);
        visit::visit_item_impl(self, block);
        self.of = outside;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.note(&item.vis, &item.attrs, &item.sig.ident.to_string());
    }
}

/// The driver's functions in `doc(alias = "cuX")` and `doc(alias("cuX", "cuY"))`.
fn aliases(attribute: &Attribute) -> Vec<String> {
    let Meta::List(list) = &attribute.meta else {
        return Vec::new();
    };
    let text = list.tokens.to_string();
    if !list.path.is_ident("doc") || !text.starts_with("alias") {
        return Vec::new();
    }
    let quoted = text.split('"').skip(1).step_by(2);
    quoted
        .filter(|name| is_function(name))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_of_one_function_are_one() -> Result<()> {
        let list = "pub static SYMBOLS: [Symbol; 4] = [\n    \
            Symbol::new(c\"cuMemAlloc\", 2000),\n    Symbol::new(c\"cuMemAlloc_v2\", 3020),\n    \
            Symbol::new(c\"cuMemcpyDtoDAsync_v2_ptsz\", 7000),\n    \
            Symbol::new(c\"cuMemcpyDtoDAsync\", 3000),\n];\n";
        let found: Vec<_> = functions(list)?.into_iter().collect();
        let expected = [("cuMemAlloc", 2000), ("cuMemcpyDtoDAsync", 3000)];
        assert_eq!(
            found,
            expected.map(|(name, since)| (name.to_owned(), since))
        );
        assert!(functions("nothing").is_err());
        Ok(())
    }

    #[test]
    fn calls_and_names_are_found() {
        let raw = Rust::parse(
            "cuda-mem/src/driver/raw/alloc.rs",
            "unsafe fn f() { unsafe { call!(table, cuMemAlloc_v2(&raw mut cuda, CUdevice)) } \
             call!(done, table, cuEventQuery(event)) }",
        );
        let safe = Rust::parse(
            "cuda-mem/src/memory/buffer/mod.rs",
            "impl<T: Pod> DeviceBuffer<T> { #[doc(alias(\"cuMemAlloc\", \"CU_X\"))] pub fn new() {}\n\
             #[doc(alias = \"cuMemFree\")] fn private() {} }\n\
             #[doc(alias = \"cuMemPoolCreate\")] pub struct Pool;",
        );
        let found = wrappers(&[raw, safe]);
        let called: Vec<_> = found.called.iter().map(String::as_str).collect();
        assert_eq!(called, ["cuEventQuery", "cuMemAlloc"]);
        let items: Vec<_> = found.items.into_iter().collect();
        let one = |item: &str| BTreeSet::from([item.to_owned()]);
        assert_eq!(
            items,
            [
                ("cuMemAlloc".to_owned(), one("DeviceBuffer::new")),
                ("cuMemPoolCreate".to_owned(), one("Pool"))
            ]
        );
    }
}
