//! Windows: loads and stores of the CPU on memory of a GPU.

// The windows that copy with it are not there yet.
#[cfg_attr(not(test), expect(dead_code, unused_imports))]
mod mmio;
