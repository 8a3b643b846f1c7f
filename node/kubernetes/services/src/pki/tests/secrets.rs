//! The key of the cluster's Secrets.

use super::*;
use crate::SecretStorage;

/// With another key, every Secret of the cluster would be lost.
#[test]
fn a_key_of_secrets_that_is_lost_or_damaged_is_never_replaced() {
    let disk = Disk::new();
    disk.ensure(NOW).unwrap();
    let (path, before) = (disk.config.paths.pki.join("secrets.key"), disk.files());
    for left in [None, Some(&b""[..]), Some(&b"c2hvcnQ="[..]), Some(&b"\xff"[..])] {
        left.map_or_else(|| fs::remove_file(&path), |left| fs::write(&path, left)).unwrap();
        let error = disk.ensure(NOW).err().unwrap().to_string();
        assert!(error.contains(&format!("cannot use {}, the key", path.display())), "{error}");
        assert_eq!(fs::read(&path).ok().as_deref(), left);
    }
    fs::write(&path, &before["secrets.key"]).unwrap();
    disk.ensure(NOW).unwrap();
    assert_eq!(disk.changed(&before), Vec::<String>::new());
}

#[test]
fn the_way_secrets_are_stored_changes_and_their_key_stays() {
    let mut disk = Disk::new();
    disk.ensure(NOW).unwrap();
    let before = disk.files();
    disk.config.secret_storage = SecretStorage::Plain;
    disk.ensure(NOW).unwrap();
    assert_eq!(disk.changed(&before), ["encryption.json"]);
    disk.config.secret_storage = SecretStorage::Encrypted;
    disk.ensure(NOW).unwrap();
    assert_eq!(disk.changed(&before), Vec::<String>::new());
}
