//! Malformed messages, drawn by proptest from fixed seeds. The test of a call's messages is in the module of the call.
//!
//! Each message is sent together with others of its kind. The answer has one of the codes that the call defines for
//! invalid messages, never the code of a bug. Afterwards, no mount or device was added or removed.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::path::PathBuf;

use conformity::{Case, Kind, Volume};
use futures::future::join_all;
use proptest::collection::{hash_map, vec};
use proptest::option;
use proptest::prelude::*;
use proto::csi::VolumeCapability;
use proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use tonic::Code;

use crate::drawn::for_each;

/// Minimum number of accepted messages. If all were rejected for their first invalid field, the test would not reach
/// the fields behind it.
const ACCEPTED: usize = 5;
const AT_ONCE: std::ops::RangeInclusive<usize> = 1..=10;
/// Maximum length of a path on Linux.
const PATH_MAX: usize = 4096;
const SEED: [u8; 32] = *b"malformed messages of every kind";

/// Draws batches of messages and sends the messages of a batch at once. Each answer has one of the `codes`. `accepted`
/// receives the messages that succeeded and undoes them; then the kernel's mounts and devices must be the same as
/// before. At least [`ACCEPTED`] messages succeed.
pub fn all_answered<M: Clone + Debug, T>(
    case: &Case<'_>,
    message: impl Strategy<Value = M>,
    codes: &[Code],
    call: impl AsyncFn(M) -> Result<T, Code>,
    accepted: impl Fn(Vec<M>) -> Result<(), TestCaseError>,
) {
    let (sent, well) = (Cell::new(0), Cell::new(0));
    for_each(&SEED, &vec(message, AT_ONCE), |messages| {
        let answers = case.node().block_on(join_all(messages.iter().cloned().map(|message| call(message))));
        let mut good = Vec::new();
        sent.set(sent.get() + messages.len());
        for (message, answer) in messages.into_iter().zip(answers) {
            let code = answer.map_or_else(|code| code, |_| Code::Ok);
            prop_assert!(codes.contains(&code), "{code:?} to {message:?}");
            if code == Code::Ok {
                good.push(message);
            }
        }
        well.set(well.get() + good.len());
        accepted(good)
    });
    let (sent, well) = (sent.get(), well.get());
    println!("{well} of {sent} messages were accepted");
    assert!(well >= ACCEPTED, "{well} of {sent} messages were accepted");
}

/// For calls that change nothing.
pub fn nothing_to_do<M>(_: Vec<M>) -> Result<(), TestCaseError> {
    Ok(())
}

/// Text that a program could send by mistake or on purpose. Long texts repeat a piece, because drawing each letter is
/// slow.
pub fn text() -> impl Strategy<Value = String> {
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

pub fn map() -> impl Strategy<Value = HashMap<String, String>> {
    let many = (0..400).prop_map(|count| (0..count).map(|key| (format!("key-{key}"), "value".to_owned())).collect());
    prop_oneof![4 => Just(HashMap::new()), 1 => hash_map(text(), text(), 0..3), 1 => many]
}

pub fn number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(-1), Just(i64::MIN), Just(i64::MAX), 0..(64_i64 << 20), any::<i64>()]
}

pub fn capabilities() -> impl Strategy<Value = Option<VolumeCapability>> {
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

/// A volume, and the target where the kubelet publishes it.
type Place = (Volume, PathBuf);

/// Two places of each kind; each half of the array has both kinds.
pub fn places(case: &Case<'_>) -> [Place; 4] {
    [Kind::Filesystem, Kind::Block, Kind::Filesystem, Kind::Block].map(|kind| case.place(kind))
}

pub fn volume_id(places: &[Place]) -> impl Strategy<Value = String> + use<> {
    let known: Vec<_> = places.iter().map(|(volume, _)| volume.id.to_string()).collect();
    prop_oneof![5 => proptest::sample::select(known), 1 => Just("pvc-unknown".to_owned()), 3 => text()]
}

pub fn path(case: &Case<'_>, places: &[Place]) -> impl Strategy<Value = String> + use<> {
    let known: Vec<_> = places.iter().map(|(_, target)| target.display().to_string()).collect();
    let [kubelet, pod] = [case.node().kubelet(), &case.pod("drawn")].map(|path| path.display().to_string());
    prop_oneof![
        5 => proptest::sample::select(known),
        2 => text(),
        2 => text().prop_map(move |text| format!("{kubelet}/{text}")),
        2 => "[a-z]{1,3}(/[a-z.]{0,3}){0,2}".prop_map(move |text| format!("{pod}/{text}")),
    ]
}

/// One of the places: a volume and its target, as in a message of the kubelet.
pub fn place(places: &[Place]) -> impl Strategy<Value = Place> + use<> {
    proptest::sample::select(places.to_vec())
}

/// Runs `test` while the volumes are published at their targets.
pub fn while_published(case: &Case<'_>, places: &[Place], test: impl FnOnce()) {
    for (volume, target) in places {
        case.node().block_on(case.publish(case.publishing(volume, target))).expect("publish");
    }
    test();
    for (volume, target) in places {
        case.node().block_on(case.withdraw(volume, target));
    }
}
