//! Advice when memory does not fit: alternative requests, tried against the same table.

#![forbid(unsafe_code)]

use super::error::PlaceError;
use super::policy::decide;
use super::request::{AccessPattern, Export, PlacementRequest};
use super::topology::Topology;

impl PlaceError {
    /// Returns the same error, with advice added if the memory does not fit.
    pub(super) fn advised(mut self, request: &PlacementRequest, machine: &Topology) -> Self {
        if let Self::NoRoom {
            capacity, remedy, ..
        } = &mut self
        {
            *remedy = remedies(request, machine, *capacity);
        }
        self
    }
}

fn remedies(request: &PlacementRequest, machine: &Topology, capacity: u64) -> String {
    let helps = |request: &PlacementRequest| decide(request, machine).is_ok();
    let others = (0..machine.devices.len()).filter(|device| *device != request.home);
    let spread = request.clone().peers(others.clone());
    let is_alone = request.peers.iter().all(|peer| *peer == request.home);
    let more = match is_alone {
        true => "name peers to spread it over",
        false => "name more peers",
    };
    let mut all = Vec::new();
    if capacity > 0 {
        all.push("ask for less".to_owned());
    }
    let may_spread = helps(&spread);
    if may_spread {
        all.push(more.to_owned());
    }
    // If it is used by several, the home stays one of them.
    let also = (!is_alone).then_some(request.home);
    let peers = request.peers.iter().copied().chain(also);
    let at = |device: &usize| request.clone().home(*device).peers(peers.clone());
    let mut larger = others.filter(|device| helps(&at(device)));
    if !may_spread && let Some(device) = larger.next() {
        let and = also.map_or(String::new(), |home| format!(" and device {home} a peer"));
        all.push(format!("make device {device} the home{and}"));
    }
    if request.export != Export::None {
        if helps(&request.clone().export(Export::None)) {
            all.push("do not export it".to_owned());
        } else if helps(&spread.export(Export::None)) {
            all.push(format!("do not export it and {more}"));
        }
    }
    let on_host = request.clone().access(AccessPattern::Shared);
    if all.len() < 2 && helps(&on_host) {
        all.push("ask for memory of the host (`AccessPattern::Shared`)".to_owned());
    }
    match all.pop() {
        None => "take a machine with more memory".to_owned(),
        Some(last) if all.is_empty() => last,
        Some(last) => format!("{}, or {last}", all.join(", ")),
    }
}
