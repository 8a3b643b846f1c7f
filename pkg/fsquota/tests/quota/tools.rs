//! Comparison with `xfs_quota`.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::Command;

use fsquota::{Quota, Quotas, Usage};
use units::{Bytes, Inodes};

use crate::files::{mib, write};
use crate::volumes::{SIZE, Volumes, both, size};

/// Runs an xfs_quota command on the file system.
pub fn xfs_quota(volumes: &Volumes, command: &str) -> String {
    let mut program = Command::new("xfs_quota");
    let output = program.args(["-x", "-c", command]).arg(volumes.path("")).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{command}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The first three numbers of each line (usage, soft limit, hard limit) by its first word.
fn numbers(said: &str) -> BTreeMap<String, [u64; 3]> {
    let lines = said.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let first = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        Some((first, [number()?, number()?, number()?]))
    });
    lines.collect()
}

fn blocks(quota: &Quota) -> [u64; 3] {
    let [soft, hard] = [quota.shown, quota.limits].map(|limits| limits.bytes.map_or(0, |limit| limit.get() / 1024));
    [quota.used.bytes.get() / 1024, soft, hard]
}

fn inodes(quota: &Quota) -> [u64; 3] {
    let limit = quota.limits.inodes.map_or(0, Inodes::get);
    [quota.used.inodes.get(), limit, limit]
}

#[test]
fn xfs_quota_reports_the_same_numbers() {
    let volumes = Volumes::new();
    for (n, limits) in [both(SIZE, 100), size(mib(3)), both(Bytes::new(1), 1)].into_iter().enumerate() {
        let (dir, _) = volumes.volume(&format!("v{n}"), limits);
        fsquota::sync(&dir).unwrap();
    }
    write(&volumes.path("v0/data"), mib(5));
    let (_, raised) = volumes.volume("raised", size(SIZE));
    Quotas::open(&volumes.root).unwrap().set_limits_showing(raised, size(SIZE), mib(5)).unwrap();
    fsquota::sync(&volumes.root).unwrap();

    let ours: Vec<Quota> = fsquota::report(&volumes.root).unwrap().map(Result::unwrap).collect();
    assert_eq!(ours[0].used, Usage { bytes: mib(5), inodes: Inodes::new(2) });
    for (option, expected) in [("-b", blocks as fn(&Quota) -> [u64; 3]), ("-i", inodes)] {
        let theirs = numbers(&xfs_quota(&volumes, &format!("report -p -n -N {option}")));
        for quota in &ours {
            assert_eq!(theirs[&format!("#{}", quota.id)], expected(quota), "{option} {theirs:?}");
        }
        // xfs_quota also reports project 0.
        assert_eq!(theirs.len(), ours.len() + 1, "{theirs:?}");
    }
}

#[test]
fn xfs_quota_reports_the_same_for_one_project() {
    let (volumes, dir, id) = Volumes::with_volume(both(SIZE, 100));
    write(&volumes.path("a/data"), mib(5));
    fsquota::sync(&dir).unwrap();
    let quota = fsquota::get(&dir).unwrap();
    for (option, expected) in [("-b", blocks(&quota)), ("-i", inodes(&quota))] {
        let theirs = numbers(&xfs_quota(&volumes, &format!("quota -p -n -N -v {option} {id}")));
        assert_eq!(theirs.values().collect::<Vec<_>>(), [&expected], "{option}");
    }
}

#[test]
fn limits_set_by_xfs_quota_are_read() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    xfs_quota(&volumes, &format!("limit -p bsoft=5m bhard=5m isoft=77 ihard=77 {id}"));
    assert_eq!(fsquota::get(&dir).unwrap().limits, both(mib(5), 77));
    xfs_quota(&volumes, &format!("limit -p bsoft=0 bhard=0 isoft=0 ihard=0 {id}"));
    assert_eq!(fsquota::get(&dir).unwrap().limits, fsquota::Limits::default());
}

#[test]
fn the_kernel_ignores_a_hard_limit_below_the_soft_limit() {
    let (volumes, dir, id) = Volumes::with_volume(size(SIZE));
    // The kernel ignores such a limit without an error. Therefore `set` always sets both.
    xfs_quota(&volumes, &format!("limit -p bhard=5m {id}"));
    assert_eq!(fsquota::get(&dir).unwrap().limits, size(SIZE));
    fsquota::set(&dir, size(mib(5)), &volumes.ids).unwrap();
    assert_eq!(fsquota::get(&dir).unwrap().limits, size(mib(5)));
}

#[test]
fn a_tree_set_up_by_xfs_quota_has_no_strays() {
    let volumes = Volumes::new();
    volumes.dir("a");
    File::create(volumes.path("a/before")).unwrap();
    let path = volumes.path("a");
    xfs_quota(&volumes, &format!("project -s -p {} 42", path.display()));
    let dir = File::open(&path).unwrap();
    let id = fsquota::project(&dir).unwrap().unwrap();
    assert_eq!(id.get(), 42);
    assert_eq!(fsquota::strays(&dir, id).unwrap().count(), 0);
}
