//! Selects the claims that wait for this node, and validates the volumes that they request. Pure.

pub(crate) use cluster::claim::SELECTED_NODE;
use cluster::claim::{RESTORE_FROM, ROLLBACK, status_writer};
use cluster::snapshot;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use units::Bytes;
use volume::{BLOCK, Claim, DRIVER_NAME, IoLimits, IoRejection, Owner, Request, VolumeId, VolumeMode};

use crate::class::{self, ClassRejection, ReclaimPolicy};
use crate::modify::class::AttributesRejection;
use crate::quantity::{self, QuantityError};
use crate::topology::OtherTopology;

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// All annotations of a claim that the provisioner reads.
pub(crate) const ANNOTATIONS: [&str; 6] =
    [PROVISIONER, OLD_PROVISIONER, SELECTED_NODE, OLD_CLASS, RESTORE_FROM, ROLLBACK];

/// A claim without a volume that the scheduler assigned to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AssignedClaim {
    pub(crate) id: VolumeId,
    pub(crate) claim: Claim,
    pub(crate) class: Option<String>,
}

/// A volume to create, with the fields of its PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProvisionRequest {
    pub(crate) id: VolumeId,
    pub(crate) volume: Request,
    /// Claim or snapshot in the same namespace with the initial content of the volume.
    pub(crate) source: Option<Source>,
    /// `spec.volumeAttributesClassName`. `io` has its limits as soon as the class is read.
    pub(crate) attributes_class: Option<String>,
    pub(crate) io: IoLimits,
    pub(crate) access_modes: Vec<AccessMode>,
    pub(crate) reclaim: ReclaimPolicy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Claim(String),
    Snapshot(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessMode {
    ReadWriteOnce,
    ReadWriteOncePod,
}

/// An unsupported field. The text is the message of the claim's event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Rejection {
    #[error("spec.dataSourceRef names a source in namespace {0}; the source of a claim is in its own namespace")]
    SourceNamespace(String),
    #[error("spec.selector is not supported: each claim gets a new volume; remove it")]
    Selector,
    #[error("the VolumeAttributesClass {class} cannot be used")]
    AttributesClass { class: String, source: AttributesRejection },
    #[error("spec.accessModes: {0} is not supported on a node's own disk; use ReadWriteOnce or ReadWriteOncePod")]
    AccessMode(String),
    #[error("spec.accessModes is empty; use ReadWriteOnce or ReadWriteOncePod")]
    NoAccessMode,
    #[error("spec.volumeMode: {0} is unknown; use Filesystem or Block")]
    VolumeMode(String),
    #[error("spec.resources.requests.storage is missing")]
    NoSize,
    #[error("spec.resources.requests.storage: {text:?} is not a valid size")]
    Size { text: String, source: QuantityError },
    #[error("spec.resources.requests.storage is zero; request at least one byte")]
    Zero,
    #[error("the storage class {class} cannot be used")]
    Class { class: String, source: ClassRejection },
    #[error(
        "the storage class {class} allows nodes with {}, and the node {} has {}; select another node for the claim \
         ({SELECTED_NODE}), or create it again with another class", .found.allowed, .found.node, .found.found
    )]
    Topology { class: String, found: OtherTopology },
}

/// Returns `None` if the claim does not wait for this node.
pub(crate) fn assigned(claim: &PersistentVolumeClaim, node: &str) -> Option<AssignedClaim> {
    let meta = &claim.metadata;
    let id = unbound_volume(claim, node).filter(|_| meta.deletion_timestamp.is_none())?;
    let claim_ref = Claim { uid: meta.uid.clone()?, namespace: meta.namespace.clone()?, name: meta.name.clone()? };
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
    let class = class.or_else(|| annotation(claim, OLD_CLASS).map(str::to_owned)).filter(|class| !class.is_empty());
    Some(AssignedClaim { id, claim: claim_ref, class })
}

/// Volume that this node creates for a claim that is not bound, also if the claim is being deleted.
pub(crate) fn unbound_volume(claim: &PersistentVolumeClaim, node: &str) -> Option<VolumeId> {
    if !selected(claim, node) || volume_name(claim).is_some() {
        return None;
    }
    format!("pvc-{}", claim.metadata.uid.as_deref()?).parse().ok()
}

/// Returns `None` if the class is of another provisioner, or a volume populator creates the claim's volume.
pub(crate) fn check(
    assigned: &AssignedClaim,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
) -> Result<Option<ProvisionRequest>, Rejection> {
    if class.provisioner != DRIVER_NAME {
        return Ok(None);
    }
    let default = PersistentVolumeClaimSpec::default();
    let spec = claim.spec.as_ref().unwrap_or(&default);
    let source = match data_source(spec) {
        Some(DataSource::Ours { namespace: Some(namespace), .. }) if namespace != assigned.claim.namespace => {
            return Err(Rejection::SourceNamespace(namespace.to_owned()));
        }
        Some(DataSource::Ours { source, .. }) => Some(source),
        Some(DataSource::Foreign) => return Ok(None),
        None => None,
    };
    if spec.selector.is_some() {
        return Err(Rejection::Selector);
    }
    let class_name = class.metadata.name.clone().unwrap_or_default();
    let parameters =
        class::parameters(class).map_err(|source| Rejection::Class { class: class_name.clone(), source })?;
    let access_modes = access_modes(spec)?;
    let volume_mode = match spec.volume_mode.as_deref() {
        None | Some("" | "Filesystem") => VolumeMode::Filesystem,
        Some("Block") => VolumeMode::Block,
        Some(other) => return Err(Rejection::VolumeMode(other.to_owned())),
    };
    let attributes_class = spec.volume_attributes_class_name.clone().filter(|name| !name.is_empty());
    if let (Some(class), VolumeMode::Filesystem) = (&attributes_class, volume_mode) {
        let source = IoRejection::Filesystem.into();
        return Err(Rejection::AttributesClass { class: class.clone(), source });
    }
    let size = size(spec)?;
    let mode = parameters.mode(volume_mode, size);
    let volume = Request {
        claim: assigned.claim.clone(),
        owner: Owner::Provisioner,
        class: class_name,
        mode,
        size,
        source: None,
    };
    let (id, io, reclaim) = (assigned.id.clone(), IoLimits::NONE, parameters.reclaim);
    Ok(Some(ProvisionRequest { id, volume, source, attributes_class, io, access_modes, reclaim }))
}

impl Source {
    pub(crate) fn name_in(&self, namespace: &str) -> String {
        match self {
            Self::Claim(name) => format!("claim {namespace}/{name}"),
            Self::Snapshot(name) => format!("snapshot {namespace}/{name}"),
        }
    }
}

impl AccessMode {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
    }
}

impl Rejection {
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::SourceNamespace(_) => "DataSource",
            Self::Selector => "Selector",
            Self::AttributesClass { .. } => "AttributesClass",
            Self::AccessMode(_) | Self::NoAccessMode => "AccessMode",
            Self::VolumeMode(_) => "VolumeMode",
            Self::NoSize | Self::Size { .. } | Self::Zero => "Size",
            Self::Class { source, .. } => source.kind(),
            Self::Topology { .. } => "Topology",
        }
    }
}

fn selected(claim: &PersistentVolumeClaim, node: &str) -> bool {
    let provisioner = annotation(claim, PROVISIONER).or_else(|| annotation(claim, OLD_PROVISIONER));
    provisioner == Some(DRIVER_NAME) && annotation(claim, SELECTED_NODE) == Some(node)
}

/// Whether the fields of the claim name this node as the one that creates or expands its volume.
pub(crate) fn names_node(claim: &PersistentVolumeClaim, node: &str) -> bool {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let writer = claim.metadata.annotations.as_ref().and_then(|all| status_writer(uid, volume_name(claim), all));
    selected(claim, node) || writer == Some(node)
}

pub(crate) fn annotation<'a>(claim: &'a PersistentVolumeClaim, key: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Namespace and name of the claim, separated by a slash.
pub(crate) fn full_name(claim: &PersistentVolumeClaim) -> String {
    format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any())
}

pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

fn access_modes(spec: &PersistentVolumeClaimSpec) -> Result<Vec<AccessMode>, Rejection> {
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if modes.is_empty() {
        return Err(Rejection::NoAccessMode);
    }
    modes
        .iter()
        .map(|mode| match mode.as_str() {
            "ReadWriteOnce" => Ok(AccessMode::ReadWriteOnce),
            "ReadWriteOncePod" => Ok(AccessMode::ReadWriteOncePod),
            other => Err(Rejection::AccessMode(other.to_owned())),
        })
        .collect()
}

enum DataSource<'a> {
    Ours {
        namespace: Option<&'a str>,
        source: Source,
    },
    /// A volume populator provides a PV for the claim.
    Foreign,
}

/// Reads `dataSourceRef` or else `dataSource`. The API server copies each of these fields into the other one, as far as
/// the other one supports the value.
fn data_source(spec: &PersistentVolumeClaimSpec) -> Option<DataSource<'_>> {
    let reference = spec.data_source_ref.as_ref().map(|source| {
        (source.api_group.as_deref(), source.kind.as_str(), source.namespace.as_deref(), source.name.as_str())
    });
    let source = spec.data_source.as_ref();
    let source = source.map(|source| (source.api_group.as_deref(), source.kind.as_str(), None, source.name.as_str()));
    Some(match reference.or(source)? {
        (None | Some(""), "PersistentVolumeClaim", namespace, name) => {
            DataSource::Ours { namespace, source: Source::Claim(name.to_owned()) }
        }
        (Some(snapshot::GROUP), snapshot::SNAPSHOT, namespace, name) => {
            DataSource::Ours { namespace, source: Source::Snapshot(name.to_owned()) }
        }
        _ => DataSource::Foreign,
    })
}

/// Whether the volume can be created only on the node of its source.
pub(crate) fn is_clone(claim: &PersistentVolumeClaim) -> bool {
    matches!(claim.spec.as_ref().and_then(data_source), Some(DataSource::Ours { .. }))
}

/// Whether the temporary claim of a volume populator can be that of this claim. The claim waits for this node too, and
/// the library copies its class.
pub(crate) fn is_populated_by(claim: &PersistentVolumeClaim, temporary: &AssignedClaim, node: &str) -> bool {
    matches!(claim.spec.as_ref().and_then(data_source), Some(DataSource::Foreign))
        && assigned(claim, node).is_some_and(|populated| populated.class == temporary.class)
}

fn size(spec: &PersistentVolumeClaimSpec) -> Result<Bytes, Rejection> {
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let text = &requests.and_then(|requests| requests.get("storage")).ok_or(Rejection::NoSize)?.0;
    let invalid = |source| Rejection::Size { text: text.clone(), source };
    let size = quantity::bytes(text).map_err(invalid)?;
    if size == Bytes::ZERO {
        return Err(Rejection::Zero);
    }
    size.round_up::<BLOCK>().filter(|size| i64::try_from(size.get()).is_ok()).ok_or(invalid(QuantityError::TooLarge))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{TypedLocalObjectReference, TypedObjectReference};
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use units::Inodes;
    use volume::{Allocation, Mode};

    use super::*;

    const NODE: &str = "granary";

    fn claim() -> PersistentVolumeClaim {
        parse(json!({
            "metadata": {
                "name": "data", "namespace": "default", "uid": "0b6f2f6e-9c1f-4d4e-8d0a-6f1f2a3b4c5d",
                "annotations": { PROVISIONER: DRIVER_NAME, SELECTED_NODE: NODE },
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))
    }

    fn class() -> StorageClass {
        serde_json::from_value(json!({"metadata": {"name": "local"}, "provisioner": DRIVER_NAME})).expect("a class")
    }

    fn parse(claim: Value) -> PersistentVolumeClaim {
        serde_json::from_value(claim).expect("a claim")
    }

    fn spec(change: impl FnOnce(&mut PersistentVolumeClaimSpec)) -> PersistentVolumeClaim {
        let mut claim = claim();
        change(claim.spec.get_or_insert_default());
        claim
    }

    fn checked(claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Option<ProvisionRequest>, Rejection> {
        check(&assigned(claim, NODE).expect("the claim is assigned"), claim, class)
    }

    fn rejection(claim: &PersistentVolumeClaim, class: &StorageClass) -> Rejection {
        checked(claim, class).expect_err("a rejection")
    }

    fn sized(storage: &str) -> PersistentVolumeClaim {
        let mut claim = serde_json::to_value(claim()).expect("JSON");
        claim["spec"]["resources"]["requests"]["storage"] = storage.into();
        parse(claim)
    }

    #[test]
    fn an_ordinary_claim_becomes_a_request() {
        let request = checked(&claim(), &class()).unwrap().unwrap();
        assert_eq!(request.id.as_str(), "pvc-0b6f2f6e-9c1f-4d4e-8d0a-6f1f2a3b4c5d");
        assert_eq!(request.volume.size, Bytes::GIB);
        assert_eq!(request.volume.mode, Mode::Filesystem { inodes: Inodes::new(524_288) });
        assert_eq!(request.volume.class, "local");
        assert_eq!(request.volume.claim.to_string(), "default/data");
        assert_eq!(request.access_modes, [AccessMode::ReadWriteOnce]);
        assert_eq!(request.reclaim, ReclaimPolicy::Delete);
    }

    #[test]
    fn claims_of_other_nodes_and_provisioners_are_ignored() {
        assert_eq!(assigned(&claim(), "other"), None);
        for (key, value) in [(PROVISIONER, "other.example.com"), (SELECTED_NODE, "other")] {
            let mut claim = claim();
            claim.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
            assert_eq!(assigned(&claim, NODE), None);
        }
        let mut unselected = claim();
        unselected.metadata.annotations.get_or_insert_default().remove(SELECTED_NODE);
        assert_eq!(assigned(&unselected, NODE), None);
        let foreign = StorageClass { provisioner: "other.example.com".into(), ..class() };
        assert_eq!(checked(&claim(), &foreign), Ok(None));
    }

    #[test]
    fn an_adopted_claim_names_the_node_that_expands_it() {
        let mut adopted = spec(|spec| spec.volume_name = Some("by-hand".into()));
        adopted.metadata.annotations = Some([(cluster::claim::VOLUME_NODE.to_owned(), NODE.to_owned())].into());
        assert!(names_node(&adopted, NODE) && !names_node(&adopted, "other"));
        adopted.metadata.annotations = None;
        assert!(!names_node(&adopted, NODE) && names_node(&claim(), NODE));
    }

    #[test]
    fn the_beta_annotation_names_the_provisioner_too() {
        let mut claim = claim();
        let annotations = claim.metadata.annotations.get_or_insert_default();
        annotations.remove(PROVISIONER);
        annotations.insert(OLD_PROVISIONER.into(), DRIVER_NAME.into());
        assert!(assigned(&claim, NODE).is_some());
    }

    #[test]
    fn bound_and_deleted_claims_are_ignored() {
        assert_eq!(assigned(&spec(|spec| spec.volume_name = Some("pvc-1".into())), NODE), None);
        let mut deleted = serde_json::to_value(claim()).unwrap();
        deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(assigned(&parse(deleted), NODE), None);
    }

    #[test]
    fn an_empty_claim_is_ignored() {
        assert_eq!(assigned(&PersistentVolumeClaim::default(), NODE), None);
    }

    #[test]
    fn block_volumes_may_have_an_attributes_class() {
        let gold = |mode: &str| {
            let mode = Some(mode.to_owned());
            spec(|spec| {
                spec.volume_attributes_class_name = Some("gold".into());
                spec.volume_mode = mode;
            })
        };
        let request = checked(&gold("Block"), &class()).unwrap().unwrap();
        assert_eq!(request.attributes_class.as_deref(), Some("gold"));
        let text = causes::line(&rejection(&gold("Filesystem"), &class()));
        assert!(text.starts_with("the VolumeAttributesClass gold cannot be used: it limits I/O"), "{text}");
        let none = spec(|spec| spec.volume_attributes_class_name = Some(String::new()));
        assert_eq!(checked(&none, &class()).unwrap().unwrap().attributes_class, None);
    }

    #[test]
    fn a_claim_or_a_snapshot_of_the_same_namespace_is_a_source() {
        let of = |namespace: Option<&str>| {
            let namespace = namespace.map(str::to_owned);
            let kind = "PersistentVolumeClaim".to_owned();
            let source = TypedObjectReference { kind, name: "s".into(), namespace, ..TypedObjectReference::default() };
            spec(|spec| spec.data_source_ref = Some(source))
        };
        for namespace in [None, Some("default")] {
            let request = checked(&of(namespace), &class()).unwrap().unwrap();
            assert_eq!((request.source, request.volume.source), (Some(Source::Claim("s".into())), None));
        }
        assert_eq!(rejection(&of(Some("other")), &class()), Rejection::SourceNamespace("other".into()));
        assert!(is_clone(&of(None)) && !is_clone(&claim()));
        let (kind, api_group) = ("VolumeSnapshot".into(), Some("snapshot.storage.k8s.io".into()));
        let source = TypedLocalObjectReference { kind, name: "s".into(), api_group };
        let restored = spec(|spec| spec.data_source = Some(source));
        assert_eq!(checked(&restored, &class()).unwrap().unwrap().source, Some(Source::Snapshot("s".into())));
        assert!(is_clone(&restored));
    }

    #[test]
    fn a_claim_with_a_foreign_data_source_is_left_to_its_populator() {
        for (group, kind) in [(Some("example.com"), "Backup"), (Some("example.com"), "VolumeSnapshot"), (None, "Pod")] {
            let source = TypedObjectReference {
                api_group: group.map(str::to_owned),
                kind: kind.into(),
                ..TypedObjectReference::default()
            };
            assert_eq!(
                checked(&spec(|spec| spec.data_source_ref = Some(source)), &class()),
                Ok(None),
                "{group:?} {kind}"
            );
        }
    }

    /// Regression: a user could add events to each claim with a populator whose UID is known, also after it was bound.
    #[test]
    fn a_temporary_claim_is_that_of_a_claim_that_waits_for_its_populator() {
        let source = TypedObjectReference { kind: "Backup".into(), ..TypedObjectReference::default() };
        let populated = spec(|spec| spec.data_source_ref = Some(source));
        let temporary = assigned(&claim(), NODE).expect("the claim is assigned");
        assert!(is_populated_by(&populated, &temporary, NODE) && !is_populated_by(&claim(), &temporary, NODE));
        assert!(!is_populated_by(&populated, &temporary, "other"));
        let change = |change: fn(&mut PersistentVolumeClaimSpec)| {
            let mut changed = populated.clone();
            change(changed.spec.get_or_insert_default());
            changed
        };
        let bound = change(|spec| spec.volume_name = Some("pvc-1".into()));
        let other_class = change(|spec| spec.storage_class_name = Some("other".into()));
        assert!(![bound, other_class].iter().any(|claim| is_populated_by(claim, &temporary, NODE)));
    }

    #[test]
    fn one_unsupported_access_mode_among_others_is_rejected() {
        for mode in ["ReadOnlyMany", "ReadWriteMany", "Nonsense"] {
            let claim = spec(|spec| spec.access_modes = Some(vec!["ReadWriteOnce".into(), mode.into()]));
            assert_eq!(rejection(&claim, &class()), Rejection::AccessMode(mode.into()));
        }
        assert_eq!(rejection(&spec(|spec| spec.access_modes = None), &class()), Rejection::NoAccessMode);
        let single = spec(|spec| spec.access_modes = Some(vec!["ReadWriteOncePod".into()]));
        assert_eq!(checked(&single, &class()).unwrap().unwrap().access_modes, [AccessMode::ReadWriteOncePod]);
    }

    #[test]
    fn filesystem_is_the_default_volume_mode() {
        let block = checked(&spec(|spec| spec.volume_mode = Some("Block".into())), &class()).unwrap().unwrap();
        assert_eq!(block.volume.mode, Mode::Block { allocation: Allocation::Thick });
        let other = spec(|spec| spec.volume_mode = Some("Tape".into()));
        assert_eq!(rejection(&other, &class()), Rejection::VolumeMode("Tape".into()));
        let named = spec(|spec| spec.volume_mode = Some("Filesystem".into()));
        assert_eq!(checked(&named, &class()), checked(&claim(), &class()));
    }

    #[test]
    fn an_unsupported_class_is_named() {
        let class = StorageClass { mount_options: Some(vec!["noatime".into()]), ..class() };
        let rejected = rejection(&claim(), &class);
        assert_eq!(rejected.kind(), "MountOptions");
        let text = causes::line(&rejected);
        assert!(text.contains("storage class local cannot be used: it has mountOptions"), "{text}");
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        assert_eq!(rejection(&sized("0"), &class()), Rejection::Zero);
        assert_eq!(rejection(&spec(|spec| spec.resources = None), &class()), Rejection::NoSize);
        for text in ["-1", "8Ei", "9223372036854775807", "much"] {
            assert!(matches!(rejection(&sized(text), &class()), Rejection::Size { .. }), "{text}");
        }
        let largest = (i64::MAX as u64) / BLOCK * BLOCK;
        assert_eq!(checked(&sized(&largest.to_string()), &class()).unwrap().unwrap().volume.size.get(), largest);
    }

    proptest! {
        #[test]
        fn sizes_are_rounded_up_to_whole_blocks(requested in 1u64..1 << 62) {
            let request = checked(&sized(&requested.to_string()), &class()).unwrap().unwrap();
            let size = request.volume.size.get();
            prop_assert!(size >= requested && size - requested < BLOCK && size.is_multiple_of(BLOCK));
            prop_assert_eq!(request.volume.mode, Mode::Filesystem { inodes: Inodes::new((size / 2048).max(64)) });
        }
    }
}
