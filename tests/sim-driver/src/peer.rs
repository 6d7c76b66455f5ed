//! Peer access between devices, and between contexts.

use std::ffi::{c_int, c_uint};

use cuda_driver_sys::{CUcontext, CUdevice_P2PAttribute, CUresult};

use crate::context::ContextId;
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::state::{State, from_handle, state};

impl State {
    /// Whether two visible devices have peer access.
    pub(crate) fn are_peers(&self, one: usize, other: usize) -> bool {
        let [one, other] = [one, other].map(|ordinal| self.devices[ordinal].index);
        let apart = |pair: &(usize, usize)| *pair == (one, other) || *pair == (other, one);
        one != other && self.configuration.peers && !self.configuration.no_peers.iter().any(apart)
    }

    /// Whether a context may access another's `cuMemAlloc` memory.
    pub(crate) fn has_opened(&self, context: ContextId, other: ContextId) -> bool {
        let known = self.contexts.get(&context);
        known.is_some_and(|context| context.peers.contains(&other))
    }

    /// The current context and the other one.
    fn pair(&self, other: CUcontext) -> Answer<(ContextId, ContextId)> {
        let current = self.current()?;
        let other = from_handle(other);
        self.context(other)?;
        Ok((current, other))
    }
}

exports! {
    plain fn cuDeviceCanAccessPeer(_, out: Out<c_int>, device: c_int, peer: c_int) {
        out.required()?;
        let state = state()?;
        let (device, peer) = (state.ordinal(device)?, state.ordinal(peer)?);
        out.write(c_int::from(state.are_peers(device, peer)))
    }

    plain fn cuDeviceGetP2PAttribute(
        _, out: Out<c_int>, attribute: CUdevice_P2PAttribute, device: c_int, peer: c_int
    ) {
        out.required()?;
        let state = state()?;
        let (device, peer) = (state.ordinal(device)?, state.ordinal(peer)?);
        if device == peer {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        out.write(match attribute.0 {
            // The performance rank of the link, and whether only some atomics are supported over it.
            1 | 5 => 0,
            2..=4 => c_int::from(state.are_peers(device, peer)),
            _ => return Err(INVALID_VALUE),
        })
    }

    plain fn cuCtxEnablePeerAccess(_, peer: CUcontext, flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        let (current, peer) = state.pair(peer)?;
        let devices = (state.context(current)?.device, state.context(peer)?.device);
        if !state.are_peers(devices.0, devices.1) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let context = state.contexts.get_mut(&current).ok_or(INVALID_VALUE)?;
        if context.peers.insert(peer) {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        }
    }

    plain fn cuCtxDisablePeerAccess(_, peer: CUcontext) {
        let mut state = state()?;
        let (current, peer) = state.pair(peer)?;
        let context = state.contexts.get_mut(&current).ok_or(INVALID_VALUE)?;
        if context.peers.remove(&peer) {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
        }
    }
}
