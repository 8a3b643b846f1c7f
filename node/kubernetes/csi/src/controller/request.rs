//! Checked requests of the Controller service. Pure.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, RangeBounds as _};

use proto::csi::volume_content_source::Type as SourceType;
use proto::csi::{
    ControllerExpandVolumeRequest, ControllerModifyVolumeRequest, CreateVolumeRequest, GetCapacityRequest, Topology,
    TopologyRequirement, ValidateVolumeCapabilitiesRequest, VolumeCapability,
};
use sha2::{Digest as _, Sha256};
use units::Bytes;
use volume::{BLOCK, Claim, IoLimits, Parameters, TOPOLOGY_KEY, VolumeId, VolumeMode};

use crate::request::{
    Capability, Mode, NAME_MAX, Range, RequestError, nonempty, range, required, source_id, volume_id,
};

/// Size of a volume without a requested size.
const DEFAULT: Bytes = Bytes::GIB;
/// Prefix of page tokens, which distinguishes them from volume IDs.
const AFTER: &str = "after:";

/// Parameters that external-provisioner adds with `--extra-create-metadata`. They describe the claim.
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
const PV_NAME: &str = "csi.storage.k8s.io/pv/name";
/// Prefix of parameters for Kubernetes, such as `fstype` and the names of secrets. external-provisioner removes them
/// from `CreateVolume`, but sends those of the class in `GetCapacity`.
pub(crate) const RESERVED: &str = "csi.storage.k8s.io/";

/// The valid name of a new volume, snapshot or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestName<'a>(&'a str);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Create {
    pub(crate) id: VolumeId,
    pub(crate) claim: Claim,
    pub(crate) mode: Mode,
    pub(crate) parameters: Parameters,
    /// Mutable parameters, valid for the mode.
    pub(crate) mutable: HashMap<String, String>,
    /// Limits of a new volume.
    pub(crate) io: IoLimits,
    pub(crate) range: Range,
    pub(crate) source: Option<Source>,
    /// Whether the volume may be on this node.
    pub(crate) place: Placement,
}

/// The content that a volume begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Volume(VolumeId),
    Snapshot(VolumeId),
}

impl Source {
    pub(crate) const fn id(&self) -> &VolumeId {
        match self {
            Self::Volume(id) | Self::Snapshot(id) => id,
        }
    }
}

/// Whether a topology requirement allows this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Here,
    Elsewhere,
}

/// ID in a request. The volume may not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Volume(VolumeId),
    /// No volume has such an ID.
    Impossible,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grow {
    pub(crate) id: VolumeId,
    pub(crate) mode: Option<Mode>,
    pub(crate) range: Range,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Modify {
    pub(crate) id: VolumeId,
    parameters: HashMap<String, String>,
}

/// A part of a list that is sorted by ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    after: Bound<VolumeId>,
    most: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// `None` for both modes.
    pub(crate) mode: Option<Mode>,
    pub(crate) parameters: Parameters,
    pub(crate) place: Placement,
}

#[derive(Debug)]
pub(crate) struct Validate {
    pub(crate) id: Named,
    /// The mode of the capabilities, or the reason why no volume has them.
    pub(crate) mode: Result<Mode, RequestError>,
    pub(crate) parameters: Result<Option<Parameters>, RequestError>,
    pub(crate) mutable: HashMap<String, String>,
}

impl Create {
    pub(crate) fn parse(
        name: RequestName<'_>,
        message: &CreateVolumeRequest,
        node: &str,
    ) -> Result<Self, RequestError> {
        let name = name.as_str();
        let mode = modes(&message.volume_capabilities)?;
        let mutable = message.mutable_parameters.clone();
        let io = limits(IoLimits::NONE, &mutable, mode.into())?;
        let (claim, parameters) = claim(name, &message.parameters);
        let parameters = Parameters::parse(&parameters).map_err(RequestError::Parameters)?;
        let range = message.capacity_range.as_ref().map_or(Ok(Range::default()), range)?;
        let source = match message.volume_content_source.as_ref() {
            None => None,
            Some(source) => Some(match required("volume_content_source.type", source.r#type.as_ref())? {
                SourceType::Volume(source) => {
                    Source::Volume(source_id("volume_content_source.volume.volume_id", &source.volume_id)?)
                }
                SourceType::Snapshot(source) => {
                    Source::Snapshot(source_id("volume_content_source.snapshot.snapshot_id", &source.snapshot_id)?)
                }
            }),
        };
        let place = Placement::of(message.accessibility_requirements.as_ref(), node);
        Ok(Self { id: id_of(name), claim, mode, parameters, mutable, io, range, source, place })
    }
}

impl<'a> RequestName<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, RequestError> {
        let name = nonempty("name", text)?;
        let is_valid = name.len() <= NAME_MAX && !name.chars().any(char::is_control);
        if is_valid { Ok(Self(name)) } else { Err(RequestError::Name) }
    }

    pub(crate) const fn as_str(&self) -> &'a str {
        self.0
    }
}

pub(crate) fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// ID of the volume of this name: the name itself, such as `pvc-UID`, or a digest of it if the name is not an ID.
fn id_of(name: &str) -> VolumeId {
    name.parse().unwrap_or_else(|_| {
        format!("csi-{}", digest(name)).parse().expect("hexadecimal digits after a letter are an ID")
    })
}

/// The claim, as far as the client describes it, and the parameters of the class.
fn claim(name: &str, parameters: &HashMap<String, String>) -> (Claim, BTreeMap<String, String>) {
    let mut parameters: BTreeMap<_, _> = parameters.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    parameters.remove(PV_NAME);
    let namespace = parameters.remove(CLAIM_NAMESPACE).unwrap_or_default();
    let claim = parameters.remove(CLAIM_NAME).unwrap_or_else(|| name.to_owned());
    (Claim { uid: name.to_owned(), namespace, name: claim }, parameters)
}

/// The limits `of` a volume, changed by mutable parameters. A missing key changes nothing, as CSI requires.
pub(crate) fn limits(
    of: IoLimits,
    parameters: &HashMap<String, String>,
    mode: VolumeMode,
) -> Result<IoLimits, RequestError> {
    let (_, parameters) = claim("", parameters);
    of.changed(&parameters, mode).map_err(RequestError::MutableParameters)
}

/// The mode that all capabilities have.
fn modes(capabilities: &[VolumeCapability]) -> Result<Mode, RequestError> {
    let mut modes = capabilities.iter().map(|capability| Capability::parse(capability).map(|found| found.mode));
    let first = modes.next().ok_or(RequestError::Missing { field: "volume_capabilities" })??;
    for mode in modes {
        if mode? != first {
            return Err(RequestError::MixedModes);
        }
    }
    Ok(first)
}

impl Placement {
    fn of(requirement: Option<&TopologyRequirement>, node: &str) -> Self {
        let requisite = requirement.map(|requirement| requirement.requisite.as_slice()).unwrap_or_default();
        if requisite.is_empty() || requisite.iter().any(|topology| is_here(topology, node)) {
            Self::Here
        } else {
            Self::Elsewhere
        }
    }
}

fn is_here(topology: &Topology, node: &str) -> bool {
    topology.segments.iter().all(|(key, value)| key == TOPOLOGY_KEY && value == node)
}

impl Named {
    pub(crate) fn parse(text: &str) -> Result<Self, RequestError> {
        Self::snapshot("volume_id", text)
    }

    /// `field` has the ID of a snapshot or group.
    pub(crate) fn snapshot(field: &'static str, text: &str) -> Result<Self, RequestError> {
        Ok(nonempty(field, text)?.parse().map_or(Self::Impossible, Self::Volume))
    }
}

impl Grow {
    pub(crate) fn parse(message: &ControllerExpandVolumeRequest) -> Result<Self, RequestError> {
        let id = volume_id(&message.volume_id)?;
        let range = range(required("capacity_range", message.capacity_range.as_ref())?)?;
        let mode = message.volume_capability.as_ref().map(Capability::parse).transpose()?.map(|found| found.mode);
        Ok(Self { id, mode, range })
    }
}

impl Modify {
    pub(crate) fn parse(message: &ControllerModifyVolumeRequest) -> Result<Self, RequestError> {
        Ok(Self { id: volume_id(&message.volume_id)?, parameters: message.mutable_parameters.clone() })
    }

    pub(crate) fn limits(&self, of: IoLimits, mode: VolumeMode) -> Result<IoLimits, RequestError> {
        limits(of, &self.parameters, mode)
    }
}

impl Page {
    /// `limit` is the maximum number of entries of one response.
    pub(crate) fn parse(max_entries: i32, token: &str, limit: usize) -> Result<Self, RequestError> {
        let most = match usize::try_from(max_entries) {
            Ok(0) => limit,
            Ok(most) => most.min(limit),
            Err(_) => return Err(RequestError::MaxEntries { found: max_entries }),
        };
        let after = match token.strip_prefix(AFTER).map(str::parse::<VolumeId>) {
            None if token.is_empty() => Bound::Unbounded,
            Some(Ok(id)) => Bound::Excluded(id),
            None | Some(Err(_)) => return Err(RequestError::Token { found: token.to_owned() }),
        };
        Ok(Self { after, most })
    }

    /// The entries of this page, and the token of the next one: empty after the last entry.
    pub(crate) fn of<T>(self, all: BTreeMap<VolumeId, T>) -> (Vec<(VolumeId, T)>, String) {
        let mut rest = all.into_iter().filter(|(id, _)| (self.after.clone(), Bound::Unbounded).contains(id)).peekable();
        let page: Vec<_> = rest.by_ref().take(self.most).collect();
        let next_token = match (page.last(), rest.peek()) {
            (Some((last, _)), Some(_)) => format!("{AFTER}{last}"),
            _ => String::new(),
        };
        (page, next_token)
    }
}

impl Capacity {
    pub(crate) fn parse(message: &GetCapacityRequest, node: &str) -> Result<Self, RequestError> {
        let mode = match message.volume_capabilities.as_slice() {
            [] => None,
            capabilities => Some(modes(capabilities)?),
        };
        let of_driver = message.parameters.iter().filter(|(name, _)| !name.starts_with(RESERVED));
        let parameters = of_driver.map(|(name, value)| (name.clone(), value.clone())).collect();
        let parameters = Parameters::parse(&parameters).map_err(RequestError::Parameters)?;
        let place = match &message.accessible_topology {
            Some(topology) if !is_here(topology, node) => Placement::Elsewhere,
            Some(_) | None => Placement::Here,
        };
        Ok(Self { mode, parameters, place })
    }
}

impl Validate {
    pub(crate) fn parse(message: &ValidateVolumeCapabilitiesRequest) -> Result<Self, RequestError> {
        let id = Named::parse(&message.volume_id)?;
        let mode = match modes(&message.volume_capabilities) {
            Err(missing @ RequestError::Missing { .. }) => return Err(missing),
            mode => mode,
        };
        let (_, parameters) = claim("", &message.parameters);
        let parameters = if parameters.is_empty() {
            Ok(None)
        } else {
            Parameters::parse(&parameters).map(Some).map_err(RequestError::Parameters)
        };
        Ok(Self { id, mode, parameters, mutable: message.mutable_parameters.clone() })
    }
}

impl Range {
    /// The size of a new volume: the smallest one in the range, in whole blocks, or the default one. `source` is the
    /// size of the volume that it is a clone of.
    pub(crate) fn size(self, source: Option<Bytes>) -> Result<Bytes, RequestError> {
        let most = self.limit.map(|limit| Bytes::new(limit.get() / BLOCK * BLOCK));
        let default = source.unwrap_or(DEFAULT);
        let wanted = self.required.unwrap_or_else(|| most.map_or(default, |most| most.min(default)));
        self.blocks(wanted).filter(|size| *size > Bytes::ZERO).ok_or_else(|| self.impossible())
    }

    /// Size of an expanded volume, never smaller than `size`.
    pub(crate) fn grown(self, size: Bytes) -> Result<Bytes, RequestError> {
        let wanted = self.required.map_or(size, |required| required.max(size));
        self.blocks(wanted).ok_or_else(|| self.impossible())
    }

    fn blocks(self, size: Bytes) -> Option<Bytes> {
        size.round_up::<BLOCK>().filter(|size| i64::try_from(size.get()).is_ok() && self.contains(*size))
    }

    fn impossible(self) -> RequestError {
        let signed = |bytes: Option<Bytes>| bytes.map_or(0, |bytes| crate::request::signed(bytes.get()));
        RequestError::Range { required: signed(self.required), limit: signed(self.limit) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::csi::volume_capability::access_mode::Mode as Access;
    use proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
    use proto::csi::volume_content_source::{SnapshotSource, VolumeSource};
    use proto::csi::{CapacityRange, VolumeContentSource};
    use volume::IoRejection;

    use super::*;

    const NODE: &str = "node-1";

    fn capability(access_type: AccessType, mode: Access) -> VolumeCapability {
        VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) }
    }

    fn mount() -> VolumeCapability {
        capability(AccessType::Mount(MountVolume::default()), Access::SingleNodeWriter)
    }

    fn block() -> VolumeCapability {
        capability(AccessType::Block(BlockVolume {}), Access::SingleNodeWriter)
    }

    fn message(name: &str) -> CreateVolumeRequest {
        CreateVolumeRequest {
            name: name.to_owned(),
            volume_capabilities: vec![mount()],
            ..CreateVolumeRequest::default()
        }
    }

    fn parse(message: &CreateVolumeRequest) -> Result<Create, RequestError> {
        Create::parse(RequestName::parse(&message.name)?, message, NODE)
    }

    fn topology(key: &str, value: &str) -> Topology {
        Topology { segments: HashMap::from([(key.to_owned(), value.to_owned())]) }
    }

    fn range_of(required: u64, limit: u64) -> Range {
        let given = |bytes| (bytes != 0).then_some(Bytes::new(bytes));
        Range { required: given(required), limit: given(limit) }
    }

    #[test]
    fn a_name_that_is_an_id_is_the_id() {
        let uid = "pvc-0b6f2f6e-9c1f-4d4e-8d0a-6f1f2a3b4c5d";
        assert_eq!(parse(&message(uid)).unwrap().id.as_str(), uid);
        let [one, other] = ["Data 1", "Data 2"].map(|name| parse(&message(name)).unwrap());
        assert_eq!(one.id.as_str().len(), "csi-".len() + 64);
        assert_ne!(one.id, other.id);
        assert_eq!(one.claim.uid, "Data 1");
    }

    #[test]
    fn invalid_requests_are_rejected() {
        let reason = |change: fn(&mut CreateVolumeRequest)| {
            let mut message = message("data");
            change(&mut message);
            parse(&message).expect_err("it is rejected")
        };
        assert!(matches!(reason(|message| message.name.clear()), RequestError::Missing { field: "name" }));
        assert!(matches!(reason(|message| message.name.push('\n')), RequestError::Name));
        assert!(matches!(reason(|message| message.name = "a".repeat(129)), RequestError::Name));
        assert!(matches!(reason(|message| message.volume_capabilities.clear()), RequestError::Missing { .. }));
        assert!(matches!(reason(|message| message.volume_capabilities.push(block())), RequestError::MixedModes));
        let many = |message: &mut CreateVolumeRequest| {
            let writers = capability(AccessType::Mount(MountVolume::default()), Access::MultiNodeMultiWriter);
            message.volume_capabilities.push(writers);
        };
        assert!(matches!(reason(many), RequestError::AccessMode { .. }));
        let unknown = |message: &mut CreateVolumeRequest| {
            message.parameters.insert("fast".into(), "yes".into());
        };
        assert!(matches!(reason(unknown), RequestError::Parameters(_)));
        let mutable = |message: &mut CreateVolumeRequest| {
            message.mutable_parameters.insert("readIOPS".into(), "100".into());
        };
        assert!(matches!(reason(mutable), RequestError::MutableParameters(IoRejection::Filesystem)));
        let slow = |message: &mut CreateVolumeRequest| {
            message.volume_capabilities = vec![block()];
            message.mutable_parameters.insert("readIOPS".into(), "1".into());
        };
        assert!(matches!(reason(slow), RequestError::MutableParameters(IoRejection::Operations { .. })));
        let missing = |source: SourceType| {
            let volume_content_source = Some(VolumeContentSource { r#type: Some(source) });
            match parse(&CreateVolumeRequest { volume_content_source, ..message("data") }) {
                Err(RequestError::Missing { field }) => field,
                other => panic!("{other:?}"),
            }
        };
        let (volume, snapshot) = <(VolumeSource, SnapshotSource)>::default();
        assert_eq!(missing(SourceType::Volume(volume)), "volume_content_source.volume.volume_id");
        assert_eq!(missing(SourceType::Snapshot(snapshot)), "volume_content_source.snapshot.snapshot_id");
        let negative = |message: &mut CreateVolumeRequest| {
            message.capacity_range = Some(CapacityRange { required_bytes: -1, limit_bytes: 0 });
        };
        assert!(matches!(reason(negative), RequestError::Range { .. }));
    }

    #[test]
    fn mutable_parameters_are_limits() {
        let mutable = [("readIOPS", "100"), (CLAIM_NAME, "data")];
        let mutable_parameters = mutable.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let message =
            CreateVolumeRequest { volume_capabilities: vec![block()], mutable_parameters, ..message("pvc-1") };
        let limited = IoLimits { read_operations: Some(100), ..IoLimits::NONE };
        assert_eq!(parse(&message).unwrap().io, limited);
        let CreateVolumeRequest { mutable_parameters, .. } = message;
        let modify = ControllerModifyVolumeRequest {
            volume_id: "pvc-1".to_owned(),
            mutable_parameters,
            ..ControllerModifyVolumeRequest::default()
        };
        let modify = Modify::parse(&modify).unwrap();
        assert_eq!(modify.limits(IoLimits::NONE, VolumeMode::Block).unwrap(), limited);
        let writes = IoLimits { write_operations: Some(200), ..IoLimits::NONE };
        let both = IoLimits { read_operations: Some(100), ..writes };
        assert_eq!(modify.limits(writes, VolumeMode::Block).unwrap(), both, "the others stay");
        assert!(modify.limits(IoLimits::NONE, VolumeMode::Filesystem).is_err());
    }

    #[test]
    fn external_provisioners_metadata_describe_the_claim() {
        let metadata =
            [(CLAIM_NAMESPACE, "shop"), (CLAIM_NAME, "data"), (PV_NAME, "pvc-1"), ("blockAllocation", "thin")];
        let parameters = metadata.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let message = CreateVolumeRequest { parameters: parameters.into(), ..message("pvc-1") };
        let create = parse(&message).unwrap();
        assert_eq!((create.claim.to_string().as_str(), create.claim.uid.as_str()), ("shop/data", "pvc-1"));
        assert_eq!(create.parameters.allocation, volume::Allocation::Thin);
    }

    /// Otherwise the node would publish no capacity, and the scheduler would select it for no claim of the class.
    #[test]
    fn parameters_for_kubernetes_do_not_change_the_capacity() {
        let capacity = |parameters: [(&str, &str); 2]| {
            let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            Capacity::parse(&GetCapacityRequest { parameters, ..GetCapacityRequest::default() }, NODE)
        };
        let thin = ("blockAllocation", "thin");
        for of_kubernetes in ["csi.storage.k8s.io/fstype", "csi.storage.k8s.io/provisioner-secret-name"] {
            let found = capacity([thin, (of_kubernetes, "xfs")]).expect("a capacity");
            assert_eq!(found.parameters.allocation, volume::Allocation::Thin);
        }
        assert!(matches!(capacity([thin, ("fstype", "xfs")]), Err(RequestError::Parameters(_))));
    }

    #[test]
    fn one_requisite_topology_has_to_be_the_nodes() {
        let place = |requisite: Vec<Topology>| {
            let accessibility_requirements = Some(TopologyRequirement { requisite, preferred: vec![] });
            parse(&CreateVolumeRequest { accessibility_requirements, ..message("data") }).unwrap().place
        };
        let other = topology(TOPOLOGY_KEY, "node-2");
        assert_eq!(place(vec![]), Placement::Here);
        assert_eq!(place(vec![other.clone(), topology(TOPOLOGY_KEY, NODE)]), Placement::Here);
        assert_eq!(place(vec![other]), Placement::Elsewhere);
        assert_eq!(place(vec![topology("zone", NODE)]), Placement::Elsewhere);
    }

    #[test]
    fn a_size_is_the_smallest_of_the_range_in_whole_blocks() {
        for (required, limit, source, size) in [
            (1, 0, None, Some(4096)),
            (4097, 8192, None, Some(8192)),
            (4097, 8191, None, None),
            (0, 0, None, Some(1 << 30)),
            (0, 8191, None, Some(4096)),
            (0, 4095, None, None),
            (0, 0, Some(8192), Some(8192)),
            (i64::MAX.cast_unsigned(), 0, None, None),
        ] {
            let found = range_of(required, limit).size(source.map(Bytes::new)).ok().map(Bytes::get);
            assert_eq!(found, size, "{required} {limit} {source:?}");
        }
    }

    #[test]
    fn pages_have_each_entry_once() {
        let all: BTreeMap<VolumeId, u32> = (0..7).map(|n| (format!("pvc-{n}").parse().expect("an ID"), n)).collect();
        let (mut found, mut token, mut calls) = (Vec::new(), String::new(), 0);
        loop {
            let (entries, next) = Page::parse(3, &token, 10).expect("a page").of(all.clone());
            found.extend(entries.into_iter().map(|(_, n)| n));
            (token, calls) = (next, calls + 1);
            if token.is_empty() {
                break;
            }
        }
        assert_eq!((found, calls), ((0..7).collect(), 3));
        assert_eq!(Page::parse(0, "", 7).expect("a page").of(all.clone()).1, "", "all of them");
        assert_eq!(Page::parse(8, "", 2).expect("a page").of(all.clone()).0.len(), 2, "not more than the limit");
        assert!(matches!(Page::parse(-1, "", 7), Err(RequestError::MaxEntries { .. })));
        for token in ["pvc-1", "invalid-token", "after:", "after:../x"] {
            assert!(matches!(Page::parse(0, token, 7), Err(RequestError::Token { .. })), "{token}");
        }
    }

    proptest! {
        #[test]
        fn sizes_are_in_the_range(required in 0u64..1 << 40, limit in 0u64..1 << 40, has in 0u64..1 << 28) {
            let range = range_of(required, limit);
            if let Ok(size) = range.size(None) {
                prop_assert!(size.get().is_multiple_of(BLOCK) && size > Bytes::ZERO && range.contains(size));
            }
            let has = Bytes::new(has * BLOCK);
            if let Ok(size) = range.grown(has) {
                prop_assert!(size.get().is_multiple_of(BLOCK) && size >= has && range.contains(size));
            }
        }

        #[test]
        fn every_name_has_an_id(name in ".{1,60}") {
            prop_assert_eq!(id_of(&name), id_of(&name));
        }
    }
}
