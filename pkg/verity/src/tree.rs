//! [`Tree`].

use std::fmt;
use std::io::{self, Read};
use std::num::NonZeroU64;

use sha2::{Digest as _, Sha256};

use crate::root::Root;

/// Size of a block of data or hashes in bytes.
pub const BLOCK: usize = 4096;
/// Size of a digest in bytes.
pub(crate) const DIGEST: usize = 32;
/// Number of digests in a block of hashes.
pub(crate) const FAN: u64 = (BLOCK / DIGEST) as u64;

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub(crate) [u8; DIGEST]);

impl Digest {
    pub(crate) fn of(block: &[u8; BLOCK]) -> Self {
        Self(Sha256::digest(block).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A hash tree, to be stored after the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    root: Root,
    bytes: Vec<u8>,
}

/// The tree cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The data cannot be read.
    #[error("cannot read the data")]
    Read(#[source] io::Error),
    /// The length is 0 or not a multiple of [`BLOCK`].
    #[error("the data has {0} bytes; the length must be a positive multiple of {BLOCK}")]
    Length(u64),
}

impl Tree {
    /// Reads and hashes the data. Needs about 1 % of the size of the data in memory.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn of(mut data: impl Read) -> Result<Self, TreeError> {
        let mut level = Vec::new();
        let mut block = [0; BLOCK];
        loop {
            let length = fill(&mut data, &mut block).map_err(TreeError::Read)?;
            match length {
                BLOCK => level.extend_from_slice(&Digest::of(&block).0),
                0 => break,
                rest => return Err(TreeError::Length((level.len() / DIGEST * BLOCK + rest) as u64)),
            }
        }
        let blocks = NonZeroU64::new((level.len() / DIGEST) as u64).ok_or(TreeError::Length(0))?;

        // The kernel expects the top level first.
        let mut levels = Vec::new();
        while level.len() > DIGEST {
            level.resize(level.len().next_multiple_of(BLOCK), 0);
            let (whole, _) = level.as_chunks::<BLOCK>();
            let above = whole.iter().flat_map(|block| Digest::of(block).0).collect();
            levels.push(std::mem::replace(&mut level, above));
        }
        let mut digest = [0; DIGEST];
        digest.copy_from_slice(&level);
        let bytes = levels.into_iter().rev().flatten().collect();
        Ok(Self { root: Root { blocks, digest: Digest(digest) }, bytes })
    }

    /// The root that verifies data and tree.
    pub fn root(&self) -> Root {
        self.root
    }

    /// The tree in whole blocks. Empty for data of a single block, whose digest is the root digest.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads until the block is full or the data ends.
fn fill(data: &mut impl Read, block: &mut [u8; BLOCK]) -> io::Result<usize> {
    let mut length = 0;
    while length < BLOCK {
        match data.read(&mut block[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn data(blocks: u64) -> Vec<u8> {
        (0..blocks).flat_map(|number| [number.to_le_bytes(); BLOCK / 8].concat()).collect()
    }

    fn tree(blocks: u64) -> Tree {
        Tree::of(&data(blocks)[..]).unwrap()
    }

    /// The digests of one level, by the definition: a node is the digest of its children's digests, padded with zeros
    /// to a block.
    fn naive(data: &[u8], height: u32) -> Vec<u8> {
        let mut block = if height == 0 {
            data.to_vec()
        } else {
            let below = FAN.pow(height - 1) as usize * BLOCK;
            data.chunks(below).flat_map(|part| naive(part, height - 1)).collect()
        };
        block.resize(BLOCK, 0);
        Sha256::digest(&block).to_vec()
    }

    /// Created by `veritysetup format --no-superblock --salt=- --hash-offset=…` of cryptsetup 2.6.1 from the same data.
    #[test]
    fn the_tree_equals_that_of_veritysetup() {
        for (blocks, root, bytes) in VERITYSETUP {
            let tree = tree(blocks);
            assert_eq!(tree.root().digest.to_string(), root, "{blocks} blocks");
            assert_eq!(Digest(Sha256::digest(tree.bytes()).into()).to_string(), bytes, "{blocks} blocks");
        }
    }

    /// Number of data blocks, root digest, SHA-256 of the tree.
    const VERITYSETUP: [(u64, &str, &str); 4] = [
        (
            1,
            "ad7facb2586fc6e966c004d7d1d16b024f5805ff7cb47c7a85dabd8b48892ca7",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        (
            128,
            "556952a1b809520b38c0b09650941a9b4c864077f485570e9381841444327269",
            "556952a1b809520b38c0b09650941a9b4c864077f485570e9381841444327269",
        ),
        (
            129,
            "2abd7846176918c50f1873a95ee013089d36ea23bf316ebf1ae36cdbab2932de",
            "ddadb20cfc05aaa9e5d58de6f0ef4fedebdb9a671fbc94b3a25e3e7faf51d30d",
        ),
        (
            16385,
            "aa567f8f3998189f0f6c47ec071c7f9b13a585e5e135651e4bbb830f9361470a",
            "d9096c7017887b9de808f5bcaca594017f36f44ed4c0f0da0781b9130914dad5",
        ),
    ];

    #[test]
    fn data_of_an_invalid_length_is_rejected() {
        assert!(matches!(Tree::of(&[][..]), Err(TreeError::Length(0))));
        assert!(matches!(Tree::of(&[0; BLOCK + 1][..]), Err(TreeError::Length(4097))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn the_tree_equals_its_definition(blocks in prop_oneof![1..4_u64, 126..131_u64, 250..400_u64]) {
            let height = (0..3).find(|height| FAN.pow(*height) >= blocks).unwrap();
            prop_assert_eq!(&tree(blocks).root().digest.0[..], naive(&data(blocks), height));
        }
    }
}
