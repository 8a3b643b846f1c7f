//! Volumes from the node's perspective.

use crate::CheckError;
use crate::finding::{Entry, Image, Loop, Mount, Project, Volumes};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Maximum depth of listed directories: directories of the store, and volumes in them.
const DEPTH: usize = 2;

/// Mounts of the node's PID 1 instead of those of this container.
const MOUNTS: &str = "/proc/1/mountinfo";
const DEVICES: &str = "/sys/block";
/// Name of a block volume's image file in the directory of the volume.
const IMAGE: &str = "image";

pub(crate) fn list(directory: &Path) -> Result<Volumes, CheckError> {
    let mut entries = Vec::new();
    walk(directory, directory, DEPTH, &mut entries)?;
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let open = File::open(directory).map_err(CheckError::of("open", directory))?;
    let projects = fsquota::report(&open)
        .and_then(|report| report.map(|quota| quota.map(project)).collect())
        .map_err(|error| CheckError::of("list the projects of", directory)(io::Error::other(error)))?;
    let mounts = Path::new(MOUNTS);
    let text = fs::read_to_string(mounts).map_err(CheckError::of("read", mounts))?;
    Ok(Volumes { entries, projects, loops: loops()?, mounts: text.lines().filter_map(mount).collect() })
}

/// Lists loop devices from sysfs, which shows the node's devices in every container.
fn loops() -> Result<Vec<Loop>, CheckError> {
    let devices = Path::new(DEVICES);
    let mut found = Vec::new();
    for entry in fs::read_dir(devices).map_err(CheckError::of("list", devices))? {
        let path = entry.map_err(CheckError::of("list", devices))?.path();
        // Only loop devices with a file have this attribute.
        if let Ok(file) = fs::read_to_string(path.join("loop/backing_file")) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.push(Loop { name, file: file.trim_end().to_owned() });
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Parses a line `36 35 98:0 ROOT POINT FLAGS …` (proc_pid_mountinfo(5)). `None` if it is not a volume of the kubelet.
fn mount(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ').skip(3);
    let (root, point, flags) = (fields.next()?, fields.next()?, fields.next()?);
    // Mount points of file system volumes, of block volumes in a pod, and of block volumes outside pods.
    let dirs = ["/volumes/kubernetes.io~csi/", "/volumeDevices/kubernetes.io~csi/", "/plugins/kubernetes.io/csi/"];
    dirs.iter().any(|part| point.contains(part)).then(|| Mount {
        root: root.to_owned(),
        point: point.to_owned(),
        flags: flags.split(',').map(str::to_owned).collect(),
    })
}

fn walk(root: &Path, directory: &Path, depth: usize, entries: &mut Vec<Entry>) -> Result<(), CheckError> {
    for entry in fs::read_dir(directory).map_err(CheckError::of("list", directory))? {
        let path = entry.map_err(CheckError::of("list", directory))?.path();
        let metadata = match path.symlink_metadata() {
            Ok(metadata) => metadata,
            // A volume may be removed while the directory is read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(CheckError::of("stat", &path)(error)),
        };
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let (mut project, mut image) = (None, None);
        if metadata.is_dir() {
            let open = File::open(&path).map_err(CheckError::of("open", &path))?;
            let found = fsquota::project(&open)
                .map_err(|error| CheckError::of("find the project of", &path)(io::Error::other(error)))?;
            project = found.map(fsquota::ProjectId::get);
            let file = path.join(IMAGE).symlink_metadata().ok().filter(fs::Metadata::is_file);
            // stat(3type) counts blocks of 512 bytes.
            image = file.map(|file| Image { size: file.len(), allocated: file.blocks() * 512 });
            if depth > 1 {
                walk(root, &path, depth - 1, entries)?;
            }
        }
        entries.push(Entry { path: name, project, image });
    }
    Ok(())
}

fn project(quota: fsquota::Quota) -> Project {
    Project {
        id: quota.id.get(),
        bytes: quota.limits.bytes.map(units::Bytes::get),
        inodes: quota.limits.inodes.map(units::Inodes::get),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kubelets_mounts_of_volumes_count() {
        let point = "/data/kubelet/pods/1/volumes/kubernetes.io~csi/pvc-1/mount";
        let line = format!("36 35 8:0 /volumes/live/pvc-1 {point} rw,nosuid,nodev master:1 - xfs /dev/vda rw");
        let mount = mount(&line).unwrap();
        assert_eq!((mount.point.as_str(), mount.root.as_str()), (point, "/volumes/live/pvc-1"));
        assert_eq!(mount.flags, ["rw", "nosuid", "nodev"]);
        assert_eq!(super::mount("36 35 0:5 / /proc rw - proc proc rw"), None);
        assert_eq!(super::mount("36 35"), None);
    }
}
