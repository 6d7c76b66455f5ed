//! Operations on resources.

use std::sync::Arc;

use anyhow::{Result, ensure};
use cuda_mem::arena::SleepContents;
use cuda_mem::{ErrorKind, MemoryResource as _, ReleaseThreshold, ReusePolicy};

use super::resource::ModelResource;
use super::state::{Local, State, pick};
use super::step::ResourceSpec;
use super::value::Kind;

/// Maximum numbers.
const RESOURCES: usize = 4;
const SCOPES: usize = 3;

impl State<'_> {
    pub(super) fn new_resource(&mut self, spec: &ResourceSpec) -> Result<()> {
        if self.resources.len() >= RESOURCES {
            return Ok(());
        }
        let name = self.name();
        let resource = ModelResource::new(self.fixture.env, name, spec)?;
        self.log(format!("{resource:?}"));
        self.resources.push(Arc::new(resource));
        Ok(())
    }

    /// Drops the handle. Memory allocated from it stays valid.
    pub(super) fn drop_resource(&mut self, resource: u8) -> Result<()> {
        if self.resources.len() > 1
            && let Some(place) = pick(resource, self.resources.len())
        {
            let resource = self.resources.remove(place);
            self.log(format!("drop resource {}", resource.name));
        }
        Ok(())
    }

    pub(super) fn trim(&mut self, resource: u8, keep: u64) -> Result<()> {
        let Some(resource) = self.resource(resource) else {
            return Ok(());
        };
        self.log(format!("trim resource {} to {keep} bytes", resource.name));
        resource.handle.trim_to(keep)?;
        // As a program would print it.
        let _ = format!("{:?}", resource.handle);
        Ok(())
    }

    pub(super) fn tune(
        &mut self,
        resource: u8,
        policy: ReusePolicy,
        threshold: ReleaseThreshold,
    ) -> Result<()> {
        let Some(resource) = self.resource(resource) else {
            return Ok(());
        };
        self.log(format!(
            "tune resource {}: {policy}, {threshold}",
            resource.name
        ));
        if let Some(pool) = &resource.pool {
            pool.set_reuse_policy(policy)?;
            pool.set_release_threshold(threshold)?;
            pool.reset_high_marks()?;
        }
        if let Some(arena) = &resource.arena {
            arena.set_release_threshold(threshold);
            arena.reset_peak();
        }
        Ok(())
    }

    pub(super) fn open_scope(&mut self, local: &mut Local, resource: u8) -> Result<()> {
        let Some(resource) = self
            .resource(resource)
            .filter(|_| local.scopes.len() < SCOPES)
        else {
            return Ok(());
        };
        self.log(format!("resource {} is current from now on", resource.name));
        let scope = self.fixture.device.use_resource(&resource.handle)?;
        local.scopes.push((scope, resource));
        Ok(())
    }

    pub(super) fn sleep(
        &mut self,
        resource: u8,
        contents: SleepContents,
        freed: Option<u8>,
    ) -> Result<()> {
        let resource = self
            .resource(resource)
            .filter(|resource| resource.is_free && self.alone);
        let Some((arena, resource)) =
            resource.and_then(|resource| Some((resource.arena.clone()?, resource)))
        else {
            return Ok(());
        };
        self.release_held();
        self.log(format!("resource {} sleeps: {contents:?}", resource.name));
        // SAFETY: this waits for the context of all streams, and nothing is submitted before the arena wakes.
        match unsafe { arena.sleep(contents) } {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::InUse && resource.has_captures() => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        self.tally.sleeps += 1;
        let stats = arena.stats();
        ensure!(stats.reserved == 0, "asleep: {stats}, {}", stats.asleep);
        if contents == SleepContents::Discard {
            for value in &mut self.values {
                value.forget(&resource.live);
            }
            for graph in &mut self.graphs {
                graph.forget(&resource.live);
            }
        }
        let freed = freed.and_then(|freed| pick(freed, self.values.len()));
        if let Some(place) = freed
            && !self.is_foreign(self.values[place].owner)
            && !matches!(self.values[place].kind, Kind::Raw(_))
        {
            let value = self.values.swap_remove(place);
            self.log(format!("asleep, drop {value}"));
            value.discard();
        }
        arena.wake()?;
        let stats = arena.stats();
        ensure!(stats.asleep == 0, "awake: {stats}, {} asleep", stats.asleep);
        self.log("it is awake");
        Ok(())
    }
}
