//! The UEFI firmware of this machine's QEMU.

use std::path::{Path, PathBuf};

/// Code and variables as distributions install EDK II's OVMF: Debian, Fedora, Arch Linux, NixOS and builds of QEMU
/// itself have one of these. None of them enforces Secure Boot.
const PLACES: [(&str, &str); 5] = [
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
    ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
    ("/usr/share/qemu/edk2-x86_64-code.fd", "/usr/share/qemu/edk2-i386-vars.fd"),
];

/// The files of a UEFI firmware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firmware {
    /// The firmware.
    pub code: PathBuf,
    /// The variables of a new machine. Copy the file for each VM.
    pub variables: PathBuf,
}

/// No firmware was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no UEFI firmware for QEMU in {}; install OVMF (Debian: apt install ovmf), or run through ./bazelw, which brings it",
    PLACES[0].0
)]
pub struct FirmwareError;

impl Firmware {
    /// Finds the firmware in the paths of distributions.
    pub fn find() -> Result<Self, FirmwareError> {
        Self::among(&PLACES.map(|(code, variables)| (Path::new(code), Path::new(variables))))
    }

    fn among(places: &[(&Path, &Path)]) -> Result<Self, FirmwareError> {
        let found = places.iter().find(|(code, variables)| code.is_file() && variables.is_file());
        let (code, variables) = found.ok_or(FirmwareError)?;
        Ok(Self { code: code.into(), variables: variables.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_without_its_variables_is_passed_over() {
        // The test program is a file that exists.
        let here = std::env::current_exe().unwrap();
        let absent = Path::new("/absent");
        let found = Firmware::among(&[(&here, absent), (absent, &here), (&here, &here)]).unwrap();
        assert_eq!((found.code, found.variables), (here.clone(), here.clone()));
        assert_eq!(Firmware::among(&[(&here, absent)]), Err(FirmwareError));
    }
}
