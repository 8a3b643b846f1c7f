//! The name of a state.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Changes when states of earlier versions of the tests cannot be used.
const FORMAT: &str = "2";

/// The digest of everything that a state depends on. It includes the CPU, whose features and clock rate the guest has
/// seen, and the boot ID: a state is not synced, so that a crash of the machine may damage it.
#[derive(Clone, Debug)]
pub struct Key {
    name: &'static str,
    digest: Sha256,
}

impl Key {
    /// `name` is for users who look at the directory.
    pub fn new(name: &'static str) -> io::Result<Self> {
        let cpu = fs::read_to_string("/proc/cpuinfo")?;
        let mut key = Self { name, digest: Sha256::new() };
        key.add(FORMAT);
        key.add(&fs::read_to_string("/proc/sys/kernel/random/boot_id")?);
        for field in ["model name", "flags"] {
            key.add(cpu.lines().find(|line| line.starts_with(field)).unwrap_or_default());
        }
        Ok(key)
    }

    pub fn add(&mut self, text: &str) {
        // The length distinguishes two texts from their concatenation.
        self.digest.update(text.len().to_le_bytes());
        self.digest.update(text);
    }

    pub fn add_file(&mut self, path: &Path) -> io::Result<()> {
        let mut digest = Sha256::new();
        io::copy(&mut File::open(path)?, &mut digest)?;
        self.digest.update(digest.finalize());
        Ok(())
    }

    pub(crate) fn directory(&self) -> String {
        let digest = self.digest.clone().finalize();
        let digits: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{digits}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_changes_the_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = |texts: &[&str], content: &str| {
            fs::write(file.path(), content).unwrap();
            let mut key = Key::new("guest").unwrap();
            texts.iter().for_each(|text| key.add(text));
            key.add_file(file.path()).unwrap();
            key.directory()
        };
        let names = [name(&["ab", "c"], "x"), name(&["a", "bc"], "x"), name(&["ab"], "x"), name(&["ab", "c"], "y")];
        let different: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len());
        assert_eq!(name(&["ab", "c"], "x"), names[0]);
        assert!(names[0].starts_with("guest-"), "{}", names[0]);
    }
}
