//! Records of real devices, and what is decided by them.

mod allocating;
mod ends;
mod exports;
mod gathered;
mod host_access;
mod kinds;
mod spread;
