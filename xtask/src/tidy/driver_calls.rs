//! In `cuda-mem` only `raw/` calls the driver, NVML, or a tool of NVTX.
//!
//! Others hand its function table on to `raw/` and name no function of it. Benchmarks and examples
//! may: they compare with it.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use super::Finding;
use super::layers;
use super::source::Rust;

pub(super) fn check(file: &Rust) -> Vec<Finding> {
    let mut findings = Vec::new();
    // A file that is no module of cuda-mem, or one of the raw layer, may.
    let Some(module) = layers::module_of(&file.path) else {
        return findings;
    };
    if !file.test_only && !layers::is_raw(&module) {
        // Tokens, not the syntax tree: what stands in a macro counts too. Names in strings and in
        // documentation are literals and do not.
        walk(file.code.to_token_stream(), &file.path, &mut findings);
    }
    findings
}

fn walk(tokens: TokenStream, path: &str, findings: &mut Vec<Finding>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => walk(group.stream(), path, findings),
            TokenTree::Ident(name) if is_driver_function(&name.to_string()) => {
                findings.push(Finding::new(
                    path,
                    name.span().start().line,
                    format!("`{name}` is a function of the driver"),
                    "call it from cuda-mem/src/driver/raw/ and use that function here",
                ));
            }
            _ => {}
        }
    }
}

/// `cuMemAlloc_v2`, `PFN_cuMemAlloc_v2`, `nvmlInit_v2`, `nvtxMemHeapReset` and `ncclSend`, but not the types `CUresult`,
/// `cuuint64_t` and `nvmlDevice_t`.
fn is_driver_function(name: &str) -> bool {
    let name = name.strip_prefix("PFN_").unwrap_or(name);
    let rest = name.strip_prefix("cu").or_else(|| {
        name.strip_prefix("nvml")
            .or_else(|| name.strip_prefix("nvtx"))
            .filter(|rest| !rest.ends_with("_t"))
    });
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase())) || is_of_nccl(name)
}

/// NCCL names its codes, types and operations as it does its functions.
fn is_of_nccl(name: &str) -> bool {
    const FUNCTIONS: [&str; 9] = [
        "Comm",
        "Group",
        "Mem",
        "Get",
        "AllReduce",
        "AllGather",
        "Broadcast",
        "ReduceScatter",
        "Send",
    ];
    let Some(rest) = name
        .strip_prefix("nccl")
        .filter(|rest| !rest.ends_with("_t"))
    else {
        return false;
    };
    rest == "Recv" || FUNCTIONS.iter().any(|function| rest.starts_with(function))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let findings = check(&Rust::parse(path, text));
        findings.into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn calls_outside_the_raw_layer_are_found() {
        let text = "fn f(d: &Driver) {\n\
            let f = d.cuMemFree_v2;\n\
            call!(cuda_driver_sys::cuInit);\n\
            let g: PFN_cuInit = x;\n}";
        assert_eq!(lines("cuda-mem/src/memory/pool/mod.rs", text), [2, 3, 4]);
        assert_eq!(lines("cuda-mem/src/lib.rs", text), [2, 3, 4]);
        let text = "fn f(t: &NvmlTable, d: nvmlDevice_t) {\nt.nvmlDeviceGetName; }";
        assert_eq!(lines("cuda-mem/src/placement/nvml/mod.rs", text), [2]);
        let text =
            "fn f(t: &NcclTable, c: ncclComm_t) {\nt.ncclCommAbort; ncclResult_t::ncclTimeout; }";
        assert_eq!(lines("cuda-mem/src/collective/mod.rs", text), [2]);
        let text = "fn f(t: &NvtxMemTable, h: nvtxMemHeapHandle_t) {\nt.nvtxMemHeapReset; }";
        assert_eq!(lines("cuda-mem/src/ledger/nvtx.rs", text), [2]);
    }

    #[test]
    fn the_raw_layer_tests_and_other_crates_may() {
        let text = "fn f(d: &Table) { d.cuMemFree_v2 }";
        for path in [
            "cuda-mem/src/driver/raw/mem.rs",
            "cuda-mem/src/driver/raw.rs",
            "cuda-mem/benches/alloc.rs",
            "tests/sim-driver/src/mem.rs",
        ] {
            assert_eq!(lines(path, text), [0; 0], "{path}");
        }
        let test = "#[cfg(test)] mod tests { fn f(d: &Table) { d.cuMemFree_v2 } }";
        assert_eq!(lines("cuda-mem/src/memory/pool.rs", test), [0; 0]);
    }

    #[test]
    fn names_in_text_and_types_are_no_calls() {
        let text = "/// Calls cuMemAlloc.\n#[doc(alias = \"cuMemAlloc\")]\n\
            fn f(x: CUresult, y: cuuint64_t) { driver.require(\"cuMemAlloc\");\n\
            raw::alloc::free(driver.table(), x); current() }";
        assert_eq!(lines("cuda-mem/src/memory/pool.rs", text), [0; 0]);
    }
}
