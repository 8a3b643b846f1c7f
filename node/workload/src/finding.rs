//! Results of checks, printed as JSON. Sizes are in bytes; what was written reached the disk (`fsync`); an `errno` is a name
//! such as `ENOSPC`, of the error that stopped the check.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The result of a check; in JSON an object with the name of the `check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "check", rename_all = "kebab-case")]
pub enum Finding {
    Inspect(Inspect),
    Fill(Fill),
    FillInodes(FillInodes),
    Write(Text),
    Read(Text),
    TryWrite(Tried),
    Paint(Paint),
    Scan(Scan),
    Checksum(Checksum),
    Execute(Executed),
    Device(Device),
    Direct(Tried),
    Demo(Demo),
    Volumes(Volumes),
    Signal(Signalled),
    Settings(Settings),
    Listeners(Listeners),
    Unshare(Tried),
    Fetch(Text),
    Exchange(Text),
    Resolve(Resolved),
    Webhook,
    Serve,
    End,
}

/// A file system as `statvfs` shows it; with a project quota that is the project's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Space {
    pub size: u64,
    pub free: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspect {
    pub space: Space,
    /// Flags of the mount: of `ro`, `nosuid`, `nodev`, `noexec` those that are set.
    pub flags: Vec<String>,
    pub uid: u32,
    pub gid: u32,
    /// Permissions in octal digits, like `0755`.
    pub mode: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    pub before: Space,
    pub written: u64,
    pub errno: String,
    pub full: Space,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FillInodes {
    pub before: Space,
    /// Number of created files, and the directory.
    pub created: u64,
    pub errno: String,
    pub full: Space,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    pub errno: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paint {
    pub written: u64,
    pub errno: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    pub bytes: u64,
    /// Bytes in blocks of 4 KiB that hold anything but zeros.
    pub data: u64,
    pub found: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    pub sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    pub settings: Vec<Setting>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    pub key: String,
    /// The network interface, of a setting of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    pub value: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listeners {
    pub listeners: Vec<Listener>,
}

/// A socket that waits for clients at an address, or at all of them (`0.0.0.0`, `::`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// `TCP` or `UDP`.
    pub protocol: String,
    pub address: IpAddr,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// Its exit status; absent if it could not be started or was killed.
    pub status: Option<i32>,
    /// Name of the error that kept it from being started, like `EACCES`.
    pub errno: Option<String>,
}

/// A volume shown to a person: a directory, or a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demo {
    pub found: Option<String>,
    pub kept: String,
    pub size: u64,
    /// Bytes that were written and reached the disk (`fsync`): beside the note in a directory, with it on a device.
    pub written: u64,
    pub errno: String,
    /// Bytes in use afterwards: in a directory what was written is removed but for the note, a device is full.
    pub used: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
pub struct Image {
    pub size: u64,
    pub allocated: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    pub id: u32,
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loop {
    pub name: String,
    pub file: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Root of the mount in its file system.
    pub root: String,
    pub point: String,
    /// Its flags, like `ro`, `nosuid`, `nodev`.
    pub flags: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// The name that was asked for last, with its domain of the search path.
    pub name: String,
    /// The code of the answer, like `NOERROR`.
    pub code: String,
    /// Sorted: addresses, or `PORT TARGET` of SRV records.
    pub answers: Vec<String>,
    /// Whether the answer was too long for a datagram, and came by TCP.
    pub truncated: bool,
}

/// Processes that were sent a signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signalled {
    pub processes: Vec<i32>,
}
