//! Which claims are ours, and what they ask for. Pure.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use units::{Bytes, Inodes};
use volume::{Claim, DRIVER_NAME, Mode, Request, VolumeId};

use crate::quantity::{self, QuantityError};

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The scheduler's choice of a node.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// The file system's block: sizes are whole numbers of it.
const BLOCK: u64 = 4096;
/// Class parameter: how many bytes a volume has for each file it may hold.
const BYTES_PER_INODE: &str = "bytesPerInode";
/// One inode of XFS, and so the least that makes sense.
const INODE: u64 = 512;
/// A volume of any size can hold this many files.
const LEAST_INODES: u64 = 64;

/// A claim that waits for a volume from this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ours {
    pub(crate) id: VolumeId,
    pub(crate) claim: Claim,
    pub(crate) class: Option<String>,
}

/// All that is needed to make the volume and its PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) id: VolumeId,
    pub(crate) request: Request,
    pub(crate) access_modes: Vec<AccessMode>,
    pub(crate) reclaim: ReclaimPolicy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessMode {
    ReadWriteOnce,
    ReadWriteOncePod,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReclaimPolicy {
    Delete,
    Retain,
}

/// What a volume of this node cannot be. The text goes into the claim's event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("spec.dataSource and spec.dataSourceRef are not supported: the volume would be empty; leave them out")]
    DataSource,
    #[error("spec.selector is not supported: volumes are made for their claim; leave it out")]
    Selector,
    #[error("spec.volumeAttributesClassName is not supported; leave it out")]
    AttributesClass,
    #[error("spec.accessModes: {0} is not supported on a node's own disk; use ReadWriteOnce or ReadWriteOncePod")]
    AccessMode(String),
    #[error("spec.accessModes is empty; use ReadWriteOnce or ReadWriteOncePod")]
    NoAccessMode,
    #[error("spec.volumeMode: Block is not supported yet: this release provisions filesystem volumes only")]
    Block,
    #[error("spec.volumeMode: {0} is unknown; use Filesystem")]
    VolumeMode(String),
    #[error("spec.resources.requests.storage is missing")]
    NoSize,
    #[error("spec.resources.requests.storage: {text:?} is no size a volume can have")]
    Size {
        text: String,
        #[source]
        source: QuantityError,
    },
    #[error("spec.resources.requests.storage is zero; ask for at least one byte")]
    Zero,
    #[error("the storage class {class} has mountOptions; they would not reach the container, leave them out")]
    MountOptions { class: String },
    #[error("the storage class {class} has the unknown parameter {name:?}; the only one is {BYTES_PER_INODE}")]
    Parameter { class: String, name: String },
    #[error("the storage class {class} has {name}={value:?}; it must be a whole number from {INODE} on")]
    ParameterValue { class: String, name: &'static str, value: String },
    #[error("the storage class {class} has the reclaimPolicy {policy}; use Delete or Retain")]
    ReclaimPolicy { class: String, policy: String },
}

/// The claim, if it waits for this node to make its volume.
pub(crate) fn ours(claim: &PersistentVolumeClaim, node: &str) -> Option<Ours> {
    let meta = &claim.metadata;
    if !selected(claim, node) || meta.deletion_timestamp.is_some() || volume_name(claim).is_some() {
        return None;
    }
    let claim_of = Claim { uid: meta.uid.clone()?, namespace: meta.namespace.clone()?, name: meta.name.clone()? };
    let id = format!("pvc-{}", claim_of.uid).parse().ok()?;
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
    let class = class.or_else(|| annotation(claim, OLD_CLASS).map(str::to_owned)).filter(|class| !class.is_empty());
    Some(Ours { id, claim: claim_of, class })
}

/// Sizes of a claim of this node that has its volume and wants a larger one.
pub(crate) fn wants_expansion(claim: &PersistentVolumeClaim, node: &str) -> Option<(Bytes, Bytes)> {
    if !selected(claim, node) || claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    volume_name(claim)?;
    let has = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?;
    let wants = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let (has, wants) = (quantity::bytes(&has.0).ok()?, quantity::bytes(&wants.0).ok()?);
    (wants > has).then_some((has, wants))
}

/// What the claim asks for; `None` if its class is another provisioner's.
pub(crate) fn check(ours: &Ours, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Option<Ask>, Refusal> {
    if class.provisioner != DRIVER_NAME {
        return Ok(None);
    }
    let default = PersistentVolumeClaimSpec::default();
    let spec = claim.spec.as_ref().unwrap_or(&default);
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Err(Refusal::DataSource);
    }
    if spec.selector.is_some() {
        return Err(Refusal::Selector);
    }
    if spec.volume_attributes_class_name.as_ref().is_some_and(|name| !name.is_empty()) {
        return Err(Refusal::AttributesClass);
    }
    let class_name = class.metadata.name.clone().unwrap_or_default();
    if class.mount_options.as_ref().is_some_and(|options| !options.is_empty()) {
        return Err(Refusal::MountOptions { class: class_name });
    }
    let access_modes = access_modes(spec)?;
    let mode = match spec.volume_mode.as_deref() {
        None | Some("" | "Filesystem") => Mode::Filesystem,
        Some("Block") => return Err(Refusal::Block),
        Some(other) => return Err(Refusal::VolumeMode(other.to_owned())),
    };
    let bytes_per_inode = bytes_per_inode(class, &class_name)?;
    let reclaim = match class.reclaim_policy.as_deref() {
        None | Some("" | "Delete") => ReclaimPolicy::Delete,
        Some("Retain") => ReclaimPolicy::Retain,
        Some(other) => return Err(Refusal::ReclaimPolicy { class: class_name, policy: other.to_owned() }),
    };
    let size = size(spec)?;
    let inodes = bytes_per_inode
        .map_or_else(|| fsquota::default_inodes(size), |bytes| Inodes::new((size.get() / bytes).max(LEAST_INODES)));
    let request = Request { claim: ours.claim.clone(), class: class_name, mode, size, inodes };
    Ok(Some(Ask { id: ours.id.clone(), request, access_modes, reclaim }))
}

impl AccessMode {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
    }
}

impl ReclaimPolicy {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Retain => "Retain",
        }
    }
}

impl Refusal {
    /// Events of one object are told apart by this, not by their text.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::DataSource => "DataSource",
            Self::Selector => "Selector",
            Self::AttributesClass => "AttributesClass",
            Self::AccessMode(_) | Self::NoAccessMode => "AccessMode",
            Self::Block | Self::VolumeMode(_) => "VolumeMode",
            Self::NoSize | Self::Size { .. } | Self::Zero => "Size",
            Self::MountOptions { .. } => "MountOptions",
            Self::Parameter { .. } | Self::ParameterValue { .. } => "Parameter",
            Self::ReclaimPolicy { .. } => "ReclaimPolicy",
        }
    }
}

fn selected(claim: &PersistentVolumeClaim, node: &str) -> bool {
    let provisioner = annotation(claim, PROVISIONER).or_else(|| annotation(claim, OLD_PROVISIONER));
    provisioner == Some(DRIVER_NAME) && annotation(claim, SELECTED_NODE) == Some(node)
}

fn annotation<'a>(claim: &'a PersistentVolumeClaim, key: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

fn access_modes(spec: &PersistentVolumeClaimSpec) -> Result<Vec<AccessMode>, Refusal> {
    let asked = spec.access_modes.as_deref().unwrap_or_default();
    if asked.is_empty() {
        return Err(Refusal::NoAccessMode);
    }
    asked
        .iter()
        .map(|mode| match mode.as_str() {
            "ReadWriteOnce" => Ok(AccessMode::ReadWriteOnce),
            "ReadWriteOncePod" => Ok(AccessMode::ReadWriteOncePod),
            other => Err(Refusal::AccessMode(other.to_owned())),
        })
        .collect()
}

fn bytes_per_inode(class: &StorageClass, class_name: &str) -> Result<Option<u64>, Refusal> {
    let mut bytes = None;
    for (name, value) in class.parameters.iter().flatten() {
        if name != BYTES_PER_INODE {
            return Err(Refusal::Parameter { class: class_name.to_owned(), name: name.clone() });
        }
        let number = value.parse().ok().filter(|number| *number >= INODE).ok_or_else(|| Refusal::ParameterValue {
            class: class_name.to_owned(),
            name: BYTES_PER_INODE,
            value: value.clone(),
        })?;
        bytes = Some(number);
    }
    Ok(bytes)
}

fn size(spec: &PersistentVolumeClaimSpec) -> Result<Bytes, Refusal> {
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let text = &requests.and_then(|requests| requests.get("storage")).ok_or(Refusal::NoSize)?.0;
    let refused = |source| Refusal::Size { text: text.clone(), source };
    let asked = quantity::bytes(text).map_err(refused)?;
    if asked == Bytes::ZERO {
        return Err(Refusal::Zero);
    }
    asked.round_up::<BLOCK>().filter(|size| i64::try_from(size.get()).is_ok()).ok_or(refused(QuantityError::TooLarge))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{TypedLocalObjectReference, TypedObjectReference};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
    use proptest::prelude::*;
    use serde_json::{Value, json};

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

    fn asked(claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Option<Ask>, Refusal> {
        check(&ours(claim, NODE).expect("the claim is ours"), claim, class)
    }

    fn refusal(claim: &PersistentVolumeClaim, class: &StorageClass) -> Refusal {
        asked(claim, class).expect_err("it is refused")
    }

    fn sized(storage: &str) -> PersistentVolumeClaim {
        let mut claim = serde_json::to_value(claim()).expect("JSON");
        claim["spec"]["resources"]["requests"]["storage"] = storage.into();
        parse(claim)
    }

    fn with_parameter(name: &str, value: &str) -> StorageClass {
        StorageClass { parameters: Some([(name.to_owned(), value.to_owned())].into()), ..class() }
    }

    #[test]
    fn an_ordinary_claim_is_asked_for_as_it_stands() {
        let ask = asked(&claim(), &class()).unwrap().unwrap();
        assert_eq!(ask.id.as_str(), "pvc-0b6f2f6e-9c1f-4d4e-8d0a-6f1f2a3b4c5d");
        assert_eq!(ask.request.size, Bytes::GIB);
        assert_eq!(ask.request.inodes, Inodes::new(524_288));
        assert_eq!(ask.request.class, "local");
        assert_eq!(ask.request.claim.to_string(), "default/data");
        assert_eq!(ask.access_modes, [AccessMode::ReadWriteOnce]);
        assert_eq!(ask.reclaim, ReclaimPolicy::Delete);
    }

    #[test]
    fn claims_of_other_nodes_and_provisioners_are_not_ours() {
        assert_eq!(ours(&claim(), "other"), None);
        for (key, value) in [(PROVISIONER, "other.example.com"), (SELECTED_NODE, "other")] {
            let mut claim = claim();
            claim.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
            assert_eq!(ours(&claim, NODE), None);
        }
        let mut unselected = claim();
        unselected.metadata.annotations.get_or_insert_default().remove(SELECTED_NODE);
        assert_eq!(ours(&unselected, NODE), None);
        let foreign = StorageClass { provisioner: "other.example.com".into(), ..class() };
        assert_eq!(asked(&claim(), &foreign), Ok(None));
    }

    #[test]
    fn the_older_annotation_names_the_provisioner_too() {
        let mut claim = claim();
        let annotations = claim.metadata.annotations.get_or_insert_default();
        annotations.remove(PROVISIONER);
        annotations.insert(OLD_PROVISIONER.into(), DRIVER_NAME.into());
        assert!(ours(&claim, NODE).is_some());
    }

    #[test]
    fn bound_and_leaving_claims_are_left_alone() {
        assert_eq!(ours(&spec(|spec| spec.volume_name = Some("pvc-1".into())), NODE), None);
        let mut leaving = serde_json::to_value(claim()).unwrap();
        leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(ours(&parse(leaving), NODE), None);
    }

    #[test]
    fn a_claim_without_any_field_is_not_ours_and_does_not_panic() {
        assert_eq!(ours(&PersistentVolumeClaim::default(), NODE), None);
        assert_eq!(wants_expansion(&PersistentVolumeClaim::default(), NODE), None);
    }

    #[test]
    fn content_that_would_be_missing_is_refused() {
        let source = TypedLocalObjectReference { kind: "VolumeSnapshot".into(), name: "s".into(), api_group: None };
        assert_eq!(refusal(&spec(|spec| spec.data_source = Some(source)), &class()), Refusal::DataSource);
        let source = TypedObjectReference { kind: "Book".into(), name: "s".into(), ..Default::default() };
        assert_eq!(refusal(&spec(|spec| spec.data_source_ref = Some(source)), &class()), Refusal::DataSource);
        let selector = LabelSelector::default();
        assert_eq!(refusal(&spec(|spec| spec.selector = Some(selector)), &class()), Refusal::Selector);
        let gold = spec(|spec| spec.volume_attributes_class_name = Some("gold".into()));
        assert_eq!(refusal(&gold, &class()), Refusal::AttributesClass);
    }

    #[test]
    fn one_unsupported_access_mode_among_others_is_refused() {
        for mode in ["ReadOnlyMany", "ReadWriteMany", "Nonsense"] {
            let claim = spec(|spec| spec.access_modes = Some(vec!["ReadWriteOnce".into(), mode.into()]));
            assert_eq!(refusal(&claim, &class()), Refusal::AccessMode(mode.into()));
        }
        assert_eq!(refusal(&spec(|spec| spec.access_modes = None), &class()), Refusal::NoAccessMode);
        let single = spec(|spec| spec.access_modes = Some(vec!["ReadWriteOncePod".into()]));
        assert_eq!(asked(&single, &class()).unwrap().unwrap().access_modes, [AccessMode::ReadWriteOncePod]);
    }

    #[test]
    fn block_volumes_are_refused_and_filesystem_is_the_default() {
        assert_eq!(refusal(&spec(|spec| spec.volume_mode = Some("Block".into())), &class()), Refusal::Block);
        let other = spec(|spec| spec.volume_mode = Some("Tape".into()));
        assert_eq!(refusal(&other, &class()), Refusal::VolumeMode("Tape".into()));
        let named = spec(|spec| spec.volume_mode = Some("Filesystem".into()));
        assert_eq!(asked(&named, &class()), asked(&claim(), &class()));
    }

    #[test]
    fn classes_with_what_would_be_ignored_are_refused() {
        let options = StorageClass { mount_options: Some(vec!["noatime".into()]), ..class() };
        assert!(matches!(refusal(&claim(), &options), Refusal::MountOptions { .. }));
        let unknown = with_parameter("type", "fast");
        assert!(matches!(refusal(&claim(), &unknown), Refusal::Parameter { name, .. } if name == "type"));
        let recycle = StorageClass { reclaim_policy: Some("Recycle".into()), ..class() };
        assert!(matches!(refusal(&claim(), &recycle), Refusal::ReclaimPolicy { .. }));
        let retain = StorageClass { reclaim_policy: Some("Retain".into()), ..class() };
        assert_eq!(asked(&claim(), &retain).unwrap().unwrap().reclaim, ReclaimPolicy::Retain);
    }

    #[test]
    fn a_class_chooses_how_many_files_a_volume_holds() {
        let ask = asked(&claim(), &with_parameter(BYTES_PER_INODE, "16384")).unwrap().unwrap();
        assert_eq!(ask.request.inodes, Inodes::new(65_536));
        let ask = asked(&sized("1"), &with_parameter(BYTES_PER_INODE, "16384")).unwrap().unwrap();
        assert_eq!(ask.request.inodes, Inodes::new(64));
        for value in ["511", "0", "-1", "many", "", "1.5", "99999999999999999999"] {
            let refused = refusal(&claim(), &with_parameter(BYTES_PER_INODE, value));
            assert!(matches!(refused, Refusal::ParameterValue { .. }), "{value}: {refused}");
        }
    }

    #[test]
    fn sizes_that_no_volume_can_have_are_refused() {
        assert_eq!(refusal(&sized("0"), &class()), Refusal::Zero);
        assert_eq!(refusal(&spec(|spec| spec.resources = None), &class()), Refusal::NoSize);
        for text in ["-1", "8Ei", "9223372036854775807", "much"] {
            assert!(matches!(refusal(&sized(text), &class()), Refusal::Size { .. }), "{text}");
        }
        let largest = (i64::MAX as u64) / BLOCK * BLOCK;
        assert_eq!(asked(&sized(&largest.to_string()), &class()).unwrap().unwrap().request.size.get(), largest);
    }

    #[test]
    fn a_refusal_names_the_field() {
        let text = refusal(&spec(|spec| spec.access_modes = Some(vec!["ReadWriteMany".into()])), &class()).to_string();
        assert!(text.contains("spec.accessModes") && text.contains("ReadWriteMany"), "{text}");
    }

    #[test]
    fn only_a_bound_claim_that_wants_more_wants_expansion() {
        let mut bound = claim();
        bound.spec.get_or_insert_default().volume_name = Some("pvc-1".into());
        let capacity = |storage: &str| serde_json::from_value(json!({"capacity": {"storage": storage}})).unwrap();
        bound.status = Some(capacity("512Mi"));
        assert_eq!(wants_expansion(&bound, NODE), Some((Bytes::new(512 << 20), Bytes::GIB)));
        assert_eq!(wants_expansion(&bound, "other"), None);
        bound.status = Some(capacity("1Gi"));
        assert_eq!(wants_expansion(&bound, NODE), None);
        assert_eq!(wants_expansion(&claim(), NODE), None);
    }

    proptest! {
        #[test]
        fn nobody_gets_less_than_asked_for_and_sizes_are_whole_blocks(asked_for in 1u64..1 << 62) {
            let ask = asked(&sized(&asked_for.to_string()), &class()).unwrap().unwrap();
            let size = ask.request.size.get();
            prop_assert!(size >= asked_for && size - asked_for < BLOCK && size.is_multiple_of(BLOCK));
            prop_assert_eq!(ask.request.inodes.get(), (size / 2048).max(64));
        }
    }
}
