//! Carrying out the operations of a program.

use anyhow::Result;

use super::state::{Local, State};
use super::step::Step;

impl State<'_> {
    /// Does one operation, and checks the numbers of all resources.
    pub(super) fn step(&mut self, local: &mut Local, step: &Step) -> Result<()> {
        let lines = self.trace.len();
        self.perform(local, step)?;
        self.tally.count(step, self.trace.len() > lines);
        if self.alone {
            self.resources
                .iter()
                .try_for_each(|resource| resource.check())?;
        }
        Ok(())
    }

    fn perform(&mut self, local: &mut Local, step: &Step) -> Result<()> {
        match *step {
            Step::Alloc {
                resource,
                stream,
                words,
                make,
            } => self.alloc(local, (resource, stream), words, make).map(drop),
            Step::End(value, end) => self.end(value, end),
            Step::Fill(value) => self.fill(value),
            Step::Write(value) => self.write(value),
            Step::Read(value) => self.read(value),
            Step::Copy { to, from } => self.copy(to, from),
            Step::Clone {
                from,
                resource,
                stream,
            } => self.duplicate(local, from, (resource, stream)),
            Step::Lend(value, stream, lend) => self.lend(value, stream, lend),
            Step::Move(value, stream, how) => self.move_to(value, stream, how),
            Step::Resize(value, words, how) => self.resize(value, words, how),
            Step::LendHost(value, stream) => self.lend_host(value, stream),
            Step::TakeHost(lent) => self.take_host(lent),
            Step::Record(ref record) => self.record(record),
            Step::Graph(graph, step) => self.graph(graph, step),
            Step::NewResource(ref spec) => self.new_resource(spec),
            Step::DropResource(resource) => self.drop_resource(resource),
            Step::Trim(resource, keep) => self.trim(resource, keep),
            Step::Tune(resource, policy, threshold) => self.tune(resource, policy, threshold),
            Step::Sleep(resource, contents, value) => self.sleep(resource, contents, value),
            Step::Scope(resource) => self.open_scope(local, resource),
            Step::EndScope => {
                if local.scopes.pop().is_some() {
                    self.log("end a scope");
                }
                Ok(())
            }
            _ => self.perform_on_streams(step),
        }
    }
}
