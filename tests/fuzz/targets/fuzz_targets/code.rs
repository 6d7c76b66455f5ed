//! See `cuda_mem_fuzz::code`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cuda_mem_fuzz::code::check(data));
