//! Probe whether KVM executes a guest on this host.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::process::{Exit, Process};
use crate::program::Program;

const LIMIT: Duration = Duration::from_secs(5);

/// The guest writes `ANSWER` to the debug port; QEMU then ends with `ANSWER << 1 | 1`.
const ANSWER: u8 = 0x15;
const STATUS: i32 = ((ANSWER as i32) << 1) | 1;

/// Reason why KVM is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KvmError {
    #[error("cannot open /dev/kvm")]
    Open(#[source] io::Error),
    #[error("cannot start a probe of KVM")]
    Start(#[source] io::Error),
    /// QEMU exited, for example because the CPU lacks features.
    #[error("QEMU does not run a guest in KVM ({0})")]
    Refused(Exit),
    /// QEMU runs, but the guest does not finish.
    #[error("a guest in KVM does not reach 64-bit mode within {} s", LIMIT.as_secs())]
    Hung,
}

pub(crate) fn try_kvm(program: &Program, scratch: &Path) -> Result<(), KvmError> {
    File::options().read(true).write(true).open("/dev/kvm").map_err(KvmError::Open)?;
    // `enforce`: QEMU exits at once if KVM offers fewer features than emulation would.
    run(program, &["-accel", "kvm", "-cpu", "Nehalem,enforce"], scratch)
}

fn run(program: &Program, accelerator: &[&str], scratch: &Path) -> Result<(), KvmError> {
    let rom = written(scratch).map_err(KvmError::Start)?;
    let mut command = Command::new(program.path());
    command.args(arguments(accelerator, rom.path()));
    let guest = Process::spawn(command, Vec::new()).map_err(KvmError::Start)?;
    match guest.wait(LIMIT) {
        Some(exit) if exit.status.code() == Some(STATUS) => Ok(()),
        Some(exit) => Err(KvmError::Refused(exit)),
        None => Err(KvmError::Hung),
    }
}

fn arguments(accelerator: &[&str], rom: &Path) -> Vec<OsString> {
    let machine = ["-machine", "q35", "-m", "16M", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"];
    let mut all: Vec<OsString> = accelerator.iter().chain(&machine).map(OsString::from).collect();
    all.extend(["-device".into(), "isa-debug-exit,iobase=0xf4,iosize=1".into(), "-bios".into(), rom.into()]);
    all
}

fn written(scratch: &Path) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::with_prefix_in("probe", scratch)?;
    file.write_all(&rom())?;
    file.flush()?;
    Ok(file)
}

/// ROM with the guest, which goes from the reset vector to 64-bit mode with paging, which software KVM may lack, and
/// then writes one byte to the debug port. QEMU maps the ROM to 0xf0000 and to the end of the first 4 GiB, where the
/// CPU starts.
fn rom() -> Vec<u8> {
    #[rustfmt::skip]
    const REAL_MODE: &[&[u8]] = &[
        &[0xfa],                                                      // cli
        &[0x2e, 0x66, 0x0f, 0x01, 0x16, 0x20, 0x01],                  // lgdtl %cs:0x120
        &[0x0f, 0x20, 0xc0],                                          // mov %cr0, %eax
        &[0x0c, 0x01],                                                // or $1 (PE), %al
        &[0x0f, 0x22, 0xc0],                                          // mov %eax, %cr0
        &[0x66, 0xea, 0x20, 0x00, 0x0f, 0x00, 0x08, 0x00],            // ljmpl $0x08, $0xf0020
    ];
    #[rustfmt::skip]
    const PROTECTED_MODE: &[&[u8]] = &[
        &[0xb8, 0x10, 0x00, 0x00, 0x00],                              // mov $0x10, %eax
        &[0x8e, 0xd8],                                                // mov %eax, %ds
        // Tables at 0x1000, 0x2000, 0x3000 map the first 2 MiB to themselves.
        &[0xc7, 0x05, 0x00, 0x10, 0x00, 0x00, 0x03, 0x20, 0x00, 0x00], // movl $0x2003, 0x1000
        &[0xc7, 0x05, 0x00, 0x20, 0x00, 0x00, 0x03, 0x30, 0x00, 0x00], // movl $0x3003, 0x2000
        &[0xc7, 0x05, 0x00, 0x30, 0x00, 0x00, 0x83, 0x00, 0x00, 0x00], // movl $0x83, 0x3000
        &[0xb8, 0x20, 0x00, 0x00, 0x00],                              // mov $0x20 (PAE), %eax
        &[0x0f, 0x22, 0xe0],                                          // mov %eax, %cr4
        &[0xb8, 0x00, 0x10, 0x00, 0x00],                              // mov $0x1000, %eax
        &[0x0f, 0x22, 0xd8],                                          // mov %eax, %cr3
        &[0xb9, 0x80, 0x00, 0x00, 0xc0],                              // mov $0xc0000080 (EFER), %ecx
        &[0x0f, 0x32],                                                // rdmsr
        &[0x0d, 0x00, 0x01, 0x00, 0x00],                              // or $0x100 (LME), %eax
        &[0x0f, 0x30],                                                // wrmsr
        &[0x0f, 0x20, 0xc0],                                          // mov %cr0, %eax
        &[0x0d, 0x00, 0x00, 0x00, 0x80],                              // or $0x80000000 (PG), %eax
        &[0x0f, 0x22, 0xc0],                                          // mov %eax, %cr0
        &[0xea, 0x80, 0x00, 0x0f, 0x00, 0x18, 0x00],                  // ljmp $0x18, $0xf0080
    ];
    #[rustfmt::skip]
    const LONG_MODE: &[&[u8]] = &[
        &[0xb0, ANSWER],                                              // mov $ANSWER, %al
        &[0xe6, 0xf4],                                                // out %al, $0xf4
        &[0xf4],                                                      // hlt
        &[0xeb, 0xfd],                                                // jmp to hlt
    ];
    /// Selectors 0x08 (32-bit code), 0x10 (data) and 0x18 (64-bit code).
    const SEGMENTS: [u64; 4] = [0, 0x00cf_9a00_0000_ffff, 0x00cf_9200_0000_ffff, 0x00af_9a00_0000_ffff];
    /// Limit and address of `SEGMENTS`.
    const TABLE: &[&[u8]] = &[&[0x1f, 0x00], &[0x00, 0x01, 0x0f, 0x00]];
    const RESET: &[&[u8]] = &[&[0xea, 0x00, 0x00, 0x00, 0xf0]]; // ljmp $0xf000, $0

    let mut rom = vec![0; 64 << 10];
    let mut put = |at: usize, bytes: Vec<u8>| rom[at..at + bytes.len()].copy_from_slice(&bytes);
    put(0x0000, REAL_MODE.concat());
    put(0x0020, PROTECTED_MODE.concat());
    put(0x0080, LONG_MODE.concat());
    put(0x0100, SEGMENTS.iter().flat_map(|segment| segment.to_le_bytes()).collect());
    put(0x0120, TABLE.concat());
    put(0xfff0, RESET.concat());
    rom
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accelerator::EMULATED;

    #[test]
    fn no_part_of_the_rom_covers_another() {
        let rom = rom();
        assert_eq!(rom.len(), 64 << 10);
        assert_eq!(rom[0x0018..0x0020], [0; 8]);
        assert_eq!(rom[0x0020..0x0022], [0xb8, 0x10]);
        assert_eq!(rom[0x007a..0x0082], [0, 0, 0, 0, 0, 0, 0xb0, ANSWER]);
    }

    fn tried(accelerator: &[&str]) -> Result<(), KvmError> {
        let scratch = tempfile::tempdir().unwrap();
        let tried = run(&Program::find().unwrap(), accelerator, scratch.path());
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        tried
    }

    #[test]
    fn the_guest_of_the_probe_answers_in_emulation() {
        tried(&["-accel", "tcg", "-cpu", &format!("{EMULATED},enforce")]).unwrap();
    }

    #[test]
    fn the_message_of_a_failed_qemu_is_reported() {
        let error = tried(&["-accel", "abacus"]).unwrap_err();
        assert!(matches!(&error, KvmError::Refused(exit) if exit.stderr.contains("abacus")), "{error:?}");
    }

    #[test]
    fn the_guest_is_kept_in_the_callers_directory() {
        let scratch = tempfile::tempdir().unwrap();
        assert_eq!(written(scratch.path()).unwrap().path().parent(), Some(scratch.path()));
        let error = run(&Program::find().unwrap(), &[], &scratch.path().join("absent")).unwrap_err();
        assert!(matches!(&error, KvmError::Start(source) if source.kind() == io::ErrorKind::NotFound), "{error:?}");
    }
}
