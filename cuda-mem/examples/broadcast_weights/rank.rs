//! One rank's part.

use std::time::Instant;

use anyhow::{Result, ensure};
use cuda_mem::Arena;
use cuda_mem::collective::{Communicator, ReduceOp, RegisteredResource};

use super::common::synchronize;
use super::numbers::Numbers;
use super::weights::Checksum;

/// The rank that has the weights.
const ROOT: usize = 0;

/// Each buffer of an arena takes a multiple of this.
const UNIT: u64 = 256;

/// What rank 0 knows at the end.
pub(crate) struct Report {
    /// Equal on all ranks.
    pub(crate) checksum: u64,
    pub(crate) rows: Vec<Row>,
}

/// What a rank received, and its arena.
pub(crate) struct Row {
    pub(crate) tensors: u64,
    pub(crate) bytes: u64,
    /// Nanoseconds from the start of the first broadcast to the end of the last.
    pub(crate) elapsed_ns: u64,
    /// Bytes that the arena holds.
    pub(crate) reserved: u64,
}

impl Row {
    fn to_numbers(&self) -> [u64; 4] {
        [self.tensors, self.bytes, self.elapsed_ns, self.reserved]
    }

    fn from_numbers([tensors, bytes, elapsed_ns, reserved]: [u64; 4]) -> Self {
        Self {
            tensors,
            bytes,
            elapsed_ns,
            reserved,
        }
    }

    /// Bytes that the arena holds beside the tensors.
    pub(crate) fn overhead(&self) -> u64 {
        self.reserved.saturating_sub(self.bytes)
    }

    pub(crate) fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.elapsed_ns.max(1) as f64
    }
}

/// Distributes the weights, which only the root uses, and checks what has come.
pub(crate) fn rank(communicator: &Communicator, weights: &[Vec<u8>]) -> Result<Report> {
    let stream = communicator.context().stream()?;
    let is_root = communicator.rank() == ROOT;
    let numbers = Numbers::new(communicator, &stream)?;
    let own = weights.iter().map(|tensor| tensor.len() as u64);
    let sizes = numbers.broadcast(own.collect(), ROOT)?;

    // All at once: each piece is physical memory of its own, and has to be registered.
    let initial = sizes.iter().map(|bytes| bytes.next_multiple_of(UNIT)).sum();
    let memory = RegisteredResource::builder(communicator).build()?;
    let arena = Arena::builder_over(memory).initial_bytes(initial).build()?;
    let mut tensors = Vec::with_capacity(sizes.len());
    for (at, bytes) in sizes.iter().enumerate() {
        let mut tensor = arena.alloc::<u8>(&stream, usize::try_from(*bytes)?)?;
        if is_root {
            tensor.copy_from(&weights[at])?;
        }
        tensors.push(tensor);
    }

    // All ranks start together, so no time is spent on waiting for the root's copies.
    numbers.reduce(0, ReduceOp::Max)?;
    let start = Instant::now();
    for tensor in &mut tensors {
        communicator.broadcast(tensor, ROOT)?;
    }
    synchronize(communicator, &stream)?;
    let elapsed = start.elapsed();

    let (mut sent, mut received) = (Checksum::default(), Checksum::default());
    for (at, tensor) in tensors.iter().enumerate() {
        if is_root {
            sent.add(&weights[at]);
        }
        received.add(&tensor.to_vec()?);
    }
    let received = received.value();
    let least = numbers.reduce(received, ReduceOp::Min)?;
    let most = numbers.reduce(received, ReduceOp::Max)?;
    ensure!(
        least == most,
        "the checksums of the ranks differ: {received:016x} here, {least:016x} to {most:016x} in all"
    );
    // Equal contents may be equally wrong.
    ensure!(
        !is_root || sent.value() == received,
        "the weights have the checksum {:016x}, and {received:016x} in the memory of the device",
        sent.value()
    );
    let own = Row {
        tensors: tensors.len() as u64,
        bytes: sizes.iter().sum(),
        elapsed_ns: u64::try_from(elapsed.as_nanos())?,
        reserved: arena.stats().reserved,
    };
    let rows = numbers.gather(own.to_numbers())?;
    Ok(Report {
        checksum: received,
        rows: rows.into_iter().map(Row::from_numbers).collect(),
    })
}
