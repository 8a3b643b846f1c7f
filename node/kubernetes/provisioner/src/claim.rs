//! Which claims are ours, and what they ask for. Pure.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use units::Bytes;
use volume::{Claim, DRIVER_NAME, Request, VolumeId};

use crate::class::{self, ReclaimPolicy, VolumeMode};
use crate::quantity::{self, QuantityError};
use crate::topology::OtherTopology;

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The scheduler's choice of a node.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// The file system's block: sizes are whole numbers of it.
pub(crate) const BLOCK: u64 = 4096;

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
    #[error("spec.volumeMode: {0} is unknown; use Filesystem or Block")]
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
    #[error("the storage class {class} cannot be used")]
    Class {
        class: String,
        #[source]
        source: class::Refusal,
    },
    #[error(
        "the storage class {class} allows nodes with {}, and the node {} has {}; select another node for the claim \
         ({SELECTED_NODE}), or make it again with another class", .found.allowed, .found.node, .found.found
    )]
    Topology { class: String, found: OtherTopology },
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
    let of_class = |source| Refusal::Class { class: class_name.clone(), source };
    let parameters = class::parameters(class).map_err(of_class)?;
    let access_modes = access_modes(spec)?;
    let volume_mode = match spec.volume_mode.as_deref() {
        None | Some("" | "Filesystem") => VolumeMode::Filesystem,
        Some("Block") => VolumeMode::Block,
        Some(other) => return Err(Refusal::VolumeMode(other.to_owned())),
    };
    let size = size(spec)?;
    let mode = parameters.mode(volume_mode, size);
    let request = Request { claim: ours.claim.clone(), class: class_name, mode, size };
    Ok(Some(Ask { id: ours.id.clone(), request, access_modes, reclaim: parameters.reclaim }))
}

impl AccessMode {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
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

    #[test]
    fn an_ordinary_claim_is_asked_for_as_it_stands() {
        let ask = asked(&claim(), &class()).unwrap().unwrap();
        assert_eq!(ask.id.as_str(), "pvc-0b6f2f6e-9c1f-4d4e-8d0a-6f1f2a3b4c5d");
        assert_eq!(ask.request.size, Bytes::GIB);
        assert_eq!(ask.request.mode, Mode::Filesystem { inodes: Inodes::new(524_288) });
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
    fn a_claim_chooses_between_disk_and_directory_and_a_directory_is_the_default() {
        let block = asked(&spec(|spec| spec.volume_mode = Some("Block".into())), &class()).unwrap().unwrap();
        assert_eq!(block.request.mode, Mode::Block { allocation: Allocation::Thick });
        let other = spec(|spec| spec.volume_mode = Some("Tape".into()));
        assert_eq!(refusal(&other, &class()), Refusal::VolumeMode("Tape".into()));
        let named = spec(|spec| spec.volume_mode = Some("Filesystem".into()));
        assert_eq!(asked(&named, &class()), asked(&claim(), &class()));
    }

    #[test]
    fn a_class_that_is_not_understood_is_refused_by_its_name() {
        let class = StorageClass { mount_options: Some(vec!["noatime".into()]), ..class() };
        let refused = refusal(&claim(), &class);
        assert_eq!(refused.kind(), "MountOptions");
        let text = crate::events::chain(&refused);
        assert!(text.contains("storage class local cannot be used: it has mountOptions"), "{text}");
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

    proptest! {
        #[test]
        fn nobody_gets_less_than_asked_for_and_sizes_are_whole_blocks(asked_for in 1u64..1 << 62) {
            let ask = asked(&sized(&asked_for.to_string()), &class()).unwrap().unwrap();
            let size = ask.request.size.get();
            prop_assert!(size >= asked_for && size - asked_for < BLOCK && size.is_multiple_of(BLOCK));
            prop_assert_eq!(ask.request.mode, Mode::Filesystem { inodes: Inodes::new((size / 2048).max(64)) });
        }
    }
}
