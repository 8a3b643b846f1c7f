//! Results of checks, printed as JSON.

use serde::{Deserialize, Serialize};

/// The result of a check; in JSON an object with the name of the `check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "check", rename_all = "kebab-case")]
pub enum Finding {
    /// Of `inspect`.
    Inspect(Inspect),
    /// Of `fill`.
    Fill(Fill),
    /// Of `fill-inodes`.
    FillInodes(FillInodes),
    /// Of `write`.
    Write(Text),
    /// Of `read`.
    Read(Text),
    /// Of `try-write`.
    TryWrite(Tried),
    /// Of `paint`.
    Paint(Paint),
    /// Of `scan`.
    Scan(Scan),
    /// Of `checksum`.
    Checksum(Checksum),
    /// Of `execute`.
    Execute(Executed),
    /// Of `device`.
    Device(Device),
    /// Of `direct`.
    Direct(Tried),
    /// Of `demo`.
    Demo(Demo),
    /// Of `volumes`.
    Volumes(Volumes),
    /// Of `signal`.
    Signal(Signalled),
    /// Of `settings`.
    Settings(Settings),
    /// Of `unshare`.
    Unshare(Tried),
    /// Of `fetch`.
    Fetch(Text),
    /// Of [`crate::Check::Webhook`]: it was asked to end.
    Webhook,
    /// Of `serve`, at its end.
    Serve,
}

/// A file system as `statvfs` shows it; with a project quota that is the project's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Space {
    /// Bytes in all.
    pub size: u64,
    /// Bytes that are free.
    pub free: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// A path and the file system that it is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspect {
    pub space: Space,
    /// Flags of the mount: of `ro`, `nosuid`, `nodev`, `noexec` those that are set.
    pub flags: Vec<String>,
    pub uid: u32,
    pub gid: u32,
    /// Permissions in octal digits, like `0755`.
    pub mode: String,
}

/// A directory that was filled with data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fill {
    /// The file system before.
    pub before: Space,
    /// Bytes that were written and reached the disk (`fsync`).
    pub written: u64,
    /// Name of the error that stopped the last write, like `ENOSPC`.
    pub errno: String,
    /// The file system when it was full.
    pub full: Space,
}

/// A directory that was filled with empty files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FillInodes {
    /// The file system before.
    pub before: Space,
    /// Number of created files, and the directory.
    pub created: u64,
    /// Name of the error that stopped the last one.
    pub errno: String,
    /// The file system when it was full.
    pub full: Space,
}

/// A small file, or an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Text {
    /// Its content, or the beginning of it.
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tried {
    /// Name of the error, like `EROFS`; absent if it worked.
    pub errno: Option<String>,
}

/// A device or directory that was filled with a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Paint {
    /// Bytes that were written and reached the disk (`fsync`).
    pub written: u64,
    /// Name of the error that stopped the last write, like `ENOSPC`.
    pub errno: String,
}

/// A device or directory that was looked through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scan {
    /// Bytes that were read.
    pub bytes: u64,
    /// Bytes in blocks of 4 KiB that hold anything but zeros.
    pub data: u64,
    pub found: u64,
}

/// A whole file or device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checksum {
    pub sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Bytes.
    pub size: u64,
    /// The smallest unit of a write, in bytes.
    pub logical_block: u64,
    pub read_only: bool,
    /// Whether a loop device goes past the page cache to its file; absent for other devices.
    pub direct: Option<bool>,
    /// Major and minor number, like `7:0`.
    pub number: String,
    pub uid: u32,
    pub gid: u32,
}

/// Settings of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// In the order of the keys.
    pub settings: Vec<Setting>,
}

/// A setting of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Setting {
    pub key: String,
    /// The network interface, of a setting of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Its value, without white space at its ends.
    pub value: String,
}

/// A program that was started from the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Executed {
    /// Its exit status; absent if it could not be started or was killed.
    pub status: Option<i32>,
    /// Name of the error that kept it from being started, like `EACCES`.
    pub errno: Option<String>,
}

/// A volume shown to a person: a directory, or a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Demo {
    pub found: Option<String>,
    pub kept: String,
    /// Bytes of the file system or device, as the kernel shows them in the container.
    pub size: u64,
    /// Bytes that were written and reached the disk (`fsync`): beside the note in a directory, with it on a device.
    pub written: u64,
    /// Name of the error that stopped the last write, like `ENOSPC`.
    pub errno: String,
    /// Bytes in use afterwards: in a directory what was written is removed but for the note, a device is full.
    pub used: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volumes {
    /// Entries below the directory, two levels deep.
    pub entries: Vec<Entry>,
    /// Every project that has a limit or uses anything.
    pub projects: Vec<Project>,
    /// Every loop device that has a file.
    pub loops: Vec<Loop>,
    /// Every place below kubelet's directory where a volume is mounted.
    pub mounts: Vec<Mount>,
}

/// A file or directory of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Its path, relative to the directory that was listed.
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<u32>,
    /// The image of a block volume that is in the directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Its size in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub allocated: u64,
}

/// A project of the node's data disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Project {
    pub id: u32,
    /// Its limit in bytes.
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Loop {
    /// Like `loop0`.
    pub name: String,
    pub file: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Root of the mount in its file system.
    pub root: String,
    pub point: String,
    /// Its flags, like `ro`, `nosuid`, `nodev`.
    pub flags: Vec<String>,
}

/// Processes that were sent a signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Signalled {
    pub processes: Vec<i32>,
}
