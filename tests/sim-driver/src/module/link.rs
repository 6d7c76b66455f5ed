//! The linker: combines PTX texts. Its output is a cubin in name only.

use std::ffi::{c_char, c_uint, c_void};

use cuda_driver_sys::{CUjit_option, CUjitInputType, CUlinkState, CUresult};

use super::INVALID_HANDLE;
use super::code::Refusal;
use super::image::{self, Logs, Source};
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::state::{HandleKind, State, from_handle, state, to_handle};

/// A linker in use.
#[derive(Debug)]
pub(super) struct Link {
    texts: Vec<String>,
    /// Whether it was given a cubin.
    is_broken: bool,
    logs: Logs,
    /// The output, which the program may read until it destroys the linker.
    cubin: Option<Box<[u8]>>,
}

impl State {
    fn link(&mut self, handle: CUlinkState) -> Answer<&mut Link> {
        let link = self.modules.links.get_mut(&from_handle(handle));
        link.ok_or(INVALID_HANDLE)
    }
}

impl Link {
    fn add(&mut self, kind: CUjitInputType, data: *const c_void, size: usize) -> Answer {
        let is_input = !data.is_null() && kind.0 < CUjitInputType::CU_JIT_NUM_INPUT_TYPES.0;
        // Measured: nothing can be added after completion.
        if !is_input || self.cubin.is_some() {
            return Err(INVALID_VALUE);
        }
        let texts = match image::source(data, size) {
            Ok(Source::Texts(texts)) => texts,
            // Measured, also with one for this device: it must have been made for linking. None such are known here.
            Ok(Source::Cubin(_)) => {
                self.is_broken = true;
                return self.check();
            }
            Err(refusal) => {
                self.logs.write(Some(&refusal))?;
                return Err(refusal.code);
            }
        };
        let all = [&self.texts[..], &texts].concat();
        // Measured: each input is checked when added, together with the earlier ones.
        let understood = image::understand(&all);
        self.logs.write(understood.as_ref().err())?;
        let answer = understood.map(|_| ()).map_err(|refusal| refusal.code);
        // Measured: an invalid input leaves the linker usable, a duplicate kernel does not.
        if matches!(answer, Ok(()) | Err(CUresult::CUDA_ERROR_INVALID_SOURCE)) {
            self.texts = all;
        }
        answer
    }

    /// Measured: a linker that was given a cubin makes nothing any more.
    fn check(&self) -> Answer {
        if !self.is_broken {
            return Ok(());
        }
        let code = CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU;
        let what = "the cubin was not made for linking";
        self.logs.write(Some(&Refusal {
            code,
            ..Refusal::image(what)
        }))?;
        Err(code)
    }
}

exports! {
    plain fn cuLinkCreate_v2(
        _, count: c_uint, options: Out<CUjit_option>, values: Out<*mut c_void>,
        out: Out<CUlinkState>
    ) {
        out.required()?;
        let logs = Logs::from_options(count, options, values)?;
        let mut state = state()?;
        // Measured: a context must be current.
        state.current()?;
        let id = state.new_handle(HandleKind::Link);
        let link = Link { texts: Vec::new(), is_broken: false, logs, cubin: None };
        state.modules.links.insert(id, link);
        out.write(to_handle(id))
    }

    plain fn cuLinkAddData_v2(
        _, link: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize,
        _name: In<c_char>, _count: c_uint, _options: Out<CUjit_option>,
        _values: Out<*mut c_void>
    ) {
        state()?.link(link)?.add(kind, data, size)
    }

    plain fn cuLinkAddFile_v2(
        _, link: CUlinkState, kind: CUjitInputType, path: In<c_char>, _count: c_uint,
        _options: Out<CUjit_option>, _values: Out<*mut c_void>
    ) {
        let path = path.text()?;
        let mut state = state()?;
        let link = state.link(link)?;
        let file = image::read_file(&path)?;
        link.add(kind, file.as_ptr().cast(), file.len())
    }

    plain fn cuLinkComplete(
        _, link: CUlinkState, out: Out<*mut c_void>, size: Out<usize>
    ) {
        out.required()?;
        let mut state = state()?;
        let link = state.link(link)?;
        link.check()?;
        let understood = image::understand(&link.texts);
        link.logs.write(understood.as_ref().err())?;
        understood.map_err(|refusal| refusal.code)?;
        let texts = &link.texts;
        let cubin = link.cubin.get_or_insert_with(|| image::linked(texts).into());
        size.write_if_wanted(cubin.len());
        out.write(cubin.as_mut_ptr().cast())
    }

    release fn cuLinkDestroy(_, link: CUlinkState) {
        let mut state = state()?;
        let known = state.modules.links.remove(&from_handle(link));
        known.map(|_| ()).ok_or(INVALID_HANDLE)
    }
}
