//! What is in the header: bindgen's reading of it, and the versions of every function.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use syn::{ForeignItem, ForeignItemFn, Item};

use super::header::Header;
use super::text::{self, Version};

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

    let since = text::first_versions(
        symbols(&every).iter().map(String::as_str),
        &text::versions(&header.typedefs),
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
        spellings: text::spellings(&header.text, &public),
        left_out: text::left_out(&header.text, &constants(&items)),
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

fn constants(items: &[Item]) -> BTreeSet<String> {
    items
        .iter()
        .filter_map(|item| match item {
            Item::Const(constant) => Some(constant.ident.to_string()),
            _ => None,
        })
        .collect()
}
