//! What a regeneration changes: functions and types added, removed, re-pointed.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use quote::ToTokens;
use syn::{Expr, Item};

use super::Generated;

pub(crate) fn print(committed: &Path, new: &[Generated]) -> Result<()> {
    let mut changed = false;
    for file in new {
        let Ok(old) = std::fs::read_to_string(committed.join(file.name)) else {
            println!("{}: new file", file.name);
            changed = true;
            continue;
        };
        let lines = describe(&syn::parse_file(&old)?, &syn::parse_file(&file.text)?);
        for line in &lines {
            println!("{}: {line}", file.name);
        }
        changed |= !lines.is_empty();
    }
    if !changed {
        println!("changes: none");
    }
    Ok(())
}

fn describe(old: &syn::File, new: &syn::File) -> Vec<String> {
    let (old, new) = (contents(old), contents(new));
    let mut lines = Vec::new();
    for (name, value) in &new {
        match old.get(name) {
            None => lines.push(format!("added {name}")),
            Some(before) if before != value => lines.push(match name.strip_prefix("spelling ") {
                Some(spelling) => format!("re-pointed {spelling}: {before} -> {value}"),
                None => format!("changed {name}"),
            }),
            Some(_) => {}
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        lines.push(format!("removed {name}"));
    }
    lines
}

/// Every named thing of a generated file with the text of its definition. Spellings are listed
/// one by one, so that a macro that now stands for another symbol shows as such.
fn contents(file: &syn::File) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for item in &file.items {
        let text = item.to_token_stream().to_string();
        match item {
            Item::Type(item) => drop(found.insert(format!("type {}", item.ident), text)),
            Item::Struct(item) if item.ident != "DriverTable" => {
                drop(found.insert(format!("struct {}", item.ident), text));
            }
            Item::Union(item) => drop(found.insert(format!("union {}", item.ident), text)),
            Item::Use(item) => {
                drop(found.insert(format!("alias {}", item.to_token_stream()), text))
            }
            Item::Static(item) if item.ident == "SPELLINGS" => pairs(&item.expr, &mut found),
            Item::Const(item) if item.ident != "_" => {
                drop(found.insert(format!("constant {}", item.ident), text));
            }
            Item::Impl(block) => values(block, &mut found),
            _ => {}
        }
    }
    found
}

/// The constants of an enum newtype.
fn values(block: &syn::ItemImpl, found: &mut BTreeMap<String, String>) {
    let of = block.self_ty.to_token_stream();
    for item in &block.items {
        if let syn::ImplItem::Const(item) = item {
            found.insert(
                format!("value {of}::{}", item.ident),
                item.expr.to_token_stream().to_string(),
            );
        }
    }
}

fn pairs(expr: &Expr, found: &mut BTreeMap<String, String>) {
    let Expr::Array(array) = expr else { return };
    for pair in &array.elems {
        if let Expr::Tuple(pair) = pair
            && let (Some(spelling), Some(symbol)) =
                (text(pair.elems.first()), text(pair.elems.last()))
        {
            found.insert(format!("spelling {spelling}"), symbol);
        }
    }
}

fn text(expr: Option<&Expr>) -> Option<String> {
    match expr? {
        Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(old: &str, new: &str) -> Vec<String> {
        let parse = |text| syn::parse_file(text).expect("test input is Rust");
        describe(&parse(old), &parse(new))
    }

    #[test]
    fn additions_removals_and_re_pointing_are_told_apart() {
        let old = r#"pub type PFN_cuA = fn(); pub static SPELLINGS: [(&str, &str); 1] = [("cuX", "cuX")];"#;
        let new = r#"pub type PFN_cuB = fn(); pub static SPELLINGS: [(&str, &str); 1] = [("cuX", "cuX_v2")];"#;
        assert_eq!(
            lines(old, new),
            [
                "re-pointed cuX: cuX -> cuX_v2",
                "added type PFN_cuB",
                "removed type PFN_cuA"
            ]
        );
    }

    #[test]
    fn nothing_changed_says_nothing() {
        let text = "pub type PFN_cuA = fn();";
        assert!(lines(text, text).is_empty());
    }
}
