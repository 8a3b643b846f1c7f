//! Checked requests. Every `InvalidArgument` comes from here.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use dir::{Name, NameError};
use mount::Attributes;
use proto::csi::volume_capability::access_mode::Mode as Access;
use proto::csi::volume_capability::{AccessType, MountVolume};
use proto::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability,
};
use units::Bytes;
use volume::{IoRejection, ParameterError, SnapshotParameterError, VolumeId, VolumeIdError, VolumeMode};

/// Linux's limit of paths, with the NUL.
const PATH_MAX: usize = 4096;
/// CSI's limit of names, in bytes.
pub(crate) const NAME_MAX: usize = 128;

/// Converts a size to the signed type of CSI. Larger numbers become `i64::MAX`.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("{field} is missing")]
    Missing {
        /// Name in csi.proto.
        field: &'static str,
    },
    #[error("{field} is malformed")]
    VolumeId {
        /// Name in csi.proto.
        field: &'static str,
        source: VolumeIdError,
    },
    #[error("invalid {field}")]
    Path {
        /// Name in csi.proto.
        field: &'static str,
        source: PathError,
    },
    #[error(
        "access mode {mode} is not supported; a local volume is used from one node (ReadWriteOnce, ReadWriteOncePod)"
    )]
    AccessMode {
        /// Name in csi.proto, or the number.
        mode: String,
    },
    #[error("file system {found:?} is not supported; leave fsType empty or write xfs")]
    FilesystemType { found: String },
    #[error("mount options are not supported; remove mountOptions from the PersistentVolume")]
    MountOptions,
    #[error("volume_mount_group is not supported; kubelet itself applies fsGroup")]
    MountGroup,
    #[error("no volume has at least {required} and at most {limit} bytes")]
    Range { required: i64, limit: i64 },
    #[error("the name has control characters or more than {NAME_MAX} bytes; use a shorter one of printable characters")]
    Name,
    #[error("volume_capabilities has both mount and block; a volume has one of them")]
    MixedModes,
    #[error("the parameters of the storage class cannot be used")]
    Parameters(#[source] ParameterError),
    #[error("the VolumeAttributesClass (mutable_parameters) cannot be used")]
    MutableParameters(#[source] IoRejection),
    #[error("the snapshot class {0}")]
    SnapshotParameters(SnapshotParameterError),
    #[error("max_entries is {found}; use 0 for no limit, or a positive number")]
    MaxEntries { found: i32 },
    #[error("starting_token {found:?} is not from a response; list from the start again")]
    Token { found: String },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the path is not below {}", kubelet.display())]
    Outside { kubelet: PathBuf },
    #[error("the path is longer than {PATH_MAX} bytes")]
    TooLong,
    #[error("the last component of the path is not a file name")]
    Name(#[source] NameError),
    #[error("the path has `..` or NUL in it")]
    Unsafe,
}

/// A path below the kubelet's directory: a parent and a name in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetPath {
    full: PathBuf,
    beneath: PathBuf,
    name: Name,
}

impl TargetPath {
    /// Ignores empty components and `.`, rejects `..`.
    pub fn parse(text: &str, kubelet: &Path) -> Result<Self, PathError> {
        if text.len() >= PATH_MAX {
            return Err(PathError::TooLong);
        }
        let full: PathBuf = Path::new(text).components().collect();
        let parents = |component| matches!(component, Component::ParentDir);
        if text.contains('\0') || full.components().any(parents) {
            return Err(PathError::Unsafe);
        }
        let outside = || PathError::Outside { kubelet: kubelet.to_owned() };
        let beneath = full.strip_prefix(kubelet).map_err(|_| outside())?;
        let name = Name::try_from(beneath.file_name().ok_or_else(outside)?).map_err(PathError::Name)?;
        Ok(Self { beneath: beneath.to_owned(), name, full })
    }

    pub fn full(&self) -> &Path {
        &self.full
    }

    /// Relative to the kubelet's directory.
    pub fn beneath(&self) -> &Path {
        &self.beneath
    }

    pub const fn name(&self) -> &Name {
        &self.name
    }
}

impl fmt::Display for TargetPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.full.display().fmt(f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    OneTarget,
    ManyTargets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Filesystem,
    Block,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Filesystem => "filesystem",
            Self::Block => "block",
        })
    }
}

impl From<Mode> for VolumeMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Filesystem => Self::Filesystem,
            Mode::Block => Self::Block,
        }
    }
}

/// Attributes of the mount of a directory. Not `noexec`: programs on a volume can be executed in containers, and in a
/// pod with a user namespace the kernel locks the flags of the node's mount (mount_namespaces(7)).
pub(crate) const DIRECTORY: Attributes = Attributes { no_exec: false, ..Attributes::INERT };

/// Attributes of the mount of a device node. Not `nodev`, so that the device can be opened.
pub(crate) const NODE: Attributes = Attributes { no_dev: false, ..Attributes::INERT };

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    pub(crate) volume: VolumeId,
    pub(crate) target: TargetPath,
    pub(crate) mode: Mode,
    /// Attributes of the mount. `read_only` also applies to the device.
    pub(crate) attributes: Attributes,
    pub(crate) sharing: Sharing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpublish {
    pub(crate) volume: VolumeId,
    pub(crate) target: TargetPath,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expand {
    pub(crate) volume: VolumeId,
    pub(crate) path: TargetPath,
    pub(crate) mode: Option<Mode>,
    pub(crate) range: Range,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    pub(crate) volume: VolumeId,
    pub(crate) path: TargetPath,
}

/// A request for the health of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub(crate) volume: VolumeId,
    /// Without a path, only faults of the disk and of the volume's record are reported.
    pub(crate) path: Option<TargetPath>,
}

/// The requested sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    pub required: Option<Bytes>,
    pub limit: Option<Bytes>,
}

impl Range {
    pub(crate) fn contains(self, size: Bytes) -> bool {
        self.required.is_none_or(|least| size >= least) && self.limit.is_none_or(|most| size <= most)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct LookRequest<'a> {
    pub volume: &'a VolumeId,
    pub target: &'a TargetPath,
    pub purpose: Purpose,
}

/// The reason for a look: the host reads only the state that the call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Publish {
        mode: Mode,
        read_only: bool,
        /// Whether the other targets of a filesystem volume matter.
        sharing: Sharing,
    },
    Unpublish,
}

/// The supported use of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capability {
    pub(crate) mode: Mode,
    sharing: Sharing,
    reads_only: bool,
}

impl Capability {
    pub(crate) fn parse(capability: &VolumeCapability) -> Result<Self, RequestError> {
        let mode = match required("volume_capability.access_type", capability.access_type.as_ref())? {
            AccessType::Mount(mount) => {
                check_mount(mount)?;
                Mode::Filesystem
            }
            AccessType::Block(_) => Mode::Block,
        };
        let access = required("volume_capability.access_mode", capability.access_mode.as_ref())?.mode;
        let (sharing, reads_only) = match Access::try_from(access) {
            Ok(Access::SingleNodeWriter | Access::SingleNodeSingleWriter) => (Sharing::OneTarget, false),
            Ok(Access::SingleNodeReaderOnly) => (Sharing::OneTarget, true),
            Ok(Access::SingleNodeMultiWriter) => (Sharing::ManyTargets, false),
            Ok(Access::Unknown) => return Err(RequestError::Missing { field: "volume_capability.access_mode.mode" }),
            Ok(
                other @ (Access::MultiNodeReaderOnly | Access::MultiNodeSingleWriter | Access::MultiNodeMultiWriter),
            ) => return Err(RequestError::AccessMode { mode: other.as_str_name().to_owned() }),
            Err(_) => return Err(RequestError::AccessMode { mode: access.to_string() }),
        };
        Ok(Self { mode, sharing, reads_only })
    }
}

impl Publish {
    pub(crate) fn parse(message: &NodePublishVolumeRequest, kubelet: &Path) -> Result<Self, RequestError> {
        let volume = volume_id(&message.volume_id)?;
        let target = path("target_path", &message.target_path, kubelet)?;
        let capability = required("volume_capability", message.volume_capability.as_ref())?;
        let Capability { mode, sharing, reads_only } = Capability::parse(capability)?;
        let attributes = match mode {
            Mode::Filesystem => DIRECTORY,
            Mode::Block => NODE,
        };
        let attributes = Attributes { read_only: message.readonly || reads_only, ..attributes };
        Ok(Self { volume, target, mode, attributes, sharing })
    }

    pub(crate) const fn look_request(&self) -> LookRequest<'_> {
        let purpose = Purpose::Publish { mode: self.mode, read_only: self.attributes.read_only, sharing: self.sharing };
        LookRequest { volume: &self.volume, target: &self.target, purpose }
    }
}

impl Unpublish {
    pub(crate) fn parse(message: &NodeUnpublishVolumeRequest, kubelet: &Path) -> Result<Self, RequestError> {
        let volume = volume_id(&message.volume_id)?;
        Ok(Self { volume, target: path("target_path", &message.target_path, kubelet)? })
    }

    pub(crate) const fn look_request(&self) -> LookRequest<'_> {
        LookRequest { volume: &self.volume, target: &self.target, purpose: Purpose::Unpublish }
    }
}

impl Expand {
    pub(crate) fn parse(message: &NodeExpandVolumeRequest, kubelet: &Path) -> Result<Self, RequestError> {
        let volume = volume_id(&message.volume_id)?;
        let path = path("volume_path", &message.volume_path, kubelet)?;
        let access = message.volume_capability.as_ref().and_then(|capability| capability.access_type.as_ref());
        let mode = access.map(|access| match access {
            AccessType::Mount(_) => Mode::Filesystem,
            AccessType::Block(_) => Mode::Block,
        });
        let range = message.capacity_range.as_ref().map_or(Ok(Range::default()), range)?;
        Ok(Self { volume, path, mode, range })
    }
}

impl Stats {
    pub(crate) fn parse(message: &NodeGetVolumeStatsRequest, kubelet: &Path) -> Result<Self, RequestError> {
        let volume = volume_id(&message.volume_id)?;
        Ok(Self { volume, path: path("volume_path", &message.volume_path, kubelet)? })
    }
}

impl Check {
    pub(crate) fn parse(message: &NodeGetVolumeHealthRequest, kubelet: &Path) -> Result<Self, RequestError> {
        let text = message.volume_publish_path.as_str();
        let volume = volume_id(&message.volume_id)?;
        let path = (!text.is_empty()).then(|| path("volume_publish_path", text, kubelet)).transpose()?;
        Ok(Self { volume, path })
    }
}

pub(crate) fn required<T>(field: &'static str, value: Option<T>) -> Result<T, RequestError> {
    value.ok_or(RequestError::Missing { field })
}

/// An empty text in csi.proto means not set.
pub(crate) fn nonempty<'a>(field: &'static str, text: &'a str) -> Result<&'a str, RequestError> {
    required(field, (!text.is_empty()).then_some(text))
}

pub(crate) fn volume_id(text: &str) -> Result<VolumeId, RequestError> {
    source_id("volume_id", text)
}

/// `field` has the ID of a volume or snapshot, such as the source of a new one.
pub(crate) fn source_id(field: &'static str, text: &str) -> Result<VolumeId, RequestError> {
    nonempty(field, text)?.parse().map_err(|source| RequestError::VolumeId { field, source })
}

fn path(field: &'static str, text: &str, kubelet: &Path) -> Result<TargetPath, RequestError> {
    TargetPath::parse(nonempty(field, text)?, kubelet).map_err(|source| RequestError::Path { field, source })
}

fn check_mount(MountVolume { fs_type, mount_flags, volume_mount_group }: &MountVolume) -> Result<(), RequestError> {
    if !matches!(fs_type.as_str(), "" | "xfs") {
        return Err(RequestError::FilesystemType { found: fs_type.clone() });
    }
    if !mount_flags.is_empty() {
        return Err(RequestError::MountOptions);
    }
    if !volume_mount_group.is_empty() {
        return Err(RequestError::MountGroup);
    }
    Ok(())
}

/// 0 in csi.proto means not set.
pub(crate) fn range(
    &CapacityRange { required_bytes: required, limit_bytes: limit }: &CapacityRange,
) -> Result<Range, RequestError> {
    let impossible = || RequestError::Range { required, limit };
    let given = |bytes: i64| match u64::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(Bytes::new(bytes))),
        Err(_) => Err(impossible()),
    };
    let range = Range { required: given(required)?, limit: given(limit)? };
    match range {
        Range { required: Some(least), limit: Some(most) } if least > most => Err(impossible()),
        possible => Ok(possible),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::csi::volume_capability::{AccessMode, BlockVolume};

    use super::*;

    const KUBELET: &str = "/data/kubelet";
    const TARGET: &str = "/data/kubelet/pods/u/volumes/kubernetes.io~csi/pvc-1/mount";

    fn capability(mode: Access) -> VolumeCapability {
        VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }
    }

    fn message() -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: "pvc-1".to_owned(),
            target_path: TARGET.to_owned(),
            volume_capability: Some(capability(Access::SingleNodeMultiWriter)),
            ..NodePublishVolumeRequest::default()
        }
    }

    fn publish(message: &NodePublishVolumeRequest) -> Result<Publish, RequestError> {
        Publish::parse(message, Path::new(KUBELET))
    }

    fn with(change: impl FnOnce(&mut NodePublishVolumeRequest)) -> RequestError {
        let mut message = message();
        change(&mut message);
        publish(&message).expect_err("it is refused")
    }

    fn with_mount(mount: MountVolume) -> RequestError {
        let access_type = Some(AccessType::Mount(mount));
        with(|message| {
            message.volume_capability = Some(VolumeCapability { access_type, ..capability(Access::SingleNodeWriter) });
        })
    }

    #[test]
    fn a_valid_message_is_a_writable_inert_mount() {
        let want = publish(&message()).expect("a request");
        assert_eq!((want.mode, want.attributes), (Mode::Filesystem, DIRECTORY));
        assert_eq!(want.sharing, Sharing::ManyTargets);
        assert_eq!(want.target.full(), Path::new(TARGET));
        assert_eq!(want.target.beneath(), Path::new("pods/u/volumes/kubernetes.io~csi/pvc-1/mount"));
        assert_eq!(want.target.name().to_str(), Some("mount"));
    }

    #[test]
    fn errors_name_the_missing_field() {
        let missing = |error| match error {
            RequestError::Missing { field } => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(missing(with(|message| message.volume_id.clear())), "volume_id");
        assert_eq!(missing(with(|message| message.target_path.clear())), "target_path");
        assert_eq!(missing(with(|message| message.volume_capability = None)), "volume_capability");
        let without = |change: fn(&mut VolumeCapability)| {
            missing(with(|message| message.volume_capability.iter_mut().for_each(change)))
        };
        assert_eq!(without(|capability| capability.access_type = None), "volume_capability.access_type");
        assert_eq!(without(|capability| capability.access_mode = None), "volume_capability.access_mode");
        let unknown = capability(Access::Unknown);
        assert_eq!(
            missing(with(|message| message.volume_capability = Some(unknown))),
            "volume_capability.access_mode.mode"
        );
        let (unpublish, expand, stats) =
            <(NodeUnpublishVolumeRequest, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest)>::default();
        let kubelet = Path::new(KUBELET);
        assert_eq!(missing(Unpublish::parse(&unpublish, kubelet).expect_err("empty")), "volume_id");
        assert_eq!(missing(Expand::parse(&expand, kubelet).expect_err("empty")), "volume_id");
        assert_eq!(missing(Stats::parse(&stats, kubelet).expect_err("empty")), "volume_id");
        let unpublish = NodeUnpublishVolumeRequest { volume_id: "pvc-1".to_owned(), ..unpublish };
        assert_eq!(missing(Unpublish::parse(&unpublish, kubelet).expect_err("no path")), "target_path");
        let expand = NodeExpandVolumeRequest { volume_id: "pvc-1".to_owned(), ..expand };
        assert_eq!(missing(Expand::parse(&expand, kubelet).expect_err("no path")), "volume_path");
        let stats = NodeGetVolumeStatsRequest { volume_id: "pvc-1".to_owned(), ..stats };
        assert_eq!(missing(Stats::parse(&stats, kubelet).expect_err("no path")), "volume_path");
    }

    #[test]
    fn access_modes_define_targets_and_writing() {
        let parsed = |mode| {
            let want = publish(&NodePublishVolumeRequest { volume_capability: Some(capability(mode)), ..message() });
            want.map(|want| (want.sharing, want.attributes.read_only))
        };
        assert_eq!(parsed(Access::SingleNodeWriter).expect("a mode"), (Sharing::OneTarget, false));
        assert_eq!(parsed(Access::SingleNodeSingleWriter).expect("a mode"), (Sharing::OneTarget, false));
        assert_eq!(parsed(Access::SingleNodeReaderOnly).expect("a mode"), (Sharing::OneTarget, true));
        assert_eq!(parsed(Access::SingleNodeMultiWriter).expect("a mode"), (Sharing::ManyTargets, false));
        for mode in [Access::MultiNodeReaderOnly, Access::MultiNodeSingleWriter, Access::MultiNodeMultiWriter] {
            let refused = parsed(mode).expect_err("one node only").to_string();
            assert!(refused.contains(mode.as_str_name()), "{refused}");
        }
        let newer = with(|message| {
            message.volume_capability.iter_mut().for_each(|found| found.access_mode = Some(AccessMode { mode: 99 }));
        });
        assert!(matches!(newer, RequestError::AccessMode { mode } if mode == "99"));
    }

    #[test]
    fn the_message_can_request_read_only() {
        let want = publish(&NodePublishVolumeRequest { readonly: true, ..message() }).expect("a request");
        assert!(want.attributes.read_only);
    }

    #[test]
    fn a_block_volume_is_a_usable_node() {
        let block = Some(AccessType::Block(BlockVolume {}));
        let block = VolumeCapability { access_type: block, ..capability(Access::SingleNodeWriter) };
        let asked = NodePublishVolumeRequest { volume_capability: Some(block.clone()), ..message() };
        let want = publish(&asked).expect("a request");
        assert_eq!((want.mode, want.attributes), (Mode::Block, NODE));
        const { assert!(!NODE.no_dev && NODE.no_exec && NODE.no_suid && !NODE.read_only) };
        let want = publish(&NodePublishVolumeRequest { readonly: true, ..asked }).expect("a request");
        assert!(want.attributes.read_only);

        let expand = |volume_capability| {
            let (volume_id, volume_path) = ("pvc-1".to_owned(), TARGET.to_owned());
            let message = NodeExpandVolumeRequest { volume_id, volume_path, volume_capability, ..Default::default() };
            Expand::parse(&message, Path::new(KUBELET)).expect("a request").mode
        };
        assert_eq!(expand(Some(block)), Some(Mode::Block));
        assert_eq!(expand(Some(capability(Access::Unknown))), Some(Mode::Filesystem));
        assert_eq!(expand(None), None);
    }

    #[test]
    fn options_without_effect_are_rejected() {
        let options = MountVolume { mount_flags: vec!["noatime".to_owned()], ..MountVolume::default() };
        assert!(matches!(with_mount(options), RequestError::MountOptions));
        let group = MountVolume { volume_mount_group: "1000".to_owned(), ..MountVolume::default() };
        assert!(matches!(with_mount(group), RequestError::MountGroup));
        let ext4 = MountVolume { fs_type: "ext4".to_owned(), ..MountVolume::default() };
        assert!(matches!(with_mount(ext4), RequestError::FilesystemType { found } if found == "ext4"));
    }

    #[test]
    fn paths_outside_the_kubelets_directory_are_rejected() {
        let parse = |text: &str| TargetPath::parse(text, Path::new(KUBELET));
        let outside = Err(PathError::Outside { kubelet: KUBELET.into() });
        for text in ["some/path", "/data/kubelet", "/data/kubelet/", "/data/kubelet/.", "/data/kubelet2/a", "/", "a"] {
            assert_eq!(parse(text), outside, "{text:?}");
        }
        for text in ["/data/kubelet/a/../b", "/data/kubelet/..", "/data/kubelet/a\0b"] {
            assert_eq!(parse(text), Err(PathError::Unsafe), "{text:?}");
        }
        assert_eq!(parse(&format!("/data/kubelet/{}", "a/".repeat(2048))), Err(PathError::TooLong));
        let long = parse(&format!("/data/kubelet/{}", "a".repeat(256)));
        assert_eq!(long, Err(PathError::Name(NameError::TooLong(256))));
    }

    #[test]
    fn spellings_of_one_path_are_equal() {
        let parse = |text: &str| TargetPath::parse(text, Path::new(KUBELET)).expect("a path");
        assert_eq!(parse("/data//kubelet/./pods/a/"), parse("/data/kubelet/pods/a"));
    }

    #[test]
    fn sizes_are_optional_and_impossible_ones_are_rejected() {
        let parse = |required_bytes, limit_bytes| range(&CapacityRange { required_bytes, limit_bytes });
        assert_eq!(parse(0, 0).expect("a range"), Range::default());
        let both = Range { required: Some(Bytes::new(1)), limit: Some(Bytes::new(2)) };
        assert_eq!(parse(1, 2).expect("a range"), both);
        for (required, limit) in [(-1, 0), (0, -1), (2, 1), (i64::MIN, i64::MAX)] {
            assert!(matches!(parse(required, limit), Err(RequestError::Range { .. })), "{required} {limit}");
        }
    }

    proptest! {
        #[test]
        fn accepted_paths_stay_below_the_directory(text in "(/data/kubelet)?[a./\0]{0,12}") {
            if let Ok(target) = TargetPath::parse(&text, Path::new(KUBELET)) {
                prop_assert_eq!(target.full(), Path::new(KUBELET).join(target.beneath()));
                prop_assert_eq!(target.beneath().file_name(), Some(target.name().as_os_str()));
                prop_assert!(target.beneath().components().all(|component| matches!(component, Component::Normal(_))));
            }
        }

        #[test]
        fn no_message_panics(volume_id in ".{0,5}", target_path in ".{0,20}", mode: i32, required_bytes: i64, limit_bytes: i64) {
            let access = AccessMode { mode };
            let _ = publish(&NodePublishVolumeRequest {
                volume_id,
                target_path,
                volume_capability: Some(VolumeCapability { access_mode: Some(access), ..capability(Access::Unknown) }),
                ..NodePublishVolumeRequest::default()
            });
            let _ = range(&CapacityRange { required_bytes, limit_bytes });
        }
    }
}
