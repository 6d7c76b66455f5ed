use std::collections::HashMap;
use std::io::{self, Write};

use crate::{Op, Trace};

/// Bytes between the invented addresses: the alignment of the driver's own.
const STEP: usize = 256;

impl Trace {
    /// Writes the operations as a log that RMM's replay benchmark and [`Trace::read`] accept.
    ///
    /// Times and failed requests are not kept, so all rows have time 0. The addresses are invented:
    /// each slot has its own; threads and streams are numbered.
    ///
    /// # Errors
    ///
    /// `out` cannot be written to, or an operation frees a slot that is empty.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        // A free's row repeats the size of the allocation.
        let mut sizes = HashMap::new();
        writeln!(out, "Thread,Time,Action,Pointer,Size,Stream")?;
        for (index, op) in self.ops.iter().enumerate() {
            let thread = self.op_threads.get(index).copied().unwrap_or(0);
            let (action, slot, bytes, stream) = match *op {
                Op::Allocate {
                    slot,
                    bytes,
                    stream,
                } => {
                    sizes.insert(slot, bytes);
                    ("allocate", slot, bytes, stream)
                }
                Op::Free { slot, stream } => {
                    let bytes = sizes.remove(&slot).ok_or_else(|| empty(slot))?;
                    ("free", slot, bytes, stream)
                }
            };
            // Not null, which is how a log says that there is no memory.
            let pointer = (slot + 1) * STEP;
            writeln!(out, "{thread},0,{action},{pointer:#x},{bytes},{stream}")?;
        }
        Ok(())
    }
}

fn empty(slot: usize) -> io::Error {
    let problem = format!("slot {slot} is freed but is empty");
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

#[cfg(test)]
mod tests {
    use crate::{Op, Trace, random::random_allocations};

    const LOG: &str = "Thread,Time,Action,Pointer,Size,Stream\n\
                       0,0,allocate,0x100,70,0\n1,0,allocate,0x200,5,1\n0,0,free,0x100,70,1\n";

    #[test]
    fn a_written_log_reads_back() {
        let read = |log: &[u8]| Trace::parse(log).expect("a good log");
        let mut log = Vec::new();
        read(LOG.as_bytes()).write(&mut log).expect("written");
        assert_eq!(String::from_utf8_lossy(&log), LOG);

        let made = random_allocations(1000, 64).expect("a workload").trace;
        let mut log = Vec::new();
        made.write(&mut log).expect("written");
        assert_eq!(read(&log), made);
    }

    #[test]
    fn a_free_of_an_empty_slot_is_refused() {
        let ops = vec![Op::Free { slot: 3, stream: 0 }];
        let trace = Trace {
            ops,
            ..Trace::default()
        };
        let error = trace.write(Vec::new()).expect_err("nothing to free");
        assert!(error.to_string().contains("slot 3"), "{error}");
    }
}
