//! Records of real devices, and what is decided by them.

mod allocating;
mod ends;
mod exports;
mod gathered;
mod kinds;
mod spread;
