//! Operations that lend memory to another stream.

use anyhow::{Context as _, Result};
use cuda_mem::DeviceBuffer;

use super::content::Content;
use super::fixture::Mistake;
use super::state::{State, pick};
use super::step::Lend;
use super::value::{EDGE, InFlightValue, Kind, LONG, Raw, edges_of, on_buffer};

/// Maximum number of lent pinned buffers.
const LENT: usize = 3;

impl State<'_> {
    pub(super) fn lend(&mut self, value: u8, slot: u8, lend: Lend) -> Result<()> {
        let Some(place) = self.usable(value)? else {
            return Ok(());
        };
        let (word, second) = (self.word(), self.word());
        let slot = self.slot(slot)?;
        let (name, other, owner) = (slot.name, slot.stream.clone(), slot.owner);
        // Other threads cannot wait for a per-thread stream.
        let lend = match lend {
            Lend::Leak if owner.is_some() => Lend::Guard,
            Lend::LeakHalf if owner.is_some() => Lend::Halves,
            lend => lend,
        };
        let line = format!(
            "lend {} to stream {name} for {word:#x}: {lend:?}",
            self.values[place]
        );
        self.log(line);
        if matches!(lend, Lend::Read) {
            self.release_held();
            let value = &self.values[place];
            let loan = value.buffer().read_on(&other)?;
            if loan.len() <= LONG {
                let mut found = vec![0; loan.len()];
                loan.copy_to(&mut found)?;
                value
                    .content
                    .check(&found)
                    .with_context(|| value.to_string())?;
                self.tally.checked += 1;
            }
            return Ok(());
        }
        let value = &mut self.values[place];
        let len = value.len();
        if self.fixture.mistake == Some(Mistake::Order) && other != value.stream() {
            // It reads only: what a write without order does to contents is a matter of timing.
            self.release_held();
            let (value, mut found) = (&self.values[place], vec![0; len.min(EDGE)]);
            let address = value.address();
            // SAFETY: none; this is the mistake to be found. It is harmless on the simulator.
            let there =
                unsafe { DeviceBuffer::<u32>::borrow_raw(&other, address, found.len(), ()) };
            return Ok(there.copy_to(&mut found)?);
        }
        if matches!(lend, Lend::Halves | Lend::LeakHalf) && (2..=LONG).contains(&len) {
            let mid = len / 2;
            let mut rest = value.content.part(mid, len - mid);
            {
                let mut all = value.all();
                let (low, mut high) = all.split_at_mut(mid)?;
                let mut low = low.on(&other)?;
                low.fill(word)?;
                if matches!(lend, Lend::LeakHalf) {
                    std::mem::forget(low);
                } else {
                    high.fill(second)?;
                    rest = Content::whole(len - mid, Some(second));
                }
            }
            value.content = Content::whole(mid, Some(word));
            value.content.append(&rest);
            return Ok(());
        }
        let mut loan = on_buffer!(&mut value.kind, buffer => buffer.as_mut_slice().on(&other))?;
        if len > LONG {
            for first in edges_of(len) {
                loan.slice_mut(first..first + EDGE)?.fill(word)?;
            }
            value.content = Content::parts(len, &edges_of(len), EDGE, word);
        } else {
            loan.fill(word)?;
            value.content = Content::whole(len, Some(word));
        }
        if matches!(lend, Lend::Leak) {
            std::mem::forget(loan);
        }
        Ok(())
    }

    pub(super) fn lend_host(&mut self, value: u8, slot: u8) -> Result<()> {
        let Some(place) = self.usable(value)? else {
            return Ok(());
        };
        let len = self.values[place].len();
        if self.lent.len() >= LENT || len > LONG {
            return Ok(());
        }
        let (name, stream) = self.named(slot)?;
        let pinned = self.fixture.context.pinned::<u32>(len)?;
        let mut loan = pinned.lend(&stream).map_err(|failed| failed.error)?;
        let value = &self.values[place];
        if value.waits {
            self.release_held();
        }
        let value = &self.values[place];
        loan.copy_from(value.buffer())?;
        let content = value.content.clone();
        self.log(format!(
            "copy {} to pinned memory in stream {name}",
            self.values[place]
        ));
        self.lent.push(InFlightValue { loan, content });
        Ok(())
    }

    pub(super) fn take_host(&mut self, lent: u8) -> Result<()> {
        if let Some(place) = pick(lent, self.lent.len()) {
            self.release_held();
            let InFlightValue { loan, content } = self.lent.swap_remove(place);
            let pinned = loan.take_back().map_err(|failed| failed.error)?;
            self.log("take pinned memory back");
            self.tally.checked += 1;
            content.check(&pinned).context("pinned memory")?;
        }
        Ok(())
    }
}
