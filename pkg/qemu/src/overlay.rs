//! An empty qcow2 image that records changes to another file.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use units::Bytes;

/// log2 of the size of a cluster, the usual 64 KiB.
const CLUSTER_BITS: u32 = 16;
const CLUSTER: u64 = 1 << CLUSTER_BITS;
/// log2 of the width of a reference count, in bits: the usual 16.
const REFCOUNT_ORDER: u32 = 4;
/// Length of the header of version 3 without extensions.
const HEADER_LENGTH: u32 = 104;

/// Creates an empty qcow2 image for a disk of this size, for [`Wrap::Overlay`](crate::Wrap::Overlay). The file must not
/// exist. QEMU's command line names the backing file, not the image. docs/interop/qcow2.rst of QEMU.
pub fn overlay(path: &Path, size: Bytes) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    let (header, clusters) = layout(size.get());
    file.write_all(&header)?;
    // The table of reference counts, whose only block follows.
    file.seek(SeekFrom::Start(CLUSTER))?;
    file.write_all(&(2 * CLUSTER).to_be_bytes())?;
    file.seek(SeekFrom::Start(2 * CLUSTER))?;
    for _ in 0..clusters {
        file.write_all(&1_u16.to_be_bytes())?;
    }
    file.set_len(clusters * CLUSTER)
}

/// The header, and the number of clusters: header, table and block of reference counts, L1 table.
fn layout(size: u64) -> (Vec<u8>, u64) {
    // An L2 table is a cluster of 8-byte entries, one for each cluster of data.
    let entries = size.div_ceil(CLUSTER / 8 * CLUSTER);
    let clusters = 3 + (entries * 8).div_ceil(CLUSTER);
    let header = [
        &b"QFI\xfb"[..],
        &3_u32.to_be_bytes(),
        &0_u64.to_be_bytes(), // name of the backing file
        &0_u32.to_be_bytes(),
        &CLUSTER_BITS.to_be_bytes(),
        &size.to_be_bytes(),
        &0_u32.to_be_bytes(), // not encrypted
        &u32::try_from(entries).unwrap_or(u32::MAX).to_be_bytes(),
        &(3 * CLUSTER).to_be_bytes(), // L1 table
        &CLUSTER.to_be_bytes(),       // table of reference counts
        &1_u32.to_be_bytes(),
        &0_u32.to_be_bytes(), // no snapshots
        &0_u64.to_be_bytes(),
        &[0; 24], // features
        &REFCOUNT_ORDER.to_be_bytes(),
        &HEADER_LENGTH.to_be_bytes(),
    ]
    .concat();
    (header, clusters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_length_that_it_states() {
        let (header, clusters) = layout(8 << 30);
        assert_eq!(header.len(), usize::try_from(HEADER_LENGTH).unwrap());
        assert_eq!(header[24..32], (8_u64 << 30).to_be_bytes());
        // An entry of the L1 table stands for 512 MiB.
        assert_eq!(header[36..40], 16_u32.to_be_bytes());
        assert_eq!(clusters, 4);
    }

    #[test]
    fn an_existing_file_is_kept() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = overlay(file.path(), Bytes::GIB).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    }
}
