//! What a hook may do that is told of a failure.

use std::alloc::Layout;

use anyhow::{Result, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::{Arena, MemoryResource as _};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::hold::hold;

pub(crate) fn panic_in_a_hook(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    // SAFETY: not so: the address is nobody's, and the driver refuses to free it.
    let wrong = unsafe { cuda_mem::DeviceBuffer::<u8>::from_raw(&stream, 0x10, 1) };
    std::panic::set_hook(Box::new(|_| {}));
    cuda_mem::base::on_drop_failure(|_| panic!("in the hook"));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(wrong)));
    ensure!(drop_counts().failures == 1, "{:?}", drop_counts());
    println!("{} panics came out", u8::from(caught.is_err()));
    Ok(())
}

/// An arena finds out late that a block was freed twice, and the hook uses the arena. It would wait for ever for a lock
/// that its own thread had.
pub(crate) fn use_an_arena_in_a_hook(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let (own, user) = (env.stream()?, env.stream()?);
    let held = hold(&user)?;
    let layout = Layout::from_size_align(1 << 20, 256)?;
    let address = arena.allocate(layout, &own)?;
    // SAFETY: allocated above, and used by nobody.
    unsafe { arena.deallocate_after(address, layout, &own, &[&user]) }?;
    // SAFETY: not so: it is freed, which the arena does not see yet. Nobody uses the memory.
    unsafe { arena.deallocate(address, layout, &own) }?;
    let of_hook = arena.clone();
    cuda_mem::base::on_drop_failure(move |failure| {
        let text = failure.error.to_string();
        let is_told = text.contains("given back already");
        let has_trimmed = of_hook.trim_to(0).is_ok();
        println!("told: {is_told}, trimmed: {has_trimmed}");
    });
    drop(held);
    user.synchronize()?;
    arena.trim_to(0)?;
    ensure!(drop_counts().failures == 1, "{:?}", drop_counts());
    Ok(())
}
