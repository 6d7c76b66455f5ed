//! All exports, by name.

use crate::export::Export;
use crate::{
    alloc, callback, context, copy, device, dma_buf, event, graph, host, init, ipc, limits, logs,
    managed, module, peer, plane, pointer, pool, private, proc_address, stream, vmm,
};

/// All simulated driver functions.
pub(crate) fn exports() -> impl Iterator<Item = &'static &'static Export> {
    let files: [&'static [&'static Export]; 18] = [
        alloc::EXPORTS,
        callback::EXPORTS,
        context::EXPORTS,
        copy::EXPORTS,
        device::EXPORTS,
        dma_buf::EXPORTS,
        event::EXPORTS,
        host::EXPORTS,
        init::EXPORTS,
        limits::EXPORTS,
        logs::EXPORTS,
        peer::EXPORTS,
        plane::EXPORTS,
        pointer::EXPORTS,
        private::ELSEWHERE,
        private::EXPORTS,
        proc_address::EXPORTS,
        stream::EXPORTS,
    ];
    files
        .into_iter()
        .chain(pool::EXPORTS)
        .chain(ipc::EXPORTS)
        .chain(graph::EXPORTS)
        .chain(vmm::EXPORTS)
        .chain(managed::ALL.iter().copied())
        .chain(module::EXPORTS)
        .flatten()
}

/// The export with this real name (`cuMemAlloc_v2`, not `cuMemAlloc`).
pub(crate) fn find(name: &str) -> Option<&'static Export> {
    exports().copied().find(|export| export.name == name)
}

#[cfg(test)]
mod tests {
    use cuda_driver_sys::Symbol;

    use super::*;

    #[test]
    fn every_export_is_a_symbol_of_the_driver_and_exported_once() {
        let mut names: Vec<&str> = exports().map(|export| export.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        let elsewhere = |name: &str| private::ELSEWHERE.iter().any(|export| export.name == name);
        for name in names {
            assert_ne!(Symbol::find(name).is_some(), elsewhere(name), "{name}");
        }
    }

    /// A program built for per-thread default streams calls the twin; without it, the program would get the other null
    /// stream.
    #[test]
    fn where_the_driver_has_a_twin_the_simulator_has_it_too() {
        for export in exports() {
            for suffix in ["_ptsz", "_ptds"] {
                let twin = format!("{}{suffix}", export.name);
                if Symbol::find(&twin).is_some() {
                    assert!(find(&twin).is_some(), "{twin}");
                }
            }
        }
    }
}
