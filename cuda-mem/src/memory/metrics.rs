//! Statistics of pools and resources for the crate `metrics`.

use super::{PoolStats, Statistics};
use crate::base::telemetry::{Metric, Value, publish};

impl PoolStats {
    /// Publishes these numbers through the crate `metrics`, with the label `name`: gauges in bytes,
    /// `cuda_mem_pool_reserved_bytes` and so on. Needs the feature `metrics`.
    ///
    /// ```
    /// use cuda_mem::{Driver, MemoryPool};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let pool = MemoryPool::builder(&Driver::load()?.device(0)?).build()?;
    /// pool.stats()?.publish("weights");
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn publish(&self, name: &str) {
        let metrics = [
            (
                "cuda_mem_pool_reserved_bytes",
                "Bytes that the pool holds",
                self.reserved.current,
            ),
            (
                "cuda_mem_pool_reserved_high_bytes",
                "The most bytes that it has held",
                self.reserved.high,
            ),
            (
                "cuda_mem_pool_used_bytes",
                "Bytes that are allocated",
                self.used.current,
            ),
            (
                "cuda_mem_pool_used_high_bytes",
                "The most bytes that were allocated",
                self.used.high,
            ),
        ];
        let metrics = metrics.map(|(name, about, bytes)| Metric {
            name,
            about,
            value: Value::Bytes(bytes),
        });
        publish(name, metrics);
    }
}

impl Statistics {
    /// Publishes these numbers through the crate `metrics`, with the label `name`: `cuda_mem_resource_bytes`,
    /// `cuda_mem_resource_peak_bytes`, `cuda_mem_resource_allocations` and `cuda_mem_resource_allocations_total`. Needs
    /// the feature `metrics`.
    pub fn publish(&self, name: &str) {
        let positive = |number: i64| u64::try_from(number).unwrap_or(0);
        let metrics = [
            (
                "cuda_mem_resource_bytes",
                "Bytes that are allocated",
                Value::Bytes(positive(self.bytes.current)),
            ),
            (
                "cuda_mem_resource_peak_bytes",
                "The most bytes that were allocated",
                Value::Bytes(positive(self.bytes.peak)),
            ),
            (
                "cuda_mem_resource_allocations",
                "Allocations that were not freed",
                Value::Count(positive(self.allocations.current)),
            ),
            (
                "cuda_mem_resource_allocations_total",
                "All allocations so far",
                Value::Total(self.allocations.total),
            ),
        ];
        let metrics = metrics.map(|(name, about, value)| Metric { name, about, value });
        publish(name, metrics);
    }
}
