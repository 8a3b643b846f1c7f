//! Project IDs that several processes allocate.

use std::collections::BTreeSet;
use std::io::{Read, Write, pipe};

use fsquota::Allocator;
use ktest_support::process::Child;

use crate::volumes::Volumes;

#[test]
fn processes_never_get_the_same_id() {
    let volumes = Volumes::new();
    let (mut taken, give) = pipe().unwrap();
    let children: Vec<Child> = (0..4)
        .map(|_| {
            Child::start(|| {
                let ids = Allocator::open(&volumes.root).unwrap();
                let text: String = (0..100).map(|_| format!("{:010}\n", ids.next().unwrap())).collect();
                // Shorter than PIPE_BUF, so that the writes are not interleaved.
                (&give).write_all(text.as_bytes()).unwrap();
            })
        })
        .collect();
    children.into_iter().for_each(Child::wait);
    drop(give);
    let mut text = String::new();
    taken.read_to_string(&mut text).unwrap();
    let ids: BTreeSet<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(ids.len(), 400);
}

#[test]
fn a_forked_child_does_not_get_the_parents_ids() {
    let volumes = Volumes::new();
    let (mut taken, give) = pipe().unwrap();
    // Allocates a batch in memory, which the forked child gets a copy of.
    let first = volumes.ids.next().unwrap();
    let take = || (&give).write_all(format!("{:010}\n", volumes.ids.next().unwrap()).as_bytes()).unwrap();
    Child::start(take).wait();
    let second = volumes.ids.next().unwrap();
    drop(give);
    let mut text = String::new();
    taken.read_to_string(&mut text).unwrap();
    let theirs: u32 = text.trim().parse().unwrap();
    assert!(theirs > second.get() && second > first, "{first}, {second}, in the fork {theirs}");
}
