//! Snapshots and groups of the Controller and GroupController services: requests, IDs, and decisions from the records.
//! Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proto::csi::{CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest, Snapshot, VolumeGroupSnapshot};
use volume::{Claim, GroupRequest, Owner, Record, SnapshotParameters, SnapshotRequest, State, VolumeId};

use crate::controller::request::{RequestName, digest};
use crate::request::{NAME_MAX, RequestError, required, signed, source_id};
use crate::status::ControllerError;

/// Prefixes of the IDs of snapshots and groups, as in the names of external-snapshotter, so that no volume of
/// external-provisioner has the same ID.
const SNAPSHOT: &str = "snapshot-";
const GROUP: &str = "groupsnapshot-";
/// Maximum length of a group's name that is also its ID. Longer names leave no space for the volume in the IDs of
/// members.
const GROUP_MAX: usize = 64;
/// Number of digits of the digest that replaces a name or the ID of a volume.
const DIGITS: usize = 32;

/// Parameters that external-snapshotter adds with `--extra-create-metadata`: namespace and name of the object, and the
/// name of its content.
const OF_SNAPSHOT: [&str; 3] = [
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumesnapshotcontent/name",
];
const OF_GROUP: [&str; 3] = [
    "csi.storage.k8s.io/volumegroupsnapshot/namespace",
    "csi.storage.k8s.io/volumegroupsnapshot/name",
    "csi.storage.k8s.io/volumegroupsnapshotcontent/name",
];

/// Request for a snapshot of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Take {
    pub(crate) id: VolumeId,
    pub(crate) request: SnapshotRequest,
}

impl Take {
    pub(crate) fn parse(name: RequestName<'_>, message: &CreateSnapshotRequest) -> Result<Self, RequestError> {
        let name = name.as_str();
        let source = source_id("source_volume_id", &message.source_volume_id)?;
        let (claim, parameters) = class(name, &message.parameters, OF_SNAPSHOT)?;
        Ok(Self { id: id_of(SNAPSHOT, name, NAME_MAX), request: request(claim, source, parameters) })
    }
}

pub(crate) fn group(
    name: RequestName<'_>,
    message: &CreateVolumeGroupSnapshotRequest,
) -> Result<GroupRequest, RequestError> {
    let name = name.as_str();
    let (claim, parameters) = class(name, &message.parameters, OF_GROUP)?;
    let id = group_id(name);
    let member = |source: &String| {
        let source = source_id("source_volume_ids", source)?;
        Ok((member_id(&id, &source), request(claim.clone(), source, parameters)))
    };
    let members: BTreeMap<_, _> = message.source_volume_ids.iter().map(member).collect::<Result<_, _>>()?;
    required("source_volume_ids", members.first_key_value())?;
    Ok(GroupRequest { id, members, max_pause: parameters.max_pause })
}

fn request(claim: Claim, source: VolumeId, parameters: SnapshotParameters) -> SnapshotRequest {
    let SnapshotParameters { max_pause, sharing } = parameters;
    let owner = Owner::Controller { source: Some(source.clone()) };
    // Clients send only the parameters of the class, not its name.
    SnapshotRequest { claim, owner, class: String::new(), source, max_pause, sharing }
}

/// The object, as far as the client describes it, and the parameters of its class.
fn class(
    uid: &str,
    parameters: &HashMap<String, String>,
    [namespace, object, content]: [&str; 3],
) -> Result<(Claim, SnapshotParameters), RequestError> {
    let mut parameters: BTreeMap<_, _> = parameters.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    parameters.remove(content);
    let namespace = parameters.remove(namespace).unwrap_or_default();
    let name = parameters.remove(object).unwrap_or_else(|| uid.to_owned());
    let parameters = SnapshotParameters::parse(&parameters).map_err(RequestError::SnapshotParameters)?;
    Ok((Claim { uid: uid.to_owned(), namespace, name }, parameters))
}

/// The name itself if it has the prefix, as those of external-snapshotter do, or a digest of it.
fn id_of(prefix: &str, name: &str, most: usize) -> VolumeId {
    let own = (name.starts_with(prefix) && name.len() <= most).then(|| name.parse().ok()).flatten();
    own.unwrap_or_else(|| parsed(format!("{prefix}{}", &digest(name)[..DIGITS])))
}

fn group_id(name: &str) -> VolumeId {
    id_of(GROUP, name, GROUP_MAX)
}

/// ID of a member. It contains the ID of the volume, for administrators, or a digest of that ID if it is too long.
fn member_id(group: &VolumeId, source: &VolumeId) -> VolumeId {
    let readable = format!("{group}-{source}").parse();
    readable.unwrap_or_else(|_| parsed(format!("{group}-{}", &digest(source.as_str())[..DIGITS])))
}

fn parsed(text: String) -> VolumeId {
    text.parse().expect("hexadecimal digits after an ID are an ID")
}

/// The volume that this service took the snapshot of.
fn source_of(record: &Record) -> Option<&VolumeId> {
    match &record.owner {
        Owner::Controller { source } if record.mode.is_snapshot() => source.as_ref(),
        Owner::Controller { .. } | Owner::Provisioner | Owner::Rollback(_) => None,
    }
}

/// The group of which the snapshot is a member. The record has the name of the group.
pub(crate) fn group_of(id: &VolumeId, record: &Record) -> Option<VolumeId> {
    let group = group_id(&record.claim.uid);
    (member_id(&group, source_of(record)?) == *id).then_some(group)
}

pub(crate) fn members(group: &VolumeId, records: BTreeMap<VolumeId, Record>) -> BTreeMap<VolumeId, Record> {
    records.into_iter().filter(|(id, record)| group_of(id, record).as_ref() == Some(group)).collect()
}

/// Fails if the existing snapshots belong to a request with other volumes. Snapshots of a call that ended before their
/// instant are taken again.
pub(crate) fn check_group(want: &GroupRequest, found: &BTreeMap<VolumeId, Record>) -> Result<(), ControllerError> {
    let is_complete = found.len() == want.members.len();
    let is_begun = found.values().all(|record| record.state == State::Staged);
    if found.keys().all(|id| want.members.contains_key(id)) && (is_complete || is_begun) {
        Ok(())
    } else {
        Err(ControllerError::OtherMembers { group: want.id.clone(), found: list(found) })
    }
}

/// Compares the list of a request with the members. The list may have members that an earlier deletion removed.
pub(crate) fn check_listed(
    group: &VolumeId,
    listed: &[String],
    members: &BTreeMap<VolumeId, Record>,
) -> Result<(), ControllerError> {
    let listed: BTreeSet<_> = listed.iter().map(String::as_str).collect();
    let is_of_group = |id: &&str| id.strip_prefix(group.as_str()).is_some_and(|rest| rest.starts_with('-'));
    if members.keys().all(|id| listed.contains(id.as_str())) && listed.iter().all(is_of_group) {
        Ok(())
    } else {
        Err(ControllerError::Listed { group: group.clone(), found: list(members) })
    }
}

fn list(members: &BTreeMap<VolumeId, Record>) -> String {
    members.keys().map(VolumeId::as_str).collect::<Vec<_>>().join(", ")
}

/// `None` if the record is not of a snapshot of this service, or if its blocks are not copied: only calls of the client
/// copy them, and a client calls again until the snapshot is ready.
pub(crate) fn message(id: &VolumeId, record: &Record) -> Option<Snapshot> {
    let source = source_of(record).filter(|_| record.state == State::Announced)?;
    Some(Snapshot {
        size_bytes: signed(record.size.get()),
        snapshot_id: id.to_string(),
        source_volume_id: source.to_string(),
        creation_time: record.mode.taken().map(Into::into),
        ready_to_use: true,
        group_snapshot_id: group_of(id, record).map(|group| group.to_string()).unwrap_or_default(),
        accessible_topology: Vec::new(),
    })
}

/// `None` if a member is not ready, or none exists.
pub(crate) fn group_message(group: &VolumeId, members: &BTreeMap<VolumeId, Record>) -> Option<VolumeGroupSnapshot> {
    let snapshots: Vec<_> = members.iter().map(|(id, record)| message(id, record)).collect::<Option<_>>()?;
    Some(VolumeGroupSnapshot {
        group_snapshot_id: group.to_string(),
        creation_time: snapshots.first()?.creation_time,
        snapshots,
        ready_to_use: true,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use fsquota::ProjectId;
    use proptest::prelude::*;
    use units::Bytes;
    use volume::{IoLimits, Mode, Sharing};

    use super::*;

    fn id(text: &str) -> VolumeId {
        text.parse().expect("an identifier")
    }

    fn parameters<const N: usize>(parameters: [(&str, &str); N]) -> HashMap<String, String> {
        parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    fn message_of(name: &str) -> CreateSnapshotRequest {
        let (name, source_volume_id) = (name.to_owned(), "pvc-1".to_owned());
        CreateSnapshotRequest { name, source_volume_id, ..CreateSnapshotRequest::default() }
    }

    fn take(message: &CreateSnapshotRequest) -> Result<Take, RequestError> {
        Take::parse(RequestName::parse(&message.name)?, message)
    }

    fn take_group(message: &CreateVolumeGroupSnapshotRequest) -> Result<GroupRequest, RequestError> {
        group(RequestName::parse(&message.name)?, message)
    }

    fn group_of_volumes(name: &str, volumes: &[&str]) -> GroupRequest {
        let source_volume_ids = volumes.iter().map(|volume| (*volume).to_owned()).collect();
        let name = name.to_owned();
        let message = CreateVolumeGroupSnapshotRequest { name, source_volume_ids, ..Default::default() };
        take_group(&message).expect("a request")
    }

    fn record(request: &SnapshotRequest, state: State) -> Record {
        Record {
            claim: request.claim.clone(),
            owner: request.owner.clone(),
            class: String::new(),
            mode: Mode::Snapshot { taken: SystemTime::UNIX_EPOCH, sharing: request.sharing },
            size: Bytes::MIB,
            project: ProjectId::new(7).expect("an ID"),
            cloning: None,
            io: IoLimits::NONE,
            state,
        }
    }

    fn records(request: &GroupRequest, state: State) -> BTreeMap<VolumeId, Record> {
        request.members.iter().map(|(id, member)| (id.clone(), record(member, state))).collect()
    }

    #[test]
    fn a_snapshot_has_the_name_of_its_client_or_a_digest_of_it() {
        let of = |name: &str| take(&message_of(name)).expect("a request").id;
        assert_eq!(of("snapshot-11-22"), id("snapshot-11-22"));
        assert_eq!(of("pvc-1").as_str().len(), SNAPSHOT.len() + DIGITS, "not the ID of a volume");
        assert_ne!(of("Data 1"), of("Data 2"));
    }

    #[test]
    fn a_class_has_the_pause_the_sharing_and_the_object() {
        let of_class = parameters([
            ("maxPause", "1s"),
            ("thin", "true"),
            (OF_SNAPSHOT[0], "shop"),
            (OF_SNAPSHOT[1], "before"),
            (OF_SNAPSHOT[2], "c"),
        ]);
        let message = CreateSnapshotRequest { parameters: of_class, ..message_of("s") };
        let Take { request, .. } = take(&message).unwrap();
        assert_eq!((request.claim.to_string().as_str(), request.claim.uid.as_str()), ("shop/before", "s"));
        assert_eq!((request.max_pause, request.sharing), (Duration::from_secs(1), Sharing::Permanent));
        let members = take_group(&CreateVolumeGroupSnapshotRequest {
            name: "g".into(),
            source_volume_ids: vec!["pvc-1".into(), "pvc-2".into()],
            parameters: parameters([("thin", "true")]),
            ..Default::default()
        });
        assert!(members.unwrap().members.values().all(|member| member.sharing == Sharing::Permanent));
        assert_eq!(request.owner, Owner::Controller { source: Some(id("pvc-1")) });
    }

    #[test]
    fn invalid_requests_are_rejected() {
        let missing = |message: &CreateSnapshotRequest| match take(message) {
            Err(RequestError::Missing { field }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(missing(&message_of("")), "name");
        let empty = CreateSnapshotRequest { source_volume_id: String::new(), ..message_of("s") };
        assert_eq!(missing(&empty), "source_volume_id");
        let thin = CreateSnapshotRequest { parameters: parameters([("thin", "yes")]), ..message_of("s") };
        assert!(matches!(take(&thin), Err(RequestError::SnapshotParameters(_))));
        let of = |source_volume_ids: Vec<String>| {
            take_group(&CreateVolumeGroupSnapshotRequest { name: "g".into(), source_volume_ids, ..Default::default() })
        };
        assert!(matches!(of(vec![]), Err(RequestError::Missing { field: "source_volume_ids" })));
        assert!(matches!(of(vec![String::new()]), Err(RequestError::Missing { field: "source_volume_ids" })));
        let malformed = of(vec!["../x".into()]);
        assert!(matches!(malformed, Err(RequestError::VolumeId { field: "source_volume_ids", .. })));
        assert_eq!(of(vec!["pvc-1".into(), "pvc-1".into()]).expect("a request").members.len(), 1);
    }

    #[test]
    fn the_same_volumes_are_the_same_group() {
        let want = group_of_volumes("groupsnapshot-1", &["pvc-1", "pvc-2"]);
        assert_eq!(want.id, id("groupsnapshot-1"));
        assert!(want.members.contains_key(&id("groupsnapshot-1-pvc-2")));
        let [ready, begun] = [State::Announced, State::Staged].map(|state| records(&want, state));
        check_group(&want, &ready).expect("the same");
        check_group(&want, &BTreeMap::new()).expect("a new one");
        let first = |records: &BTreeMap<_, _>| records.clone().into_iter().take(1).collect::<BTreeMap<_, _>>();
        check_group(&want, &first(&begun)).expect("a call that ended");
        let other = |request: &GroupRequest, found: &BTreeMap<_, _>| match check_group(request, found) {
            Err(ControllerError::OtherMembers { group, .. }) => group,
            other => panic!("{other:?}"),
        };
        assert_eq!(other(&want, &first(&ready)), want.id);
        other(&group_of_volumes("groupsnapshot-1", &["pvc-1"]), &ready);
        other(&group_of_volumes("groupsnapshot-1", &["pvc-1", "pvc-3"]), &begun);
    }

    #[test]
    fn a_list_has_all_members_and_no_other_snapshot() {
        let want = group_of_volumes("g", &["pvc-1", "pvc-2"]);
        let members = records(&want, State::Announced);
        let all: Vec<_> = members.keys().map(ToString::to_string).collect();
        check_listed(&want.id, &all, &members).expect("all");
        let left = members.clone().into_iter().skip(1).collect();
        check_listed(&want.id, &all, &left).expect("a deletion that ended");
        for listed in [&all[..1], &[], &[all.clone(), vec!["snapshot-1".into()]].concat()] {
            let error = check_listed(&want.id, listed, &members).expect_err("a mismatch");
            assert!(matches!(error, ControllerError::Listed { .. }), "{listed:?}: {error}");
        }
    }

    #[test]
    fn only_ready_snapshots_of_this_service_are_shown() {
        let Take { id, request } = take(&message_of("snapshot-1")).expect("a request");
        let shown = message(&id, &record(&request, State::Announced)).expect("a snapshot");
        assert_eq!((shown.snapshot_id.as_str(), shown.source_volume_id.as_str()), ("snapshot-1", "pvc-1"));
        assert_eq!((shown.size_bytes, shown.ready_to_use, shown.group_snapshot_id.as_str()), (1 << 20, true, ""));
        assert!(shown.creation_time.is_some());
        assert_eq!(message(&id, &record(&request, State::Staged)), None);
        let own = Record { owner: Owner::Provisioner, ..record(&request, State::Announced) };
        assert_eq!(message(&id, &own), None);
        let want = group_of_volumes("g", &["pvc-1", "pvc-2"]);
        let shown = group_message(&want.id, &records(&want, State::Announced)).expect("a group");
        assert_eq!(shown.snapshots.len(), 2);
        assert!(shown.snapshots.iter().all(|snapshot| snapshot.group_snapshot_id == shown.group_snapshot_id));
        assert_eq!(group_message(&want.id, &records(&want, State::Staged)), None);
        assert_eq!(group_message(&want.id, &BTreeMap::new()), None);
    }

    proptest! {
        #[test]
        fn a_member_is_found_by_the_group(name in "(groupsnapshot-)?[a-z0-9.A-Z -]{1,100}", volume in "[a-z][a-z0-9.-]{0,128}[a-z0-9]") {
            let want = group_of_volumes(&name, &[&volume, "pvc-1"]);
            let all = records(&want, State::Announced);
            prop_assert_eq!(members(&want.id, all.clone()), all);
            let other = group_id(&format!("{name}x"));
            prop_assert!(members(&other, records(&want, State::Announced)).is_empty());
        }
    }
}
