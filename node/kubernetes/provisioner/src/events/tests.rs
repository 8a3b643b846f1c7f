use std::collections::BTreeSet;
use std::time::SystemTime;

use cluster::EVENT_RATE;
use proptest::prelude::*;
use units::Inodes;
use volume::{Cloning, Sharing, State};

use super::*;
use crate::fixture::{self, NODE, id};

const PAGE: &str = include_str!("../../../../../docs/operations/events.md");

#[test]
fn the_page_has_the_limit_of_a_namespace() {
    let limit = format!("{} events at once, beyond {} in a second", EVENT_RATE.burst, EVENT_RATE.per_second);
    assert!(PAGE.contains(&limit), "events.md does not have: {limit}");
}

#[test]
fn the_page_describes_every_event() {
    let (_, section) = PAGE.split_once("\n## The node's events\n").expect("the heading");
    let (section, _) = section.split_once("\n## ").expect("the next heading");
    let rows: Vec<Vec<&str>> =
        section.lines().filter(|line| line.starts_with("| `")).map(|row| row.split('|').collect()).collect();
    let reasons = |row: &[&'static str]| row[1].split('`').skip(1).step_by(2);
    let described: BTreeSet<&str> = rows.iter().flat_map(|row| reasons(row)).collect();
    assert_eq!(described, Reason::ALL.iter().map(|reason| reason.name()).collect());
    for warning in Reason::ALL.iter().filter(|reason| matches!(reason.type_(), EventType::Warning)) {
        for row in rows.iter().filter(|row| reasons(row).any(|name| name == warning.name())) {
            assert!(!row[4].trim().is_empty(), "no remedy: {row:?}");
        }
    }
    let (_, waiting) = section.split_once("\nEvents of success (").expect("the events that wait");
    let (waiting, _) = waiting.split_once(')').expect("the end of the list");
    let postponed = Reason::ALL.iter().filter(|reason| reason.wait_and_limit().0 > Duration::ZERO);
    let described: BTreeSet<&str> = waiting.split('`').skip(1).step_by(2).collect();
    assert_eq!(described, postponed.map(|reason| reason.name()).collect());
}

/// Record of a snapshot of 1 GiB whose blocks are not copied yet.
fn shared(mode: Mode) -> Record {
    let cloning = Cloning { source: id("pvc-1"), headroom: Bytes::GIB, complete: true };
    Record { cloning: Some(cloning), ..fixture::record(mode, State::Complete) }
}

fn disk(sharing: Sharing) -> Record {
    shared(Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing })
}

fn files(sharing: Sharing) -> Record {
    shared(Mode::SnapshotTree { taken: SystemTime::UNIX_EPOCH, inodes: Inodes::new(64), sharing })
}

/// The note of the two events about a snapshot or a group: on the content, and on the object of the user.
fn note(events: &Events) -> String {
    let [content, object] = [(); 2].map(|()| events.queue.next().and_then(|queued| queued.event.note));
    assert_eq!(content, object);
    object.expect("a note")
}

#[tokio::test]
async fn the_events_of_snapshots_state_exactly_what_is_reserved() {
    const FREE: Option<Bytes> = Some(Bytes::new(98 << 30));
    let events = Events::new(fixture::client(|_| None), NODE, Metrics::default());
    let thin = "thin snapshot of 1 GiB; it reserves nothing and shares its blocks with the volume: as long as it exists, \
                overwriting the volume takes space of the disk that nothing reserves";
    let copied = Record { cloning: None, ..disk(Sharing::Temporary) };
    for (record, expected) in [
        (
            disk(Sharing::Temporary),
            "snapshot of 1 GiB; it reserves 1.01 GiB (1085027328 B), and 1 GiB more until its blocks are copied",
        ),
        (
            files(Sharing::Temporary),
            "snapshot of 1 GiB; it reserves 1.01 GiB (1085059072 B), and 1.25 GiB (1344348160 B) more until its blocks \
             are copied",
        ),
        (copied, "snapshot of 1 GiB; it reserves 1.01 GiB (1085027328 B)"),
        (disk(Sharing::Permanent), thin),
        (files(Sharing::Permanent), thin),
    ] {
        events.snapshot_taken(&Content::default(), NODE, &record, FREE);
        let expected = format!("node {NODE} has taken the {expected}; 98 GiB of the disk are unreserved");
        assert_eq!(note(&events), expected);
    }
    for (sharing, expected) in [
        (Sharing::Temporary, "until their blocks are copied, they reserve 4.27 GiB (4588176384 B)"),
        (
            Sharing::Permanent,
            "they are thin: they reserve nothing, and overwriting the volumes takes space of the disk that nothing \
             reserves",
        ),
    ] {
        let members = BTreeMap::from([(id("disk"), disk(sharing)), (id("files"), files(sharing))]);
        events.group_taken(&GroupContent::default(), NODE, &members, FREE);
        let expected =
            format!("node {NODE} has taken 2 snapshots at one instant; {expected}; 98 GiB of the disk are unreserved");
        assert_eq!(note(&events), expected);
    }
}

proptest! {
    #[test]
    fn a_long_note_is_shortened_at_a_character(text in "(ä|b|€){0,2000}") {
        let short = shortened(text.clone());
        prop_assert!(short.len() <= NOTE_LEN && text.starts_with(&short));
        prop_assert!(text.len() - short.len() == 0 || short.len() > NOTE_LEN - 4);
    }
}
