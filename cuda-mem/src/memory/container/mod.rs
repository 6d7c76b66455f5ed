//! Containers over any resource.

mod scalar;
mod vec;

pub use scalar::DeviceScalar;
pub use vec::DeviceVec;
