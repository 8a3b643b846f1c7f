use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        any::<u64>().prop_map(|inodes| Mode::Filesystem { inodes: Inodes::new(inodes) }),
        prop_oneof![Just(Allocation::Thick), Just(Allocation::Thin)].prop_map(|allocation| Mode::Block { allocation }),
        (any::<u32>(), sharing()).prop_map(|(seconds, sharing)| {
            Mode::Snapshot { taken: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into()), sharing }
        }),
        (any::<u64>(), sharing()).prop_map(|(inodes, sharing)| {
            Mode::SnapshotTree { taken: SystemTime::UNIX_EPOCH, inodes: Inodes::new(inodes), sharing }
        }),
    ]
}

fn sharing() -> impl Strategy<Value = Sharing> {
    prop_oneof![Just(Sharing::Temporary), Just(Sharing::Permanent)]
}

fn record() -> impl Strategy<Value = Record> {
    let claim =
        ("[ -~]{0,9}", "[a-z]{1,9}", ".{0,9}").prop_map(|(uid, namespace, name)| Claim { uid, namespace, name });
    let state = prop_oneof![Just(State::Staged), Just(State::Complete), Just(State::Announced)];
    let cloning = ("[a-z][a-z0-9]{1,9}", any::<u64>(), any::<bool>()).prop_map(|(source, headroom, complete)| {
        Cloning { source: source.parse().expect("an identifier"), headroom: Bytes::new(headroom), complete }
    });
    let cloning = prop::option::of(cloning);
    let volume = || "[a-z][a-z0-9]{1,9}".prop_map(|text| text.parse::<VolumeId>().expect("an identifier"));
    let owner = prop_oneof![
        Just(Owner::Provisioner),
        prop::option::of(volume()).prop_map(|source| Owner::Controller { source }),
        (volume(), 1..u32::MAX).prop_map(|(volume, project)| {
            let project = ProjectId::new(project).expect("in range");
            let source = volume.clone();
            Owner::Rollback(Rollback { volume, source, project, allocation: Allocation::Thin })
        }),
    ];
    let io = prop::option::of(any::<u32>()).prop_map(|read_operations| IoLimits { read_operations, ..IoLimits::NONE });
    (claim, owner, ".{0,9}", mode(), any::<u64>(), 1..u32::MAX, cloning, io, state).prop_map(
        |(claim, owner, class, mode, size, project, cloning, io, state)| {
            // Only snapshots are complete before they are announced, and those without `cloning` always are.
            let state = match (state, mode.is_complete_early(&owner)) {
                (State::Complete, false) => State::Staged,
                (State::Staged, true) if cloning.is_none() => State::Complete,
                (state, _) => state,
            };
            let (size, project) = (Bytes::new(size), ProjectId::new(project).expect("in range"));
            Record { claim, owner, class, mode, size, project, cloning, io, state }
        },
    )
}

proptest! {
    #[test]
    fn a_written_record_is_read_again(record in record()) {
        prop_assert_eq!(Record::parse(&record.to_bytes().unwrap(), record.state).unwrap(), record);
    }

    #[test]
    fn damaged_records_are_errors_and_no_panic(record in record(), cut in 0usize..400, flip in 0usize..400) {
        let whole = record.to_bytes().unwrap();
        let cut = cut.min(whole.len().saturating_sub(2)); // the closing brace is cut, too
        prop_assert!(Record::parse(&whole[..cut], State::Staged).is_err());
        let mut damaged = whole.clone();
        let at = flip % whole.len();
        damaged[at] ^= 0x80;
        let _ = Record::parse(&damaged, State::Staged);
    }

    #[test]
    fn the_reservation_of_a_grown_volume_never_decreases(mode in mode(), from: u64, to: u64) {
        let (from, to) = (Bytes::new(from.min(to)), Bytes::new(from.max(to)));
        let grown = mode.grown(from, to);
        prop_assert!(grown.reserved(to) >= mode.reserved(from));
        prop_assert_eq!(mode.grown(from, from), mode);
    }
}

#[test]
fn a_record_of_version_1_is_rejected_with_the_remedy() {
    let content = br#"{"version":1,"claim":{"uid":"u","namespace":"n","name":"c"},"class":"local",
        "mode":"filesystem","size_bytes":4096,"inodes":64,"project":7,"state":"staged"}"#;
    let error = Record::parse(content, State::Announced).unwrap_err();
    assert!(matches!(error, RecordError::Version1), "{error:?}");
    assert!(error.to_string().contains("start the previous release and expand"), "{error}");
}

#[test]
fn the_file_of_version_2_stays_readable() {
    let content = br#"{"version":2,"claim":{"uid":"u","namespace":"n","name":"c"},"class":"local",
        "mode":{"block":{"allocation":"thin"}},"size_bytes":4096,"project":7}"#;
    let record = Record::parse(content, State::Announced).unwrap();
    assert_eq!((record.state, record.mode), (State::Announced, Mode::Block { allocation: Allocation::Thin }));
    let written = String::from_utf8(record.to_bytes().unwrap()).expect("UTF-8");
    assert!(written.starts_with(r#"{"version":2,"#) && !written.contains("cloning"), "{written}");
}

#[test]
fn a_clone_that_shares_blocks_is_read_by_no_earlier_release() {
    let content = br#"{"version":3,"claim":{"uid":"u","namespace":"n","name":"c"},"class":"local",
        "mode":{"block":{"allocation":"thick"}},"size_bytes":4096,"project":7,
        "cloning":{"source":"pvc-1","headroom":4096}}"#;
    let record = Record::parse(content, State::Staged).unwrap();
    assert!(record.to_bytes().unwrap().starts_with(br#"{"version":3,"#));
    assert_eq!(record.reserved().saturating_sub(record.mode.reserved(record.size)), Bytes::new(4096));
}

#[test]
fn a_snapshot_is_read_by_no_earlier_release() {
    let content = br#"{"version":4,"claim":{"uid":"u","namespace":"n","name":"s"},"class":"local",
        "mode":{"snapshot":{"taken":{"secs_since_epoch":1,"nanos_since_epoch":2}}},"size_bytes":4096,"project":7}"#;
    let record = Record::parse(content, State::Announced).unwrap();
    let taken = SystemTime::UNIX_EPOCH + Duration::new(1, 2);
    assert_eq!(record.mode, Mode::Snapshot { taken, sharing: Sharing::Temporary });
    let written = String::from_utf8(record.to_bytes().unwrap()).expect("UTF-8");
    assert!(written.starts_with(r#"{"version":4,"#) && !written.contains("sharing"), "{written}");
    let disk = Mode::Block { allocation: Allocation::Thin };
    assert_eq!(record.reserved(), disk.reserved(record.size), "the whole size is reserved");
}

#[test]
fn a_snapshot_before_1970_cannot_be_encoded() {
    let content = br#"{"version":4,"claim":{"uid":"u","namespace":"n","name":"s"},"class":"local",
        "mode":{"snapshot":{"taken":{"secs_since_epoch":0,"nanos_since_epoch":0}}},"size_bytes":4096,"project":7}"#;
    let record = Record::parse(content, State::Announced).unwrap();
    assert_eq!(Record::parse(&record.to_bytes().unwrap(), State::Announced).unwrap(), record);
    let taken = SystemTime::UNIX_EPOCH - Duration::from_nanos(1);
    let error = Record { mode: record.mode.taken_at(taken), ..record }.to_bytes().unwrap_err();
    assert!(error.to_string().contains("clock of the node is before 1970, set it"), "{error}");
}

#[test]
fn a_volume_of_the_controller_service_is_read_by_no_earlier_release() {
    let content = br#"{"version":4,"claim":{"uid":"u","namespace":"","name":"c"},
        "owner":{"controller":{"source":"pvc-1"}},"class":"","mode":{"block":{"allocation":"thick"}},
        "size_bytes":4096,"project":7}"#;
    let record = Record::parse(content, State::Staged).unwrap();
    assert_eq!(record.owner, Owner::Controller { source: Some("pvc-1".parse().unwrap()) });
    assert!(record.to_bytes().unwrap().starts_with(br#"{"version":4,"#));
    assert_eq!(record.claim.to_string(), "c");
}

#[test]
fn a_volume_with_io_limits_is_read_by_no_earlier_release() {
    let content = br#"{"version":5,"claim":{"uid":"u","namespace":"n","name":"c"},"class":"local",
        "mode":{"block":{"allocation":"thick"}},"size_bytes":4096,"project":7,
        "io":{"read_operations":100,"write_bytes":65536}}"#;
    let record = Record::parse(content, State::Announced).unwrap();
    let io = IoLimits { read_operations: Some(100), write_bytes: Some(Bytes::new(65536)), ..IoLimits::NONE };
    assert_eq!(record.io, io);
    assert!(record.to_bytes().unwrap().starts_with(br#"{"version":5,"#));
    let unlimited = Record { io: IoLimits::NONE, ..record };
    assert!(unlimited.to_bytes().unwrap().starts_with(br#"{"version":2,"#), "earlier releases read it again");
}

#[test]
fn files_of_a_source_are_read_by_no_earlier_release() {
    let content =
        br#"{"version":6,"claim":{"uid":"u","namespace":"n","name":"s"},"class":"local","mode":{"snapshot_tree":
        {"taken":{"secs_since_epoch":1,"nanos_since_epoch":2},"inodes":64}},"size_bytes":1073741824,"project":7,
        "cloning":{"source":"pvc-1","headroom":1073741824,"complete":true}}"#;
    let record = Record::parse(content, State::Staged).unwrap();
    assert!(record.mode.is_snapshot() && !record.mode.is_block());
    assert_eq!(record.mode.taken(), Some(SystemTime::UNIX_EPOCH + Duration::new(1, 2)));
    assert!(record.to_bytes().unwrap().starts_with(br#"{"version":6,"#));
    let restored = Record { mode: Mode::Filesystem { inodes: Inodes::new(64) }, ..record };
    assert!(restored.to_bytes().unwrap().starts_with(br#"{"version":6,"#));
    let unfinished = Record { cloning: Some(Cloning::new("pvc-1".parse().unwrap(), Bytes::GIB)), ..restored.clone() };
    // Three times the size while former versions of files are kept, then two and a quarter times.
    let space = |size: u64, files: u64| image::taken(Bytes::new(size)).saturating_add(inodes(Inodes::new(files)));
    assert_eq!(unfinished.reserved(), space(2 << 30, 2 * 64 + 16).saturating_add(Bytes::GIB));
    assert_eq!(restored.reserved(), space(5 << 28, 64 + 16).saturating_add(Bytes::GIB));
    let finished = Record { cloning: None, ..restored };
    assert!(finished.to_bytes().unwrap().starts_with(br#"{"version":2,"#), "earlier releases read it again");
}

#[test]
fn a_snapshot_of_a_rollback_is_read_by_no_earlier_release() {
    let content = br#"{"version":6,"claim":{"uid":"u","namespace":"n","name":"s"},
        "owner":{"rollback":{"volume":"pvc-1","source":"snapshot-1","project":7,"allocation":"thick"}},"class":"",
        "mode":{"snapshot":{"taken":{"secs_since_epoch":1,"nanos_since_epoch":2}}},"size_bytes":4096,"project":8}"#;
    let record = Record::parse(content, State::Staged).unwrap();
    assert_eq!((record.is_exchanged(), record.allocation()), (false, Allocation::Thick));
    assert!(record.to_bytes().unwrap().starts_with(br#"{"version":6,"#));
    let exchanged = Record { project: ProjectId::new(7).unwrap(), ..record };
    assert!(exchanged.is_exchanged());
    let ended = Record { owner: Owner::Provisioner, ..exchanged };
    assert!(ended.to_bytes().unwrap().starts_with(br#"{"version":4,"#) && !ended.is_exchanged());
}

#[test]
fn a_thin_snapshot_reserves_nothing_and_is_read_by_no_earlier_release() {
    for (mode, is_block) in [("snapshot", true), ("snapshot_tree", false)] {
        let (inodes, complete) = if is_block { ("", "") } else { (r#""inodes":64,"#, r#","complete":true"#) };
        let content = format!(
            r#"{{"version":7,"claim":{{"uid":"u","namespace":"n","name":"s"}},"class":"local","mode":{{"{mode}":{{
            "taken":{{"secs_since_epoch":1,"nanos_since_epoch":2}},{inodes}"sharing":"permanent"}}}},"size_bytes":4096,
            "project":7,"cloning":{{"source":"pvc-1","headroom":0{complete}}}}}"#
        );
        let record = Record::parse(content.as_bytes(), State::Announced).unwrap();
        assert_eq!((record.mode.is_thin(), record.mode.is_block()), (true, is_block));
        assert!(record.to_bytes().unwrap().starts_with(br#"{"version":7,"#));
        assert_eq!(record.reserved(), Bytes::ZERO);
        assert!(record.mode.at_present().is_thin(), "with another instant");
        // Regression: the headroom of a snapshot of files was compared with that of the new class, and the call failed.
        assert!(
            record.mode.snapshot(Sharing::Temporary).is_thin(),
            "its class was created again without the parameter"
        );
        assert_eq!(record.limits(), record.mode.limits(record.size), "a quota counts each copy");
    }
}

#[test]
fn a_complete_snapshot_is_read_by_no_earlier_release_until_its_blocks_are_copied() {
    let content = br#"{"version":8,"claim":{"uid":"u","namespace":"n","name":"s"},"class":"local",
        "mode":{"snapshot":{"taken":{"secs_since_epoch":1,"nanos_since_epoch":2}}},"size_bytes":4096,"project":7,
        "cloning":{"source":"pvc-1","headroom":4096},"complete":true}"#;
    let record = Record::parse(content, State::Staged).unwrap();
    assert_eq!(record.state, State::Complete);
    let written = String::from_utf8(record.to_bytes().unwrap()).expect("UTF-8");
    assert!(written.starts_with(r#"{"version":8,"#) && written.contains(r#""complete":true"#), "{written}");
    let copied = Record { cloning: None, ..record.clone() };
    let written = copied.to_bytes().unwrap();
    assert!(written.starts_with(br#"{"version":4,"#), "earlier releases read it again");
    // A run may end before it announces the snapshot.
    assert_eq!(Record::parse(&written, State::Staged).unwrap(), copied);
    let begun = Record { state: State::Staged, ..record };
    let written = begun.to_bytes().unwrap();
    assert!(written.starts_with(br#"{"version":4,"#), "an earlier release takes the snapshot");
    assert_eq!(Record::parse(&written, State::Staged).unwrap(), begun);
}

#[test]
fn another_version_is_named_whatever_else_it_holds() {
    let error = Record::parse(br#"{"version":9,"new":true}"#, State::Staged).unwrap_err();
    assert!(matches!(error, RecordError::Version(9)));
    assert!(matches!(Record::parse(b"", State::Staged).unwrap_err(), RecordError::Syntax(_)));
}

#[test]
fn project_zero_is_rejected() {
    let content = br#"{"version":2,"claim":{"uid":"u","namespace":"n","name":"c"},"class":"local",
        "mode":{"filesystem":{"inodes":64}},"size_bytes":4096,"project":0}"#;
    assert!(matches!(Record::parse(content, State::Staged).unwrap_err(), RecordError::Syntax(_)));
}

#[test]
fn files_grow_with_the_size() {
    let mode = Mode::Filesystem { inodes: Inodes::new(100) };
    let grown = |to| mode.grown(Bytes::GIB, to);
    assert_eq!(grown(Bytes::new(3 << 29)), Mode::Filesystem { inodes: Inodes::new(150) });
    assert_eq!(grown(Bytes::new((1 << 30) + 1)), Mode::Filesystem { inodes: Inodes::new(101) });
}
