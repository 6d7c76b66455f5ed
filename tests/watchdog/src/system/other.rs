//! Where stacks are not shown.

use std::io::Write as _;

pub(super) fn set_alarm() {}

pub(super) fn print(text: &str) {
    // There is nobody to tell that it failed.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

pub(super) fn print_stack_of_faults() {}

pub(super) fn print_stacks() {}

/// Does nothing: children are not looked for.
pub fn end_children(_parent: u32) {}
