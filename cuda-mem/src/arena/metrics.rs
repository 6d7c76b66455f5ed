//! Statistics of an arena for the crate `metrics`.

use super::ArenaStats;
use crate::base::telemetry::{Metric, Value, publish};

impl ArenaStats {
    /// Publishes these numbers through the crate `metrics`, with the label `name`: gauges of bytes and blocks, and counters
    /// of events, `cuda_mem_arena_reserved_bytes` and so on. Call it when numbers are collected, or now and then. Needs
    /// the feature `metrics`.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let arena = Arena::builder(&Driver::load()?.device(0)?).build()?;
    /// arena.stats().publish("activations");
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn publish(&self, name: &str) {
        use Value::{Bytes, Count, Total};
        let metrics = [
            (
                "cuda_mem_arena_reserved_bytes",
                "Bytes that the arena holds",
                Bytes(self.reserved),
            ),
            (
                "cuda_mem_arena_reserved_peak_bytes",
                "The most bytes that it has held",
                Bytes(self.reserved_peak),
            ),
            (
                "cuda_mem_arena_live_bytes",
                "Bytes that are allocated",
                Bytes(self.live),
            ),
            (
                "cuda_mem_arena_asleep_bytes",
                "Bytes of addresses whose memory sleeps",
                Bytes(self.asleep),
            ),
            (
                "cuda_mem_arena_live_blocks",
                "Blocks that are allocated",
                Count(self.live_blocks),
            ),
            (
                "cuda_mem_arena_streams",
                "Streams that it has or had memory for",
                Count(self.streams),
            ),
            (
                "cuda_mem_arena_grown_total",
                "How often it grew",
                Total(self.grown),
            ),
            (
                "cuda_mem_arena_moved_total",
                "Pieces of physical memory that it has moved",
                Total(self.moved),
            ),
            (
                "cuda_mem_arena_released_total",
                "Pieces of memory that it has released",
                Total(self.released),
            ),
            (
                "cuda_mem_arena_waits_total",
                "How often it made a stream wait for another one",
                Total(self.waits),
            ),
            (
                "cuda_mem_arena_driver_calls_total",
                "Driver calls that it has made",
                Total(self.driver_calls),
            ),
        ];
        let metrics = metrics.map(|(name, about, value)| Metric { name, about, value });
        publish(name, metrics);
    }
}
