//! Messages become values whose fields were all checked.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use dir::{Name, NameError};
use mount::Attributes;
use proto::csi::volume_capability::access_mode::Mode as Access;
use proto::csi::volume_capability::{AccessType, MountVolume};
use proto::csi::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeUnpublishVolumeRequest,
};
use units::Bytes;
use volume::{VolumeId, VolumeIdError};

/// The longest path of Linux (`PATH_MAX`), its NUL included.
const PATH_MAX: usize = 4096;

/// What a message lacks or asks for in vain.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A required field is empty.
    #[error("{field} is missing")]
    Missing {
        /// Its name in csi.proto.
        field: &'static str,
    },
    /// No volume can have this name.
    #[error("volume_id is malformed")]
    VolumeId(#[source] VolumeIdError),
    /// A path that the plugin does not touch.
    #[error("{field} is no path that the plugin serves")]
    Path {
        /// Its name in csi.proto.
        field: &'static str,
        /// What is wrong with it.
        #[source]
        source: PathError,
    },
    /// Many nodes, or a mode of a newer CSI.
    #[error(
        "access mode {mode} is not supported; a local volume is used from one node (ReadWriteOnce, ReadWriteOncePod)"
    )]
    AccessMode {
        /// Its name in csi.proto, or its number.
        mode: String,
    },
    /// Another file system than the node's.
    #[error("file system {found:?} is not supported; leave fsType empty or write xfs")]
    FilesystemType {
        /// What was asked for.
        found: String,
    },
    /// Mount options would not reach the container.
    #[error("mount options are not supported; remove mountOptions from the PersistentVolume")]
    MountOptions,
    /// A capability that is not announced.
    #[error("volume_mount_group is not supported; kubelet itself applies fsGroup")]
    MountGroup,
    /// Negative sizes, or a limit below what is required.
    #[error("no volume has at least {required} and at most {limit} bytes")]
    Range {
        /// `required_bytes`.
        required: i64,
        /// `limit_bytes`; 0 for none.
        limit: i64,
    },
}

/// What is wrong with a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Relative, or somewhere else.
    #[error("it is not beneath {}", kubelet.display())]
    Outside {
        /// kubelet's directory.
        kubelet: PathBuf,
    },
    /// Longer than the kernel takes.
    #[error("it is longer than {PATH_MAX} bytes")]
    TooLong,
    /// A component that is no file name.
    #[error("its last component is no file name")]
    Name(#[source] NameError),
    /// `..` or NUL in it.
    #[error("it holds `..` or NUL")]
    Unsafe,
}

/// A place beneath kubelet's directory, never that directory itself: a parent, and a name in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetPath {
    full: PathBuf,
    parent: PathBuf,
    name: Name,
}

impl TargetPath {
    /// Checks a path that kubelet sent. Empty components and `.` are ignored, `..` is refused.
    ///
    /// # Errors
    /// [`PathError`].
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
        let (parent, last) = beneath.parent().zip(beneath.file_name()).ok_or_else(outside)?;
        let name = Name::try_from(last).map_err(PathError::Name)?;
        // openat2(2) takes no empty path.
        let parent = if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent.to_owned() };
        Ok(Self { parent, name, full })
    }

    /// The whole path, absolute.
    pub fn full(&self) -> &Path {
        &self.full
    }

    /// The directory that holds it, relative to kubelet's; `.` for kubelet's own.
    pub fn parent(&self) -> &Path {
        &self.parent
    }

    /// It, relative to kubelet's directory.
    pub fn beneath(&self) -> PathBuf {
        self.parent.join(self.name.as_os_str()).components().filter(|part| *part != Component::CurDir).collect()
    }

    /// Its last component.
    pub const fn name(&self) -> &Name {
        &self.name
    }
}

impl From<TargetPath> for PathBuf {
    fn from(target: TargetPath) -> Self {
        target.full
    }
}

impl fmt::Display for TargetPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.full.display().fmt(f)
    }
}

/// How many targets a volume may have at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// A second one is refused.
    OneTarget,
    /// Pods of one node share it.
    ManyTargets,
}

/// What a pod sees of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A directory.
    Filesystem,
    /// A device.
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

/// The mount of a directory. Not `noexec`: programs on a volume can be executed in containers, and in a pod with a user
/// namespace the kernel locks the flags of the node's mount (mount_namespaces(7)).
pub(crate) const DIRECTORY: Attributes = Attributes { no_exec: false, ..Attributes::INERT };

/// The mount of a device's node: as inert as any, but the node works.
pub(crate) const NODE: Attributes = Attributes { no_dev: false, ..Attributes::INERT };

/// `NodePublishVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publish {
    pub(crate) volume: VolumeId,
    pub(crate) target: TargetPath,
    pub(crate) mode: Mode,
    /// Of the mount. `read_only` also means the device.
    pub(crate) attributes: Attributes,
    pub(crate) sharing: Sharing,
}

/// `NodeUnpublishVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unpublish {
    pub(crate) volume: VolumeId,
    pub(crate) target: TargetPath,
}

/// `NodeExpandVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expand {
    pub(crate) volume: VolumeId,
    pub(crate) path: TargetPath,
    /// `None` if the caller does not say.
    pub(crate) mode: Option<Mode>,
    pub(crate) range: Range,
}

/// `NodeGetVolumeStats`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) volume: VolumeId,
    pub(crate) path: TargetPath,
}

/// Which sizes would do. `None` where the caller does not care.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// At least this.
    pub required: Option<Bytes>,
    /// At most this.
    pub limit: Option<Bytes>,
}

/// What the host has to look at for a call.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Which volume.
    pub volume: &'a VolumeId,
    /// Where it should be, or is.
    pub target: &'a TargetPath,
    /// What for.
    pub purpose: Purpose,
}

/// Why the host looks: what is not needed is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `NodePublishVolume`.
    Publish {
        /// As what.
        mode: Mode,
        /// Whether nothing may be written.
        read_only: bool,
        /// Whether other targets matter. To find those of a filesystem volume costs time that grows with the number of
        /// mounts.
        sharing: Sharing,
    },
    /// `NodeUnpublishVolume`.
    Unpublish,
}

impl Publish {
    pub(crate) fn parse(message: &NodePublishVolumeRequest, kubelet: &Path) -> Result<Self, RequestError> {
        let volume = volume_id(&message.volume_id)?;
        let target = path("target_path", &message.target_path, kubelet)?;
        let capability = required("volume_capability", message.volume_capability.as_ref())?;
        let (mode, attributes) = match required("volume_capability.access_type", capability.access_type.as_ref())? {
            AccessType::Mount(mount) => {
                check_mount(mount)?;
                (Mode::Filesystem, DIRECTORY)
            }
            AccessType::Block(_) => (Mode::Block, NODE),
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
        let attributes = Attributes { read_only: message.readonly || reads_only, ..attributes };
        Ok(Self { volume, target, mode, attributes, sharing })
    }

    pub(crate) const fn question(&self) -> Question<'_> {
        let purpose = Purpose::Publish { mode: self.mode, read_only: self.attributes.read_only, sharing: self.sharing };
        Question { volume: &self.volume, target: &self.target, purpose }
    }
}

impl Unpublish {
    pub(crate) fn parse(message: &NodeUnpublishVolumeRequest, kubelet: &Path) -> Result<Self, RequestError> {
        let volume = volume_id(&message.volume_id)?;
        Ok(Self { volume, target: path("target_path", &message.target_path, kubelet)? })
    }

    pub(crate) const fn question(&self) -> Question<'_> {
        Question { volume: &self.volume, target: &self.target, purpose: Purpose::Unpublish }
    }
}

impl Expand {
    pub(crate) fn parse(message: &NodeExpandVolumeRequest, kubelet: &Path) -> Result<Self, RequestError> {
        let volume = volume_id(&message.volume_id)?;
        let path = path("volume_path", &message.volume_path, kubelet)?;
        // Nothing else of the capability matters here.
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

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, RequestError> {
    value.ok_or(RequestError::Missing { field })
}

fn volume_id(text: &str) -> Result<VolumeId, RequestError> {
    required("volume_id", (!text.is_empty()).then_some(text))?.parse().map_err(RequestError::VolumeId)
}

fn path(field: &'static str, text: &str, kubelet: &Path) -> Result<TargetPath, RequestError> {
    let text = required(field, (!text.is_empty()).then_some(text))?;
    TargetPath::parse(text, kubelet).map_err(|source| RequestError::Path { field, source })
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

/// csi.proto writes 0 for "not given".
fn range(
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
    use proto::csi::VolumeCapability;
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
    fn a_good_message_is_a_writable_inert_mount() {
        let want = publish(&message()).expect("a request");
        assert_eq!((want.mode, want.attributes), (Mode::Filesystem, DIRECTORY));
        assert_eq!(want.sharing, Sharing::ManyTargets);
        assert_eq!(want.target.full(), Path::new(TARGET));
        assert_eq!(want.target.parent(), Path::new("pods/u/volumes/kubernetes.io~csi/pvc-1"));
        assert_eq!(want.target.name().to_str(), Some("mount"));
    }

    #[test]
    fn every_required_field_is_missed_by_its_name() {
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
        let stats = NodeGetVolumeStatsRequest { volume_id: "pvc-1".to_owned(), ..stats };
        assert_eq!(missing(Stats::parse(&stats, kubelet).expect_err("no path")), "volume_path");
    }

    #[test]
    fn access_modes_decide_about_targets_and_writing() {
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
    fn read_only_is_asked_for_by_the_message_too() {
        let want = publish(&NodePublishVolumeRequest { readonly: true, ..message() }).expect("a request");
        assert!(want.attributes.read_only);
    }

    #[test]
    fn a_block_volume_is_a_node_that_works() {
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
    fn what_would_be_ignored_is_refused() {
        let options = MountVolume { mount_flags: vec!["noatime".to_owned()], ..MountVolume::default() };
        assert!(matches!(with_mount(options), RequestError::MountOptions));
        let group = MountVolume { volume_mount_group: "1000".to_owned(), ..MountVolume::default() };
        assert!(matches!(with_mount(group), RequestError::MountGroup));
        let ext4 = MountVolume { fs_type: "ext4".to_owned(), ..MountVolume::default() };
        assert!(matches!(with_mount(ext4), RequestError::FilesystemType { found } if found == "ext4"));
    }

    #[test]
    fn paths_that_leave_kubelets_directory_are_refused() {
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
    fn one_target_has_one_spelling() {
        let parse = |text: &str| TargetPath::parse(text, Path::new(KUBELET)).expect("a path");
        assert_eq!(parse("/data//kubelet/./pods/a/"), parse("/data/kubelet/pods/a"));
        assert_eq!(parse("/data/kubelet/a").parent(), Path::new("."));
    }

    #[test]
    fn sizes_are_optional_and_impossible_ones_are_refused() {
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
        fn an_accepted_path_stays_beneath(text in "(/data/kubelet)?[a./\0]{0,12}") {
            if let Ok(target) = TargetPath::parse(&text, Path::new(KUBELET)) {
                let rejoined = Path::new(KUBELET).join(target.parent()).join(target.name().as_os_str());
                let spelled: PathBuf = rejoined.components().collect();
                prop_assert_eq!(spelled.as_path(), target.full());
                let beneath = target.full().strip_prefix(KUBELET).expect("it is beneath");
                prop_assert!(beneath.components().all(|component| matches!(component, Component::Normal(_))));
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
