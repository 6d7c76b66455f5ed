//! Tests that need no GPU. `run.sh` puts the simulator where cudarc looks for the driver; it is one machine for all tests,
//! so what counts or fails calls is in one test.

use cuda_sim::{CUresult, Control};
use gpu_memory_with_cudarc::add;

#[test]
fn sums_are_right_and_a_failure_comes_back() {
    // The driver that cudarc opens, by the same name.
    let control = Control::open("libcuda.so").expect("run.sh put the simulator there");
    control.kernel("vector_add", |launch| {
        let [sum, a, b] = [launch.argument(0)?, launch.argument(1)?, launch.argument(2)?];
        let count = launch.argument::<u64>(3)? as usize;
        let (a, b) = (launch.read::<f32>(a, count)?, launch.read::<f32>(b, count)?);
        let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        launch.write(sum, &sums)
    });
    assert_eq!(add(&[1.0, 2.0], &[0.5, 0.5]), Ok(vec![1.5, 2.5]));

    control.fail("cuLaunchKernel", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert!(add(&[1.0], &[2.0]).is_err());
    assert_eq!(control.live().allocations, 0, "cudarc gives its memory back");
    assert_eq!(control.reports(), [""; 0]);
}
