//! The kinds of objects that the ledger knows.

use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// The kind of an object in the [`Ledger`](crate::ledger::Ledger).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum LedgerKind {
            $($(#[$doc])* $kind,)*
        }

        impl LedgerKind {
            /// All of them.
            pub(crate) const ALL: &[Self] = &[$(Self::$kind),*];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// Memory of a [`DeviceBuffer`](crate::DeviceBuffer), whatever its deallocator.
    Buffer = "buffer",
    /// A buffer of another process, mapped here.
    ImportedBuffer = "imported buffer",
    /// A [`MemoryPool`](crate::MemoryPool). The memory that it keeps is in its statistics.
    Pool = "pool",
    /// A pool of another process.
    ImportedPool = "imported pool",
    /// An [`Arena`](crate::Arena). The memory that it keeps is in its statistics.
    Arena = "arena",
    /// A primary context that is [retained](crate::Device::primary_context).
    Context = "context",
    /// A [`Stream`](crate::Stream) that its last handle destroys.
    Stream = "stream",
    /// An [`Event`](crate::Event).
    Event = "event",
    /// A [`Module`](crate::kernel::Module).
    Module = "module",
    /// A [`Library`](crate::kernel::Library).
    Library = "library",
    /// A [`Graph`](crate::interop::Graph), including one inside an instance.
    Graph = "graph",
    /// A [`GraphExec`](crate::interop::GraphExec).
    GraphExec = "graph instance",
    /// Physical memory, mapped or not.
    PhysicalMemory = "physical memory",
    /// Reserved addresses. They are not memory, and count 0 bytes.
    AddressRange = "address range",
    /// A mapping of physical memory at an address. 0 bytes: the memory is listed separately.
    Mapping = "mapping",
    /// Pinned memory of the host.
    PinnedMemory = "pinned memory",
    /// Memory of the host that is registered with the driver.
    RegisteredMemory = "registered memory",
    /// Managed memory of a [`ManagedBuffer`](crate::mapped::ManagedBuffer), or of any buffer that a
    /// [`Resource`](crate::Resource) of managed memory made. A managed pool's own allocations are listed as buffers.
    ManagedMemory = "managed memory",
    /// A [`CpuMapping`](crate::cpu_mapping::CpuMapping) through which the host sees memory of a device or of the host,
    /// or a copy of it. 0 bytes: the memory is listed separately.
    CpuMapping = "CPU mapping",
    /// A [`Communicator`](crate::collective::Communicator) of NCCL.
    Communicator = "communicator",
    /// Memory that is registered with a communicator. 0 bytes: the memory is listed separately.
    Registration = "registration",
}

impl fmt::Display for LedgerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
