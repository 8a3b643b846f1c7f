//! Disks with other content. Each format that `blkid -k` lists is rejected by its name, and nothing is written.

use std::collections::BTreeSet;

use super::partition::divide;
use super::*;

/// Asserts that the machine's disk is rejected because of this format, and that the reason names it.
fn is_refused_as(machine: &Machine, format: &str) {
    match machine.is_refused() {
        Signature::Known(marks) if marks.iter().any(|mark| mark.format == format) => {
            let reason = Signature::Known(marks).to_string();
            assert!(reason.contains(format), "{format} is not named: {reason}");
        }
        other => panic!("refused for {other}, not for {format}"),
    }
}

/// Formats that a tool of the guest creates: name, program, and arguments before the device.
#[rustfmt::skip]
const TOOLS: &[(&str, &str, &[&str])] = &[
    ("ext2", "mke2fs", &["-q", "-F", "-t", "ext2"]),
    ("ext3", "mke2fs", &["-q", "-F", "-t", "ext3"]),
    ("ext4", "mke2fs", &["-q", "-F", "-t", "ext4"]),
    // Cluster sizes for which the cluster number fits into 12, 16 and 32 bits.
    ("vfat", "mkfs.fat", &["-I", "-F", "12", "-S", "4096", "-s", "128"]),
    ("vfat", "mkfs.fat", &["-I", "-F", "16", "-S", "512", "-s", "64"]),
    ("vfat", "mkfs.fat", &["-I", "-F", "32", "-S", "512", "-s", "8"]),
    ("minix", "mkfs.minix", &[]),
    ("btrfs", "mkfs.btrfs", &["-q", "-f"]),
    ("swap", "mkswap", &["-q"]),
    ("xfs", "mkfs.xfs", &["-q", "-f", "-K"]),
];

#[test]
fn what_tools_write_is_refused_by_name() {
    let machine = Machine::new();
    for (format, program, arguments) in TOOLS {
        machine.wipe();
        run(Command::new(program).args(*arguments).arg(machine.path()));
        is_refused_as(&machine, format);
    }
    machine.wipe();
    let directory = machine.place.path().join("image");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), "content").unwrap();
    run(Command::new("mkfs.cramfs").args([directory.to_str().unwrap(), machine.path()]));
    is_refused_as(&machine, "cramfs");
}

#[test]
fn another_xfs_is_refused_with_its_label() {
    let machine = Machine::new();
    machine.mkfs(&["-L", "home"]);
    assert_eq!(machine.is_refused().to_string(), "a file system (xfs, label \"home\")");
    machine.mkfs(&[]);
    assert_eq!(machine.is_refused().to_string(), "a file system (xfs)");
}

#[test]
fn partition_tables_are_refused() {
    let machine = Machine::new();
    for table in ["gpt", "dos", "sgi", "sun"] {
        machine.wipe();
        divide(&machine, &[], &format!("label: {table}\n,100M\n"));
        is_refused_as(&machine, table);
    }
}

#[test]
fn members_of_a_raid_are_refused() {
    let machine = Machine::new();
    for version in ["0.90", "1.0", "1.1", "1.2"] {
        machine.wipe();
        let array = ["--create", "/dev/md0", "--run", "--level=1", "--raid-devices=2", "--metadata", version];
        run(Command::new("mdadm").args(array).args([machine.path(), "missing"]));
        run(Command::new("mdadm").args(["--stop", "/dev/md0"]));
        is_refused_as(&machine, "linux_raid_member");
    }
}

#[test]
fn two_formats_at_once_are_both_named() {
    let machine = Machine::new();
    machine.mkfs(&["-L", "home"]);
    machine.overwrite(1024 + 56, b"\x53\xef");
    machine.overwrite(65_536 + 64, b"_BHRfS_M");
    let what = machine.is_refused().to_string();
    assert!(what.contains("(xfs)") && what.contains("(btrfs)"), "{what}");
}

#[test]
fn unknown_data_is_rejected() {
    let machine = Machine::new();
    for at in [0, 4096, (1 << 20) - 1, machine.size() - (1 << 20), machine.size() - 1] {
        machine.overwrite(at, b"x");
        assert_eq!(machine.is_refused(), Signature::Unknown { at });
        machine.overwrite(at, b"\0");
    }
    assert!(DataDisk::find().is_ok());
}

#[test]
fn nothing_is_formatted_when_the_content_is_unknown() {
    let machine = Machine::new();
    let written = machine.written();
    let script = |name: &str, text: &str| {
        let path = machine.place.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    };
    // The guest does not have this interpreter, so the script cannot be executed.
    for blkid in ["/absent".into(), "/proc/self/mem".into(), script("blkid", "#!/absent\n")] {
        let found = DataDisk::find_with(&Programs { blkid, ..Programs::default() });
        assert!(matches!(&found, Err(FindError::Probe { device, .. }) if device == machine.disk.path()), "{found:?}");
    }
    // A program that succeeds without output has not read the disk.
    let found = DataDisk::find_with(&Programs { blkid: "/usr/bin/wipefs".into(), ..Programs::default() });
    assert!(matches!(found, Err(FindError::Probe { .. })), "{found:?}");
    assert_eq!(machine.written(), written);
}

/// Name of a format, and the bytes by which `blkid` detects it. Negative offsets count from the end.
type Mark = (&'static str, &'static [(i64, &'static [u8])]);

/// Formats for which the guest has no tool: the bytes that util-linux 2.38 checks, including checksums.
#[rustfmt::skip]
const MARKS: &[Mark] = &[
    ("crypto_LUKS", &[(0, b"LUKS\xba\xbe\0\x01")]),
    ("crypto_LUKS", &[(0, b"LUKS\xba\xbe\0\x02")]),
    ("crypto_LUKS", &[(16384, b"SKUL\xba\xbe\0\x02")]),
    ("DM_verity_hash", &[(0, b"verity\0\0\x01\0\0\0")]),
    ("DM_integrity", &[(0, b"integrt\0\x01")]),
    ("DM_snapshot_cow", &[(0, b"SnAp")]),
    ("LVM1_member", &[(0, b"HM\x01\0")]),
    ("LVM2_member", &[(512, b"LABELONE\x01\0\0\0\0\0\0\0s\xac\xa8( \0\0\0LVM2 001")]),
    ("vdo", &[(0, b"dmvdo001")]),
    ("linux_raid_member", &[(-65536, b"\xfcN+\xa9\0\0\0\0Z\0\0\0")]),
    ("linux_raid_member", &[(0, b"\xfcN+\xa9\x01\0\0\0")]),
    ("linux_raid_member", &[(4096, b"\xfcN+\xa9\x01\0\0\0"), (4240, b"\x08\0\0\0\0\0\0\0")]),
    ("isw_raid_member", &[(-1024, b"Intel Raid ISM Cfg Sig. 1.0.00")]),
    ("lsi_mega_raid_member", &[(-512, b"$XIDE$")]),
    ("ddf_raid_member", &[(-512, b"\xde\x11\xde\x11"), (-488, b"01.00.00")]),
    ("promise_fasttrack_raid_member", &[(-32256, b"Promise Technology, Inc.")]),
    ("nvidia_raid_member", &[(-1024, b"NVIDIA  \x1e\0\0\0")]),
    ("drbd", &[(-4036, b"\x83t\x02k")]),
    ("bcache", &[(4104, b"\x08"), (4120, b"\xc6\x85s\xf6N\x1aE\xca\x82e\xf5\x7fH\xbam\x81")]),
    ("ceph_bluestore", &[(0, b"bluestore block device")]),
    ("VMFS", &[(2097152, b"^\xf1\xab/")]),
    ("VMFS_volume_member", &[(1048576, b"\x0d\xd0\x01\xc0")]),
    ("zfs_member", &[(131072, b"\x0c\xb1\xba\0\0\0\0\0"), (132096, b"\x0c\xb1\xba\0\0\0\0\0"), (133120, b"\x0c\xb1\xba\0\0\0\0\0"), (134144, b"\x0c\xb1\xba\0\0\0\0\0")]),
    ("squashfs", &[(0, b"hsqs"), (28, b"\x04")]),
    ("erofs", &[(1024, b"\xe2\xe1\xf5\xe0")]),
    ("f2fs", &[(1024, b"\x10 \xf5\xf2\x01")]),
    ("cramfs", &[(0, b"E=\xcd(")]),
    ("romfs", &[(0, b"-rom1fs-")]),
    ("ubi", &[(0, b"UBI#\x01")]),
    ("ubifs", &[(0, b"1\x18\x10\x06")]),
    ("zonefs", &[(0, b"SFOZ")]),
    ("iso9660", &[(32768, b"\x01CD001\x01")]),
    ("reiser4", &[(65536, b"ReIsEr4")]),
    ("jfs", &[(32768, b"JFS1\x01\0\0\0\xe8\x03\0\0\0\0\0\0\0\x10\0\0\x0c\0\x03\0\0\x02\0\0\x09\0")]),
    ("ufs", &[(9564, b"T\x19\x01\0")]),
    ("hfs", &[(1024, b"BD"), (1044, b"\0\0\x02\0")]),
    ("hfsplus", &[(1024, b"H+\0\x04"), (1064, b"\0\0\x10\0")]),
    ("sysv", &[(1016, b" ~\x18\xfd")]),
    ("vxfs", &[(1024, b"\xf5\xfc\x01\xa5")]),
    ("ocfs2", &[(8192, b"OCFSV2")]),
    ("oracleasm", &[(32, b"ORCLDISK")]),
    ("gfs2", &[(65536, b"\x01\x16\x19p"), (65560, b"\0\0\x07\x09\0\0\x07l")]),
    ("nss", &[(4096, b"SPB5")]),
    ("ntfs", &[(3, b"NTFS    \0\x02\x08"), (40, b"@B\x0f\0\0\0\0\0\x04\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\xf6\0\0\0\x01"), (510, b"U\xaa"), (16384, b"FILE"), (17408, b"FILE"), (18432, b"FILE"), (19456, b"FILE"), (32768, b"FILE")]),
    ("exfat", &[(0, b"\xebv\x90EXFAT   "), (64, b"\0\0\0\0\0\0\0\0@B\x0f\0\0\0\0\0\x18\0\0\0\x80\0\0\0\0\x10\0\0\xd0\x07\0\0\x05\0\0\0\0\0\0\0\x01\0\0\0"), (108, b"\x09\x03\x01\x80"), (510, b"U\xaa")]),
    ("swsuspend", &[(4086, b"S1SUSPEND")]),
    ("via_raid_member", &[(-512, b"U\xaa"), (-462, b"\xff")]),
    ("silicon_medley_raid_member", &[(-416, b"\0\0\0/"), (-194, b"\0\xd1")]),
    ("hpt45x_raid_member", &[(-5632, b"\xf3\x16xZ")]),
    ("hpt37x_raid_member", &[(4640, b"\xf0\x16xZ")]),
    ("adaptec_raid_member", &[(-512, b"7\xfcM\x1e"), (-256, b"DPTM")]),
    ("jmicron_raid_member", &[(-512, b"JM")]),
    ("drbdmanage_control_volume", &[(0, b"$DRBDmgr=q"), (11, b"0123456789abcdef0123456789abcdef\n")]),
    ("drbdproxy_datalog", &[(0, b"DRBDdlh*")]),
    ("stratis", &[(512, b"g!n\xcf!Stra0tis\x86\xff\x02^Arh")]),
    ("BitLocker", &[(0, b"\xebR\x90-FVE-FS-")]),
    ("xfs_external_log", &[(0, b"\xfe\xed\xba\xbe"), (8, b"\0\0\0\x01\0\0\0\x01"), (300, b"\0\0\0\x01")]),
    ("exfs", &[(0, b"EXFS\0\0\x10\0\0\0\0\0\0\x04\0\0"), (80, b"\0\0\0\x01\0\x04\0\0\0\0\0\x01"), (102, b"\x02\0\x02\0"), (120, b"\x0c\x09\x09\x03")]),
    ("ext4dev", &[(1080, b"S\xef"), (1116, b"\x04\0\0\0@\0\0\0"), (1376, b"\x04")]),
    ("jbd", &[(1080, b"S\xef"), (1120, b"\x08")]),
    ("reiserfs", &[(65548, b"\x12"), (65580, b"\0\x10"), (65588, b"ReIsEr2Fs")]),
    ("udf", &[(32769, b"BEA01"), (34817, b"NSR02"), (131072, b"\x02"), (131084, b"\0\x01\0\0")]),
    ("hpfs", &[(8192, b"I\xe8\x95\xf9"), (8704, b"I\x18\x91\xf9")]),
    ("xenix", &[(2048, b"+UD")]),
    ("ReFS", &[(3, b"ReFS")]),
    ("gfs", &[(65536, b"\x01\x16\x19p"), (65560, b"\0\0\x05\x1d\0\0\x05y")]),
    ("ocfs", &[(8192, b"OracleCFS")]),
    ("squashfs3", &[(0, b"sqsh"), (28, b"\0\x03")]),
    ("bfs", &[(0, b"\xce\xfa\xad\x1b")]),
    ("befs", &[(32, b"1SFBEGIB\0\x04\0\0\n\0\0\0"), (68, b"1\x10\x12\xdd"), (112, b"\x0e\x83\xb6\x15\0\0\0\0\x01\0\x01\0"), (1024, b"\xd9\n\xbe;")]),
    ("nilfs2", &[(1024, b"\x02\0\0\0\0\x0044\x14\0\0\0\0\0\0\0\x19\xecj\xb0")]),
    ("mpool", &[(0, b"mpoolDev"), (62, b"\xaf\xac,`")]),
    ("apfs", &[(24, b"\x01"), (32, b"NXSB\0\x10")]),
    // Partition tables, which `blkid -k` does not list.
    ("mac", &[(0, b"ER\x02\0"), (512, b"PM\0\0")]),
    ("aix", &[(0, b"\xc9\xc2\xd4\xc1")]),
    ("ultrix", &[(16312, b"W)\x03\0\x01\0\0\0")]),
];

#[test]
fn each_signature_of_blkid_is_rejected_by_name() {
    let machine = Machine::new();
    for (format, places) in MARKS {
        let place = |from: i64| if from < 0 { machine.size() - from.unsigned_abs() } else { from.unsigned_abs() };
        for (from, bytes) in *places {
            machine.overwrite(place(*from), bytes);
        }
        is_refused_as(&machine, format);
        for (from, bytes) in *places {
            machine.overwrite(place(*from), &vec![0; bytes.len()]);
        }
    }
    assert!(DataDisk::find().is_ok(), "a mark is left");
}

#[test]
fn every_format_that_blkid_lists_is_tested() {
    let listed = Command::new("blkid").arg("-k").output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let listed = String::from_utf8(listed.stdout).unwrap();
    let listed: BTreeSet<&str> = listed.lines().collect();
    assert!(listed.len() > 70, "{listed:?}");
    let tested = TOOLS.iter().map(|(format, ..)| *format).chain(MARKS.iter().map(|(format, _)| *format)).collect();
    let untested: Vec<_> = listed.difference(&tested).collect();
    assert!(untested.is_empty(), "add a disk to TOOLS or MARKS for each of {untested:?}");
}
