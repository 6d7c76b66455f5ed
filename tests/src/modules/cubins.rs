//! Machine code, which runs on the devices that it was made for.

use anyhow::{Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::kernel::{Image, Launch, Value};

use crate::environment::{Environment, Skip};

/// What `ptxas` makes of `bump.ptx` for compute capability 9.0, and for 8.0.
const CUBIN: &[u8] = include_bytes!("../../data/bump-sm_90.cubin");
const OLDER: &[u8] = include_bytes!("../../data/bump-sm_80.cubin");

/// A skip on other devices.
fn image(env: &Environment) -> Result<Image<'static>> {
    let (major, minor) = env.device()?.capabilities()?.compute_capability;
    if major != 9 {
        return Err(Skip(format!(
            "the cubin is for 9.0, the device is {major}.{minor}"
        ))
        .into());
    }
    // SAFETY: a whole cubin, which `ptxas` made.
    Ok(unsafe { Image::binary(CUBIN) }?)
}

#[apply(case)]
fn a_cubin_tells_its_kernel(env: &Environment) -> Result<()> {
    let module = env.context()?.load(&image(env)?)?;
    let bump = module.function("bump")?;
    if env.need(12, 4).is_ok() {
        ensure!(bump.parameters() == Some(&[8, 12, 1][..]), "{bump:?}");
    }
    ensure!(bump.max_threads()? == 128, "{}", bump.max_threads()?);
    ensure!(bump.static_shared()? == 100, "{}", bump.static_shared()?);
    let error = module.function("fill").expect_err("it is not there");
    ensure!(error.kind() == ErrorKind::NotFound, "{error}");
    Ok(())
}

#[apply(case)]
fn a_cubin_runs_and_keeps_its_variables(env: &Environment) -> Result<()> {
    let (image, context) = (image(env)?, env.context()?);
    if let Ok(control) = env.control() {
        control.kernel("bump", |launch| {
            let (counter, scale) = (launch.variable("counter")?.0, launch.variable("scale")?.0);
            let sum = launch.read::<u32>(counter, 1)?[0] + launch.read::<u32>(scale, 1)?[0];
            launch.write(counter, &[sum])?;
            launch.write(launch.argument(0)?, &[sum])
        });
    }
    let stream = context.stream()?;
    let mut words = env.pool()?.alloc_zeroed::<u32>(&stream, 1)?;
    // Each module has variables of its own.
    for _ in 0..2 {
        let module = context.load(&image)?;
        let bump = module.function("bump")?;
        for expected in [12, 17] {
            let unused = Value([0_u8; 12]);
            // SAFETY: as the kernel says; one thread runs.
            unsafe {
                bump.launch(
                    &stream,
                    Launch::new([1; 3], [1; 3]),
                    (&mut words, unused, 0_u8),
                )
            }?;
            ensure!(words.to_vec()? == [expected], "{:?}", words.to_vec()?);
        }
    }
    Ok(())
}

#[apply(case)]
fn a_cubin_for_another_device_is_refused(env: &Environment) -> Result<()> {
    image(env)?;
    // SAFETY: as above.
    let older = unsafe { Image::binary(OLDER) }?;
    let error = env.context()?.load(&older).expect_err("it is refused");
    ensure!(error.kind() == ErrorKind::InvalidImage, "{error}");
    Ok(())
}
