//! Code on devices: loading, asking and launching kernels.

mod cubins;
mod kernels;
mod loading;

use anyhow::Result;
use cuda_mem::Context;
use cuda_mem::kernel::{Function, Image, Module};

/// The kernels of the tests.
pub(crate) const PTX: &str = include_str!("../../data/kernels.ptx");

/// The kernels, loaded into a context.
pub(crate) fn load(context: &Context) -> Result<Module> {
    Ok(context.load(&Image::ptx(PTX)?)?)
}

pub(crate) fn kernel(context: &Context, name: &str) -> Result<Function> {
    Ok(load(context)?.function(name)?)
}
