//! The book's pages with Rust code, which the doctests compile and run. They are not in the archive of `cuda-mem`.

macro_rules! pages {
    ($($name:ident $path:literal)*) => {
        $(#[doc = include_str!($path)] struct $name;)*
    };
}

pages! {
    Arena "../../docs/src/arena.md"
    Collectives "../../docs/src/collectives.md"
    CpuMappings "../../docs/src/cpu-mappings.md"
    Devices "../../docs/src/devices.md"
    Fallback "../../docs/src/fallback.md"
    FromCudarc "../../docs/src/from-cudarc.md"
    FromRmm "../../docs/src/from-rmm.md"
    GettingStarted "../../docs/src/getting-started.md"
    Graphs "../../docs/src/graphs.md"
    HostMemory "../../docs/src/host-memory.md"
    Ledger "../../docs/src/ledger.md"
    Managed "../../docs/src/managed.md"
    Modules "../../docs/src/modules.md"
    OrderAndOwnership "../../docs/src/order-and-ownership.md"
    OutOfMemory "../../docs/src/out-of-memory.md"
    Performance "../../docs/src/performance.md"
    Placement "../../docs/src/placement.md"
    Pools "../../docs/src/pools.md"
    Recording "../../docs/src/recording.md"
    Replay "../../docs/src/replay.md"
    Resources "../../docs/src/resources.md"
    Sanitizer "../../docs/src/sanitizer.md"
    Snapshots "../../docs/src/snapshots.md"
    Tasks "../../docs/src/tasks.md"
    Telemetry "../../docs/src/telemetry.md"
    Tensors "../../docs/src/tensors.md"
    Troubleshooting "../../docs/src/troubleshooting.md"
    VirtualMemory "../../docs/src/virtual-memory.md"
    Visibility "../../docs/src/visibility.md"
}
