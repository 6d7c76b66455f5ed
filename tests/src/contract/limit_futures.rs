//! Futures that wait for a limit.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::memory::{AlignedAdaptor, LimitAdaptor, StatisticsAdaptor};
use cuda_mem::{DeviceBuffer, ErrorKind, Resource};

use crate::environment::Environment;
use crate::executor::{LONG, Wakes, block_on, poll, run_all};
use crate::resources::failing::{Failing, Failure};

#[apply(case)]
fn tasks_wait_for_the_limit_in_turn(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let limit = Arc::new(LimitAdaptor::new(env.pool()?, 1000));
    let direct = Resource::from(Arc::clone(&limit));
    // Also through what is above the limit.
    let above = Resource::new(StatisticsAdaptor::new(Arc::clone(&limit)));
    let first = block_on(limit.alloc_when_free::<u8>(&direct, &stream, 600))?;
    let count = Arc::<Wakes>::default();
    let mut large = pin!(limit.alloc_when_free::<u32>(&above, &stream, 200));
    let mut gives_up = Box::pin(limit.alloc_when_free::<u8>(&direct, &stream, 300));
    let mut small = pin!(limit.alloc_when_free::<u8>(&direct, &stream, 300));
    ensure!(poll(large.as_mut(), &count).is_pending());
    ensure!(poll(gives_up.as_mut(), &count).is_pending());
    ensure!(
        poll(small.as_mut(), &count).is_pending(),
        "it would fit, and others came before"
    );
    ensure!(limit.waiting() == 3 && limit.allocated() == 600);
    drop(gives_up);
    ensure!(limit.waiting() == 2);
    drop(first);
    count.wait(1)?;
    ensure!(count.count() == 1, "one fits");
    ensure!((limit.waiting(), limit.allocated()) == (1, 800));
    ensure!(poll(small.as_mut(), &count).is_pending());
    let Poll::Ready(large) = poll(large, &count) else {
        anyhow::bail!("it was woken and is not ready");
    };
    let large = large?;
    ensure!(
        large.len() == 200 && limit.allocated() == 800,
        "counted twice"
    );
    drop(large);
    count.wait(2)?;
    let small = block_on(small)?;
    ensure!((small.len(), limit.allocated(), limit.waiting()) == (300, 300, 0));

    // Bytes that were granted and not taken come back, and so do those of a request that went elsewhere.
    let mut late = Box::pin(limit.alloc_when_free::<u8>(&direct, &stream, 900));
    ensure!(poll(late.as_mut(), &count).is_pending());
    drop(small);
    ensure!(limit.allocated() == 900, "it is granted");
    drop(late);
    ensure!((limit.allocated(), limit.waiting()) == (0, 0));
    let elsewhere = Resource::from(env.pool()?);
    let buffer = block_on(limit.alloc_when_free::<u8>(&elsewhere, &stream, 900))?;
    ensure!(limit.allocated() == 0);
    drop(buffer);

    let error = block_on(limit.alloc_when_free::<u8>(&direct, &stream, 1001));
    let error = error.err().context("more than the limit")?;
    ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    let none = block_on(limit.alloc_when_free::<u8>(&direct, &stream, 0))?;
    ensure!(none.is_empty());
    Ok(())
}

#[apply(case)]
fn threads_and_tasks_share_the_limit(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let limit = LimitAdaptor::new(env.pool()?, 1000).with_wait_timeout(LONG);
    let limit = Arc::new(limit);
    let resource = Resource::from(Arc::clone(&limit));
    std::thread::scope(|scope| {
        let thread = || -> Result<()> {
            let stream = context.stream()?;
            for _ in 0..50 {
                resource.alloc_zeroed::<u8>(&stream, 600)?.free()?;
            }
            Ok(())
        };
        let threads = [(); 2].map(|()| scope.spawn(thread));
        let task = |_: usize| async {
            let stream = context.stream()?;
            for _ in 0..10 {
                let mut buffer = limit.alloc_when_free::<u8>(&resource, &stream, 400).await?;
                buffer.fill(1)?;
                stream.completion()?.await?;
            }
            Ok::<_, cuda_mem::Error>(())
        };
        for output in run_all(2, (0..20).map(task)) {
            output?;
        }
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("it panicked"))??;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    ensure!((limit.allocated(), limit.waiting()) == (0, 0));
    Ok(())
}

#[apply(case)]
fn a_panic_leaves_the_limit_as_it_was(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let panicking = |upstream: Resource| {
        let panicking = Failing::new(upstream);
        panicking.fail_next(Failure::Panic);
        Resource::new(panicking)
    };
    let panics = |limit: &LimitAdaptor<Resource>, resource: &Resource| {
        let alloc = limit.alloc_when_free::<u8>(resource, &stream, 900);
        catch_unwind(AssertUnwindSafe(|| block_on(alloc))).is_err()
    };
    // Below the limit, and above it, where the request has not come to the limit yet.
    let below = panicking(env.pool()?.into());
    let limit = Arc::new(LimitAdaptor::new(below, 1000));
    ensure!(panics(&limit, &Resource::from(Arc::clone(&limit))));
    ensure!(limit.allocated() == 0, "{}", limit.allocated());

    let limit = Arc::new(LimitAdaptor::new(Resource::from(env.pool()?), 1000));
    let direct = Resource::from(Arc::clone(&limit));
    ensure!(panics(&limit, &panicking(direct.clone())));
    ensure!(limit.allocated() == 0, "{}", limit.allocated());
    let buffer = direct.alloc::<u8>(&stream, 900)?;
    let second = direct
        .alloc::<u8>(&stream, 900)
        .err()
        .map(|error| error.kind());
    ensure!(second == Some(ErrorKind::OutOfMemory), "the grant was left");
    drop(buffer);
    ensure!(limit.allocated() == 0);
    Ok(())
}

#[apply(case)]
fn a_waker_may_own_memory_of_the_limit(env: &Environment) -> Result<()> {
    struct Owner {
        _buffer: Mutex<DeviceBuffer<u8>>,
    }
    impl Wake for Owner {
        fn wake(self: Arc<Self>) {}
    }
    let stream = env.stream()?;
    let limit = Arc::new(LimitAdaptor::new(env.pool()?, 1000));
    let resource = Resource::from(Arc::clone(&limit));
    let owned = resource.alloc::<u8>(&stream, 600)?;
    let rest = resource.alloc::<u8>(&stream, 300)?;
    let mut future = pin!(limit.alloc_when_free::<u8>(&resource, &stream, 900));
    let waker = Waker::from(Arc::new(Owner {
        _buffer: Mutex::new(owned),
    }));
    ensure!(
        future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    drop(waker);
    // The last poll's waker is dropped, and with it the buffer.
    let count = Arc::<Wakes>::default();
    ensure!(poll(future.as_mut(), &count).is_pending());
    ensure!(limit.allocated() == 300);
    drop(rest);
    count.wait(1)?;
    ensure!(block_on(future)?.len() == 900);
    Ok(())
}

#[apply(case)]
fn a_resource_above_the_limit_may_ask_for_more(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let limit = LimitAdaptor::new(env.pool()?, 10_000).with_wait_timeout(LONG);
    let limit = Arc::new(limit);
    let aligned = Resource::new(AlignedAdaptor::new(Arc::clone(&limit), 4096)?);
    let buffer = block_on(limit.alloc_when_free::<u8>(&aligned, &stream, 6000))?;
    let allocated = limit.allocated();
    ensure!(allocated > 6000 && allocated <= 10_000, "{allocated}");
    // What does not fit besides is refused at once: the future would wait for itself.
    let begun = Instant::now();
    let error = block_on(limit.alloc_when_free::<u8>(&aligned, &stream, 100));
    ensure!(error.is_err_and(|error| error.kind() == ErrorKind::OutOfMemory));
    ensure!(begun.elapsed() < LONG / 2, "it waited");
    drop(buffer);
    ensure!(limit.allocated() == 0);
    Ok(())
}
