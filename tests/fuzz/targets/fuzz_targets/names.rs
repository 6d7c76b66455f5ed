//! See `cuda_mem_fuzz::names`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cuda_mem_fuzz::names::check(data));
