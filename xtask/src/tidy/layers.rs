//! A file of `cuda-mem` uses its own layer and lower ones, so that no two layers need each other.

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ItemMod, ItemUse, Macro, Path, UseTree, VisRestricted};

use super::Finding;
use super::source::{Rust, Text};

/// The rooms of `cuda-mem`, which are the modules at its root, the lowest first.
const LAYERS: [&str; 12] = [
    "base",
    "driver",
    "ledger",
    "stream",
    "memory",
    "mapped",
    "interop",
    "arena",
    "placement",
    "cpu_mapping",
    "kernel",
    "collective",
];

const LIST: &str = "xtask/src/tidy/layers.rs";

/// The module that a file of `cuda-mem/src` is: `memory/pool.rs` is `["memory", "pool"]`.
pub(super) fn module_of(path: &str) -> Option<Vec<String>> {
    let inside = path
        .strip_prefix("cuda-mem/src/")?
        .strip_suffix(".rs")?
        .to_owned();
    let mut module: Vec<String> = inside.split('/').map(str::to_owned).collect();
    if module
        .last()
        .is_some_and(|last| last == "mod" || inside == "lib")
    {
        module.pop();
    }
    Some(module)
}

/// Whether a module belongs to the layer that calls the driver.
pub(super) fn is_raw(module: &[String]) -> bool {
    matches!(module, [room, layer, ..] if room == "driver" && layer == "raw")
}

pub(super) fn check(file: &Rust) -> Vec<Finding> {
    let Some(module) = module_of(&file.path) else {
        return Vec::new();
    };
    // The root re-exports from every layer.
    let Some(layer) = module.first().cloned() else {
        return Vec::new();
    };
    if file.test_only {
        return Vec::new();
    }
    let Some(height) = height(&layer) else {
        return vec![Finding::new(
            &file.path,
            1,
            format!("the module `{layer}` has no layer"),
            format!("give it its place in {LIST}"),
        )];
    };
    let mut uses = Uses {
        module,
        found: Vec::new(),
    };
    uses.visit_file(&file.code);
    uses.found
        .into_iter()
        .filter_map(|(target, line)| judge(&file.path, &layer, height, &target, line))
        .collect()
}

/// The page on the architecture has a table of all layers, the lowest first.
pub(super) fn check_page(file: &Text) -> Vec<Finding> {
    if file.path != "docs/src/architecture.md" {
        return Vec::new();
    }
    let rows = rows(&file.text);
    let told = rows.iter().map(|(name, _)| *name);
    let wrong = told
        .zip(LAYERS)
        .position(|(told, layer)| told != layer)
        .or((rows.len() != LAYERS.len()).then_some(rows.len().min(LAYERS.len())));
    let Some(at) = wrong else {
        return Vec::new();
    };
    let found = rows.get(at).map_or("nothing", |(name, _)| name);
    let expected = LAYERS.get(at).copied().unwrap_or("nothing");
    vec![Finding::new(
        &file.path,
        rows.get(at).or(rows.last()).map_or(1, |(_, line)| *line),
        format!("the table of layers has `{found}` in the place of `{expected}`"),
        format!("write all of them in the order of {LIST}"),
    )]
}

/// The modules in the first column of the table below the heading `cuda-mem`, with their lines.
fn rows(text: &str) -> Vec<(&str, usize)> {
    let lines = text.lines().zip(1..);
    let table = lines
        .skip_while(|(line, _)| *line != "### cuda-mem")
        .skip(1)
        .take_while(|(line, _)| !line.starts_with('#'));
    let mut rows = Vec::new();
    for (line, number) in table.filter(|(line, _)| line.starts_with("| `")) {
        let cell = line[1..].split('|').next().unwrap_or_default();
        for name in cell.split('`').skip(1).step_by(2) {
            let name = name.trim_end_matches('/').trim_end_matches(".rs");
            rows.push((name, number));
        }
    }
    // A file and its folder are one module.
    rows.dedup_by_key(|(name, _)| *name);
    rows
}

fn height(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|known| *known == layer)
}

/// `target` is the path below the crate's root.
fn judge(path: &str, layer: &str, own: usize, target: &[String], line: usize) -> Option<Finding> {
    let (what, remedy) = match target.first() {
        None => (
            "this takes the root of the crate, which holds every layer".to_owned(),
            "name the module, as in `crate::base::error::Error`".to_owned(),
        ),
        Some(first) if first == layer => return None,
        Some(first) => match height(first) {
            Some(height) if height < own => return None,
            Some(_) => (
                format!("`{layer}` uses `{first}`, which is a higher layer"),
                format!("move the code up, or what it needs down; the order is in {LIST}"),
            ),
            None => (
                format!("`crate::{first}` is not a module with a layer"),
                format!(
                    "write the module, as in `crate::base::error::Error`, or list it in {LIST}"
                ),
            ),
        },
    };
    Some(Finding::new(path, line, what, remedy))
}

/// Collects the paths that start at `crate`, `self` or `super`, from the root of the crate.
struct Uses {
    /// Where the visitor is.
    module: Vec<String>,
    found: Vec<(Vec<String>, usize)>,
}

impl Uses {
    fn add(&mut self, segments: &[String], span: Span) {
        let target = match segments.first().map(String::as_str) {
            Some("crate") => segments[1..].to_vec(),
            Some("self" | "super") => {
                let up = segments.iter().filter(|name| *name == "super").count();
                let kept = self.module.len().saturating_sub(up);
                let rest = segments
                    .iter()
                    .skip_while(|name| *name == "self" || *name == "super");
                self.module[..kept].iter().chain(rest).cloned().collect()
            }
            // Another crate, or a name of this file.
            _ => return,
        };
        self.found.push((target, span.start().line));
    }

    fn tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.tree(tree, before);
                }
            }
            // `use a::{self}` is `a`, but a leading `self` is the module of the file.
            UseTree::Name(name) if name.ident == "self" && !before.is_empty() => {
                self.add(before, name.ident.span());
            }
            UseTree::Name(name) => self.add(&with(&name.ident), name.ident.span()),
            UseTree::Rename(name) if name.ident == "self" && !before.is_empty() => {
                self.add(before, name.ident.span());
            }
            UseTree::Rename(name) => self.add(&with(&name.ident), name.ident.span()),
            UseTree::Glob(glob) => self.add(before, glob.star_token.spans[0]),
        }
    }

    /// Macros are not parsed: look for `crate::…` and `super::…` among their tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(name) if name == "crate" || starts_super(&tokens, index) => {
                    if let Some(tree) = path_at(&tokens[index..]) {
                        self.tree(&tree, &[]);
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if path.segments.len() > 1 {
            let segments: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
            self.add(&segments, path.segments[0].ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    // `pub(crate)` and the arguments of attributes use nothing.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// The first `super` of a path: no `::` stands before it.
fn starts_super(tokens: &[TokenTree], index: usize) -> bool {
    let is_super = matches!(&tokens[index], TokenTree::Ident(name) if name == "super");
    let after_colon = index
        .checked_sub(1)
        .is_some_and(|before| is_punct(&tokens[before], ':'));
    is_super && !after_colon
}

/// `a::b`, `a::{b, c}` or `a::*` at the start of `tokens`.
fn path_at(tokens: &[TokenTree]) -> Option<UseTree> {
    let mut end = 1;
    loop {
        let colons = tokens.get(end..end + 2)?;
        if !colons.iter().all(|token| is_punct(token, ':')) {
            break;
        }
        match tokens.get(end + 2) {
            Some(TokenTree::Ident(_)) => end += 3,
            Some(TokenTree::Group(_)) => {
                end += 3;
                break;
            }
            Some(star) if is_punct(star, '*') => {
                end += 3;
                break;
            }
            _ => break,
        }
        if end + 2 > tokens.len() {
            break;
        }
    }
    // `crate` alone, as in `pub(crate)`, is no path.
    if end == 1 {
        return None;
    }
    syn::parse2(tokens[..end].iter().cloned().collect()).ok()
}

fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let findings = check(&Rust::parse(path, text));
        findings.into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn upward_imports_are_found_however_they_are_written() {
        let text = "use crate::memory::MemoryPool;\n\
            use crate::{base::Error, arena::{self, Arena}};\n\
            use super::super::memory::copy;\n\
            fn f() -> crate::placement::Placement {\n\
            format!(\"{}\", crate::memory::name()); log!(super::super::arena::x) }\n\
            mod inner { use super::super::super::memory::copy; }";
        assert_eq!(
            lines("cuda-mem/src/stream/owned.rs", text),
            [1, 2, 2, 3, 4, 5, 5, 6]
        );
    }

    #[test]
    fn the_page_lists_all_layers_in_their_order() {
        let page = |names: &[&str]| Text {
            path: "docs/src/architecture.md".to_owned(),
            text: format!(
                "# Layers\n| `x.rs` | of another crate |\n### cuda-mem\n\n| file | content |\n|---|---|\n{}\n### More\n| `y` |",
                names
                    .iter()
                    .map(|name| format!("| `{name}.rs`, `{name}/` | its `content` |\n"))
                    .collect::<String>()
            ),
        };
        assert_eq!(check_page(&page(&LAYERS)), []);
        let last = LAYERS.len() - 1;
        let mut swapped = LAYERS;
        swapped.swap(3, 4);
        for (names, line) in [(&swapped[..], 10), (&LAYERS[..last], 6 + last)] {
            let findings = check_page(&page(names));
            assert_eq!(findings.len(), 1);
            assert_eq!(findings[0].line, line);
        }
    }

    #[test]
    fn lower_layers_own_files_and_other_crates_are_free() {
        let text = "use crate::base::Error; use super::attrs::Attrs; use self::x::Y;\n\
            use std::sync::Arc; mod inner { use super::super::attrs::Attrs; }\n\
            pub(crate) fn f() -> Result<(), Error> { crate::driver::raw::f(); Self::g(); crate::memory::h() }\n\
            pub(in crate::arena) struct S; macro_rules! m { () => { pub(crate) fn m() {} } }\n\
            #[cfg(test)] mod tests { use crate::arena::Arena; }";
        assert_eq!(lines("cuda-mem/src/memory/pool.rs", text), [0; 0]);
    }

    #[test]
    fn the_root_is_no_way_around_the_order() {
        let text = "use crate::Error;\nuse crate::*;\nuse super::*;\nuse crate as root;\n\
            fn f() -> crate::Error { m!(crate::Error) }";
        assert_eq!(lines("cuda-mem/src/memory.rs", text), [1, 2, 3, 4, 5, 5]);
        assert_eq!(lines("cuda-mem/src/lib.rs", text), [0; 0]);
    }

    #[test]
    fn a_module_without_a_layer_is_found() {
        assert_eq!(lines("cuda-mem/src/util.rs", ""), [1]);
        assert_eq!(lines("cuda-mem/src/memory/stats.rs", ""), [0; 0]);
        assert_eq!(lines("tests/src/util.rs", "use crate::x::y;"), [0; 0]);
    }
}
