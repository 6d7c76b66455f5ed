//! Who knows the driver's name of a function finds ours: the search of the documentation looks at
//! `#[doc(alias = "cuMemPoolCreate")]`.

use syn::visit::{self, Visit};
use syn::{Attribute, Block, ImplItemFn, ItemFn, Meta, Path, Signature, Visibility};

use super::Finding;
use super::layers;
use super::source::Rust;

/// Looks at public functions that call the raw layer themselves.
pub(super) fn check(file: &Rust) -> Vec<Finding> {
    let outside = layers::module_of(&file.path).is_some_and(|module| !layers::is_raw(&module));
    if !outside || file.test_only {
        return Vec::new();
    }
    let mut functions = Functions {
        path: &file.path,
        findings: Vec::new(),
    };
    functions.visit_file(&file.code);
    functions.findings
}

struct Functions<'a> {
    path: &'a str,
    findings: Vec<Finding>,
}

impl Functions<'_> {
    fn judge(&mut self, vis: &Visibility, attrs: &[Attribute], sig: &Signature, block: &Block) {
        if matches!(vis, Visibility::Public(_)) && calls_raw(block) && !has_alias(attrs) {
            self.findings.push(Finding::new(
                self.path,
                sig.ident.span().start().line,
                format!("`{}` calls the driver and has no name of it", sig.ident),
                "add #[doc(alias = \"…\")] with the driver's function",
            ));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.judge(&item.vis, &item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.judge(&item.vis, &item.attrs, &item.sig, &item.block);
    }
}

fn calls_raw(block: &Block) -> bool {
    struct Calls(bool);
    impl<'ast> Visit<'ast> for Calls {
        fn visit_path(&mut self, path: &'ast Path) {
            let names = path.segments.iter().map(|segment| &segment.ident);
            // `raw::pool::create` or `crate::driver::raw::pool::create`; `raw::Table` is a type.
            let mut names = names.skip_while(|name| *name == "crate" || *name == "driver");
            self.0 |= names.next().is_some_and(|name| name == "raw")
                && names.last().is_some_and(|name| {
                    name.to_string()
                        .starts_with(|c: char| c.is_ascii_lowercase())
                });
            visit::visit_path(self, path);
        }
    }
    let mut calls = Calls(false);
    calls.visit_block(block);
    calls.0
}

fn has_alias(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => {
            list.path.is_ident("doc") && list.tokens.to_string().starts_with("alias")
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let findings = check(&Rust::parse(path, text));
        findings.into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn a_call_without_the_driver_s_name_is_found() {
        let text = "impl Pool {\n\
            pub fn trim(&self) { unsafe { raw::pool::trim(self.table()) } }\n\
            /// Docs.\n#[doc(hidden)]\n\
            pub fn free(&self) { report(|| crate::driver::raw::pool::free()) }\n}\n\
            pub fn f() { raw::init::start() }";
        assert_eq!(lines("cuda-mem/src/memory/pool.rs", text), [2, 5, 7]);
    }

    #[test]
    fn names_private_functions_and_other_files_are_fine() {
        let text = "impl Pool { #[doc(alias = \"cuMemPoolTrimTo\")] pub fn trim(&self) { raw::pool::trim() }\n\
            #[doc(alias(\"cuA\", \"cuB\"))] pub fn both(&self) { raw::pool::trim() }\n\
            fn private(&self) { raw::pool::trim() } pub(crate) fn inner(&self) { raw::pool::trim() }\n\
            pub fn table(&self) -> &raw::Table { let raw = self.raw; raw.table }\n\
            pub fn plain(&self, raw: u32) -> u32 { raw } }";
        let fine: [usize; 0] = [];
        assert_eq!(lines("cuda-mem/src/driver/raw/pool.rs", text), fine);
        assert_eq!(lines("tests/src/lib.rs", text), fine);
        assert_eq!(lines("cuda-mem/src/memory/stats.rs", text), fine);
    }
}
