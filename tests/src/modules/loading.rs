//! What can be loaded, and where it is then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::kernel::{Image, Launch};
use cuda_mem::sys::CUjitInputType;

use super::{PTX, kernel, load};
use crate::environment::Environment;
use crate::forks;

#[apply(case)]
fn code_that_does_not_compile_says_why(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let wrong = PTX.replace(".param .u32 value", ".param .teapot value");
    let error = context
        .load(&Image::ptx(&wrong)?)
        .expect_err("it is refused");
    ensure!(error.kind() == ErrorKind::InvalidImage, "{error}");
    let log = error.jit_log().unwrap_or_default();
    ensure!(log.contains("line"), "the compiler said {log:?}");
    ensure!(error.to_string().contains(log), "{error}");
    load(&context)?;
    if env.need(12, 0).is_ok() {
        let error = env
            .driver
            .load_library(&Image::ptx(&wrong)?)
            .expect_err("it is refused");
        ensure!(error.kind() == ErrorKind::InvalidImage, "{error}");
        let said = error.jit_log().unwrap_or_default();
        ensure!(said.contains("line"), "the compiler said {said:?}");
    }
    Ok(())
}

#[apply(case)]
fn code_for_other_devices_and_drivers_is_refused(env: &Environment) -> Result<()> {
    let context = env.context()?;
    for (text, with) in [(".version 7.0", ".version 99.0"), ("sm_70", "sm_999")] {
        let image = Image::ptx(&PTX.replace(text, with))?;
        let error = context.load(&image).expect_err("it is refused");
        ensure!(error.kind() == ErrorKind::InvalidImage, "{with}: {error}");
        if env.need(12, 0).is_ok() {
            let error = env.driver.load_library(&image).expect_err("it is refused");
            ensure!(error.kind() == ErrorKind::InvalidImage, "{with}: {error}");
        }
    }
    Ok(())
}

#[apply(case_of_sim)]
fn what_the_simulator_refuses_says_why(env: &Environment) -> Result<()> {
    env.control()?;
    let context = env.context()?;
    for (text, with, why) in [
        (
            ".version 7.0",
            ".version 99.0",
            "version 99.0 is newer than 9.0",
        ),
        ("sm_70", "sm_999", "sm_999 is no target for sm_90"),
        (
            "ret;",
            "ret; nonsense %r1;",
            "`nonsense` where an instruction should be",
        ),
    ] {
        let image = Image::ptx(&PTX.replace(text, with))?;
        let error = context.load(&image).expect_err("it is refused");
        ensure!(error.to_string().contains(why), "{error}");
        ensure!(
            error.jit_log().is_some_and(|log| log.contains(why)),
            "{error}"
        );
    }
    let error = context
        .load(&Image::ptx("hello")?)
        .expect_err("it is refused");
    ensure!(error.to_string().contains("no `.version`"), "{error}");
    let mut fat = vec![0_u8; 64];
    fat[..4].copy_from_slice(&[0x50, 0xed, 0x55, 0xba]);
    // SAFETY: the simulator reads no more than the beginning.
    let binary = unsafe { Image::binary(&fat) }?;
    let error = context.load(&binary).expect_err("it is refused");
    let why = "the simulated driver reads no fatbin";
    ensure!(error.to_string().contains(why), "{error}");
    let error = env.driver.load_library(&binary).expect_err("it is refused");
    ensure!(error.to_string().contains(why), "{error}");
    Ok(())
}

#[apply(case)]
fn what_is_no_code_is_refused(env: &Environment) -> Result<()> {
    let context = env.context()?;
    for text in ["", "hello", "{ }"] {
        let error = context.load(&Image::ptx(text)?).expect_err("it is refused");
        ensure!(error.kind() == ErrorKind::InvalidImage, "{text:?}: {error}");
    }
    Ok(())
}

#[apply(case)]
fn a_kernel_that_is_not_there_is_named(env: &Environment) -> Result<()> {
    let module = load(&env.context()?)?;
    let error = module.function("teapot").expect_err("it is refused");
    ensure!(error.kind() == ErrorKind::NotFound, "{error}");
    ensure!(error.to_string().contains("\"teapot\""), "{error}");
    ensure!(
        error.to_string().contains("C++ names are mangled"),
        "{error}"
    );
    let error = module.function("fi\0ll").expect_err("it is refused");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    module.function("fill")?;
    Ok(())
}

#[apply(case)]
fn a_library_is_nowhere_until_it_is_used(env: &Environment) -> Result<()> {
    env.need(12, 0)?;
    let library = env.driver.load_library(&Image::ptx(PTX)?)?;
    ensure!(library.devices().is_empty());
    let context = env.context()?;
    let error = library
        .function("teapot", &context)
        .expect_err("it is refused");
    ensure!(error.kind() == ErrorKind::NotFound, "{error}");
    ensure!(library.devices().is_empty(), "nothing was found");
    let fill = library.function("fill", &context)?;
    library.function("copy", &context)?;
    ensure!(library.devices() == [context.device()]);
    // The function alone keeps the code.
    drop(library);
    let stream = context.stream()?;
    let mut words = env.pool()?.alloc_zeroed::<u32>(&stream, 100)?;
    // SAFETY: `fill` takes an address of so many words, a word, and their number.
    unsafe { fill.launch(&stream, Launch::over(100, 32), (&mut words, 5u32, 100u64)) }?;
    ensure!(words.to_vec()? == [5; 100]);
    Ok(())
}

/// Alone, because it looks at what the whole process has loaded.
#[apply(case_alone)]
fn code_stays_until_its_last_function_goes(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let live = || env.control().ok().map(|control| control.live());
    let before = live();
    let fill = kernel(&context, "fill")?;
    ensure!(fill.max_threads()? >= 32, "its module is gone");
    let again = fill.clone();
    drop(fill);
    ensure!(again.registers()? > 0, "its module is gone");
    ensure!(before.is_none() || live() != before, "no module is loaded");
    drop(again);
    ensure!(live() == before, "the module is still loaded");
    if env.need(12, 0).is_ok() {
        let library = env.driver.load_library(&Image::ptx(PTX)?)?;
        let fill = library.function("fill", &context)?;
        drop(library);
        ensure!(fill.registers()? > 0, "its library is gone");
        drop(fill);
        ensure!(live() == before, "the library is still loaded");
    }
    Ok(())
}

#[apply(case)]
fn a_kernel_is_loaded_before_it_is_needed(env: &Environment) -> Result<()> {
    env.need(12, 4)?;
    let fill = kernel(&env.context()?, "fill")?;
    fill.preload()?;
    ensure!(fill.is_loaded()?);
    fill.preload()?;
    Ok(())
}

/// The kernels as a cubin for this device, as the driver's linker makes it.
fn linked(env: &Environment) -> Result<Vec<u8>> {
    let context = env.context()?;
    let _current = context.bind()?;
    let table = env.driver.table();
    let (mut link, null) = (std::ptr::null_mut(), std::ptr::null_mut());
    let create = table.cuLinkCreate_v2.context("cuLinkCreate")?;
    // SAFETY: a context is current, and there are no options.
    let code = unsafe { create(0, std::ptr::null_mut(), null, &raw mut link) };
    ensure!(code.0 == 0, "cuLinkCreate: {code}");
    let mut text = [PTX.as_bytes(), &[0]].concat();
    let add = table.cuLinkAddData_v2.context("cuLinkAddData")?;
    let kind = CUjitInputType::CU_JIT_INPUT_PTX;
    let (data, none) = (text.as_mut_ptr().cast(), std::ptr::null_mut());
    // SAFETY: the text ends in 0 and is looked at during the call.
    let code = unsafe {
        add(
            link,
            kind,
            data,
            text.len(),
            c"text".as_ptr(),
            0,
            none,
            null,
        )
    };
    ensure!(code.0 == 0, "cuLinkAddData: {code}");
    let (mut data, mut bytes) = (std::ptr::null_mut(), 0);
    let complete = table.cuLinkComplete.context("cuLinkComplete")?;
    // SAFETY: the linker is live, and both results are valid for a write.
    let code = unsafe { complete(link, &raw mut data, &raw mut bytes) };
    ensure!(code.0 == 0, "cuLinkComplete: {code}");
    // SAFETY: the linker keeps what it made until it is destroyed.
    let binary = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) }.to_vec();
    let destroy = table.cuLinkDestroy.context("cuLinkDestroy")?;
    // SAFETY: nothing of the linker is used any more.
    let code = unsafe { destroy(link) };
    ensure!(code.0 == 0, "cuLinkDestroy: {code}");
    Ok(binary)
}

#[apply(case)]
fn a_binary_is_loaded_as_its_text_is(env: &Environment) -> Result<()> {
    let binary = linked(env)?;
    let context = env.context()?;
    let stream = context.stream()?;
    let mut words = env.pool()?.alloc_zeroed::<u32>(&stream, 100)?;
    let file = std::env::temp_dir().join(format!("cuda-mem-{}.cubin", std::process::id()));
    std::fs::write(&file, &binary)?;
    // SAFETY: the driver has made it just now.
    let image = unsafe { Image::binary(&binary[..]) };
    // SAFETY: as above.
    let in_file = unsafe { Image::open(&file) };
    std::fs::remove_file(&file)?;
    for (value, image) in (5_u32..).zip([image, in_file]) {
        let fill = context.load(&image?)?.function("fill")?;
        // SAFETY: `fill` takes an address of so many words, a word, and their number.
        unsafe { fill.launch(&stream, Launch::over(100, 32), (&mut words, value, 100u64)) }?;
        ensure!(words.to_vec()? == [value; 100]);
    }
    if env.need(12, 0).is_ok() {
        // SAFETY: as above.
        let image = unsafe { Image::binary(&binary[..]) }?;
        let fill = env
            .driver
            .load_library(&image)?
            .function("fill", &context)?;
        // SAFETY: as above.
        unsafe { fill.launch(&stream, Launch::over(100, 32), (&mut words, 9u32, 100u64)) }?;
        ensure!(words.to_vec()? == [9; 100]);
    }
    Ok(())
}

#[apply(case)]
fn nothing_of_this_needs_or_leaves_a_current_context(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let table = env.driver.table();
    let current = || -> Result<usize> {
        let mut current = std::ptr::null_mut();
        let get = table.cuCtxGetCurrent.unwrap_or_else(|| unreachable!());
        // SAFETY: valid for a write.
        let code = unsafe { get(&raw mut current) };
        ensure!(code.0 == 0, "cuCtxGetCurrent: {code}");
        Ok(current.addr())
    };
    ensure!(current()? == 0, "this thread has a context already");
    let stream = context.stream()?;
    let mut words = env.pool()?.alloc::<u32>(&stream, 10)?;
    let fill = kernel(&context, "fill")?;
    ensure!(current()? == 0, "loading left a context");
    // SAFETY: as the kernel says.
    unsafe { fill.launch(&stream, Launch::over(10, 32), (&mut words, 1u32, 10u64)) }?;
    ensure!(current()? == 0, "launching left a context");
    fill.occupancy(32, 0)?;
    fill.best_block(0)?;
    drop(fill);
    ensure!(current()? == 0, "unloading left a context");
    ensure!(words.to_vec()? == [1; 10]);
    Ok(())
}

/// Alone, because a fork copies only the thread that forks. Another one is asking the compiler nearly all the time.
#[apply(case_alone)]
fn a_fork_does_not_wait_for_a_thread_that_takes_functions(env: &Environment) -> Result<()> {
    env.need(12, 0)?;
    let (library, context) = (env.driver.load_library(&Image::ptx(PTX)?)?, env.context()?);
    library.function("fill", &context)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let takes = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                library.function("fill", &context)?;
            }
            Ok::<(), cuda_mem::Error>(())
        });
        let forked = (0..20).try_for_each(|_| {
            // SAFETY: the child asks for what is refused there, and ends.
            let child = unsafe { forks::fork() }?;
            if child == 0 {
                let answer = library.function("fill", &context);
                let refused = answer.is_err_and(|error| error.kind() == ErrorKind::Forked);
                forks::end_child(refused && library.devices().is_empty());
            }
            forks::ends_within(child, Duration::from_secs(20))
        });
        is_over.store(true, Ordering::Relaxed);
        takes.join().map_err(|_| anyhow!("a thread panicked"))??;
        forked
    })
}
