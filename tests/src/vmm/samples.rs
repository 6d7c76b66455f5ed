//! What CUDA's sample vectorAddMMAP shows.

use anyhow::{Result, ensure};
use cuda_mem::Device;
use cuda_mem::driver::Location;
use cuda_mem::kernel::Launch;
use cuda_mem::mapped::{MappedMemory, PhysicalMemory};

use crate::environment::Environment;
use crate::modules::kernel;

#[apply(case)]
fn vectors_lie_on_one_device(env: &Environment) -> Result<()> {
    vectors_lie_on(env, &[env.device()?])
}

#[apply(case_of_two)]
fn vectors_lie_on_all_devices(env: &Environment) -> Result<()> {
    let mut devices = env.driver.devices()?;
    vectors_lie_on(env, &devices[..2])?;
    vectors_lie_on(env, &devices)?;
    devices.reverse();
    vectors_lie_on(env, &devices)
}

/// Vectors in equal parts on these devices, added by a kernel of the usual one.
fn vectors_lie_on(env: &Environment, devices: &[Device]) -> Result<()> {
    const LEN: usize = 3 << 20;
    let own = env.device()?;
    let stream = env.stream()?;
    let vector = || -> Result<_> {
        let memory = MappedMemory::builder(&own)
            .striped_over(devices)
            .build((LEN * size_of::<f32>()) as u64)?;
        ensure!(memory.parts().count() == devices.len());
        let places: Vec<_> = memory.parts().map(PhysicalMemory::location).collect();
        ensure!(
            places
                == devices
                    .iter()
                    .copied()
                    .map(Location::Device)
                    .collect::<Vec<_>>()
        );
        Ok(memory.into_buffer::<f32>(&stream, LEN)?)
    };
    let (mut a, mut b, mut sum) = (vector()?, vector()?, vector()?);
    let numbers: Vec<f32> = (0..LEN).map(|at| at as f32).collect();
    a.as_mut_slice().copy_from(&numbers)?;
    b.as_mut_slice().fill(0.5)?;
    let add = kernel(&env.context()?, "add")?;
    let launch = Launch::over(LEN, 256);
    // SAFETY: `add` takes three addresses of so many f32, and their number.
    unsafe { add.launch(&stream, launch, (&mut sum, &a, &b, LEN as u64)) }?;
    let seen = sum.to_vec()?;
    ensure!(seen.iter().zip(&numbers).all(|(sum, at)| *sum == at + 0.5));
    let why = match devices {
        [_] => "reserve more",
        _ => "divided",
    };
    let error = sum.resize_zeroed(LEN * 100).expect_err("it is refused");
    ensure!(error.to_string().contains(why), "{error}");
    Ok(())
}
