//! A little of everything.

use std::ffi::c_void;

use crate::harness::*;

#[test]
fn bytes_go_in_and_come_back() {
    let _turn = turn();
    let (pool, stream) = (pool(&props()), stream());
    let x = alloc(pool, 4096, stream);
    assert_eq!(cu!(cuMemsetD8Async(x, 7, 4096, stream)), OK);
    let sent: Vec<u8> = (0..100).collect();
    let from = sent.as_ptr().cast::<c_void>();
    assert_eq!(cu!(cuMemcpyHtoDAsync_v2(x + 10, from, 100, stream)), OK);
    let mut back = vec![0_u8; 120];
    let to = back.as_mut_ptr().cast::<c_void>();
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(to, x, 120, stream)), OK);
    assert_eq!(back[..10], [7; 10]);
    assert_eq!(back[10..110], sent);
    assert_eq!(back[110..], [7; 10]);
    free(x, stream);
    synchronise(stream);
    assert_eq!(cu!(cuMemPoolDestroy(pool)), OK);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), OK);
    assert_eq!(control().reports(), Vec::<String>::new());
    let live = control().live();
    assert_eq!(
        live,
        cuda_sim::Live {
            primary_retains: 1,
            ..Default::default()
        }
    );
}
