//! Digests that distinguish the contents of a disk.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use ktest_init::write_log::Extent;

use super::cut::SECTOR;

/// Content of a disk that was empty when the recording began: a digest of each sector that is not zero.
#[derive(Debug, Default)]
pub(super) struct Content {
    sectors: BTreeMap<u64, u64>,
    digest: u64,
}

const EMPTY: [u8; SECTOR as usize] = [0; SECTOR as usize];

impl Content {
    pub(super) fn write(&mut self, start: u64, data: &[u8]) {
        for (number, sector) in (start / SECTOR..).zip(data.chunks(EMPTY.len())) {
            let former = if sector == EMPTY {
                self.sectors.remove(&number)
            } else {
                let mut hasher = DefaultHasher::new();
                (number, sector).hash(&mut hasher);
                let digest = hasher.finish();
                self.digest ^= digest;
                self.sectors.insert(number, digest)
            };
            self.digest ^= former.unwrap_or_default();
        }
    }

    pub(super) fn discard(&mut self, extent: Extent) {
        let first = extent.start / SECTOR;
        let gone = self.sectors.extract_if(first..first + extent.length / SECTOR, |_, _| true);
        self.digest ^= gone.fold(0, |all, (_, digest)| all ^ digest);
    }

    /// Digest of the whole content. Two different contents have the same digest with a probability of 2^-64.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECTORS: usize = 6;

    proptest! {
        #[test]
        fn a_digest_distinguishes_contents(
            writes in prop::collection::vec((0..SECTORS, 1..=SECTORS, 0u8..3), 0..12),
            others in prop::collection::vec((0..SECTORS, 1..=SECTORS, 0u8..3), 0..12),
        ) {
            // Every second entry writes zeros as a discard.
            let apply = |writes: &[(usize, usize, u8)]| {
                let mut disk = vec![0; SECTORS * EMPTY.len()];
                let mut content = Content::default();
                for (number, &(first, count, byte)) in writes.iter().enumerate() {
                    let count = count.min(SECTORS - first);
                    let (start, length) = (first * EMPTY.len(), count * EMPTY.len());
                    disk[start..start + length].fill(byte);
                    match byte {
                        0 if number % 2 == 0 => {
                            content.discard(Extent { start: start as u64, length: length as u64 });
                        }
                        _ => content.write(start as u64, &vec![byte; length]),
                    }
                }
                (disk, content.digest())
            };
            let (one, other) = (apply(&writes), apply(&others));
            prop_assert_eq!(one.0 == other.0, one.1 == other.1);
        }
    }
}
