//! A fixed slice of what the fuzz targets do, for machines without a fuzzer.

#![cfg(target_os = "linux")]

use std::io::Write as _;

use cuda_mem_fuzz::{changes, code, headers, logs, names, visible};

const LOG: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream\n\
    0,0.1,allocate,0x7f0000000200,512,0\n140,10:58:16:345678,allocate,7f0000000400,1048576,0x7f3a5c0012a0\n\
    0,0.3,allocate failure,(nil),1125899906842624,0\n\n0,0.4,free,0x7f0000000200,512,139888000012345\n\
    1,0.5,\"allocate\",0x7f0000000200, 70 ,0\n";

const EXTENDED: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream,Origin\n\
    1,23:59:59.9,map,0x1000,4096,0x0,\n1,23:59:59.95,allocate,0x1000,512,0x0,\"a.rs:1 f;b.rs:2\"\n\
    1,00:00:00.1,free requested,0x1000,512,0x0,\n1,00:00:00.2,free completed,0x1000,512,0x0,\n\
    2,00:00:00.3,unmap,0x1800,2048,0x0,\n2,00:00:00.3,map,0x4000,2048,0x0,\n2,00:00:00.4,allocate,0x1400,0,0x0,\n\
    2,00:00:00.5,dropped,0x0,3,0x0,\n2,00:00:00.5,driver calls,0x0,9,0x0,\n2,00:00:00.6,trim,0x0,0,0x0,\n";

fn check(good: &[&[u8]], count: usize, check: fn(&[u8])) {
    let good: Vec<Vec<u8>> = good.iter().map(|bytes| bytes.to_vec()).collect();
    for input in changes::of(&good, count) {
        check(&input);
    }
}

#[test]
fn logs_make_sense_or_are_refused_with_the_right_line() {
    check(
        &[
            LOG,
            EXTENDED,
            b"Action,Pointer,Size,Stream\nallocate,0x10,1,0\n",
        ],
        6000,
        logs::check,
    );
}

#[test]
fn packed_logs_make_sense_or_are_refused() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(LOG).expect("packed");
    let gzip = gzip.finish().expect("packed");
    let fastest = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(LOG, fastest);
    check(&[&gzip, &zstd], 2000, logs::check);
}

#[test]
fn all_readers_of_visible_devices_agree() {
    let values: [&[u8]; 10] = [
        b"\x060,1,2,-1,3",
        b"\x062, +3, -0, 5",
        b"\x061gpu2,2ampere",
        b"\x060,99999999999999999999,18446744073709551616",
        b"\x06GPU-9e8d35e3,GPU-47aa,MIG-5a",
        b"\x86MIG-aa1,MIG-GPU-47aa/1/0",
        b"\x86GPU-9E8D35E3-0000-0000-0000-000000000000x",
        b"\x821",
        b"\x00",
        b"\x01GPU--",
    ];
    check(&values, 40_000, visible::check);
}

#[test]
fn headers_are_read_or_refused() {
    let header = b"#define CUDA_VERSION 13050\n#define cuMemAlloc cuMemAlloc_v2\n\
        #define cuMemcpyHtoD __CUDA_API_PTDS(cuMemcpyHtoD_v2)\n#define CU_TRSA_OVERRIDE 1\n\
        #define CU_LAUNCH_PARAM_END ((void*)0x00)\n";
    let typedefs = b"typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v3020)( PFN_cuMemcpyHtoD_v3020_ptds\n\
        PFN_cuMemPrefetchAsync_v8000_ptsz PFN_cuMemPrefetchAsync_v12020_ptsz cuMemPrefetchAsync_v2_ptsz";
    check(&[header, typedefs], 2500, headers::check);
}

#[test]
fn code_and_variables_of_the_simulator_are_read_or_refused() {
    let kernels = include_bytes!("../../data/kernels.ptx");
    let small = b".version 7.0\n.target sm_70, debug\n.address_size 64\n.shared .align 4 .b8 s[4294967295];\n\
        .visible .entry k(.param .u64 p, .param .align 8 .b8 q[16]) .maxntid 64, 2, 1 {\n\
        .reg .pred %p1; .local .align 8 .b8 l[32]; .shared .v4 .f32 t[8];\n@%p1 ld.param.u64 %r, [p];\nret;\n}\n";
    let variables = b"CUDA_SIM_DEVICES=4\nCUDA_SIM_MEMORY=8G\nCUDA_SIM_MIG=0:2,3:7\nCUDA_SIM_NO_PEERS=0-1,2-3\n\
        CUDA_SIM_NO_POOLS=1,3\nCUDA_SIM_POOL_GRANULE=2M\nCUDA_SIM_POOL_CHUNK=32M\n";
    check(
        &[
            kernels,
            small,
            variables,
            b"\x7fELFcuda-sim PTX\x08\0\0\0\0\0\0\0.version",
        ],
        3000,
        code::check,
    );
}

#[test]
fn names_of_devices_are_read_or_refused() {
    let names: [&[u8]; 5] = [
        b"GPU-9e8d35e3-0001-0203-0405-060708090a0b",
        b"MIG-9E8D35E3-0001-0203-0405-060708090a0b",
        b"00000000:3B:00.0",
        b"3b:00.0",
        b"origins",
    ];
    check(&names, 50_000, names::check);
}

cuda_mem_watchdog::watch_program!();
