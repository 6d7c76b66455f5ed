//! Managed memory: what is in it, who may have it, and what is told of it.

mod contents;
mod places;
mod told;

use anyhow::Result;
use cuda_mem::ManagedBuffer;
use cuda_mem::sys::CUdevice_attribute;

use crate::lab::{Lab, Skip};
use crate::run::Test;
use crate::{tests, tests_alone};

/// All of them.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut all = tests! {
        contents: host_and_kernels_see_what_the_other_wrote,
            kernels_read_what_the_host_wrote_in_place,
            a_prefetch_changes_nothing,
            advice_changes_nothing,
            the_host_waits_for_the_stream,
            the_host_waits_for_a_loan_that_was_leaked,
            readers_on_another_stream_are_waited_for_before_a_change,
            other_managed_resources_serve_too,
            nothing_and_elements_of_no_size_are_fine;
        told: advice_is_told_and_taken_back,
            a_part_is_told_of_alone,
            a_page_is_told_of_as_a_whole,
            a_range_over_a_border_is_both_pages,
            the_last_prefetch_is_known,
            several_may_access_it,
            journeys_are_counted;
        places: ranges_that_are_none_are_refused,
            places_that_are_none_are_refused,
            a_node_of_the_host_needs_a_newer_driver,
            other_memory_is_refused;
    };
    all.extend(tests_alone! {
        places: a_captured_stream_takes_no_prefetch;
        told: small_buffers_are_told_of_to_their_last_byte, in_a_fork_nothing_was_counted;
    });
    all
}

/// What needs two devices.
#[must_use]
pub fn of_two() -> Vec<Test> {
    tests! { told: it_goes_from_device_to_device; }
}

/// In bytes: of the sizes that memory is tested with, all that are not large, and those about a page.
const SIZES: [usize; 9] = [1, 4, 16, 1024, 4095, 4096, 4097, 1 << 20, (7 << 20) + 17];

/// Larger than what shares pages with others.
const LARGE: usize = 4 << 20;

/// A skip where there is no managed memory that host and devices may use at once.
fn need_concurrent(lab: &Lab) -> Result<()> {
    let concurrent = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
    for device in lab.driver.devices()? {
        if device.attribute(concurrent)?.unwrap_or(0) == 0 {
            let reason = format!("{device:?} has no concurrent managed access");
            return Err(Skip(reason).into());
        }
    }
    Ok(())
}

/// A large buffer on a new stream.
fn large(lab: &Lab) -> Result<ManagedBuffer<u8>> {
    need_concurrent(lab)?;
    Ok(ManagedBuffer::uninit(&lab.stream()?, LARGE)?)
}
