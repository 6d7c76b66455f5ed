//! Random programs over the public interface, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.

use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::{programs, tests};

fn main() -> std::process::ExitCode {
    let tests = tests! {
        programs: programs_in_turns_hold_what_they_wrote,
            programs_of_free_threads_hold_what_they_wrote,
            a_word_that_is_overwritten_is_found,
            a_wait_that_is_left_out_is_found,
            memory_that_a_thread_freed_in_its_own_stream_comes_back;
    };
    // They look at what the whole process has.
    let options = Options {
        serial: true,
        ..Options::default()
    };
    run::main(&tests, options)
}
