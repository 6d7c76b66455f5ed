//! The example's arithmetic, which needs no driver.

use anyhow::{Result, ensure};
use cuda_mem_tests::environment::Environment;

use super::figures::{Crossover, Pair, crossover, quantile};

fn crossing(of: &[(usize, f64, f64)]) -> Crossover {
    let pairs = of.iter().map(|(bytes, window, copy)| Pair {
        bytes: *bytes,
        window: *window,
        copy: *copy,
    });
    crossover(&pairs.collect::<Vec<_>>())
}

#[apply(case)]
fn quantiles_are_samples(_: &Environment) -> Result<()> {
    let mut samples: Vec<f64> = (0..101).rev().map(f64::from).collect();
    for (part, expected) in [(0.0, 0.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
        let found = quantile(&mut samples, part);
        ensure!((found - expected).abs() < 1e-9, "{part}: {found}");
    }
    ensure!((quantile(&mut [7.0], 0.99) - 7.0).abs() < 1e-9);
    ensure!(quantile(&mut [], 0.5).is_nan());
    Ok(())
}

#[apply(case)]
fn a_crossover_lies_between_two_sizes(_: &Environment) -> Result<()> {
    // Both are straight lines on logarithmic scales, which meet at 1 MiB / 100.
    let at = |bytes: usize| (bytes, bytes as f64, 10_485.76);
    let sizes: Vec<_> = (0..24).map(|power| at(1 << power)).collect();
    let found = crossing(&sizes);
    ensure!(found == Crossover::At(10_486), "{found:?}");
    // It may be at the last size.
    let found = crossing(&[(1, 1.0, 4.0), (16, 16.0, 4.0)]);
    ensure!(found == Crossover::At(4), "{found:?}");
    // Equal is not slower.
    let found = crossing(&[(1, 1.0, 4.0), (4, 4.0, 4.0), (16, 16.0, 4.0)]);
    ensure!(found == Crossover::At(4), "{found:?}");
    Ok(())
}

#[apply(case)]
fn a_copy_that_is_always_or_never_faster_is_told(_: &Environment) -> Result<()> {
    let never = [(1, 1.0, 9.0), (2, 2.0, 9.0), (4, 4.0, 9.0)];
    ensure!(crossing(&never) == Crossover::Never);
    let always = [(1, 9.0, 1.0), (2, 9.0, 2.0), (4, 9.0, 4.0)];
    ensure!(crossing(&always) == Crossover::AtOnce);
    ensure!(crossing(&[]) == Crossover::Never);
    Ok(())
}

#[apply(case)]
fn one_slow_sample_is_no_crossover(_: &Environment) -> Result<()> {
    let slow = [(1, 1.0, 9.0), (2, 99.0, 9.0), (4, 4.0, 9.0), (8, 8.0, 9.0)];
    ensure!(crossing(&slow) == Crossover::Never);
    let later = [
        (1, 1.0, 9.0),
        (2, 99.0, 9.0),
        (4, 4.0, 9.0),
        (8, 18.0, 9.0),
        (16, 20.0, 9.0),
    ];
    let found = crossing(&later);
    ensure!(matches!(found, Crossover::At(5..8)), "{found:?}");
    Ok(())
}
