//! A file system on a device that grows while it is in use.

use std::fs::File;

use localstorage::{FoundDisk, Role, examine};

use super::*;

const BEFORE: Bytes = Bytes::new(600 << 20);
const AFTER: Bytes = Bytes::new(1000 << 20);

/// A device that can grow at any time: a device mapper target on the machine's disk.
struct Elastic<'machine> {
    machine: &'machine Machine,
    path: PathBuf,
}

impl<'machine> Elastic<'machine> {
    fn new(machine: &'machine Machine, size: Bytes) -> Self {
        let elastic = Self { machine, path: "/dev/dm-0".into() };
        elastic.dmsetup(&["create", "elastic", "--table", &elastic.table(size)]);
        elastic
    }

    fn table(&self, size: Bytes) -> String {
        format!("0 {} linear {} 0", size.get() / 512, self.machine.path())
    }

    fn enlarge(&self, size: Bytes) {
        self.dmsetup(&["reload", "elastic", "--table", &self.table(size)]);
        self.dmsetup(&["resume", "elastic"]);
    }

    /// Enlarges the device by a part that cannot be read.
    fn enlarge_unreadable(&self, from: Bytes, to: Bytes) {
        let (table, more) = (self.machine.place.path().join("table"), to.saturating_sub(from).get() / 512);
        fs::write(&table, format!("{}\n{} {more} error\n", self.table(from), from.get() / 512)).unwrap();
        self.dmsetup(&["reload", "elastic", table.to_str().unwrap()]);
        self.dmsetup(&["resume", "elastic"]);
    }

    fn dmsetup(&self, arguments: &[&str]) {
        run(Command::new("dmsetup").args(["--noudevsync", "--noudevrules"]).args(arguments));
    }

    fn content(&self) -> Content {
        examine(&self.path, size_of(&self.path), &Programs::default()).unwrap()
    }

    fn try_mount(&self) -> Result<Mounted<Data>, MountError> {
        let seen = FoundDisk {
            name: "dm-0".to_owned(),
            device: self.path.clone(),
            role: Role::Unnamed,
            read_only: false,
            size: size_of(&self.path),
            content: self.content(),
        };
        DataDisk::choose(&[seen]).unwrap().mount(self.machine.root().data)
    }

    fn mount(&self) -> Mounted<Data> {
        self.try_mount().unwrap()
    }
}

impl Drop for Elastic<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.machine.root().data.path());
        self.dmsetup(&["remove", "elastic"]);
    }
}

fn size_of(device: &Path) -> Bytes {
    use std::io::{Seek, SeekFrom};
    Bytes::new(File::open(device).unwrap().seek(SeekFrom::End(0)).unwrap())
}

fn capacity(data: &Mounted<Data>) -> Bytes {
    let seen = statvfs(data.path()).unwrap();
    Bytes::new(seen.blocks() * seen.fragment_size())
}

#[test]
fn a_device_enlarged_while_mounted_is_used_as_a_whole() {
    let machine = Machine::new();
    let elastic = Elastic::new(&machine, BEFORE);
    let data = elastic.mount();
    let file = data.pki.path().join("kept");
    fs::write(&file, vec![7; 3 << 20]).unwrap();
    let before = capacity(&data);
    assert!(before < BEFORE);

    elastic.enlarge(AFTER);
    let data = elastic.mount();
    let after = capacity(&data);
    assert_eq!(after.checked_sub(before), AFTER.checked_sub(BEFORE));
    assert_eq!(fs::read(&file).unwrap(), vec![7; 3 << 20]);

    // The superblock on the disk is still the old one: the mounted file system decides about the growth.
    let data = elastic.mount();
    assert_eq!(capacity(&data), after);
}

/// Regression: the node did not start.
#[test]
fn a_file_system_that_cannot_grow_keeps_its_size() {
    let machine = Machine::new();
    let elastic = Elastic::new(&machine, BEFORE);
    let before = capacity(&elastic.mount());
    elastic.enlarge_unreadable(BEFORE, AFTER);
    assert_eq!(capacity(&elastic.mount()), before);
    elastic.enlarge(AFTER);
    assert!(capacity(&elastic.mount()) > before);
}

#[test]
fn a_disk_enlarged_while_off_is_used_as_a_whole() {
    let machine = Machine::new();
    let elastic = Elastic::new(&machine, BEFORE);
    let data = elastic.mount();
    let before = capacity(&data);
    machine.unmount(data);
    drop(elastic);
    let data = machine.mount().unwrap();
    assert_eq!(capacity(&data).get() - before.get(), machine.size() - BEFORE.get());
}

#[test]
fn a_file_system_that_is_larger_than_its_disk_is_not_mounted() {
    let machine = Machine::new();
    machine.mkfs(&["-L", LABEL]);
    let elastic = Elastic::new(&machine, BEFORE);
    assert!(matches!(elastic.content(), Content::Data(_)));
    let written = machine.written();
    let failed = elastic.try_mount();
    assert!(matches!(failed, Err(MountError::Mount(_))), "{failed:?}");
    assert_eq!(machine.written(), written);
}
