//! Memory pools.
