//! Messages that nobody should send, drawn by proptest from fixed seeds.
//!
//! Each is sent with others of its kind at once. The answer is one of the codes that the call has for what is wrong with
//! a message, never one of a bug; and nothing is mounted, attached or gone afterwards.

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::Path;

use conformity::{Case, Census, Kind, Volume, answer, with_case};
use futures::future::join_all;
use proptest::collection::{hash_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use proto::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
};
use proto::registration::RegistrationStatus;
use tonic::Code;

/// Batches of each kind of message.
const BATCHES: u32 = 16;
const AT_ONCE: std::ops::RangeInclusive<usize> = 1..=10;
/// The longest path of Linux.
const PATH_MAX: usize = 4096;
const SEED: [u8; 32] = *b"messages that nobody should send";

/// Draws batches and checks them; says with which seed if one fails.
fn for_all<M: Debug>(strategy: impl Strategy<Value = M>, check: impl Fn(Vec<M>) -> Result<(), TestCaseError>) {
    let config = ProptestConfig {
        cases: BATCHES,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &SEED));
    if let Err(error) = runner.run(&vec(strategy, AT_ONCE), check) {
        panic!("seed {SEED:?}: {error}");
    }
}

fn expect(answers: &[(impl Debug, Code)], allowed: &[Code]) -> Result<(), TestCaseError> {
    for (message, code) in answers {
        prop_assert!(allowed.contains(code), "{code:?} to {message:?}");
    }
    Ok(())
}

fn unchanged(before: &Census) -> Result<(), TestCaseError> {
    let changes = before.changes(&Census::of_kernel());
    prop_assert!(changes.is_empty(), "{}", changes.join("\n"));
    Ok(())
}

fn code<T>(answer: Result<T, Code>) -> Code {
    answer.map_or_else(|code| code, |_| Code::Ok)
}

/// Text that a program could send by mistake or on purpose. Long ones are not drawn letter by letter.
fn text() -> impl Strategy<Value = String> {
    let long = |piece: &'static str| (0..4 * PATH_MAX / piece.len()).prop_map(move |times| piece.repeat(times));
    prop_oneof![
        2 => vec(any::<char>(), 0..20).prop_map(String::from_iter),
        2 => "[a-z./\0 ]{0,20}",
        1 => proptest::sample::select(vec!["", "\0", ".", "..", "/", "😀/ü\u{202e}", "pvc-1\n"]).prop_map(str::to_owned),
        1 => long("a"),
        1 => long("/a"),
        1 => long("../"),
    ]
}

fn map() -> impl Strategy<Value = HashMap<String, String>> {
    let many = (0..400).prop_map(|count| (0..count).map(|key| (format!("key-{key}"), "value".to_owned())).collect());
    prop_oneof![4 => Just(HashMap::new()), 1 => hash_map(text(), text(), 0..3), 1 => many]
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(-1), Just(i64::MIN), Just(i64::MAX), 0..(64_i64 << 20), any::<i64>()]
}

fn capability() -> impl Strategy<Value = Option<VolumeCapability>> {
    let rarely = || prop_oneof![4 => Just(String::new()), 1 => text()];
    let flags = prop_oneof![4 => Just(Vec::new()), 1 => vec(text(), 0..4)];
    let mount = (rarely(), flags, rarely());
    let mount = mount.prop_map(|(fs_type, mount_flags, volume_mount_group)| {
        AccessType::Mount(MountVolume { fs_type, mount_flags, volume_mount_group })
    });
    let access_type = option::weighted(0.9, prop_oneof![mount, Just(AccessType::Block(BlockVolume {}))]);
    let mode = prop_oneof![3 => 0..=8_i32, 1 => any::<i32>()].prop_map(|mode| AccessMode { mode });
    let whole = (access_type, option::weighted(0.9, mode))
        .prop_map(|(access_type, access_mode)| VolumeCapability { access_mode, access_type });
    option::weighted(0.9, whole)
}

/// Volumes that there are, among others.
fn volume_id(known: &[&Volume]) -> impl Strategy<Value = String> + use<> {
    let known: Vec<_> = known.iter().map(|volume| volume.id.to_string()).collect();
    prop_oneof![5 => proptest::sample::select(known), 1 => Just("pvc-unknown".to_owned()), 3 => text()]
}

/// Paths where something can be published, among others.
fn path(case: &Case<'_>, known: &[&Path]) -> impl Strategy<Value = String> + use<> {
    let known: Vec<_> = known.iter().map(|path| path.display().to_string()).collect();
    let [kubelet, pod] = [case.node().kubelet(), &case.pod("drawn")].map(|path| path.display().to_string());
    prop_oneof![
        5 => proptest::sample::select(known),
        2 => text(),
        2 => text().prop_map(move |text| format!("{kubelet}/{text}")),
        2 => "[a-z]{1,3}(/[a-z.]{0,3}){0,2}".prop_map(move |text| format!("{pod}/{text}")),
    ]
}

/// Volumes and targets of both kinds, two of each.
fn places(case: &Case<'_>) -> [(Volume, std::path::PathBuf); 4] {
    [Kind::Filesystem, Kind::Filesystem, Kind::Block, Kind::Block].map(|kind| {
        let volume = case.volume(kind);
        let target = case.target(&volume, "pod");
        (volume, target)
    })
}

/// What could be published is taken away again by the same volume and path.
#[test]
fn publish() {
    with_case(|case| {
        let places = places(case);
        let (volumes, targets) =
            (places.each_ref().map(|(volume, _)| volume), places.each_ref().map(|(_, at)| at.as_path()));
        let strategy = (volume_id(&volumes), path(case, &targets), capability(), any::<bool>(), map(), map(), text());
        let strategy =
            strategy.prop_map(|(volume_id, target_path, volume_capability, readonly, context, secrets, staging)| {
                NodePublishVolumeRequest {
                    volume_id,
                    target_path,
                    volume_capability,
                    readonly,
                    volume_context: context,
                    secrets,
                    staging_target_path: staging,
                    ..NodePublishVolumeRequest::default()
                }
            });
        let before = Census::of_kernel();
        for_all(strategy, |messages| {
            let calls = messages.into_iter().map(async |message| (message.clone(), code(case.publish(message).await)));
            let answers = case.node().block_on(join_all(calls));
            let codes =
                [Code::Ok, Code::InvalidArgument, Code::NotFound, Code::AlreadyExists, Code::FailedPrecondition];
            expect(&answers, &codes)?;
            for (message, _) in answers.into_iter().filter(|(_, code)| *code == Code::Ok) {
                let NodePublishVolumeRequest { volume_id, target_path, .. } = message;
                prop_assert!(volumes.iter().any(|volume| volume.id.as_str() == volume_id), "{volume_id:?}");
                prop_assert!(Path::new(&target_path).starts_with(case.node().kubelet()), "{target_path:?}");
                let taken = case.unpublish(NodeUnpublishVolumeRequest { volume_id, target_path });
                prop_assert_eq!(case.node().block_on(taken), Ok(()));
            }
            unchanged(&before)
        });
    });
}

/// What is published elsewhere stays.
#[test]
fn unpublish() {
    with_case(|case| {
        let places = places(case);
        let [(published, at), others @ ..] = &places;
        case.node().block_on(case.publish(case.publishing(published, at))).expect("publish");
        let volumes = others.each_ref().map(|(volume, _)| volume);
        let targets = places.each_ref().map(|(_, target)| target.as_path());
        let strategy = (volume_id(&volumes), path(case, &targets))
            .prop_map(|(volume_id, target_path)| NodeUnpublishVolumeRequest { volume_id, target_path });
        let before = Census::of_kernel();
        for_all(strategy, |messages| {
            let calls =
                messages.into_iter().map(async |message| (message.clone(), code(case.unpublish(message).await)));
            let answers = case.node().block_on(join_all(calls));
            expect(&answers, &[Code::Ok, Code::InvalidArgument, Code::FailedPrecondition])?;
            unchanged(&before)
        });
        case.node().block_on(case.withdraw(published, at));
    });
}

/// Statistics change nothing and are found for what is published alone.
#[test]
fn stats() {
    with_case(|case| {
        let places = places(case);
        let (volumes, targets) =
            (places.each_ref().map(|(volume, _)| volume), places.each_ref().map(|(_, at)| at.as_path()));
        for (volume, target) in places.iter().step_by(2) {
            case.node().block_on(case.publish(case.publishing(volume, target))).expect("publish");
        }
        let strategy = (volume_id(&volumes), path(case, &targets), text()).prop_map(
            |(volume_id, volume_path, staging_target_path)| NodeGetVolumeStatsRequest {
                volume_id,
                volume_path,
                staging_target_path,
            },
        );
        let before = Census::of_kernel();
        for_all(strategy, |messages| {
            let calls = messages.into_iter().map(async |message| (message.clone(), code(case.stats(message).await)));
            let answers = case.node().block_on(join_all(calls));
            expect(&answers, &[Code::Ok, Code::InvalidArgument, Code::NotFound])?;
            unchanged(&before)
        });
        for (volume, target) in places.iter().step_by(2) {
            case.node().block_on(case.withdraw(volume, target));
        }
    });
}

/// Ranges from one end to the other.
#[test]
fn expand() {
    with_case(|case| {
        let places = places(case);
        let (volumes, targets) =
            (places.each_ref().map(|(volume, _)| volume), places.each_ref().map(|(_, at)| at.as_path()));
        for (volume, target) in places.iter().step_by(2) {
            case.node().block_on(case.publish(case.publishing(volume, target))).expect("publish");
        }
        let range = (number(), number())
            .prop_map(|(required_bytes, limit_bytes)| CapacityRange { required_bytes, limit_bytes });
        let strategy = (volume_id(&volumes), path(case, &targets), option::of(range), capability(), map(), text());
        let strategy =
            strategy.prop_map(|(volume_id, volume_path, capacity_range, volume_capability, secrets, staging)| {
                NodeExpandVolumeRequest {
                    volume_id,
                    volume_path,
                    capacity_range,
                    volume_capability,
                    secrets,
                    staging_target_path: staging,
                }
            });
        let before = Census::of_kernel();
        for_all(strategy, |messages| {
            let calls = messages.into_iter().map(async |message| (message.clone(), code(case.expand(message).await)));
            let answers = case.node().block_on(join_all(calls));
            expect(&answers, &[Code::Ok, Code::InvalidArgument, Code::NotFound, Code::OutOfRange])?;
            unchanged(&before)
        });
        for (volume, target) in places.iter().step_by(2) {
            case.node().block_on(case.withdraw(volume, target));
        }
    });
}

/// Not implemented is not implemented, whatever it is asked.
#[test]
fn stage_and_unstage() {
    with_case(|case| {
        let places = places(case);
        let (volumes, targets) =
            (places.each_ref().map(|(volume, _)| volume), places.each_ref().map(|(_, at)| at.as_path()));
        let strategy = (volume_id(&volumes), path(case, &targets), capability(), map());
        let strategy = strategy.prop_map(|(volume_id, staging_target_path, volume_capability, publish_context)| {
            NodeStageVolumeRequest {
                volume_id,
                staging_target_path,
                volume_capability,
                publish_context,
                ..NodeStageVolumeRequest::default()
            }
        });
        let before = Census::of_kernel();
        for_all(strategy, |messages| {
            let calls = messages.into_iter().map(async |message| {
                let NodeStageVolumeRequest { volume_id, staging_target_path, .. } = message.clone();
                let unstage = NodeUnstageVolumeRequest { volume_id, staging_target_path };
                let mut client = case.node().client();
                let unstaged = code(answer(client.node_unstage_volume(unstage).await));
                let staged = code(answer(client.node_stage_volume(message.clone()).await));
                [(message.clone(), unstaged), (message, staged)]
            });
            let answers: Vec<_> = case.node().block_on(join_all(calls)).into_iter().flatten().collect();
            expect(&answers, &[Code::Unimplemented])?;
            unchanged(&before)
        });
    });
}

/// Whatever kubelet says about a registration is taken note of.
#[test]
fn registration() {
    with_case(|case| {
        let client = case.node().block_on(case.node().registration());
        let status = |(plugin_registered, error)| RegistrationStatus { plugin_registered, error };
        for_all((any::<bool>(), text()).prop_map(status), |messages| {
            let calls = messages.into_iter().map(async |message| {
                let mut client = client.clone();
                (message.clone(), code(answer(client.notify_registration_status(message).await)))
            });
            expect(&case.node().block_on(join_all(calls)), &[Code::Ok])
        });
        let success = RegistrationStatus { plugin_registered: true, error: String::new() };
        case.node().block_on(client.clone().notify_registration_status(success)).expect("notify");
    });
}
