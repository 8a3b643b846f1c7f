//! Operations of loopdev. Backing files lie on the measured disk, with direct I/O as block volumes have it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use loopdev::{Config, Control, Detach, Device};
use nix::unistd::syncfs;
use units::Bytes;

use crate::call::CallError;
use crate::region::measured;

const CONFIG: Config = Config {
    block_size: None,
    read_only: false,
    autoclear: false,
    partscan: false,
    direct_io: true,
    offset: Bytes::ZERO,
    size_limit: None,
};

pub(crate) struct Attached(Vec<(Backing, Device)>);

impl Attached {
    pub(crate) fn new(mount: &Path, devices: u32) -> Result<Self, CallError> {
        let control = Control::open()?;
        let attach = |number| {
            let backing = Backing::make(mount, &format!("backing-{number}"))?;
            let device = control.attach(&backing.file, &CONFIG)?;
            Ok((backing, device))
        };
        (0..devices).map(attach).collect::<Result<_, CallError>>().map(Self)
    }

    pub(crate) fn detach(self) -> Result<(), CallError> {
        self.0.into_iter().try_for_each(|(backing, device)| backing.discard(device))
    }
}

pub(crate) fn attach(mount: &Path) -> Result<(), CallError> {
    let (control, backing) = (Control::open()?, Backing::make(mount, "measured")?);
    sync(mount)?;
    let device = measured(|| control.attach(&backing.file, &CONFIG))??;
    backing.discard(device)
}

pub(crate) fn status(mount: &Path) -> Result<(), CallError> {
    let (backing, device) = attached(mount)?;
    measured(|| device.status())??;
    backing.discard(device)
}

pub(crate) fn refresh(mount: &Path) -> Result<(), CallError> {
    let (backing, device) = attached(mount)?;
    backing.resize(Bytes::new(2 << 20))?;
    measured(|| device.refresh_size())??;
    backing.discard(device)
}

pub(crate) fn detach(mount: &Path) -> Result<(), CallError> {
    let (backing, device) = attached(mount)?;
    let end = measured(|| device.detach(&backing.file))??;
    backing.discarded(end)
}

pub(crate) fn list(mount: &Path, present: u32) -> Result<(), CallError> {
    sync(mount)?;
    let found = measured(loopdev::list)??.len();
    if usize::try_from(present).is_ok_and(|present| present == found) {
        Ok(())
    } else {
        Err(CallError::Wrong {
            what: "number of devices",
            found: u32::try_from(found).unwrap_or(u32::MAX),
            expected: present,
        })
    }
}

fn attached(mount: &Path) -> Result<(Backing, Device), CallError> {
    let backing = Backing::make(mount, "measured")?;
    let device = Control::open()?.attach(&backing.file, &CONFIG)?;
    sync(mount)?;
    Ok((backing, device))
}

/// What was done so far does not reach the disk in the region.
fn sync(mount: &Path) -> Result<(), CallError> {
    let synced = File::open(mount).and_then(|mount| Ok(syncfs(mount)?));
    synced.map_err(CallError::arrange("sync", mount))
}

struct Backing {
    path: PathBuf,
    file: File,
}

impl Backing {
    fn make(mount: &Path, name: &str) -> Result<Self, CallError> {
        let path = mount.join(name);
        let make = || {
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            file.set_len(Bytes::MIB.get())?;
            Ok::<File, io::Error>(file)
        };
        let file = make().map_err(CallError::arrange("make", &path))?;
        Ok(Self { path, file })
    }

    fn resize(&self, size: Bytes) -> Result<(), CallError> {
        self.file.set_len(size.get()).map_err(CallError::arrange("resize", &self.path))
    }

    fn discard(self, device: Device) -> Result<(), CallError> {
        let end = device.detach(&self.file)?;
        self.discarded(end)
    }

    /// Nobody else may have the device open: the next count would find it.
    fn discarded(self, end: Detach) -> Result<(), CallError> {
        if end != Detach::Detached {
            return Err(CallError::Deferred);
        }
        fs::remove_file(&self.path).map_err(CallError::arrange("remove", &self.path))
    }
}
