//! What is ordered after what: a clock for each stream, and what the host has synchronised with.
//! This is the model's own bookkeeping; it asks no driver.

/// How many streams a sequence uses.
pub(super) const STREAMS: usize = 3;

/// A moment in one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) stream: usize,
    time: u32,
}

/// For each stream, the last moment that comes before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Past([u32; STREAMS]);

impl Past {
    pub(super) fn contains(&self, point: Point) -> bool {
        self.0[point.stream] >= point.time
    }

    fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = theirs.max(*mine);
        }
    }
}

/// What a recorded event stands for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    past: Past,
    unsure: bool,
}

/// The order of all streams, as the program has made it.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// What comes before the next thing in each stream, with all of itself.
    past: [Past; STREAMS],
    /// What the host has seen done by synchronising.
    synchronised: Past,
    /// The host function that holds a stream, if there is one.
    gate: Option<Point>,
    /// Streams into which the driver may have put a wait of its own while the gate was there.
    unsure: [bool; STREAMS],
}

impl Order {
    /// Something is submitted.
    pub(super) fn submit(&mut self, stream: usize) -> Point {
        self.past[stream].0[stream] += 1;
        Point {
            stream,
            time: self.past[stream].0[stream],
        }
    }

    /// What comes before the next thing in `stream`.
    pub(super) fn past(&self, stream: usize) -> Past {
        self.past[stream]
    }

    /// What an event recorded now would stand for.
    pub(super) fn mark(&self, stream: usize) -> Mark {
        Mark {
            past: self.past[stream],
            unsure: self.unsure[stream],
        }
    }

    /// From now on `later` comes after `mark`.
    pub(super) fn wait(&mut self, later: usize, mark: &Mark) {
        self.past[later].join(&mark.past);
        self.unsure[later] |= mark.unsure && self.gate.is_some();
    }

    /// From now on `later` comes after what is in `earlier`.
    pub(super) fn join(&mut self, later: usize, earlier: usize) {
        let mark = self.mark(earlier);
        self.wait(later, &mark);
    }

    /// The driver has made `stream` wait for `past`.
    pub(super) fn driver_waits(&mut self, stream: usize, past: &Past) {
        self.past[stream].join(past);
    }

    /// The driver may have made `stream` wait for something that we cannot name.
    pub(super) fn driver_may_wait(&mut self, stream: usize) {
        self.unsure[stream] |= self.gate.is_some();
    }

    /// A host function holds `stream` from here.
    pub(super) fn hold(&mut self, stream: usize) {
        self.gate = Some(self.submit(stream));
    }

    /// It is let go.
    pub(super) fn let_go(&mut self) {
        self.gate = None;
        self.unsure = [false; STREAMS];
    }

    pub(super) fn is_held(&self) -> bool {
        self.gate.is_some()
    }

    /// Whether nothing with this past can be done, because it comes after the gate.
    pub(super) fn is_behind_gate(&self, past: &Past) -> bool {
        self.gate.is_some_and(|gate| past.contains(gate))
    }

    /// Whether work in `stream` is sure to be done without anybody's help.
    pub(super) fn flows(&self, stream: usize) -> bool {
        !self.is_behind_gate(&self.past[stream]) && !self.unsure[stream]
    }

    /// The host has synchronised with `stream`.
    pub(super) fn synchronise(&mut self, stream: usize) {
        let past = self.past[stream];
        self.synchronised.join(&past);
    }

    /// The host has synchronised with the context.
    pub(super) fn synchronise_all(&mut self) {
        (0..STREAMS).for_each(|stream| self.synchronise(stream));
    }

    pub(super) fn is_synchronised(&self, point: Point) -> bool {
        self.synchronised.contains(point)
    }

    /// Whether what `stream` does next comes after `point` by order alone.
    pub(super) fn follows(&self, stream: usize, point: Point) -> bool {
        self.past[stream].contains(point)
    }
}

mod tests {
    use anyhow::Result;

    use super::*;
    use crate::environment::Environment;

    #[apply(case_of_harness)]
    fn a_wait_orders_what_came_before_it_and_no_more(_: &Environment) -> Result<()> {
        let mut order = Order::default();
        let before = order.submit(0);
        order.join(1, 0);
        let behind = order.submit(0);
        assert!(order.follows(1, before) && !order.follows(1, behind));
        assert!(!order.follows(2, before));
        order.join(2, 1);
        assert!(order.follows(2, before), "through the other stream");
        Ok(())
    }

    #[apply(case_of_harness)]
    fn a_gate_holds_what_comes_after_it_until_it_is_let_go(_: &Environment) -> Result<()> {
        let mut order = Order::default();
        let early = order.past(0);
        order.hold(0);
        assert!(!order.flows(0) && order.flows(1) && !order.is_behind_gate(&early));
        order.join(1, 0);
        assert!(!order.flows(1));
        order.let_go();
        assert!(order.flows(0) && order.flows(1));
        Ok(())
    }

    #[apply(case_of_harness)]
    fn a_synchronise_sees_what_the_stream_waited_for(_: &Environment) -> Result<()> {
        let mut order = Order::default();
        let point = order.submit(0);
        order.synchronise(1);
        assert!(!order.is_synchronised(point));
        order.join(1, 0);
        order.synchronise(1);
        assert!(order.is_synchronised(point));
        Ok(())
    }

    #[apply(case_of_harness)]
    fn a_wait_that_may_be_there_is_passed_on(_: &Environment) -> Result<()> {
        let mut order = Order::default();
        order.hold(0);
        order.driver_may_wait(1);
        order.join(2, 1);
        assert!(!order.flows(1) && !order.flows(2));
        Ok(())
    }
}
