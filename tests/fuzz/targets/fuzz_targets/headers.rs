//! See `cuda_mem_fuzz::headers`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cuda_mem_fuzz::headers::check(data));
