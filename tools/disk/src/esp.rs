//! The EFI system partition.

use std::io::{self, Cursor, Write as _};

use fatfs::{FatType, FileSystem, FormatVolumeOptions, FsOptions};

/// Its size: a slot's executable has about 20 MiB, an update needs room for a third one, and FAT32 is
/// none below 33 MiB.
pub const SIZE: u64 = 128 << 20;
/// Where firmware looks on a disk that it was told nothing of: UEFI specification 2.10, section 3.5.1.1.
const DIRECTORIES: [&str; 2] = ["EFI", "EFI/BOOT"];
const EXECUTABLE: &str = "EFI/BOOT/BOOTX64.EFI";
const ID: u32 = 0x5ad0_0001;
const LABEL: [u8; 11] = *b"GRANARY ESP";

/// The partition cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum EspError {
    /// It is made in memory, where nothing but room can be missing; FAT takes some of it.
    #[error(
        "the UEFI executable has {wanted} bytes, too many for the EFI system partition of {SIZE}: take something out of \
         the initramfs, or make the partition larger"
    )]
    Full {
        wanted: usize,
        #[source]
        source: io::Error,
    },
    /// What the executable needs around it.
    #[error("cannot {step} the EFI system partition")]
    Make {
        step: &'static str,
        #[source]
        source: io::Error,
    },
}

/// A FAT32 with the executable that firmware starts.
pub fn with(executable: &[u8]) -> Result<Vec<u8>, EspError> {
    let step = |step| move |source| EspError::Make { step, source };
    let full = |source| EspError::Full { wanted: executable.len(), source };
    let mut bytes = vec![0; SIZE as usize];
    let options = FormatVolumeOptions::new().fat_type(FatType::Fat32).volume_id(ID).volume_label(LABEL);
    fatfs::format_volume(Cursor::new(&mut bytes), options).map_err(step("format"))?;
    {
        // Without its feature `chrono` fatfs knows one time only, the beginning of 1980.
        let esp = FileSystem::new(Cursor::new(&mut bytes), FsOptions::new()).map_err(step("open"))?;
        let root = esp.root_dir();
        for directory in DIRECTORIES {
            root.create_dir(directory).map_err(step("make the directories of"))?;
        }
        let mut file = root.create_file(EXECUTABLE).map_err(step("make the executable on"))?;
        file.write_all(executable).map_err(full)?;
        file.flush().map_err(full)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_executable_is_where_firmware_looks() {
        let executable: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
        let mut bytes = with(&executable).unwrap();
        let esp = FileSystem::new(Cursor::new(&mut bytes), FsOptions::new()).unwrap();
        assert_eq!(esp.fat_type(), FatType::Fat32);
        let mut found = Vec::new();
        esp.root_dir().open_file("efi/boot/bootx64.efi").unwrap().read_to_end(&mut found).unwrap();
        assert!(found == executable);
    }

    #[test]
    fn an_executable_that_is_too_large_is_refused() {
        let error = with(&vec![1; SIZE as usize]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the UEFI executable has 134217728 bytes, too many for the EFI system partition of 134217728: take \
             something out of the initramfs, or make the partition larger"
        );
    }
}
