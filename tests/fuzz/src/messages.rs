//! Messages of another process, on the simulated driver: what comes out of a channel is taken or refused,
//! whatever the other end wrote.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use cuda_mem::driver::HandleTypes;
use cuda_mem::interop::{
    Channel, EventHandle, FabricHandle, ImportedPool, PointerToken, SharedBuffer,
};
use cuda_mem::{Context, Device, DeviceBuffer, Driver, ErrorKind, MemoryPool, Stream};

/// Elements of the buffer that the genuine messages are about.
const LEN: usize = 1000;

/// The objects of both processes, which are one here, and a genuine message of each kind.
struct Setup {
    device: Device,
    context: Context,
    stream: Stream,
    pool: MemoryPool,
    buffer: DeviceBuffer<u32>,
    pool_fd: OwnedFd,
    imported: ImportedPool,
    genuine: [Vec<u8>; 5],
}

/// Where in an input is what.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Which genuine message the bytes change.
    of: u8,
    /// What the receiver waits for.
    wanted: u8,
    /// Which descriptors go along: a bit each.
    descriptors: u8,
    /// Bit 0: the sum is made right again. Bit 1: that of the inner message too. Bit 2: it is sent twice.
    flags: u8,
    /// Bytes that the genuine message is cut by.
    cut: u8,
}

/// Sends a message to a receiver of this process.
///
/// # Panics
///
/// If a message is taken for what it is not, or the receiver waits for ever.
pub fn check(data: &[u8]) {
    let Some((plan, changes)) = data.split_first_chunk::<5>() else {
        return;
    };
    let [of, wanted, descriptors, flags, cut] = *plan;
    let plan = Plan {
        of,
        wanted,
        descriptors,
        flags,
        cut,
    };
    let setup = setup();
    let message = setup.message(plan, changes);
    setup.parse(&message);
    setup.receive(plan, &message).expect("the socket works");
}

/// As many inputs as there are genuine messages and receivers: nothing in them is changed.
#[must_use]
pub fn genuine() -> Vec<Vec<u8>> {
    let all = (0..5).flat_map(|of| (0..5).map(move |wanted| (of, wanted)));
    all.map(|(of, wanted)| vec![of, wanted, u8::from(of == 0), 3, 0])
        .collect()
}

fn setup() -> &'static Setup {
    static SETUP: OnceLock<Setup> = OnceLock::new();
    SETUP.get_or_init(|| Setup::new().expect("the simulated driver has all of it"))
}

impl Setup {
    fn new() -> Result<Self> {
        let path = cuda_sim::library_path().context("the simulated driver is not built")?;
        // SAFETY: the simulated driver behaves as a CUDA driver does.
        let driver = unsafe { Driver::load_from(&path) }?;
        let device = driver.device(0)?;
        let context = device.primary_context()?;
        let stream = context.stream()?;
        let pool = MemoryPool::builder(&device)
            .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
            .build()?;
        let pool_fd = pool.export_fd()?;
        let imported = ImportedPool::from_fd(&device, &pool_fd)?;
        let mut buffer = pool.alloc_from(&stream, &[7_u32; LEN])?;

        let (here, there) = Channel::pair()?;
        here.send_pool(&pool)?;
        let of_pool = there.receive()?.bytes;
        here.send_buffer(&buffer)?;
        let of_buffer = there.receive()?.bytes;
        let event = context.interprocess_event()?;
        here.send_event(&event)?;
        let of_event = there.receive()?.bytes;
        // On a channel of its own, so that the number is that of the first buffer.
        let (here, there) = Channel::pair()?;
        let lent = here.lend(&mut buffer)?;
        // SAFETY: the other end is this process.
        let received = unsafe { there.receive_buffer::<u32>(&imported, &stream) }?;
        there.give_back(received).map_err(|failed| failed.error)?;
        let of_return = here.receive()?.bytes;
        // It has been read already, and would be waited for.
        drop(there);
        drop(lent);
        Ok(Self {
            device,
            context,
            stream,
            pool,
            buffer,
            pool_fd,
            imported,
            genuine: [of_pool, of_buffer, of_event, of_return, Vec::new()],
        })
    }

    fn message(&self, plan: Plan, changes: &[u8]) -> Vec<u8> {
        let mut bytes = self.genuine[usize::from(plan.of) % self.genuine.len()].clone();
        let kept = bytes.len().saturating_sub(usize::from(plan.cut));
        bytes.truncate(kept);
        for (at, change) in changes.iter().take(Channel::MAX_BYTES).enumerate() {
            match bytes.get_mut(at) {
                Some(byte) => *byte ^= change,
                None => bytes.push(*change),
            }
        }
        // Head and number come before the description of a buffer.
        if plan.flags & 2 != 0 && bytes.len() > 13 + 8 + 8 {
            let end = bytes.len() - 8;
            mend(&mut bytes[13..end]);
        }
        if plan.flags & 1 != 0 {
            mend(&mut bytes);
        }
        bytes
    }

    /// What can be read without a channel.
    fn parse(&self, bytes: &[u8]) {
        if let Ok(token) = PointerToken::from_bytes(bytes) {
            assert_eq!(token.to_bytes(), bytes);
        }
        if let Ok(shared) = SharedBuffer::from_bytes(bytes) {
            assert_eq!(shared.to_bytes(), bytes);
        }
        // SAFETY: nothing is done with the handle.
        if let Ok(handle) = unsafe { EventHandle::from_bytes(bytes) } {
            assert_eq!(handle.to_bytes(), bytes);
        }
        // SAFETY: nothing is done with the handle.
        if let Ok(handle) = unsafe { FabricHandle::from_bytes(bytes) } {
            assert_eq!(handle.to_bytes(), bytes);
        }
    }

    fn receive(&self, plan: Plan, bytes: &[u8]) -> Result<()> {
        let (here, there) = Channel::pair()?;
        let file = File::open("/dev/null")?;
        let all = [self.pool_fd.as_fd(), file.as_fd(), here.as_fd()];
        let descriptors: Vec<BorrowedFd<'_>> = (0..8)
            .filter(|bit| plan.descriptors & 1 << bit != 0)
            .map(|bit| all[bit % all.len()])
            .collect();
        let mut kept = Vec::new();
        // A lent buffer is first sent itself.
        let mut buffer = self.pool.alloc_from(&self.stream, &[7_u32; LEN])?;
        let lent = match plan.wanted % 5 {
            3 => Some(there.lend(&mut buffer)?),
            _ => None,
        };
        let times = 1 + usize::from(plan.flags & 4 != 0);
        for _ in 0..times {
            // What is too large is refused here already.
            if here.send(bytes, &descriptors).is_err() {
                assert!(bytes.len() > Channel::MAX_BYTES, "{} bytes", bytes.len());
            }
        }
        // Behind it is the end, so that no wait is for ever.
        drop(here);
        if let Some(lent) = lent {
            return Self::wait(plan, lent);
        }
        for _ in 0..times {
            match plan.wanted % 5 {
                0 => drop(there.receive_pool(&self.device)),
                1 => {
                    // SAFETY: no driver but the simulated one reads it, which checks tokens.
                    let received =
                        unsafe { there.receive_buffer::<u32>(&self.imported, &self.stream) };
                    if let Ok(buffer) = received {
                        assert_eq!(buffer.len(), LEN);
                        kept.push(buffer);
                    }
                }
                2 => self.receive_event(&there, bytes),
                _ => drop(there.receive()),
            }
        }
        Ok(())
    }

    /// The simulated driver opens what a handle names in another process: those are left alone.
    fn receive_event(&self, there: &Channel, bytes: &[u8]) {
        let own = self.genuine[2].get(5 + 4..5 + 8);
        if bytes.get(5 + 4..5 + 8) == own {
            // SAFETY: no driver but the simulated one reads it, and it looks into this process only.
            drop(unsafe { there.receive_event(&self.context) });
        }
    }

    fn wait(plan: Plan, lent: cuda_mem::interop::ExportedBuffer<'_, u32>) -> Result<()> {
        match lent.wait() {
            Ok(()) => Ok(()),
            Err(error) => {
                let kind = error.kind();
                let is_known = matches!(
                    kind,
                    ErrorKind::PeerGone | ErrorKind::PeerFailed | ErrorKind::InvalidValue
                );
                assert!(is_known, "{plan:?}: {error}");
                Ok(())
            }
        }
    }
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("buffer", &self.buffer)
            .finish()
    }
}

/// Recomputes the FNV-1a checksum at the end, as an attacker would.
fn mend(bytes: &mut [u8]) {
    let Some((inner, sum)) = bytes.split_last_chunk_mut::<8>() else {
        return;
    };
    let found = inner.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    *sum = found.to_le_bytes();
}
