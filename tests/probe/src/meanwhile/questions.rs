//! What a stream is asked about itself during a capture: its own, and one of another stream.

use cuda_driver_sys::*;

use super::calls::Call;
use crate::environment::{Environment, cu};

fn device(env: &Environment, stream: CUstream) -> CUresult {
    let mut device = 0;
    cu!(env, cuStreamGetDevice(stream, &raw mut device))
}

fn id(env: &Environment, stream: CUstream) -> CUresult {
    let mut id = 0;
    cu!(env, cuStreamGetId(stream, &raw mut id))
}

fn flags(env: &Environment, stream: CUstream) -> CUresult {
    let mut flags = 0;
    cu!(env, cuStreamGetFlags(stream, &raw mut flags))
}

fn priority(env: &Environment, stream: CUstream) -> CUresult {
    let mut priority = 0;
    cu!(env, cuStreamGetPriority(stream, &raw mut priority))
}

fn context(env: &Environment, stream: CUstream) -> CUresult {
    let mut context = std::ptr::null_mut();
    cu!(env, cuStreamGetCtx(stream, &raw mut context))
}

pub(super) const QUESTIONS: [(&str, Call); 10] = [
    ("cuStreamGetDevice", |env, s| device(env, s.stream)),
    ("cuStreamGetDevice elsewhere", |env, s| device(env, s.other)),
    ("cuStreamGetId", |env, s| id(env, s.stream)),
    ("cuStreamGetId elsewhere", |env, s| id(env, s.other)),
    ("cuStreamGetFlags", |env, s| flags(env, s.stream)),
    ("cuStreamGetFlags elsewhere", |env, s| flags(env, s.other)),
    ("cuStreamGetPriority", |env, s| priority(env, s.stream)),
    ("cuStreamGetPriority elsewhere", |env, s| {
        priority(env, s.other)
    }),
    ("cuStreamGetCtx", |env, s| context(env, s.stream)),
    ("cuStreamGetCtx elsewhere", |env, s| context(env, s.other)),
];
