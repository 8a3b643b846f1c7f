//! The disks of the machine, as the kernel and their content tell.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::libc::dev_t;
use nix::sys::stat::{major, minor};
use units::Bytes;

use crate::content::{Content, END, Ends};
use crate::error::FindError;
use crate::plan::{Decision, plan};

/// Serial number of the disk that the system is on.
const SYSTEM_SERIAL: &str = "system";
/// Serial number that designates the data disk.
const DATA_SERIAL: &str = "data";

/// What a disk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The node was started from it.
    System,
    /// The machine says that it is for the data.
    Data,
    /// Nobody says.
    Unnamed,
}

/// A disk that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The kernel's name: `vda`.
    pub name: String,
    /// Its device node.
    pub device: PathBuf,
    /// What it is for.
    pub role: Role,
    /// Whether it can only be read.
    pub read_only: bool,
    /// Its size.
    pub size: Bytes,
    /// What is on it.
    pub content: Content,
}

/// The disk for the data: chosen, and not touched yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDisk {
    pub(crate) device: PathBuf,
    pub(crate) size: Bytes,
    pub(crate) state: State,
}

/// What must be done before a [`DataDisk`] can be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Formatted(crate::Geometry),
    Empty,
    Unfinished,
}

impl DataDisk {
    /// Looks at all disks and chooses.
    ///
    /// # Errors
    /// [`FindError::Refused`] says which disks there are and what to do.
    pub fn find() -> Result<Self, FindError> {
        Self::choose(&disks()?)
    }

    /// The disk that [`plan`] decides for.
    ///
    /// # Errors
    /// [`FindError::Refused`].
    pub fn choose(seen: &[Seen]) -> Result<Self, FindError> {
        let (Decision::Use(disk) | Decision::Format(disk)) = plan(seen)?;
        let state = match &disk.content {
            Content::Ours(geometry) => State::Formatted(*geometry),
            Content::Unfinished => State::Unfinished,
            Content::Empty => State::Empty,
            Content::Foreign(what) => {
                let what = what.clone();
                return Err(crate::Refusal::Foreign { disk: disk.name.clone(), what }.into());
            }
        };
        Ok(Self { device: disk.device.clone(), size: disk.size, state })
    }

    /// Its device node.
    pub fn device(&self) -> &Path {
        &self.device
    }
}

/// All disks of the machine, by name. Reads both ends of each, writes nothing.
///
/// # Errors
/// [`FindError::Look`], [`FindError::Malformed`]: which disk, and what was tried.
pub fn disks() -> Result<Vec<Seen>, FindError> {
    let root = Path::new("/");
    let root = fs::metadata(root).map_err(look("look at", root))?.dev();
    Machine { blocks: "/sys/block".into(), devices: "/dev".into(), root }.disks()
}

/// Where the kernel tells of disks.
struct Machine {
    blocks: PathBuf,
    devices: PathBuf,
    /// The device that the running system's root is on.
    root: dev_t,
}

impl Machine {
    fn disks(&self) -> Result<Vec<Seen>, FindError> {
        let mut disks = Vec::new();
        for entry in fs::read_dir(&self.blocks).map_err(look("list", &self.blocks))? {
            let entry = entry.map_err(look("list", &self.blocks))?;
            // Loop devices, RAM disks and what is stacked on disks have no hardware.
            if entry.path().join("device").exists()
                && let Some(disk) = self.disk(&entry.path())?
            {
                disks.push(disk);
            }
        }
        disks.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(disks)
    }

    /// What is at a path like `/sys/block/vda`; `None` if it is a drive without a medium.
    fn disk(&self, path: &Path) -> Result<Option<Seen>, FindError> {
        // Sectors of 512 bytes, whatever the disk's own are.
        let size = Bytes::new(number(&path.join("size"))?.saturating_mul(512));
        let Some(name) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else { return Ok(None) };
        if size == Bytes::ZERO {
            return Ok(None);
        }
        let device = self.devices.join(&name);
        let role = if holds(path, self.root)? { Role::System } else { role(path)? };
        let read_only = number(&path.join("ro"))? != 0;
        let content = content(&device, size)?;
        Ok(Some(Seen { name, device, role, read_only, size, content }))
    }
}

/// virtio-blk has the serial number at the disk, other drivers at its hardware; some have none.
fn role(path: &Path) -> Result<Role, FindError> {
    for place in ["serial", "device/serial"] {
        let place = path.join(place);
        match fs::read_to_string(&place) {
            Ok(serial) => match serial.trim() {
                SYSTEM_SERIAL => return Ok(Role::System),
                DATA_SERIAL => return Ok(Role::Data),
                _ => {}
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(look("read", &place)(error)),
        }
    }
    Ok(Role::Unnamed)
}

/// Whether a disk or one of its partitions is this device.
fn holds(disk: &Path, device: dev_t) -> Result<bool, FindError> {
    let wanted = format!("{}:{}", major(device), minor(device));
    let is = |path: &Path| fs::read_to_string(path.join("dev")).is_ok_and(|found| found.trim() == wanted);
    if is(disk) {
        return Ok(true);
    }
    for entry in fs::read_dir(disk).map_err(look("list", disk))? {
        let entry = entry.map_err(look("list", disk))?.path();
        if entry.join("partition").exists() && is(&entry) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn content(device: &Path, size: Bytes) -> Result<Content, FindError> {
    let disk = File::open(device).map_err(look("open", device))?;
    let length = usize::try_from(size.get()).unwrap_or(usize::MAX).min(END);
    let (mut head, mut tail) = (vec![0; length], vec![0; length]);
    disk.read_exact_at(&mut head, 0).map_err(look("read the beginning of", device))?;
    disk.read_exact_at(&mut tail, size.get() - length as u64).map_err(look("read the end of", device))?;
    Ok(Ends { head: &head, tail: &tail, size: size.get() }.content())
}

fn number(path: &Path) -> Result<u64, FindError> {
    let text = fs::read_to_string(path).map_err(look("read", path))?;
    text.trim().parse().map_err(|_| FindError::Malformed { path: path.to_owned() })
}

fn look(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FindError {
    let path = path.to_owned();
    move |source| FindError::Look { step, path, source }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::makedev;
    use tempfile::TempDir;

    use super::*;
    use crate::content::Signature;

    /// A machine whose disks are files.
    struct FakeMachine {
        place: TempDir,
    }

    impl FakeMachine {
        fn new() -> Self {
            let machine = Self { place: tempfile::tempdir().unwrap() };
            fs::create_dir(machine.blocks()).unwrap();
            fs::create_dir(machine.devices()).unwrap();
            machine
        }

        fn blocks(&self) -> PathBuf {
            self.place.path().join("block")
        }

        fn devices(&self) -> PathBuf {
            self.place.path().join("dev")
        }

        fn add(&self, name: &str, serial: Option<&str>, content: &[u8]) {
            let block = self.blocks().join(name);
            fs::create_dir_all(block.join("device")).unwrap();
            let size = (4 << 20) + 512;
            fs::write(block.join("size"), format!("{}\n", size / 512)).unwrap();
            fs::write(block.join("ro"), "0\n").unwrap();
            fs::write(block.join("dev"), "254:0\n").unwrap();
            if let Some(serial) = serial {
                fs::write(block.join("serial"), serial).unwrap();
            }
            fs::write(self.devices().join(name), content).unwrap();
            File::options().write(true).open(self.devices().join(name)).unwrap().set_len(size).unwrap();
        }

        fn look(&self) -> Result<Vec<Seen>, FindError> {
            Machine { blocks: self.blocks(), devices: self.devices(), root: makedev(254, 17) }.disks()
        }

        fn disks(&self) -> Vec<Seen> {
            self.look().unwrap()
        }
    }

    #[test]
    fn a_disk_is_seen_with_its_role_size_and_content() {
        let machine = FakeMachine::new();
        machine.add("vdb", Some("data"), b"");
        machine.add("vda", Some("system\n"), b"hsqs");
        let seen = machine.disks();
        let summary: Vec<_> = seen.iter().map(|disk| (disk.name.as_str(), disk.role, &disk.content)).collect();
        let squashfs = Content::Foreign(Signature::Known("a squashfs file system"));
        assert_eq!(summary, [("vda", Role::System, &squashfs), ("vdb", Role::Data, &Content::Empty)]);
        assert_eq!(seen[1].size, Bytes::new((4 << 20) + 512));
    }

    #[test]
    fn the_disk_that_holds_the_root_in_a_partition_is_the_systems() {
        let machine = FakeMachine::new();
        machine.add("vdb", Some("data"), b"");
        let partition = machine.blocks().join("vdb/vdb1");
        fs::create_dir(&partition).unwrap();
        fs::write(partition.join("partition"), "1\n").unwrap();
        fs::write(partition.join("dev"), "254:17\n").unwrap();
        assert_eq!(machine.disks()[0].role, Role::System);
    }

    #[test]
    fn what_is_no_hardware_is_passed_over() {
        let machine = FakeMachine::new();
        fs::create_dir(machine.blocks().join("loop0")).unwrap();
        machine.add("sr0", None, b"");
        fs::write(machine.blocks().join("sr0/size"), "0\n").unwrap();
        assert_eq!(machine.disks(), []);
    }

    #[test]
    fn the_last_byte_of_a_disk_is_looked_at() {
        let machine = FakeMachine::new();
        machine.add("vda", None, b"");
        let last = (4 << 20) + 511;
        File::options().write(true).open(machine.devices().join("vda")).unwrap().write_all_at(b"x", last).unwrap();
        assert_eq!(machine.disks()[0].content, Content::Foreign(Signature::Unknown { at: last }));
    }

    #[test]
    fn a_disk_that_cannot_be_read_is_named() {
        let machine = FakeMachine::new();
        machine.add("vda", None, b"");
        fs::remove_file(machine.devices().join("vda")).unwrap();
        assert!(matches!(machine.look(), Err(FindError::Look { step: "open", path, .. }) if path.ends_with("dev/vda")));
    }
}
