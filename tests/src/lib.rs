//! Tests of `cuda-mem` that run on more than one driver.
//!
//! [`contract`] holds bodies that are written once and hold on the simulated driver and on a GPU.
//! [`environment`] chooses the driver, [`mod@case`] registers bodies, [`suite`] says which run together, and [`run`]
//! runs them and says on what, how many, and which were skipped and why. What only the simulator can show (faults,
//! counts, old drivers) and what only hardware can show lies beside the test programs, in `tests/`.

#[macro_use(apply)]
extern crate macro_rules_attribute;

#[macro_use]
pub mod case;

mod annotated;
pub mod arena;
#[cfg(doctest)]
mod book;
pub mod collective;
pub mod contract;
mod devices;
#[path = "../../cuda-mem/benches/common/draws.rs"]
mod draws;
pub mod environment;
pub mod executor;
pub mod foreign;
mod forks;
pub mod handles;
pub mod hold;
pub mod host;
pub mod ledger;
pub mod managed;
pub mod modules;
pub mod own_process;
pub mod peers;
pub mod placement;
pub mod programs;
pub mod random;
pub mod resources;
pub mod run;
mod settings;
pub mod suite;
pub mod sweep;
pub mod two;
pub mod untouched;
mod untouched_devices;
pub mod visible;
pub mod vmm;
pub mod window;
mod writers;

pub use cuda_mem_watchdog as watchdog;
#[doc(hidden)]
pub use inventory;
