//! [`Root`].

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::tree::{BLOCK, DIGEST, Digest, FAN};

/// The trusted information that verifies data and tree. Its text form is `BLOCKS:DIGEST`, decimal and lower-case
/// hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Root {
    /// Number of data blocks. The tree begins after them.
    pub blocks: NonZeroU64,
    /// Root digest.
    pub digest: Digest,
}

/// The text is not a [`Root`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid verity root {0:?}; expected BLOCKS:DIGEST with a decimal number and a SHA-256 in lower-case hexadecimal"
)]
pub struct RootError(String);

/// Part of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Data.
    Data,
    /// Hash tree.
    Tree,
}

/// A block cannot be verified.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The digest of the block is wrong.
    #[error("block {place} ({}) is corrupted: its digest is wrong", match part { Part::Data => "data", Part::Tree => "hash tree" })]
    Corrupted {
        /// Block number on the device.
        place: u64,
        /// The part that contains the block.
        part: Part,
    },
    /// The block number is beyond the data.
    #[error("data block {block} does not exist; the device has {blocks} data blocks")]
    Beyond {
        /// Requested block.
        block: u64,
        /// Number of data blocks.
        blocks: NonZeroU64,
    },
    /// The block cannot be read.
    #[error("cannot read block {place}")]
    Read {
        /// Block number on the device.
        place: u64,
        /// Error of the read.
        source: io::Error,
    },
}

impl Root {
    /// Maximum number of data blocks: the size of data and tree in bytes fits into 64 bits.
    const MOST: u64 = (u64::MAX / BLOCK as u64) / 2;

    /// Verifies a data block and all tree blocks above it. `read` reads a block of the device by its number.
    ///
    /// # Errors
    /// [`CheckError`] for the first invalid block from the top of the tree.
    pub fn check<R>(&self, block: u64, mut read: R) -> Result<(), CheckError>
    where
        R: FnMut(u64, &mut [u8; BLOCK]) -> io::Result<()>,
    {
        if block >= self.blocks.get() {
            return Err(CheckError::Beyond { block, blocks: self.blocks });
        }
        let mut buffer = [0; BLOCK];
        let mut wanted = self.digest;
        let mut first = self.blocks.get();
        for height in (1..=self.height()).rev() {
            let (index, place) = (block / FAN.pow(height - 1), first + block / span(height));
            compare(&wanted, place, Part::Tree, &mut buffer, &mut read)?;
            let at = (index % FAN) as usize * DIGEST;
            wanted.0.copy_from_slice(&buffer[at..at + DIGEST]);
            first += self.blocks.get().div_ceil(span(height));
        }
        compare(&wanted, block, Part::Data, &mut buffer, &mut read)
    }

    /// Number of levels of the tree.
    fn height(&self) -> u32 {
        let mut height = 0;
        while span(height) < self.blocks.get() {
            height += 1;
        }
        height
    }
}

/// Number of data blocks below a tree block at this height.
fn span(height: u32) -> u64 {
    FAN.saturating_pow(height)
}

fn compare<R>(wanted: &Digest, place: u64, part: Part, buffer: &mut [u8; BLOCK], read: &mut R) -> Result<(), CheckError>
where
    R: FnMut(u64, &mut [u8; BLOCK]) -> io::Result<()>,
{
    read(place, buffer).map_err(|source| CheckError::Read { place, source })?;
    if Digest::of(buffer) == *wanted { Ok(()) } else { Err(CheckError::Corrupted { place, part }) }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.blocks, self.digest)
    }
}

impl FromStr for Root {
    type Err = RootError;

    fn from_str(text: &str) -> Result<Self, RootError> {
        parse(text).ok_or_else(|| RootError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Root> {
    let (blocks, digits) = text.split_once(':')?;
    if !blocks.bytes().all(|byte| byte.is_ascii_digit()) || digits.len() != 2 * DIGEST {
        return None;
    }
    let blocks = blocks.parse().ok().filter(|blocks: &NonZeroU64| blocks.get() <= Root::MOST)?;
    let mut digest = [0; DIGEST];
    for (byte, pair) in digest.iter_mut().zip(digits.as_bytes().as_chunks::<2>().0) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(Root { blocks, digest: Digest(digest) })
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tree::Tree;

    fn device(blocks: u64) -> (Root, Vec<u8>) {
        let mut device: Vec<u8> = (0..blocks).flat_map(|number| [number.to_le_bytes(); BLOCK / 8].concat()).collect();
        let tree = Tree::of(&device[..]).unwrap();
        device.extend_from_slice(tree.bytes());
        (tree.root(), device)
    }

    fn check(root: &Root, block: u64, device: &[u8]) -> Result<(), CheckError> {
        root.check(block, |place, buffer| {
            let at = place as usize * BLOCK;
            let found = device.get(at..at + BLOCK).ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(found);
            Ok(())
        })
    }

    #[test]
    fn parsing_reverses_display() {
        let (root, _) = device(3);
        let text = root.to_string();
        assert!(text.starts_with("3:"));
        assert_eq!(text.parse(), Ok(root));
    }

    #[test]
    fn invalid_texts_are_rejected() {
        let digest = "00".repeat(32);
        for text in ["", ":", "1:", &digest, &format!("0:{digest}"), &format!("+1:{digest}"), &format!("1:{digest}0")] {
            assert_eq!(text.parse::<Root>(), Err(RootError(text.to_owned())));
        }
        let upper = format!("1:{}", "AA".repeat(32));
        assert!(upper.parse::<Root>().is_err());
        assert!(format!("{}:{digest}", u64::MAX).parse::<Root>().is_err());
    }

    #[test]
    fn a_block_beyond_the_data_is_rejected() {
        let (root, device) = device(2);
        assert!(matches!(check(&root, 2, &device), Err(CheckError::Beyond { block: 2, .. })));
    }

    #[test]
    fn a_read_error_contains_the_block() {
        let (root, device) = device(200);
        assert!(matches!(check(&root, 0, &device[..200 * BLOCK]), Err(CheckError::Read { place: 200, .. })));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_flipped_bit_is_detected_in_its_block_only(
            blocks in prop_oneof![1..4_u64, 126..131_u64, 250..400_u64],
            at: prop::sample::Index,
            bit in 0..8_u8,
        ) {
            let (root, mut device) = device(blocks);
            prop_assert!((0..blocks).all(|block| check(&root, block, &device).is_ok()));
            let at = at.index(device.len());
            device[at] ^= 1 << bit;
            let flipped = (at / BLOCK) as u64;
            let mut found = 0;
            for block in 0..blocks {
                match check(&root, block, &device) {
                    Ok(()) => {}
                    Err(CheckError::Corrupted { place, part }) => {
                        prop_assert_eq!(place, flipped);
                        prop_assert_eq!(part == Part::Data, flipped < blocks);
                        found += 1;
                    }
                    Err(error) => prop_assert!(false, "{error}"),
                }
            }
            prop_assert!(found > 0);
        }

        #[test]
        fn parsing_accepts_only_the_canonical_form(text in "[0-9a-f:+]{0,80}") {
            if let Ok(root) = text.parse::<Root>() {
                // Leading zeros are the only other accepted form.
                prop_assert!(text.ends_with(&root.to_string()));
            }
        }
    }
}
