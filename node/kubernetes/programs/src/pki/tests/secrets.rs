//! The keys of the cluster's Secrets.

use cluster::{SecretKey, SecretStorage};

use super::*;

/// Creates the directory that etcd creates at its first start.
fn member(disk: &Disk) {
    fs::create_dir_all(disk.config.paths.etcd.join("member")).unwrap();
}

/// Records that all Secrets are stored in the current form.
fn complete(disk: &Disk) {
    disk.ensure(NOW).unwrap().secrets().unwrap().complete().unwrap();
}

fn names(disk: &Disk) -> Vec<String> {
    let read: serde_json::Value = serde_json::from_str(&disk.files()["encryption.json"]).unwrap();
    let providers = read["resources"][0]["providers"].as_array().unwrap();
    let keys = providers.iter().find_map(|provider| provider["secretbox"]["keys"].as_array()).unwrap();
    keys.iter().map(|key| key["name"].as_str().unwrap().to_owned()).collect()
}

/// With another key, every Secret of the cluster would be lost.
#[test]
fn a_key_of_secrets_that_is_lost_or_damaged_is_never_replaced() {
    let (disk, _) = Disk::ensured();
    let (path, before) = (disk.config.paths.pki.join("secrets.key"), disk.files());
    for left in [None, Some(&b""[..]), Some(&b"c2hvcnQ="[..]), Some(&b"\xff"[..])] {
        left.map_or_else(|| fs::remove_file(&path), |left| fs::write(&path, left)).unwrap();
        let error = disk.ensure(NOW).err().unwrap().to_string();
        assert!(error.contains(&format!("cannot use {}, the keys", path.display())), "{error}");
        assert_eq!(fs::read(&path).ok().as_deref(), left);
    }
    fs::write(&path, &before["secrets.key"]).unwrap();
    disk.ensure(NOW).unwrap();
    assert_eq!(disk.changed(&before), Vec::<String>::new());
}

/// Regression: the node created a new key, and all Secrets were unreadable.
#[test]
fn a_disk_without_the_key_is_an_error_while_etcd_needs_it() {
    let (disk, _) = Disk::ensured();
    let (pki, etcd) = (disk.config.paths.pki.clone(), disk.config.paths.etcd.clone());
    let key = fs::read(pki.join("secrets.key")).unwrap();
    for file in ["secrets.key", "encryption.json"] {
        fs::remove_file(pki.join(file)).unwrap();
    }
    let before = disk.files();
    let error = disk.ensure(LATER).err().unwrap();
    assert!(matches!(&error, PkiError::SecretsKey { path } if *path == pki.join("secrets.key")), "{error}");
    assert!(error.to_string().contains("restore it from a backup"), "{error}");
    assert_eq!(disk.files(), before, "nothing is changed, not even what would be renewed");
    // The whole directory is lost.
    fs::remove_dir_all(&pki).unwrap();
    assert!(matches!(disk.ensure(NOW), Err(PkiError::SecretsKey { .. })));
    assert!(disk.files().is_empty());

    fs::write(pki.join("secrets.key"), &key).unwrap();
    disk.ensure(NOW).unwrap();
    assert_eq!(disk.files()["secrets.key"].as_bytes(), key);

    // An empty etcd needs no key.
    fs::remove_dir_all(&pki).unwrap();
    fs::remove_dir_all(&etcd).unwrap();
    disk.ensure(NOW).unwrap();
    assert_ne!(disk.files()["secrets.key"].as_bytes(), key);
}

#[test]
fn a_key_of_another_cluster_or_backup_changes_nothing() {
    let (mut disk, _) = Disk::ensured();
    let (path, own) = (disk.config.paths.pki.join("secrets.key"), disk.files());
    let other = Disk::new();
    other.ensure(NOW).unwrap();
    fs::write(&path, &other.files()["secrets.key"]).unwrap();
    let before = disk.files();
    let error = disk.ensure(LATER).err().unwrap();
    assert!(matches!(&error, PkiError::OtherSecretsKey { .. }), "{error}");
    assert_eq!(disk.files(), before);

    // The backup is older than the rotation.
    fs::write(&path, &own["secrets.key"]).unwrap();
    disk.config.settings.secret_key = SecretKey::new(2).unwrap();
    disk.ensure(NOW).unwrap();
    fs::write(&path, &own["secrets.key"]).unwrap();
    assert!(matches!(disk.ensure(NOW), Err(PkiError::OtherSecretsKey { .. })));
}

/// docs/operations/lost-node.md: the disk of a new machine that has booted once gets the directory `pki` of the lost
/// one.
#[test]
fn another_machine_uses_restored_keys_without_its_own_list() {
    let (lost, former) = Disk::ensured();
    let (machine, own) = Disk::ensured();
    let (pki, used) = (machine.config.paths.pki.clone(), machine.config.paths.etcd.join("secrets-keys"));
    fs::remove_dir_all(&pki).unwrap();
    fs::rename(&lost.config.paths.pki, &pki).unwrap();
    let error = machine.ensure(NOW).err().unwrap();
    assert!(matches!(&error, PkiError::OtherSecretsKey { used: found, .. } if *found == used), "{error}");
    assert!(error.to_string().contains(&format!("remove {}", used.display())), "{error}");
    assert_eq!(machine.files(), former, "nothing is changed");

    fs::remove_file(&used).unwrap();
    machine.ensure(NOW).unwrap();
    let restored = machine.files();
    for file in ["ca.crt", "ca.key", "sa.key", "secrets.key"] {
        assert_eq!(restored[file], former[file], "{file}");
        assert_ne!(restored[file], own[file], "{file}");
    }
    assert!(used.exists(), "the node lists the restored key");
    machine.ensure(NOW).unwrap();
}

/// Data disks of a release without encryption, and of one without the record of keys that etcd needs.
#[test]
fn a_disk_of_a_former_release_gets_a_key_or_keeps_its_own() {
    let (disk, _) = Disk::ensured();
    member(&disk);
    let key = disk.files()["secrets.key"].clone();
    let used = disk.config.paths.etcd.join("secrets-keys");
    fs::remove_file(&used).unwrap();
    disk.ensure(NOW).unwrap();
    assert!(used.exists());
    assert_eq!(disk.files()["secrets.key"], key);

    fs::remove_file(&used).unwrap();
    for file in ["secrets.key", "encryption.json"] {
        fs::remove_file(disk.config.paths.pki.join(file)).unwrap();
    }
    let credentials = disk.ensure(NOW).unwrap();
    assert_ne!(disk.files()["secrets.key"], key);
    assert!(!credentials.secrets().unwrap().is_complete().unwrap(), "its Secrets have to be written again");
}

#[test]
fn files_of_the_keys_are_roots_alone() {
    let disk = Disk::new();
    member(&disk);
    complete(&disk);
    let files = ["pki/secrets.key", "pki/encryption.json", "etcd/secrets-keys", "etcd/member/secrets-form"];
    for file in files {
        let metadata = fs::metadata(disk.scratch.path().join(file)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o600, "{file}");
    }
    let key = disk.files()["secrets.key"].clone();
    for file in &files[2..] {
        assert!(!fs::read_to_string(disk.scratch.path().join(file)).unwrap().contains(&key), "{file}");
    }
}

#[test]
fn the_way_secrets_are_stored_changes_and_their_key_stays() {
    let (mut disk, before) = Disk::ensured();
    disk.config.settings.secret_storage = SecretStorage::Plain;
    disk.ensure(NOW).unwrap();
    assert_eq!(disk.changed(&before), ["encryption.json"]);
    disk.config.settings.secret_storage = SecretStorage::Encrypted;
    disk.ensure(NOW).unwrap();
    assert_eq!(disk.changed(&before), Vec::<String>::new());
}

/// An interrupted boot with another form may leave Secrets in that form.
#[test]
fn every_change_of_the_form_has_the_secrets_written_again() {
    let mut disk = Disk::new();
    member(&disk);
    let is_complete = |disk: &Disk| disk.ensure(NOW).unwrap().secrets().unwrap().is_complete().unwrap();
    assert!(!is_complete(&disk));
    complete(&disk);
    assert!(is_complete(&disk));
    disk.config.settings.secret_storage = SecretStorage::Plain;
    assert!(!is_complete(&disk));
    disk.config.settings.secret_storage = SecretStorage::Encrypted;
    assert!(!is_complete(&disk), "the boot in between may have written some in plain text");
    complete(&disk);
    // Restore of an etcd snapshot.
    fs::remove_dir_all(disk.config.paths.etcd.join("member")).unwrap();
    member(&disk);
    assert!(!is_complete(&disk));
}

#[test]
fn the_old_key_reads_until_all_secrets_are_written_again() {
    let mut disk = Disk::new();
    member(&disk);
    complete(&disk);
    assert_eq!(names(&disk), ["key1"]);
    let former = disk.files()["secrets.key"].clone();
    disk.config.settings.secret_key = SecretKey::new(2).unwrap();
    for _boot in 0..2 {
        disk.ensure(NOW).unwrap();
        assert_eq!(names(&disk), ["key2", "key1"]);
    }
    // Another rotation starts before all Secrets have the second key.
    disk.config.settings.secret_key = SecretKey::new(7).unwrap();
    disk.ensure(NOW).unwrap();
    assert_eq!(names(&disk), ["key7", "key2", "key1"]);
    complete(&disk);
    assert_eq!(names(&disk), ["key7", "key2", "key1"], "the API server that runs may read with them");
    disk.ensure(NOW).unwrap();
    assert_eq!(names(&disk), ["key7"]);
    assert!(!disk.files()["secrets.key"].contains(&former));
    let settled = disk.files();
    disk.config.settings.secret_key = SecretKey::default();
    disk.ensure(NOW).unwrap();
    assert_eq!(disk.changed(&settled), Vec::<String>::new(), "a smaller number changes nothing");
}

/// The files are cut in the order in which the node writes them.
#[test]
fn a_rotation_that_was_cut_is_finished_by_the_next_boot() {
    let read = |disk: &Disk| {
        let files = ["pki/secrets.key", "etcd/secrets-keys", "pki/encryption.json"];
        files.map(|file| (file, fs::read(disk.scratch.path().join(file)).unwrap()))
    };
    let mut disk = Disk::new();
    member(&disk);
    complete(&disk);
    let first = read(&disk);
    disk.config.settings.secret_key = SecretKey::new(2).unwrap();
    disk.ensure(NOW).unwrap();
    let both = read(&disk);
    complete(&disk);
    disk.ensure(NOW).unwrap();
    let second = read(&disk);
    // An addition writes the key first, a removal writes the key after the list.
    for (from, to, order) in [(&first, &both, [0, 1, 2]), (&both, &second, [1, 0, 2])] {
        for cut in 0..=order.len() {
            for (file, content) in from {
                fs::write(disk.scratch.path().join(file), content).unwrap();
            }
            for step in &order[..cut] {
                let (file, content) = &to[*step];
                fs::write(disk.scratch.path().join(file), content).unwrap();
            }
            disk.ensure(NOW).unwrap();
            assert_eq!(names(&disk)[0], "key2", "{cut}");
            let used = fs::read_to_string(disk.config.paths.etcd.join("secrets-keys")).unwrap();
            assert_eq!(used.lines().count(), names(&disk).len(), "{cut}");
        }
    }
}
