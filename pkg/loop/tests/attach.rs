//! Devices of many files and configurations. Runs as root in a machine of its own.

mod image;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

use image::{Image, MIB, Page, alone_with, attached, bytes, formatted, node, open, open_direct, sysfs, temporary};
use ktest_support::{Disk, Tmpfs, XfsDisk, eventually, run};
use loopdev::{
    AttachError, Backing, BackingError, BlockSize, Config, Control, Detach, Device, DeviceError, Number, Status,
};
use nix::errno::Errno;
use nix::libc::O_PATH;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;

fn refused(file: &File, config: &Config) -> BackingError {
    match Control::open().unwrap().attach(file, config) {
        Err(AttachError::Backing(error)) => error,
        other => panic!("expected a refusal of the backing file: {other:?}"),
    }
}

#[test]
fn a_file_becomes_a_disk_of_its_size() {
    let image = Image::new(MIB);
    let device = image.attach(&temporary());
    let config = Config { block_size: Some(BlockSize::SECTOR), ..temporary() };
    assert_eq!(device.status().unwrap(), Status { backing: image.backing(), config, size: bytes(MIB) });
    assert_eq!((device.backing().unwrap(), device.config().unwrap()), (image.backing(), config));

    let disk = open(&device);
    disk.write_all_at(b"through the device", 4096).unwrap();
    disk.sync_all().unwrap();
    let mut found = [0; 18];
    image.file.read_exact_at(&mut found, 4096).unwrap();
    assert_eq!(&found, b"through the device");
}

#[test]
fn a_device_has_the_numbers_of_its_node() {
    let image = Image::new(MIB);
    let device = image.attach(&temporary());
    assert_eq!(device.path(), Path::new("/dev").join(device.number().to_string()));
    assert_eq!(device.dev(), node(&device.path()));
    assert_eq!(sysfs(&device, "dev"), device.dev().to_string());
    let again = Device::open(device.path()).unwrap();
    assert_eq!((again.number(), again.dev()), (device.number(), device.dev()));
    let by_node = Device::from_node(File::options().read(true).custom_flags(O_PATH).open(device.path()).unwrap());
    assert_eq!(by_node.unwrap().dev(), device.dev());
}

#[test]
fn a_device_is_opened_by_a_node_elsewhere() {
    let image = Image::new(MIB);
    let device = image.attach(&temporary());
    let elsewhere = Tmpfs::mount();
    let path = elsewhere.path().join("volume");
    let number = makedev(device.dev().major.into(), device.dev().minor.into());
    mknod(&path, SFlag::S_IFBLK, Mode::S_IRUSR, number).unwrap();
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for path in [path, link] {
        let opened = Device::open(path).unwrap();
        assert_eq!((opened.number(), opened.path()), (device.number(), device.path()));
        assert_eq!(opened.backing().unwrap(), image.backing());
    }
}

/// util-linux tests losetup in the same way, with a file and with a block device.
fn cut_pieces_out(backing: &File, size: u64) {
    let pieces = [
        (0, None, size),
        (MIB, None, size - MIB),
        (0, Some(3 * MIB), 3 * MIB),
        (MIB, Some(3 * MIB), 3 * MIB),
        (size - MIB, Some(3 * MIB), MIB),
        (512, Some(512), 512),
        (size, None, 0),
        (size + MIB, None, 0),
    ];
    let mark = |place: u64| u8::try_from(place / MIB % 251).unwrap();
    for mib in 0..4 {
        backing.write_all_at(&[mark(mib * MIB); 512], mib * MIB).unwrap();
    }
    for (offset, limit, expected) in pieces {
        let config = Config { offset: bytes(offset), size_limit: limit.map(bytes), ..temporary() };
        let device = Control::open().unwrap().attach(backing, &config).unwrap();
        let status = device.status().unwrap();
        assert_eq!(status.size, bytes(expected), "{config:?}");
        assert_eq!((status.config.offset, status.config.size_limit), (config.offset, config.size_limit));
        if offset.is_multiple_of(MIB) && offset < 4 * MIB {
            let mut found = [0; 512];
            open(&device).read_exact_at(&mut found, 0).unwrap();
            assert_eq!(found, [mark(offset); 512], "{config:?}");
        }
    }
}

#[test]
fn offset_and_size_limit_cut_a_piece_out_of_a_file() {
    let image = Image::new(10 * MIB);
    cut_pieces_out(&image.file, 10 * MIB);
}

#[test]
fn offset_and_size_limit_cut_a_piece_out_of_a_block_device() {
    let disk = Disk::take();
    let backing = File::options().read(true).write(true).open(disk.path()).unwrap();
    cut_pieces_out(&backing, 1 << 30);
}

#[test]
fn a_rest_smaller_than_a_sector_is_not_part_of_the_device() {
    for (size, expected) in [(MIB + 511, MIB), (MIB + 512, MIB + 512), (511, 0), (0, 0)] {
        let device = Image::new(size).attach(&temporary());
        assert_eq!(device.status().unwrap().size, bytes(expected), "{size}");
    }
}

#[test]
fn an_offset_need_not_be_a_multiple_of_anything() {
    let image = Image::new(MIB);
    image.file.write_all_at(b"odd", 777).unwrap();
    let device = image.attach(&Config { offset: bytes(777), ..temporary() });
    let mut found = [0; 3];
    open(&device).read_exact_at(&mut found, 0).unwrap();
    assert_eq!(&found, b"odd");
    assert_eq!(device.status().unwrap().size, bytes((MIB - 777) / 512 * 512));
}

#[test]
fn each_block_size_is_what_the_disk_has() {
    let image = Image::new(MIB);
    for size in [512, 1024, 2048, 4096] {
        let block_size = Some(BlockSize::new(size).unwrap());
        let device = image.attach(&Config { block_size, ..temporary() });
        assert_eq!(device.config().unwrap().block_size, block_size);
        assert_eq!(sysfs(&device, "queue/logical_block_size"), size.to_string());
        let disk = open_direct(&device.path());
        let mut page = Page([0; 4096]);
        let size = usize::try_from(size).unwrap();
        page.0[..size].fill(0x5a);
        disk.write_all_at(&page.0[..size], 0).unwrap();
        disk.read_exact_at(&mut page.0[..size], 0).unwrap();
        assert!(page.0[..size].iter().all(|byte| *byte == 0x5a));
        if size > 512 {
            let error = disk.read_at(&mut page.0[..size / 2], 0).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::EINVAL as i32), "half a block of {size}");
        }
    }
}

#[test]
fn nothing_is_written_to_a_read_only_device() {
    let image = Image::new(MIB);
    let reading = File::open(&image.path).unwrap();
    for backing in [&image.file, &reading] {
        let config = Config { read_only: true, ..temporary() };
        let device = Control::open().unwrap().attach(backing, &config).unwrap();
        assert!(device.config().unwrap().read_only);
        assert_eq!(sysfs(&device, "ro"), "1");
        let error = open(&device).write_at(b"no", 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::EPERM as i32));
        let mut found = [1];
        open(&device).read_exact_at(&mut found, 0).unwrap();
        assert_eq!(found, [0]);
    }
}

#[test]
fn a_number_that_was_read_only_can_be_written_for_the_next_file() {
    let image = Image::new(MIB);
    for read_only in [true, false, true, false] {
        let device = image.attach(&Config { read_only, ..temporary() });
        assert_eq!(open(&device).write_at(b"a", 0).is_ok(), !read_only);
    }
}

#[test]
fn a_writable_device_needs_a_descriptor_for_both() {
    let (_alone, image) = alone_with(MIB);
    let open = |options: &mut fs::OpenOptions| options.open(&image.path).unwrap();
    let [reading, writing] = [open(File::options().read(true)), open(File::options().write(true))];
    let path = open(File::options().read(true).custom_flags(O_PATH));
    let appending = open(File::options().read(true).append(true));
    assert_eq!(refused(&reading, &temporary()), BackingError::NotWritable);
    assert_eq!(refused(&writing, &temporary()), BackingError::NotReadable);
    assert_eq!(refused(&writing, &Config { read_only: true, ..temporary() }), BackingError::NotReadable);
    assert_eq!(refused(&path, &temporary()), BackingError::PathOnly);
    assert_eq!(refused(&appending, &temporary()), BackingError::Appending);
    assert_eq!(attached(image.backing()), []);
}

#[test]
fn a_loop_device_carries_another() {
    let (_alone, image) = alone_with(MIB);
    let below = image.attach(&temporary());
    let above = Control::open().unwrap().attach(open(&below), &temporary()).unwrap();
    assert_eq!(above.status().unwrap().size, bytes(MIB));
    assert_eq!(above.backing().unwrap(), Backing::Device(below.dev()));
    // A block device is identified by its number, not by the path of its node.
    let tmp = Tmpfs::mount();
    let other = tmp.path().join("node");
    mknod(&other, SFlag::S_IFBLK, Mode::S_IRWXU, makedev(below.dev().major.into(), below.dev().minor.into())).unwrap();
    assert_eq!(above.detach(File::open(other).unwrap()).unwrap(), Detach::Detached);
}

#[test]
fn a_loop_device_without_a_backing_file_carries_none() {
    let image = Image::new(MIB);
    // Another test may take the number as soon as it is free.
    let mut found = None;
    eventually("a loop device without a backing file", || {
        let below = image.attach(&Config::default());
        let node = open(&below);
        assert_eq!(below.detach(&image.file).unwrap(), Detach::Deferred);
        let path = Device::from_node(&node).unwrap().path();
        drop(node);
        let below = File::options().read(true).write(true).open(path);
        let attached = below.map(|below| Control::open().unwrap().attach(below, &temporary()));
        if let Ok(Err(AttachError::Backing(BackingError::Detached { device }))) = attached {
            found = Some(device.major);
        }
        found.is_some()
    });
    assert_eq!(found, Some(7));
}

/// File systems number their devices differently: by disk, or by "anonymous" numbers, on btrfs one for each subvolume.
fn known_by_inode(dir: &Path) {
    let image = Image::within(dir, MIB);
    let device = image.attach(&temporary());
    let stat = fs::metadata(&image.path).unwrap();
    let Backing::File(file) = device.backing().unwrap() else { panic!("it is a file") };
    assert_eq!(file.inode, stat.ino());
    assert_eq!(makedev(file.device.major.into(), file.device.minor.into()), stat.dev());
    assert_eq!(device.backing().unwrap(), image.backing());
}

#[test]
fn a_file_of_a_tmpfs_is_known_by_its_inode() {
    known_by_inode(Tmpfs::mount().path());
}

#[test]
fn a_file_of_an_xfs_is_known_by_its_inode() {
    known_by_inode(XfsDisk::without_quota().path());
}

#[test]
fn a_file_of_a_btrfs_is_known_by_its_inode() {
    let disk = Disk::take();
    known_by_inode(formatted(disk.path(), "btrfs", &["mkfs.btrfs", "-q", "-f"]).path());
}

#[test]
fn a_backing_file_without_a_name_is_still_known() {
    let image = Image::new(MIB);
    let device = image.attach(&Config::default());
    fs::remove_file(&image.path).unwrap();
    assert_eq!(device.backing().unwrap(), image.backing());
    // A new file of the same name has another identity.
    let other = File::create_new(&image.path).unwrap();
    assert_ne!(device.backing().unwrap(), Backing::of(&other).unwrap());
    assert_eq!(Device::open(device.path()).unwrap().detach(&image.file).unwrap(), Detach::Deferred);
}

#[test]
fn the_callers_descriptor_is_not_needed_any_more() {
    let image = Image::new(MIB);
    let (path, backing) = (image.path.clone(), image.backing());
    let device = image.attach(&temporary());
    drop(image);
    assert!(!path.exists());
    assert_eq!(device.backing().unwrap(), backing);
    open(&device).write_all_at(b"still there", 0).unwrap();
}

fn not_a_loop_device(path: &Path) {
    match Device::open(path) {
        Err(DeviceError::NotLoopDevice { path: found }) => assert_eq!(found, path),
        other => panic!("{}: {other:?}", path.display()),
    }
}

#[test]
fn anything_else_is_not_a_loop_device() {
    let tmp = Tmpfs::mount();
    let [pipe, file] = [tmp.path().join("pipe"), tmp.path().join("file")];
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    fs::write(&file, "loop0").unwrap();
    let disk = Disk::take();
    for path in [&*pipe, &*file, tmp.path(), Path::new("/dev/zero"), Path::new("/dev/loop-control"), disk.path()] {
        not_a_loop_device(path);
    }
    let missing = tmp.path().join("missing");
    assert!(matches!(Device::open(&missing), Err(DeviceError::NotFound { path }) if path == missing));
    assert!(matches!(Device::open(file.join("below")), Err(DeviceError::NotFound { .. })));
}

#[test]
fn losetup_shows_the_same() {
    let image = Image::new(8 * MIB);
    let config = Config {
        block_size: Some(BlockSize::new(1024).unwrap()),
        read_only: true,
        autoclear: true,
        partscan: true,
        direct_io: true,
        offset: bytes(MIB),
        size_limit: Some(bytes(2 * MIB)),
    };
    let device = image.attach(&config);
    let columns = "NAME,SIZELIMIT,OFFSET,AUTOCLEAR,RO,BACK-FILE,BACK-INO,BACK-MAJ:MIN,MAJ:MIN,DIO,LOG-SEC,PARTSCAN";
    let shown = run(Command::new("losetup").args(["--list", "--json", "--output", columns]).arg(device.path()));
    let mut shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    // Some columns are padded, in JSON too.
    for column in ["maj:min", "back-maj:min"] {
        let padded = &mut shown["loopdevices"][0][column];
        *padded = padded.as_str().map(str::trim).into();
    }
    let Backing::File(file) = device.backing().unwrap() else { panic!("it is a file") };
    let expected = serde_json::json!({
        "name": device.path(),
        "sizelimit": 2 * MIB,
        "offset": MIB,
        "autoclear": true,
        "ro": true,
        "back-file": image.path,
        "back-ino": file.inode,
        "back-maj:min": file.device.to_string(),
        "maj:min": device.dev().to_string(),
        "dio": device.config().unwrap().direct_io,
        "log-sec": 1024,
        "partscan": true,
    });
    assert_eq!(shown["loopdevices"], serde_json::json!([expected]));
    assert_eq!(device.config().unwrap(), config);
}

#[test]
fn what_losetup_attached_is_read() {
    let (_alone, image) = alone_with(8 * MIB);
    let options = ["--find", "--show", "--read-only", "--offset", "4096", "--sector-size", "2048"];
    let path = run(Command::new("losetup").args(options).arg(&image.path));
    let device = Device::open(path.trim()).unwrap();
    let number: Number = path.trim().trim_start_matches("/dev/").parse().unwrap();
    assert_eq!(device.number(), number);
    let config = Config {
        block_size: Some(BlockSize::new(2048).unwrap()),
        read_only: true,
        offset: bytes(4096),
        ..Config::default()
    };
    assert_eq!(device.config().unwrap(), config);
    assert_eq!(device.detach(&image.file).unwrap(), Detach::Detached);
}
