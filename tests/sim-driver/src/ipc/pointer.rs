//! Pointers into shared pools: tokens written by one process and read by another.

use cuda_driver_sys::{CUdeviceptr, CUmemPoolPtrExportData, CUmemoryPool};

use super::Imported;
use crate::clock::StreamId;
use crate::copy::{Place, Side};
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::pool::{Block, PoolId};
use crate::sanitizer::{self, Access};
use crate::state::{State, from_handle, state};

/// The content of a token, three words with its checksum. Measured: a driver reads the first 24 bytes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token {
    offset: u64,
    size: u64,
}

impl Token {
    /// A checksum that depends on every bit of the token and on the pool.
    fn check(self, identity: u64) -> u64 {
        let mut sum = identity;
        for word in [self.offset, self.size] {
            sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            sum ^= sum >> 29;
        }
        sum
    }

    fn write(self, identity: u64) -> CUmemPoolPtrExportData {
        let mut data = CUmemPoolPtrExportData::default();
        let words = [self.check(identity), self.offset, self.size];
        for (place, word) in data.reserved.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        data
    }

    fn read(data: &CUmemPoolPtrExportData, identity: u64) -> Answer<Self> {
        let word = |index: usize| {
            let bytes = data.reserved[index * 8..][..8].try_into();
            bytes.map_or(0, u64::from_le_bytes)
        };
        let token = Self {
            offset: word(1),
            size: word(2),
        };
        if word(0) != token.check(identity) || token.size == 0 {
            return Err(INVALID_VALUE);
        }
        Ok(token)
    }
}

impl State {
    fn export_pointer(&mut self, address: u64) -> Answer<CUmemPoolPtrExportData> {
        let (id, _) = self.pool_at(address).ok_or(INVALID_VALUE)?;
        let pool = self.pools.get_mut(&id).ok_or(INVALID_VALUE)?;
        let offset = address - pool.base();
        let block = pool.space.block(offset);
        let (start, size) = block
            .map(|(start, block)| (start, block.size))
            .ok_or(INVALID_VALUE)?;
        let backing = pool.mapping.backing();
        let backing = backing.filter(|backing| backing.is_exported);
        let backing = backing.ok_or(INVALID_VALUE)?;
        if start != offset {
            return Err(INVALID_VALUE);
        }
        backing.keep(offset, size);
        Ok(Token { offset, size }.write(backing.file.identity))
    }

    /// Measured: importing a pointer again returns the same one, and one free ends both.
    fn import_pointer(&mut self, pool: CUmemoryPool, data: &CUmemPoolPtrExportData) -> Answer<u64> {
        let imported = self.sharing.imported.get_mut(&from_handle(pool));
        let imported = imported.ok_or(INVALID_VALUE)?;
        let token = Token::read(data, imported.identity)?;
        let (base, len) = (imported.mapping.base(), imported.mapping.len());
        let fits = token.offset.checked_add(token.size);
        if fits.is_none_or(|end| end > len) {
            return Err(INVALID_VALUE);
        }
        imported.mapping.commit(token.offset, token.size)?;
        imported
            .pointers
            .entry(token.offset)
            .or_insert_with(|| Block::imported(token.size));
        Ok(base + token.offset)
    }

    /// The imported pool whose range contains an address.
    pub(crate) fn imported_at(&self, address: u64) -> Option<(PoolId, &Imported)> {
        let mut all = self.sharing.imported.iter();
        all.find(|(_, pool)| pool.mapping.contains(address))
            .map(|(id, pool)| (*id, pool))
    }

    /// Pool, start and size of the imported block that contains an address.
    pub(crate) fn imported_block(&self, address: u64) -> Option<(PoolId, &Imported, u64, &Block)> {
        let (id, pool) = self.imported_at(address)?;
        let base = pool.mapping.base();
        let (start, block) = pool.pointers.range(..=address - base).next_back()?;
        (address < base + start + block.size).then_some((id, pool, base + start, block))
    }

    /// Frees an imported pointer, in stream order or by the host; `None` if the address is not in an imported pool.
    pub(crate) fn free_imported(
        &mut self,
        address: u64,
        stream: Option<StreamId>,
    ) -> Option<Answer> {
        let (id, _) = self.imported_at(address)?;
        let pool = self.sharing.imported.get_mut(&id)?;
        let Some(block) = pool.pointers.remove(&(address - pool.mapping.base())) else {
            self.report_wrong_free(address, stream);
            return Some(Err(INVALID_VALUE));
        };
        let (reports, clocks) = (&mut self.reports, &self.clocks);
        match stream {
            Some(stream) => sanitizer::free(reports, clocks, address, &block, stream),
            None => sanitizer::free_now(reports, clocks, address, &block),
        }
        Some(Ok(()))
    }

    /// Checks an access to imported memory; `None` if the address is not in an imported pool.
    ///
    /// Measured: as in a host pool of this process, a copy never takes its memory for device memory, and for pageable
    /// memory as long as the device has no access.
    pub(crate) fn touch_imported(
        &mut self,
        access: Access,
        (device, is_copy): (usize, bool),
        side: Side,
    ) -> Option<Answer<Place>> {
        let address = access.address;
        let (id, pool) = self.imported_at(address)?;
        let is_named_device = matches!(side, Side::Device(_));
        let place = match (pool.device.is_none(), pool.is_open_to(device)) {
            (true, _) if is_copy && is_named_device => return Some(Err(INVALID_VALUE)),
            (true, true) => Place::Pinned,
            (true, false) if is_copy => Place::Pageable,
            (false, true) => Place::Device,
            (_, false) => return Some(Err(INVALID_VALUE)),
        };
        let Some((_, _, start, _)) = self.imported_block(address) else {
            sanitizer::access_after_free(&mut self.reports, access, None);
            return Some(Err(INVALID_VALUE));
        };
        let pool = self.sharing.imported.get_mut(&id)?;
        let block = pool.pointers.get_mut(&(start - pool.mapping.base()))?;
        sanitizer::access(&mut self.reports, &self.clocks, start, block, access);
        let is_inside = address + access.len <= start + block.size;
        Some(if is_inside {
            Ok(place)
        } else {
            Err(INVALID_VALUE)
        })
    }
}

exports! {
    plain fn cuMemPoolExportPointer(
        _, out: Out<CUmemPoolPtrExportData>, address: CUdeviceptr
    ) {
        out.required()?;
        let mut state = state()?;
        state.refuse_while_recording()?;
        out.write(state.export_pointer(address)?)
    }

    plain fn cuMemPoolImportPointer(
        _, out: Out<CUdeviceptr>, pool: CUmemoryPool, data: Out<CUmemPoolPtrExportData>
    ) {
        out.required()?;
        let data = data.as_input().read()?;
        let mut state = state()?;
        state.refuse_while_recording()?;
        out.write(state.import_pointer(pool, &data)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_of_one_pool_and_cannot_be_changed() {
        let token = Token {
            offset: 4096,
            size: 1000,
        };
        let data = token.write(7);
        assert_eq!(Token::read(&data, 7), Ok(token));
        assert_eq!(Token::read(&data, 8), Err(INVALID_VALUE));
        for byte in 0..24 {
            let mut changed = data;
            changed.reserved[byte] ^= 1;
            assert_eq!(Token::read(&changed, 7), Err(INVALID_VALUE), "byte {byte}");
        }
        let zero = CUmemPoolPtrExportData::default();
        assert_eq!(Token::read(&zero, 0), Err(INVALID_VALUE));
    }
}
