//! Operations of the crate `loopdev`. Backing files are on the measured disk and use direct I/O, like block volumes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use loopdev::{Config, Control, Detach, Device};
use units::Bytes;

use crate::call::{CallError, arrange, wrong};
use crate::region::measured;
use crate::volumes::sync;

pub(crate) const CONFIG: Config = Config {
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
        Err(wrong("number of devices", u32::try_from(found).unwrap_or(u32::MAX), present))
    }
}

fn attached(mount: &Path) -> Result<(Backing, Device), CallError> {
    let backing = Backing::make(mount, "measured")?;
    let device = Control::open()?.attach(&backing.file, &CONFIG)?;
    sync(mount)?;
    Ok((backing, device))
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
        let file = make().map_err(arrange("create", &path))?;
        Ok(Self { path, file })
    }

    fn resize(&self, size: Bytes) -> Result<(), CallError> {
        self.file.set_len(size.get()).map_err(arrange("resize", &self.path))
    }

    fn discard(self, device: Device) -> Result<(), CallError> {
        let end = device.detach(&self.file)?;
        self.discarded(end)
    }

    /// Fails if another process has the device open, because the next count would include the device.
    fn discarded(self, end: Detach) -> Result<(), CallError> {
        if end != Detach::Detached {
            return Err("the loop device is in use by another process and stays for now".into());
        }
        fs::remove_file(&self.path).map_err(arrange("remove", &self.path))
    }
}
