//! What a check saw, as it is printed.

use serde::{Deserialize, Serialize};

/// What a check saw; in JSON an object whose `check` names the check.
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
    /// Of `checksum`.
    Checksum {
        /// The digest in hexadecimal digits.
        sha256: String,
    },
    /// Of `execute`.
    Execute(Executed),
    /// Of `demo`.
    Demo(Demo),
    /// Of `volumes`.
    Volumes(Volumes),
    /// Of `sleep`, at its end.
    Sleep,
}

/// A file system as `statvfs` shows it; with a project quota that is the project's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Space {
    /// Bytes in all.
    pub size: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

/// A path and the file system that it is on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspect {
    /// The file system.
    pub space: Space,
    /// Flags of the mount: of `ro`, `nosuid`, `nodev`, `noexec` those that are set.
    pub flags: Vec<String>,
    /// Owner.
    pub uid: u32,
    /// Group.
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
    /// Inodes that were made: the files and the one directory that they are in.
    pub created: u64,
    /// Name of the error that stopped the last one.
    pub errno: String,
    /// The file system when it was full.
    pub full: Space,
}

/// A small file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Text {
    /// Its content, or the beginning of it.
    pub text: String,
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

/// A volume shown to a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Demo {
    /// What an earlier run left in the small file.
    pub found: Option<String>,
    /// What stands in the small file now.
    pub kept: String,
    /// What filling it showed.
    pub fill: Fill,
    /// The file system afterwards.
    pub after: Space,
}

/// The node's side of its volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Volumes {
    /// What lies below the directory, two levels deep.
    pub entries: Vec<Entry>,
    /// Every project that has a limit or uses anything.
    pub projects: Vec<Project>,
}

/// A file or directory of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Its path, relative to the directory that was listed.
    pub path: String,
    /// The project of a directory.
    pub project: Option<u32>,
}

/// A project of the node's data disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Project {
    /// Its number.
    pub id: u32,
    /// Its limit in bytes.
    pub bytes: Option<u64>,
    /// Its limit in inodes.
    pub inodes: Option<u64>,
}
