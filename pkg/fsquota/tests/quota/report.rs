//! [`fsquota::report`].

use std::collections::BTreeMap;
use std::fs;

use fsquota::{Limits, ProjectId, Quotas};
use proptest::prelude::*;
use units::{Bytes, Inodes};

use crate::files::{mib, write};
use crate::volumes::{SIZE, Volumes, both, size};

#[test]
fn a_report_contains_every_project_once() {
    let volumes = Volumes::new();
    let made: Vec<ProjectId> = (0..50).map(|n| volumes.volume(&format!("v{n}"), size(SIZE)).1).collect();
    assert_eq!(volumes.reported(), made);
}

#[test]
fn report_and_get_agree() {
    let volumes = Volumes::new();
    for n in 1..=5 {
        let (dir, _) = volumes.volume(&format!("v{n}"), both(SIZE, 100 * n));
        write(&volumes.path(&format!("v{n}/data")), mib(n));
        fsquota::sync(&dir).unwrap();
    }
    let reported: Vec<_> = fsquota::report(&volumes.root).unwrap().map(Result::unwrap).collect();
    let dirs = (1..=5).map(|n| fs::File::open(volumes.path(&format!("v{n}"))).unwrap());
    let got: Vec<_> = dirs.map(|dir| fsquota::get(dir).unwrap()).collect();
    assert_eq!(reported, got);
    assert_eq!(got.iter().map(|quota| quota.used.bytes).sum::<Bytes>(), mib(15));
}

#[test]
fn a_report_contains_sparse_ids_up_to_the_maximum() {
    let volumes = Volumes::new();
    let ids = prop_oneof![
        1..=ProjectId::MAX.get(),
        prop::sample::select(vec![1, 2, 36, 37, 65_535, 65_536, 1 << 31, u32::MAX - 2, u32::MAX - 1]),
    ];
    let wanted = prop::collection::btree_map(ids.prop_map(|id| ProjectId::new(id).unwrap()), 1_u64..1 << 30, 0..20);
    proptest!(ProptestConfig::with_cases(20), |(wanted in wanted)| {
        for (id, blocks) in &wanted {
            fsquota::set_limits(&volumes.root, *id, both(Bytes::new(blocks * 4096), *blocks)).unwrap();
        }
        let found: BTreeMap<ProjectId, Limits> =
            fsquota::report(&volumes.root).unwrap().map(|quota| quota.map(|quota| (quota.id, quota.limits))).collect::<Result<_, _>>().unwrap();
        let expected: BTreeMap<_, _> =
            wanted.iter().map(|(id, blocks)| (*id, both(Bytes::new(blocks * 4096), *blocks))).collect();
        prop_assert_eq!(found, expected);
        for id in wanted.keys() {
            Quotas::open(&volumes.root).unwrap().clear(*id).unwrap();
        }
        prop_assert_eq!(fsquota::report(&volumes.root).unwrap().count(), 0);
    });
}

#[test]
fn a_project_without_limits_is_reported() {
    let volumes = Volumes::new();
    let dir = volumes.dir("a");
    crate::files::xfs_io_ok(&volumes.path("a"), &[], &["chproj 4294967294", "chattr +P"]);
    let reported: Vec<_> = fsquota::report(&volumes.root).unwrap().map(Result::unwrap).collect();
    let [quota] = reported[..] else { panic!("{reported:?}") };
    assert_eq!((quota.id, quota.limits, quota.used.inodes), (ProjectId::MAX, Limits::default(), Inodes::new(1)));
    drop(dir);
}
