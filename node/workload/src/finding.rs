//! Results of checks, printed as JSON. Sizes are in bytes. Written bytes have reached the disk (`fsync`). An `errno` is
//! the name of the error that ended the check, such as `ENOSPC`.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The result of a check. The JSON object has the name of the `check`.
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

/// Space of a file system as `statvfs` returns it. With a project quota, `statvfs` returns the project's limits.
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
    /// Mount flags that are set, of `ro`, `nosuid`, `nodev` and `noexec`.
    pub flags: Vec<String>,
    pub uid: u32,
    pub gid: u32,
    /// Permissions in octal digits, such as `0755`.
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
    /// Number of created files, including the directory.
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
    /// Bytes in blocks of 4 KiB that contain other bytes than zeros.
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
    /// Whether a loop device accesses its file with direct I/O. Absent for other devices.
    pub direct: Option<bool>,
    /// Major and minor number, such as `7:0`.
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
    /// The network interface, for a setting with `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    pub value: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listeners {
    pub listeners: Vec<Listener>,
}

/// A socket that waits for clients at one address, or at all addresses (`0.0.0.0`, `::`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// `TCP` or `UDP`.
    pub protocol: String,
    pub address: IpAddr,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executed {
    /// Exit status. Absent if the program could not be started or was killed.
    pub status: Option<i32>,
    /// Name of the error that prevented the start, such as `EACCES`.
    pub errno: Option<String>,
}

/// Result of the launcher's demonstration on a directory or a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demo {
    pub found: Option<String>,
    pub kept: String,
    pub size: u64,
    /// Bytes that were written and reached the disk (`fsync`). On a device, includes the note; in a directory, excludes
    /// the note.
    pub written: u64,
    pub errno: String,
    /// Bytes in use after the check. A directory contains only the note again; a device stays full.
    pub used: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volumes {
    /// Entries below the directory, two levels deep.
    pub entries: Vec<Entry>,
    /// All projects that have a limit or use space or inodes.
    pub projects: Vec<Project>,
    /// All loop devices that have a file.
    pub loops: Vec<Loop>,
    /// All mount points of volumes below the kubelet's directory.
    pub mounts: Vec<Mount>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Path relative to the listed directory.
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<u32>,
    /// Image file of a block volume in this directory.
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
    /// Mount flags, such as `ro`, `nosuid`, `nodev`.
    pub flags: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// The name of the last query, including its search domain.
    pub name: String,
    /// Response code, such as `NOERROR`.
    pub code: String,
    /// Sorted addresses, or `PORT TARGET` of SRV records.
    pub answers: Vec<String>,
    /// Whether the response was too long for a datagram, so that TCP was used.
    pub truncated: bool,
}

/// Processes that received the signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signalled {
    pub processes: Vec<i32>,
}
