//! Weights in host memory: those of a file, or generated ones.

use std::path::Path;

use cuda_mem_console::Misuse;

/// Elements of the vocabulary for each of the width.
const VOCABULARY: u64 = 8;

/// Tensors of a small transformer with 16-bit elements, in bytes.
pub(crate) fn sizes(layers: u64, width: u64) -> Vec<u64> {
    let square = width * width;
    let layer = [width, 3 * square, square, width, 4 * square, 4 * square];
    let mut elements = vec![VOCABULARY * square];
    for _ in 0..layers {
        elements.extend(layer);
    }
    elements.push(width);
    elements.into_iter().map(|count| 2 * count).collect()
}

/// Tensors of these sizes, each with other contents.
pub(crate) fn generate(sizes: &[u64]) -> Vec<Vec<u8>> {
    let mut state = 1;
    let mut word = || {
        // Knuth's generator: no byte of the upper half repeats soon.
        state = u64::wrapping_mul(state, 6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 32) as u32
    };
    let tensor = |bytes: &u64| {
        let words = (0..bytes.div_ceil(4)).flat_map(|_| word().to_le_bytes());
        words.take(*bytes as usize).collect()
    };
    sizes.iter().map(tensor).collect()
}

/// The bytes of a file, as one tensor.
pub(crate) fn read(path: &Path) -> Result<Vec<Vec<u8>>, Misuse> {
    let bytes = std::fs::read(path);
    let bytes = bytes.map_err(|error| Misuse(format!("{}: {error}", path.display())))?;
    if bytes.is_empty() {
        return Err(Misuse(format!("{} is empty", path.display())));
    }
    Ok(vec![bytes])
}

/// A checksum of tensors in their order.
#[derive(Default)]
pub(crate) struct Checksum(u64);

impl Checksum {
    pub(crate) fn add(&mut self, tensor: &[u8]) {
        self.add_word(tensor.len() as u64);
        for chunk in tensor.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add_word(u64::from_le_bytes(word));
        }
    }

    fn add_word(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.0 = mixed ^ (mixed >> 32);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0
    }
}
