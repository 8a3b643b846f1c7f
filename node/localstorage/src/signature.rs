//! Signatures of foreign content.

use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signature {
    /// Signatures that `blkid` finds, at least one.
    Known(Vec<Mark>),
    /// Non-zero bytes without a known signature.
    Unknown { at: u64 },
}

/// A signature of a format on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Name of the format in `blkid`: `ext4`, `linux_raid_member`, `gpt`.
    pub format: String,
    pub usage: Usage,
    /// Label of the content. Control characters are replaced.
    pub label: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    Filesystem,
    /// A member of a RAID or a volume group.
    Member,
    Encrypted,
    Partitions,
    /// Any other content, such as swap space.
    Other,
}

impl Usage {
    fn from_name(name: &str) -> Self {
        match name {
            "filesystem" => Self::Filesystem,
            "raid" => Self::Member,
            "crypto" => Self::Encrypted,
            _ => Self::Other,
        }
    }
}

/// A line of `blkid` that does not have the form `NAME=value`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line:?} does not have the form NAME=value")]
pub struct MalformedLine {
    line: String,
}

impl Mark {
    /// Parses the output of `blkid --probe --output udev`. Ignores keys that do not describe the content, such as the
    /// number of the partition.
    pub fn parse(output: &str) -> Result<Vec<Self>, MalformedLine> {
        let (mut format, mut usage, mut label) = (None, Usage::Other, None);
        let (mut table, mut several) = (None, Vec::new());
        for line in output.lines().filter(|line| !line.is_empty()) {
            match pair(line)? {
                (_, "") => {}
                ("ID_FS_TYPE", value) => format = Some(value.to_owned()),
                ("ID_FS_USAGE", value) => usage = Usage::from_name(value),
                ("ID_FS_LABEL", value) => label = Some(printable(value)),
                ("ID_FS_AMBIVALENT", value) => {
                    several = value.split_ascii_whitespace().map(Self::from_triple).collect()
                }
                ("ID_PART_TABLE_TYPE", value) => table = Some(value.to_owned()),
                _ => {}
            }
        }
        let content = format.map(|format| Self { format, usage, label });
        let table = table.map(|format| Self { format, usage: Usage::Partitions, label: None });
        Ok(content.into_iter().chain(several).chain(table).collect())
    }

    /// Parses `filesystem:ext2:1.0`: usage, format, and an optional version.
    fn from_triple(triple: &str) -> Self {
        let (usage, rest) = triple.split_once(':').unwrap_or(("", triple));
        let format = rest.split(':').next().unwrap_or(rest);
        Self { format: format.to_owned(), usage: Usage::from_name(usage), label: None }
    }
}

fn pair(line: &str) -> Result<(&str, &str), MalformedLine> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    };
    line.split_once('=').filter(|(name, _)| is_name(name)).ok_or_else(|| MalformedLine { line: line.to_owned() })
}

/// Replaces control characters: a label can contain any bytes, and this text is for a terminal.
fn printable(label: &str) -> String {
    label.chars().map(|found| if found.is_control() { char::REPLACEMENT_CHARACTER } else { found }).collect()
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { at } => write!(f, "data of an unknown kind (byte {at} is not zero)"),
            Self::Known(marks) => {
                for (number, mark) in marks.iter().enumerate() {
                    let separator = if number == 0 { "" } else { " and " };
                    write!(f, "{separator}{mark}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.usage {
            Usage::Filesystem => "a file system",
            Usage::Member => "a part of a RAID or volume group",
            Usage::Encrypted => "an encrypted volume",
            Usage::Partitions => "a partition table",
            Usage::Other => "data",
        };
        match &self.label {
            Some(label) => write!(f, "{what} ({}, label {label:?})", self.format),
            None => write!(f, "{what} ({})", self.format),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mark(format: &str, usage: Usage) -> Mark {
        Mark { format: format.into(), usage, label: None }
    }

    #[test]
    fn a_file_system_is_known_with_its_label() {
        let output = "ID_FS_LABEL=my_home\nID_FS_LABEL_ENC=my\\x20home\nID_FS_VERSION=1.0\n\
            ID_FS_TYPE=ext4\nID_FS_USAGE=filesystem\nID_IOLIMIT_LOGICAL_SECTOR_SIZE=512\n";
        let marks = Mark::parse(output).unwrap();
        assert_eq!(marks, [Mark { label: Some("my_home".into()), ..mark("ext4", Usage::Filesystem) }]);
        assert_eq!(Signature::Known(marks).to_string(), "a file system (ext4, label \"my_home\")");
    }

    #[test]
    fn a_boot_sector_and_a_partition_table_are_two_marks() {
        let marks = Mark::parse("ID_PART_TABLE_TYPE=dos\nID_FS_TYPE=vfat\nID_FS_USAGE=filesystem\n").unwrap();
        assert_eq!(marks, [mark("vfat", Usage::Filesystem), mark("dos", Usage::Partitions)]);
        assert_eq!(Signature::Known(marks).to_string(), "a file system (vfat) and a partition table (dos)");
    }

    #[test]
    fn several_formats_are_all_named() {
        let marks = Mark::parse("ID_FS_AMBIVALENT=filesystem:xfs filesystem:ext2:1.0 raid:linux_raid_member\n");
        let expected =
            [mark("xfs", Usage::Filesystem), mark("ext2", Usage::Filesystem), mark("linux_raid_member", Usage::Member)];
        assert_eq!(marks.unwrap(), expected);
    }

    #[test]
    fn the_place_of_a_partition_is_ignored() {
        let output = "ID_PART_ENTRY_SCHEME=gpt\nID_PART_ENTRY_NUMBER=3\nID_IOLIMIT_MINIMUM_IO_SIZE=512\n";
        assert_eq!(Mark::parse(output), Ok(vec![]));
    }

    #[test]
    fn a_line_without_a_pair_is_malformed() {
        for line in ["oops", "=", "id=1", "blkid: error"] {
            assert_eq!(Mark::parse(line), Err(MalformedLine { line: line.into() }));
        }
    }

    #[test]
    fn a_label_cannot_steer_a_terminal() {
        let marks = Mark::parse("ID_FS_TYPE=ext4\nID_FS_LABEL=\u{1b}[2J\n").unwrap();
        assert_eq!(marks[0].label.as_deref(), Some("\u{fffd}[2J"));
    }

    proptest! {
        #[test]
        fn a_format_is_never_lost(format in "[a-zA-Z0-9_]{1,20}", others in "(ID_[A-Z]{1,8}=[a-z ]{0,9}\n){0,4}") {
            let marks = Mark::parse(&format!("{others}ID_FS_TYPE={format}\n")).unwrap();
            prop_assert!(marks.iter().any(|mark| mark.format == format));
        }
    }
}
