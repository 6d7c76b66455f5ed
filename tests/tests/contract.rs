//! What holds on every driver, on the one that `CUDA_MEM_TEST_BACKEND` names or that is there.

use std::process::ExitCode;

use cuda_mem_tests::case::Kind;
use cuda_mem_tests::run;
use cuda_mem_tests::suite::Suite;
use cuda_mem_tests::{untouched, visible};

/// What the page of coverage counts: of all that is written once, with two devices.
const COVERAGE: Suite = Suite::made_of("coverage", |test| match test.kind {
    Kind::TwoDevices => test.is_in("peers"),
    Kind::Any => ["contract", "resources", "host", "window"]
        .iter()
        .any(|module| test.is_in(module)),
    Kind::Simulator => test.is_in("host") || test.is_in("peers"),
    _ => false,
})
.staged();

fn main() -> ExitCode {
    if let Some(code) = visible::as_child() {
        return code;
    }
    run::main(&[
        Suite::of("contract"),
        // Freeing memory that is no pool's holds up every other call of the process until the device is idle (R96): a
        // test that holds a stream beside it would wait for ever.
        Suite::of("resources"),
        Suite::of("arena"),
        Suite::of("placement"),
        Suite::of("random"),
        // There is one ledger in a process.
        Suite::of("ledger").serial(),
        // The others free what waits for the device, load code, or share pages, and some hold a stream.
        Suite::of("host").serial(),
        Suite::of("managed").serial(),
        Suite::of("modules").serial(),
        Suite::of("vmm").serial(),
        Suite::of("window").serial(),
        Suite::of("visible"),
        Suite::of("devices"),
        Suite::of("collective").serial(),
        // One of them looks at which contexts are active.
        Suite::made_of("two-devices", |test| match test.kind {
            Kind::TwoDevices => !test.is_in("collective"),
            Kind::Simulator => test.is_in("peers"),
            _ => false,
        })
        .devices(2)
        .serial(),
        // NCCL leaves contexts behind.
        Suite::made_of("two-ranks", |test| {
            test.kind == Kind::TwoDevices && test.is_in("collective")
        })
        .devices(2)
        .serial(),
        Suite::made_of("strangers", |test| test.is_in("devices::strangers"))
            .staged()
            .serial(),
        Suite::of("untouched_devices"),
        untouched::suite(),
        // They look at what the whole process has mapped.
        Suite::of("programs").serial(),
        Suite::made_of("long", |test| test.kind == Kind::Long).serial(),
        Suite::made_of("full-card", |test| test.kind == Kind::WholeCard).serial(),
        Suite::made_of("harness", |test| test.kind == Kind::Harness),
        COVERAGE,
    ])
}
