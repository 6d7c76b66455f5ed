//! See `cuda_mem_fuzz::visible`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cuda_mem_fuzz::visible::check(data));
