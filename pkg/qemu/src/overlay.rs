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

enum Field {
    Word(u32),
    Long(u64),
}

/// The header, and the number of clusters: header, table and block of reference counts, L1 table.
fn layout(size: u64) -> (Vec<u8>, u64) {
    // An L2 table is a cluster of 8-byte entries, one for each cluster of data.
    let entries = size.div_ceil(CLUSTER / 8 * CLUSTER);
    let clusters = 3 + (entries * 8).div_ceil(CLUSTER);
    let mut header = b"QFI\xfb".to_vec();
    let fields = [
        Field::Word(3),
        Field::Long(0), // name of the backing file
        Field::Word(0),
        Field::Word(CLUSTER_BITS),
        Field::Long(size),
        Field::Word(0), // not encrypted
        Field::Word(u32::try_from(entries).unwrap_or(u32::MAX)),
        Field::Long(3 * CLUSTER), // L1 table
        Field::Long(CLUSTER),     // table of reference counts
        Field::Word(1),
        Field::Word(0), // no snapshots
        Field::Long(0),
        Field::Long(0), // features
        Field::Long(0),
        Field::Long(0),
        Field::Word(REFCOUNT_ORDER),
        Field::Word(HEADER_LENGTH),
    ];
    for field in fields {
        match field {
            Field::Word(value) => header.extend(value.to_be_bytes()),
            Field::Long(value) => header.extend(value.to_be_bytes()),
        }
    }
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
