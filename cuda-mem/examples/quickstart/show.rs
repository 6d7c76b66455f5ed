//! Tables for people, one JSON object for programs.

use anyhow::Result;
use cuda_mem::driver::Capability;
use cuda_mem::memory::Strategy;
use cuda_mem::{Device, MemoryPool, PoolStats};
use cuda_mem_console::{Backend, bytes, count, figures, nanoseconds, say, table};
use serde_json::{Map, Value, json};

use crate::replay::{Replay, Served};
use crate::tour::Steps;

/// Prints immediately, or collects everything for the end.
pub(crate) struct Show {
    json: bool,
    object: Map<String, Value>,
}

impl Show {
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            object: Map::new(),
        }
    }

    fn print(&self, text: impl std::fmt::Display) -> Result<()> {
        if self.json { Ok(()) } else { say!("{text}") }
    }

    pub(crate) fn backend(&mut self, backend: &Backend) -> Result<()> {
        let kind = backend.name();
        let version = backend.driver.version().to_string();
        self.print(format_args!("driver: {kind}, CUDA {version}"))?;
        self.object.insert("backend".into(), kind.into());
        self.object.insert("cuda_version".into(), version.into());
        Ok(())
    }

    pub(crate) fn device(&mut self, device: Device) -> Result<()> {
        let (name, can) = (device.name()?, device.capabilities()?);
        let (major, minor) = can.compute_capability;
        let total = device.total_memory()?;
        self.print(format_args!(
            "device {}: {name}, {}, compute {major}.{minor}, {} multiprocessors\n",
            device.ordinal(),
            bytes(total),
            can.multiprocessors,
        ))?;
        let mut rows = Vec::new();
        for (what, capability) in [
            ("memory pools", Capability::MemoryPools),
            ("host memory pools", Capability::HostMemoryPools),
            ("virtual memory", Capability::VirtualMemory),
            ("unified addressing", Capability::UnifiedAddressing),
            ("managed, concurrent", Capability::ConcurrentManagedAccess),
            ("pageable memory", Capability::PageableMemoryAccess),
            ("GPUDirect RDMA", Capability::GpuDirectRdma),
            ("dma-buf", Capability::DmaBuf),
        ] {
            rows.push((what, device.support(capability)?.to_string()));
        }
        rows.insert(1, ("pool handle types", can.pool_handle_types.to_string()));
        let mut table = table(["capability", "this device"]);
        for (what, value) in &rows {
            table.add_row([*what, value.as_str()]);
        }
        self.print(&table)?;
        let capabilities: Map<String, Value> = rows
            .into_iter()
            .map(|(what, value)| (what.to_owned(), value.into()))
            .collect();
        self.object.insert(
            "device".into(),
            json!({
                "ordinal": device.ordinal(),
                "name": name,
                "total_bytes": total,
                "compute_capability": format!("{major}.{minor}"),
                "capabilities": capabilities,
            }),
        );
        Ok(())
    }

    pub(crate) fn pool(&mut self, pool: &MemoryPool) -> Result<()> {
        self.print(format_args!(
            "\npool: release threshold {}, reuse {}",
            pool.release_threshold()?,
            pool.reuse_policy()?
        ))
    }

    pub(crate) fn no_tour(&self, strategy: &Strategy) -> Result<()> {
        self.print(format_args!(
            "\nno tour of a pool on this device; its default resource is {strategy}"
        ))
    }

    pub(crate) fn steps(&self, steps: &Steps) -> Result<()> {
        let mut table = figures(1, ["step", "reserved", "high", "used", "high"]);
        for (what, stats) in steps {
            table.add_row([
                (*what).to_owned(),
                bytes(stats.reserved.current),
                bytes(stats.reserved.high),
                bytes(stats.used.current),
                bytes(stats.used.high),
            ]);
        }
        self.print(&table)
    }

    pub(crate) fn replay(&self, replay: &Replay, backend: &Backend) -> Result<()> {
        let per_op = |time: std::time::Duration| {
            nanoseconds(time.as_nanos() as f64 / replay.operations as f64)
        };
        let waste = |reserved: u64| bytes(reserved.saturating_sub(replay.peak_asked));
        let known = |text: Option<String>| text.unwrap_or_else(|| "not counted".to_owned());
        let driver = replay.driver_source();
        let mut table = figures(1, ["training run replayed", driver, "arena"]);
        let both = |what: &str, of: &dyn Fn(&Served) -> String| {
            [what.to_owned(), of(&replay.driver), of(&replay.arena)]
        };
        table.add_row(both("operations", &|_| count(replay.operations as u64)));
        table.add_row(both("time per operation, cold", &|served| {
            per_op(served.cold)
        }));
        table.add_row(both("time per operation, warm", &|served| {
            per_op(served.warm)
        }));
        table.add_row(both("peak asked", &|_| bytes(replay.peak_asked)));
        table.add_row(both("peak reserved", &|served| {
            known(served.peak_reserved.map(bytes))
        }));
        table.add_row(both("waste", &|served| {
            known(served.peak_reserved.map(waste))
        }));
        table.add_row(both("reserved / asked", &|served| {
            let ratio = replay.reserved_over_asked(served);
            known(ratio.map(|ratio| format!("{ratio:.3}")))
        }));
        self.print(format_args!("\n{table}"))?;
        self.print(
            "One thread replays the run's allocations, without its kernels. The times are the cost of\n\
             allocation on that thread, not how much faster training gets. Reserved memory is not\n\
             available to other programs.",
        )?;
        if backend.simulated {
            self.print("(simulated driver: neither times nor waste say anything about a GPU)")?;
        }
        Ok(())
    }

    /// Prints the JSON object, if requested.
    pub(crate) fn finish(mut self, steps: Option<&Steps>, replay: &Replay) -> Result<()> {
        if !self.json {
            return Ok(());
        }
        let steps: Option<Vec<Value>> = steps.map(|steps| {
            steps
                .iter()
                .map(|(what, stats)| json!({ "step": what, "stats": stats_json(stats) }))
                .collect()
        });
        self.object.insert("tour".into(), steps.into());
        let per_op = |time: std::time::Duration| time.as_nanos() as f64 / replay.operations as f64;
        self.object.insert(
            "replay".into(),
            json!({
                "operations": replay.operations,
                "driver": replay.driver_source(),
                "ns_per_operation_cold": per_op(replay.driver.cold),
                "ns_per_operation_warm": per_op(replay.driver.warm),
                "peak_asked_bytes": replay.peak_asked,
                "stats": replay.stats.as_ref().map(stats_json),
                "reserved_over_asked": replay.reserved_over_asked(&replay.driver),
                "arena": {
                    "ns_per_operation_cold": per_op(replay.arena.cold),
                    "ns_per_operation_warm": per_op(replay.arena.warm),
                    "reserved_high_bytes": replay.arena.peak_reserved,
                    "reserved_over_asked": replay.reserved_over_asked(&replay.arena),
                },
            }),
        );
        say!("{}", serde_json::to_string(&self.object)?)
    }
}

fn stats_json(stats: &PoolStats) -> Value {
    json!({
        "reserved_bytes": stats.reserved.current,
        "reserved_high_bytes": stats.reserved.high,
        "used_bytes": stats.used.current,
        "used_high_bytes": stats.used.high,
    })
}
