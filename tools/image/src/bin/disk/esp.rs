//! The EFI system partition (ESP).

use std::io::{self, Cursor, Write as _};

use fatfs::{FatType, FileSystem, FormatVolumeOptions, FsOptions};

/// Size in bytes. An executable has about 20 MiB, an update needs space for a third executable, and FAT32 needs at
/// least 33 MiB.
pub const SIZE: u64 = 128 << 20;
/// Default path of firmware without boot entries: UEFI specification 2.10, section 3.5.1.1.
const DIRECTORIES: [&str; 2] = ["EFI", "EFI/BOOT"];
const EXECUTABLE: &str = "EFI/BOOT/BOOTX64.EFI";
const ID: u32 = 0x5ad0_0001;
const LABEL: [u8; 11] = *b"GRANARY ESP";

#[derive(Debug, thiserror::Error)]
pub enum EspError {
    #[error(
        "the UEFI executable of {wanted} bytes does not fit on the EFI system partition of {SIZE} bytes; remove \
         files from the initramfs or enlarge the partition"
    )]
    Full { wanted: usize, source: io::Error },
    #[error("cannot {step} the EFI system partition")]
    Make { step: &'static str, source: io::Error },
}

/// Creates a FAT32 file system with the executable at the default path.
pub fn with(executable: &[u8]) -> Result<Vec<u8>, EspError> {
    let step = |step| move |source| EspError::Make { step, source };
    let full = |source| EspError::Full { wanted: executable.len(), source };
    let mut bytes = vec![0; SIZE as usize];
    let options = FormatVolumeOptions::new().fat_type(FatType::Fat32).volume_id(ID).volume_label(LABEL);
    fatfs::format_volume(Cursor::new(&mut bytes), options).map_err(step("format"))?;
    {
        // Without its feature `chrono`, fatfs always writes the same time, the beginning of 1980.
        let esp = FileSystem::new(Cursor::new(&mut bytes), FsOptions::new()).map_err(step("open"))?;
        let root = esp.root_dir();
        for directory in DIRECTORIES {
            root.create_dir(directory).map_err(step("create the directories of"))?;
        }
        let mut file = root.create_file(EXECUTABLE).map_err(step("create the executable on"))?;
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
    fn the_executable_is_at_the_default_path_of_firmware() {
        let executable: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
        let mut bytes = with(&executable).unwrap();
        let esp = FileSystem::new(Cursor::new(&mut bytes), FsOptions::new()).unwrap();
        assert_eq!(esp.fat_type(), FatType::Fat32);
        let mut found = Vec::new();
        esp.root_dir().open_file("efi/boot/bootx64.efi").unwrap().read_to_end(&mut found).unwrap();
        assert!(found == executable);
    }

    #[test]
    fn an_executable_that_is_too_large_is_rejected() {
        let error = with(&vec![1; SIZE as usize]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the UEFI executable of 134217728 bytes does not fit on the EFI system partition of 134217728 bytes; remove \
             files from the initramfs or enlarge the partition"
        );
    }
}
