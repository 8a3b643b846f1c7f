//! Many volumes at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, io, thread};

use dir::Ensured;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use units::Bytes;
use volume::{Allocation, Mode, Neighbours, Record, Settings, Volumes as _};

use crate::node::{INODES, Node, disk, files, id, settings, sized};

#[test]
fn volumes_are_created_in_parallel_with_a_project_each() {
    let node = Node::new();
    let made: Vec<Record> = thread::scope(|scope| {
        let store = &node.store;
        // Two threads for each volume: one creates it, the other one finds it.
        let threads: Vec<_> = (0..16)
            .map(|number| {
                scope.spawn(move || {
                    let name = format!("pvc-{}", number / 2);
                    let mode = if number % 4 < 2 {
                        Mode::Filesystem { inodes: INODES }
                    } else {
                        Mode::Block { allocation: Allocation::Thick }
                    };
                    store.provision(&id(&name), &sized(&name, mode, Bytes::new(1 << 20)))
                })
            })
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| match thread.join().unwrap().unwrap() {
                Ensured::Created(record) => Some(record),
                Ensured::Unchanged(_) => None,
            })
            .collect()
    });
    assert_eq!(made.len(), 8);
    let projects: BTreeSet<_> = made.iter().map(|record| record.project).collect();
    assert_eq!(projects.len(), 8);
    let reserved: Bytes = made.iter().map(Record::reserved).sum();
    assert_eq!(node.store.space().unwrap().reserved, reserved);
}

#[test]
fn a_burst_forces_the_log_less_often_than_it_makes_volumes() {
    const CLAIMS: usize = 96;
    let node = Node::new();
    let before = node.store.forces();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < CLAIMS) {
                    let name = format!("pvc-{number}");
                    node.made(&sized(&name, Mode::Filesystem { inodes: INODES }, Bytes::new(1 << 20)));
                }
            });
        }
    });
    let forces = node.store.forces() - before;
    println!("{CLAIMS} claims, {forces} forces of the log");
    // The share of claims that need no force of their own depends on the speed of the disk: about a third on a quick
    // one.
    assert!(forces * 4 <= CLAIMS as u64 * 3, "{forces}");
}

/// Regression: a volume that was freed between the query of its quota and that of the disk hid as much space of others.
#[test]
fn space_of_others_counts_while_a_volume_is_freed() {
    let node = Node::with(Settings { neighbours: Neighbours::Strangers, ..settings() });
    let (id, _) = node.made(&files("pvc-1"));
    let others = || node.store.space().unwrap().reserve;
    let quiet = others();
    for round in 0..50 {
        let file = fs::File::create(node.path("live", &id).join("data")).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 8 << 20).unwrap();
        let least = thread::scope(|scope| {
            let freed = scope.spawn(|| file.set_len(0).unwrap());
            let mut least = others();
            while !freed.is_finished() {
                least = least.min(others());
            }
            least
        });
        // The size of the map of free space varies.
        assert!(least.saturating_add(Bytes::MIB) > quiet, "{least} of {quiet} in round {round}");
    }
}

#[test]
fn the_usage_of_all_volumes_comes_from_one_sweep() {
    let (node, one, _) = Node::with_volume(&files("pvc-1"));
    let (two, record) = node.made(&disk("pvc-2", Allocation::Thick));
    fs::write(node.path("live", &one).join("data"), vec![1; 100_000]).unwrap();
    fs::File::open(node.disk.path()).unwrap().sync_all().unwrap();
    nix::unistd::syncfs(fs::File::open(node.disk.path()).unwrap()).unwrap();
    let usage = node.store.usage().unwrap();
    let ids: Vec<_> = usage.iter().map(|usage| &usage.id).collect();
    assert_eq!(ids, [&one, &two]);
    assert_eq!((usage[0].used.bytes.get(), usage[0].used.inodes.get()), (102_400, 2));
    assert_eq!((usage[1].used.bytes, usage[1].used.inodes.get(), &usage[1].record), (record.size, 2, &record));
}

#[test]
fn a_file_cannot_be_renamed_into_another_volume() {
    let (node, from, _) = Node::with_volume(&files("pvc-1"));
    let (to, _) = node.made(&files("pvc-2"));
    fs::write(node.path("live", &from).join("file"), b"x").unwrap();
    let refused = fs::rename(node.path("live", &from).join("file"), node.path("live", &to).join("file"));
    assert_eq!(refused.map_err(|error: io::Error| error.raw_os_error()), Err(Some(Errno::EXDEV as i32)));
}
