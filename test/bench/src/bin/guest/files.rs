//! Operations of the crate `dir`, beside the directories that have projects.

use std::path::Path;

use dir::{Dir, Name};
use nix::sys::stat::Mode;

use crate::call::CallError;
use crate::quota::VOLUMES;
use crate::region::measured;

const CONTENT: [u8; 256] = [b'x'; 256];

pub(crate) fn write_new(mount: &Path) -> Result<(), CallError> {
    write(&Dir::open(&mount.join(VOLUMES))?, &Name::try_from("measured")?)
}

pub(crate) fn write_over(mount: &Path) -> Result<(), CallError> {
    let (volumes, name) = (Dir::open(&mount.join(VOLUMES))?, Name::try_from("measured")?);
    volumes.write(&name, b"old", mode())?;
    write(&volumes, &name)
}

fn write(volumes: &Dir, name: &Name) -> Result<(), CallError> {
    volumes.syncfs()?;
    measured(|| volumes.write(name, &CONTENT, mode()))??;
    Ok(volumes.remove_file(name)?)
}

fn mode() -> Mode {
    Mode::S_IRUSR | Mode::S_IWUSR
}
