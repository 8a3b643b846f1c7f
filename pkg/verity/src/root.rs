//! What is known of a tree before anything of it is read.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::tree::{BLOCK, DIGEST, Digest, FAN};

/// What has to be known, from a trusted place, to read data with a tree. As a text
/// `BLOCKS:DIGEST`, decimal and in lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Root {
    /// Blocks of data. The tree begins behind them.
    pub blocks: NonZeroU64,
    /// The digest of the whole.
    pub digest: Digest,
}

/// The text is no [`Root`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not tell a number of blocks and the SHA-256 of a tree as BLOCKS:DIGEST")]
pub struct RootError(String);

/// A part of what is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What the tree is for.
    Data,
    /// The hashes.
    Tree,
}

/// A block cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// It has another digest than it should have.
    #[error("block {place} ({}) is not what it was when the image was made", match part { Part::Data => "data", Part::Tree => "hash tree" })]
    Corrupted {
        /// Where it is on the device, in blocks.
        place: u64,
        /// What it is of.
        part: Part,
    },
    /// There is no such block of data.
    #[error("there is no block {block} of data, there are {blocks}")]
    Beyond {
        /// What was asked for.
        block: u64,
        /// How many there are.
        blocks: NonZeroU64,
    },
    /// The device does not give it.
    #[error("block {place} cannot be read")]
    Read {
        /// Where it is on the device, in blocks.
        place: u64,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl Root {
    /// The most blocks: with their tree they have a size in bytes.
    const MOST: u64 = (u64::MAX / BLOCK as u64) / 2;

    /// Compares a block of data, and all blocks of the tree above it, with this root. `read` gets a block
    /// of the device by its place.
    ///
    /// # Errors
    /// [`CheckError`]: the first block from the top that is wrong.
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

    /// How many levels the tree has.
    fn height(&self) -> u32 {
        let mut height = 0;
        while span(height) < self.blocks.get() {
            height += 1;
        }
        height
    }
}

/// How many blocks of data are below a block of the tree at this height.
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
    fn the_text_is_read_back() {
        let (root, _) = device(3);
        let text = root.to_string();
        assert!(text.starts_with("3:"));
        assert_eq!(text.parse(), Ok(root));
    }

    #[test]
    fn other_texts_are_refused() {
        let digest = "00".repeat(32);
        for text in ["", ":", "1:", &digest, &format!("0:{digest}"), &format!("+1:{digest}"), &format!("1:{digest}0")] {
            assert_eq!(text.parse::<Root>(), Err(RootError(text.to_owned())));
        }
        let upper = format!("1:{}", "AA".repeat(32));
        assert!(upper.parse::<Root>().is_err());
        assert!(format!("{}:{digest}", u64::MAX).parse::<Root>().is_err());
    }

    #[test]
    fn a_block_beyond_the_data_is_not_read() {
        let (root, device) = device(2);
        assert!(matches!(check(&root, 2, &device), Err(CheckError::Beyond { block: 2, .. })));
    }

    #[test]
    fn a_device_that_ends_early_is_told() {
        let (root, device) = device(200);
        assert!(matches!(check(&root, 0, &device[..200 * BLOCK]), Err(CheckError::Read { place: 200, .. })));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_flipped_bit_is_found_where_it_is_and_nowhere_else(
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
        fn any_text_is_read_or_refused(text in "[0-9a-f:+]{0,80}") {
            if let Ok(root) = text.parse::<Root>() {
                // Leading zeros are the only other spelling.
                prop_assert!(text.ends_with(&root.to_string()));
            }
        }
    }
}
