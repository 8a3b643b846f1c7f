//! [`Maps`]: the memory that the programs and this process share.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use loopdev::DeviceNumber;
use nix::errno::Errno;

use crate::cgroup::CgroupId;
use crate::denials::{Denials, Operation, Recent};
use crate::error::Error;
use crate::programs::{self, kernel_number};
use crate::sys::{self, MapKind, Writers};

/// Maximum number of published loop devices.
const PUBLISHED: u32 = 4096;
/// Maximum number of exempt cgroups. There is more than one only during a change.
const EXEMPT: u32 = 8;
/// Maximum number of recorded pairs of a cgroup and an operation.
const RECENT: u32 = 1024;

/// Names of the maps and of their pins.
pub(crate) mod name {
    pub(crate) const DENIED: &str = "denied";
    pub(crate) const EXEMPT: &str = "exempt";
    pub(crate) const PUBLISHED: &str = "published";
    pub(crate) const RECENT: &str = "recent";
}

/// A key of [`Maps::recent`]: the cgroup's ID, then the number of the operation.
type RecentKey = [u8; 16];

/// The maps of the programs. Keys and values are numbers in the machine's byte order.
#[derive(Debug)]
pub(crate) struct Maps {
    /// Number of an operation → count.
    denied: sys::Map<4, 8>,
    /// Cgroup ID → unused.
    exempt: sys::Map<8, 4>,
    /// Device number → unused.
    published: sys::Map<4, 4>,
    /// Cgroup and operation → count.
    recent: sys::Map<16, 8>,
}

impl Maps {
    /// Creates all maps.
    pub(crate) fn create() -> Result<Self, Error> {
        Ok(Self {
            denied: create(MapKind::Array, Operation::ALL.len() as u32, name::DENIED)?,
            exempt: create(MapKind::Hash, EXEMPT, name::EXEMPT)?,
            published: create(MapKind::Hash, PUBLISHED, name::PUBLISHED)?,
            recent: create(MapKind::LruHash, RECENT, name::RECENT)?,
        })
    }

    /// Opens the maps that are pinned in a directory. Creates maps that are missing, or that another release has pinned
    /// with another shape.
    pub(crate) fn pinned(directory: &Path) -> Result<Self, Error> {
        Ok(Self {
            denied: open(MapKind::Array, Operation::ALL.len() as u32, name::DENIED, directory)?,
            exempt: open(MapKind::Hash, EXEMPT, name::EXEMPT, directory)?,
            published: open(MapKind::Hash, PUBLISHED, name::PUBLISHED, directory)?,
            recent: open(MapKind::LruHash, RECENT, name::RECENT, directory)?,
        })
    }

    /// The maps with their names.
    pub(crate) fn objects(&self) -> [(&'static str, BorrowedFd<'_>); 4] {
        [
            (name::DENIED, self.denied.descriptor()),
            (name::EXEMPT, self.exempt.descriptor()),
            (name::PUBLISHED, self.published.descriptor()),
            (name::RECENT, self.recent.descriptor()),
        ]
    }

    /// The descriptors by which programs refer to the maps.
    pub(crate) fn descriptors(&self) -> programs::Maps {
        let number = |descriptor: BorrowedFd<'_>| descriptor.as_raw_fd();
        programs::Maps {
            denied: number(self.denied.descriptor()),
            exempt: number(self.exempt.descriptor()),
            published: number(self.published.descriptor()),
            recent: number(self.recent.descriptor()),
        }
    }

    pub(crate) fn publish(&self, device: DeviceNumber) -> Result<(), Error> {
        let key = kernel_number(device).to_ne_bytes();
        self.published.set(&key, [0; 4]).map_err(failed("add a device to", name::PUBLISHED))
    }

    pub(crate) fn withdraw(&self, device: DeviceNumber) -> Result<(), Error> {
        let key = kernel_number(device).to_ne_bytes();
        self.published.remove(&key).map_err(failed("remove a device from", name::PUBLISHED))
    }

    /// Adds the cgroup before others are removed, so that a former process of the same cgroup stays exempt.
    pub(crate) fn exempt(&self, cgroup: CgroupId) -> Result<(), Error> {
        let wanted = cgroup.get().to_ne_bytes();
        let former = keys(&self.exempt, EXEMPT).map_err(failed("read", name::EXEMPT))?;
        let mut others = former.iter().filter(|key| **key != wanted);
        // Make space for the cgroup.
        if former.len() == EXEMPT as usize {
            others.next().map_or(Ok(()), |key| self.remove_exempt(key))?;
        }
        self.exempt.set(&wanted, [0; 4]).map_err(failed("add a cgroup to", name::EXEMPT))?;
        others.try_for_each(|key| self.remove_exempt(key))
    }

    /// Prevents processes from exempting a cgroup from now on. Programs never could.
    pub(crate) fn freeze_exempt(&self) -> Result<(), Error> {
        self.exempt.freeze().map_err(failed("freeze", name::EXEMPT))
    }

    fn remove_exempt(&self, key: &[u8; 8]) -> Result<(), Error> {
        self.exempt.remove(key).map_err(failed("remove a cgroup from", name::EXEMPT))
    }

    pub(crate) fn denied(&self) -> Result<Denials, Error> {
        let mut denials = Denials::default();
        for operation in Operation::ALL {
            let found = self.denied.get(&operation.number().to_ne_bytes()).map_err(failed("read", name::DENIED))?;
            denials.set(operation, u64::from_ne_bytes(found.unwrap_or_default()));
        }
        Ok(denials)
    }

    pub(crate) fn take_recent(&self) -> Result<Vec<Recent>, Error> {
        let keys = keys(&self.recent, RECENT).map_err(failed("read", name::RECENT))?;
        let mut taken = Vec::new();
        for key in keys {
            // The kernel may have dropped the entry in favour of a newer one.
            let Some(count) = self.recent.take(&key).map_err(failed("read", name::RECENT))? else { continue };
            taken.extend(recent(key, u64::from_ne_bytes(count)));
        }
        Ok(taken)
    }
}

fn recent(key: RecentKey, count: u64) -> Option<Recent> {
    let [cgroup, operation] = [*key.first_chunk()?, *key.last_chunk()?].map(u64::from_ne_bytes);
    let operation = Operation::ALL.into_iter().find(|known| u64::from(known.number()) == operation)?;
    Some(Recent { cgroup: CgroupId::from_kernel(cgroup), operation, count })
}

/// Keys of a map that may change meanwhile. The result has at most `most` keys, the capacity of the map.
fn keys<const KEY: usize, const VALUE: usize>(map: &sys::Map<KEY, VALUE>, most: u32) -> Result<Vec<[u8; KEY]>, Errno> {
    let mut keys: Vec<[u8; KEY]> = Vec::new();
    for _ in 0..most {
        let Some(key) = map.next_key(keys.last())? else { break };
        keys.push(key);
    }
    Ok(keys)
}

/// Writers of a map. Programs cannot change the exempt cgroups.
fn writers(name: &str) -> Writers {
    if name == name::EXEMPT { Writers::Processes } else { Writers::All }
}

fn create<const KEY: usize, const VALUE: usize>(
    kind: MapKind,
    entries: u32,
    name: &'static str,
) -> Result<sys::Map<KEY, VALUE>, Error> {
    let created = sys::Map::create(kind, entries, writers(name), object_name(name));
    created.map_err(|source| Error::CreateMap { map: name, source })
}

fn open<const KEY: usize, const VALUE: usize>(
    kind: MapKind,
    entries: u32,
    name: &'static str,
    directory: &Path,
) -> Result<sys::Map<KEY, VALUE>, Error> {
    let path = directory.join(name);
    match sys::Map::open(kind, entries, writers(name), &c_path(&path)?) {
        Ok(map) => Ok(map),
        Err(Errno::EMEDIUMTYPE | Errno::ENOENT) => create(kind, entries, name),
        Err(source) => Err(Error::Pin { step: "open the pin", path, source: source.into() }),
    }
}

pub(crate) fn c_path(path: &Path) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Pin {
        step: "use",
        path: path.into(),
        source: io::ErrorKind::InvalidInput.into(),
    })
}

/// The name of a map or program as tools show it, with at most 15 bytes.
pub(crate) fn object_name(name: &str) -> [u8; 16] {
    let mut padded = [0; 16];
    padded.iter_mut().zip(name.bytes().take(15)).for_each(|(to, from)| *to = from);
    padded
}

fn failed(step: &'static str, map: &'static str) -> impl FnOnce(Errno) -> Error {
    move |source| Error::UseMap { step, map, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_a_denial_is_a_cgroup_and_an_operation() {
        let key = |cgroup: u64, operation: u64| {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&cgroup.to_ne_bytes());
            key[8..].copy_from_slice(&operation.to_ne_bytes());
            key
        };
        let cgroup = CgroupId::from_kernel(77);
        assert_eq!(recent(key(77, 2), 5), Some(Recent { cgroup, operation: Operation::Loop, count: 5 }));
        assert_eq!(recent(key(77, 3), 5), None);
    }

    #[test]
    fn names_of_objects_are_cut_and_end_with_nul() {
        assert_eq!(&object_name("denied"), b"denied\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&object_name("file_ioctl_compat"), b"file_ioctl_comp\0");
    }
}
