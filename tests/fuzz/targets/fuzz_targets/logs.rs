//! See `cuda_mem_fuzz::logs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cuda_mem_fuzz::logs::check(data));
