//! Tests of `cuda-mem` that run on more than one driver.
//!
//! [`contract`] holds bodies that are written once and hold on the simulated driver and on a GPU.
//! [`lab`] chooses the driver, [`run`] runs bodies and says on what, how many, and which were
//! skipped and why. What only the simulator can show (faults, counts, old drivers) and what only
//! hardware can show are test programs of their own, in `tests/`.

pub mod arena;
pub mod contract;
#[path = "../../cuda-mem/benches/common/draws.rs"]
mod draws;
mod foreign;
mod forks;
pub mod hold;
pub mod host;
pub mod lab;
pub mod ledger;
pub mod managed;
pub mod modules;
pub mod peers;
pub mod placement;
pub mod random;
pub mod resources;
mod resources_of_two;
pub mod run;
pub mod sweep;
pub mod two;
pub mod untouched;
pub mod visible;
pub mod vmm;
pub mod watchdog;
pub mod window;
