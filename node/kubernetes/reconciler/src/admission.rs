//! Admission policies that restrict the identities of a node to objects of this node, which roles cannot express.
//! Expressions are CEL.
//!
//! Most policies are for the storage identity. NodeRestriction restricts kubelets; one policy closes its gaps.

use cluster::claim::{RESTORE_FROM, ROLLBACK, SELECTED_NODE, VOLUME_NODE};
use cluster::snapshot::{self, ID_PREFIX, MANAGED_BY, PROTECTION, group};
use cluster::{DRIVER_NAME, NODE_ANNOTATIONS, STORAGE_GROUP, STORAGE_USER_PREFIX, TOPOLOGY_KEY};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::ApiResource;
use serde_json::{Value, json};

use crate::INSTANCE;
use crate::bound::PROVISIONER;
use crate::clone::CLAIM;
use crate::identity::{KUBELET_PREFIX, KUBELETS_GROUP};
use crate::object::{Object, metadata};
use crate::pv_policy::pvs;

const SYSTEM_NAMESPACE: &str = "kube-system";

const VOLUMES: &str = "volumes.local.granary.dev";
const CLAIMS: &str = "claims.local.granary.dev";
const CLAIM_STATUS: &str = "claim-status.local.granary.dev";
const CAPACITIES: &str = "capacities.local.granary.dev";
const NODES: &str = "nodes.local.granary.dev";
const EVENTS: &str = "events.local.granary.dev";
const CONTENTS: &str = "contents.local.granary.dev";
const CONTENT_STATUS: &str = "content-status.local.granary.dev";
const GROUPS: &str = "groups.local.granary.dev";
const GROUP_STATUS: &str = "group-status.local.granary.dev";
const SNAPSHOTS: &str = "snapshots.local.granary.dev";
const KUBELETS: &str = "kubelets.local.granary.dev";

pub(crate) const CONTENTS_STATUS: &str = "volumesnapshotcontents/status";
/// Status of the content of a group snapshot.
pub(crate) const GROUPS_STATUS: &str = "volumegroupsnapshotcontents/status";

/// Expression: the claim has a volume.
const BOUND: &str = "oldObject.spec.?volumeName.orValue('') != ''";

const WRITES: &[&str] = &["CREATE", "UPDATE", "DELETE"];

/// Users that a policy restricts, and their node.
pub(crate) struct Writers {
    /// Whether the policy applies to a request.
    pub(crate) condition: String,
    pub(crate) node: String,
    /// Validation that precedes the validations of a guard.
    pub(crate) first: Option<Validation>,
}

impl Writers {
    fn identities() -> Self {
        Self::named(STORAGE_USER_PREFIX, STORAGE_GROUP)
    }

    fn kubelets() -> Self {
        Self::named(KUBELET_PREFIX, KUBELETS_GROUP)
    }

    /// Users of a group whose names are a prefix and the node's name.
    fn named(prefix: &str, group: &str) -> Self {
        // Without this validation, a user without a node could write objects without a node.
        let first = Validation::new("variables.node != ''", format!("users in {group} are named {prefix}NAME"));
        Self {
            condition: format!("'{group}' in request.userInfo.groups"),
            node: node_behind(prefix, "''"),
            first: Some(first),
        }
    }
}

/// Expression for the user name without the prefix; `otherwise` for users without this prefix.
pub(crate) fn node_behind(prefix: &str, otherwise: &str) -> String {
    let length = prefix.len();
    format!(
        "request.userInfo.username.startsWith('{prefix}') ? request.userInfo.username.substring({length}) : {otherwise}"
    )
}

pub(crate) struct Guard {
    pub(crate) name: &'static str,
    rule: Value,
    validations: Vec<Validation>,
}

/// Guards of a node's storage, on every cluster.
pub(crate) fn guards() -> Vec<Guard> {
    let guard = |name, rule, validations| Guard { name, rule, validations };
    vec![
        guard(VOLUMES, rule("", &["persistentvolumes"], WRITES), pvs()),
        guard(CLAIMS, rule("", &["persistentvolumeclaims"], WRITES), claims_of_node()),
        guard(CLAIM_STATUS, rule("", &["persistentvolumeclaims/status"], &["UPDATE"]), claim_status()),
        guard(CAPACITIES, rule("storage.k8s.io", &["csistoragecapacities"], WRITES), capacities()),
        guard(EVENTS, rule("events.k8s.io", &["events"], WRITES), events()),
        guard(CONTENTS, rule(snapshot::GROUP, &[snapshot::CONTENTS], WRITES), contents(PROTECTION, &kept())),
        guard(
            CONTENT_STATUS,
            rule(snapshot::GROUP, &[CONTENTS_STATUS], &["UPDATE"]),
            content_status(snapshot_handle()),
        ),
        guard(GROUPS, all_versions(group::GROUP, group::CONTENTS, WRITES), contents(group::PROTECTION, "false")),
        guard(GROUP_STATUS, all_versions(group::GROUP, GROUPS_STATUS, &["UPDATE"]), content_status(group_handles())),
        guard(SNAPSHOTS, rule(snapshot::GROUP, &[snapshot::SNAPSHOTS], WRITES), snapshots()),
    ]
}

/// Guard of the Node object: the storage identity publishes the key of the mesh there.
fn node_guard() -> Guard {
    Guard { name: NODES, rule: rule("", &["nodes"], WRITES), validations: nodes() }
}

pub(crate) fn reclaimer_guards() -> [Guard; 2] {
    let guard = |name, rule, validations| Guard { name, rule, validations };
    [
        guard(EVENTS, rule("events.k8s.io", &["events"], WRITES), events_of_reclaimer()),
        guard(CLAIMS, rule("", &["persistentvolumeclaims"], WRITES), claims_of_reclaimer()),
    ]
}

/// Guard that closes gaps of NodeRestriction. Writes of the status can also change annotations and labels.
fn kubelet_guard() -> Guard {
    let rule = rule("", &["nodes", "nodes/status"], &["CREATE", "UPDATE"]);
    Guard { name: KUBELETS, rule, validations: kubelets() }
}

pub(crate) fn all() -> Vec<Object> {
    let object = |resource, name, want| Object { resource, name, want, immutable: &[] };
    let storage = guards().into_iter().chain([node_guard()]).map(|guard| (guard, Writers::identities()));
    storage
        .chain([(kubelet_guard(), Writers::kubelets())])
        .flat_map(|(guard, writers)| {
            let name = guard.name;
            [
                object(ApiResource::erase::<ValidatingAdmissionPolicy>(&()), name, {
                    policy(&guard, &writers, metadata(name))
                }),
                object(ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&()), name, {
                    binding(name, metadata(name))
                }),
            ]
        })
        .collect()
}

/// An expression that must be true, and the message of the denial.
pub(crate) struct Validation {
    pub(crate) expression: String,
    pub(crate) message: String,
    /// An expression for a more specific message; `message` is used if it fails.
    pub(crate) message_expression: Option<String>,
}

impl Validation {
    pub(crate) fn new(expression: impl Into<String>, message: impl Into<String>) -> Self {
        Self { expression: expression.into(), message: message.into(), message_expression: None }
    }
}

pub(crate) fn explained(message: &str, expressions: impl IntoIterator<Item = String>) -> Vec<Validation> {
    expressions.into_iter().map(|expression| Validation::new(expression, message)).collect()
}

/// Applies the expression to the new and the old object, if they exist.
pub(crate) fn before_and_after(own: impl Fn(&str) -> String) -> [String; 2] {
    ["object", "oldObject"].map(|object| format!("{object} == null || ({})", own(object)))
}

pub(crate) fn same(field: &str) -> String {
    format!("object.?{field} == oldObject.?{field}")
}

/// Expression: the metadata that clients may change is unchanged, except annotations.
fn same_metadata() -> String {
    ["metadata.?labels", "metadata.?finalizers", "metadata.?ownerReferences"].map(same).join(" && ")
}

pub(crate) fn annotations(object: &str) -> String {
    format!("({object}.metadata.?annotations.orValue({{}}))")
}

/// Expression for the node of a bound claim's volume, or an empty string. The expression cannot read the PV: see
/// [`cluster::claim::status_writer`].
fn node_of_volume() -> String {
    let old = annotations("oldObject");
    let created = "oldObject.spec.?volumeName.orValue('') == 'pvc-' + oldObject.metadata.uid";
    format!("{old}[?'{VOLUME_NODE}'].orValue({created} ? {old}[?'{SELECTED_NODE}'].orValue('') : '')")
}

/// A write of a node removes the selected node if it is this node, or begins or ends the rollback of a volume on this
/// node, and changes nothing else.
fn claims_of_node() -> Vec<Validation> {
    let selected = format!("{}[?'{SELECTED_NODE}'].orValue('') == variables.node", annotations("oldObject"));
    let (old, new) = (annotations("oldObject"), annotations("object"));
    let removed = format!(
        "{old}.all(key, key == '{SELECTED_NODE}' || {new}[?key] == {old}[?key]) && \
         {new}.all(key, key in {old} && key != '{SELECTED_NODE}')"
    );
    let keys = format!("['{RESTORE_FROM}', '{ROLLBACK}']");
    let begun = format!(
        "{new}[?'{RESTORE_FROM}'] == {old}[?'{RESTORE_FROM}'] && \
         {new}[?'{ROLLBACK}'].orValue('').startsWith('{ID_PREFIX}' + oldObject.metadata.uid + '-')"
    );
    let ended = format!("!('{ROLLBACK}' in {new})");
    let rolled_back = format!(
        "{} == variables.node && {BOUND} && {old}.all(key, key in {keys} || {new}[?key] == {old}[?key]) && \
         {new}.all(key, key in {old} || key == '{ROLLBACK}') && \
         {new}[?'{RESTORE_FROM}'].orValue('') in ['', {old}[?'{RESTORE_FROM}'].orValue('')] && ({ended} || ({begun}))",
        node_of_volume()
    );
    claim_updates(
        "a node returns a claim to the scheduler, or begins or ends the rollback of a volume on it, and changes nothing else of \
         the claim",
        [format!("({selected} && {removed}) || ({rolled_back})")],
    )
}

/// A write of the reclaimer changes one annotation of a claim of Granary's driver that is not being deleted:
///
/// | claim | annotation | before | after |
/// |---|---|---|---|
/// | without a volume | [`SELECTED_NODE`] | a node | none |
/// | without a volume | [`SELECTED_NODE`] | none | a node |
/// | without a volume, with a source | [`SELECTED_NODE`] | a node | another node |
/// | bound and changing, of no node ([`node_of_volume`]) | [`VOLUME_NODE`] | none | a node |
///
/// An expression cannot read the PV. Therefore the node of a claim that has one stays: root on the reclaimer's node
/// could otherwise name its own node for each claim, and write the status of the claim. Root can still do this for a
/// claim whose volume another node is creating, by moving the claim before it is bound.
fn claims_of_reclaimer() -> Vec<Validation> {
    let (old, new) = (annotations("oldObject"), annotations("object"));
    let nodes = format!("['{SELECTED_NODE}', '{VOLUME_NODE}']");
    let others = format!(
        "{old}.all(key, key in {nodes} || {new}[?key] == {old}[?key]) && \
         {new}.all(key, key in {nodes} || key in {old})"
    );
    let unchanged = |key: &str| format!("{new}[?'{key}'] == {old}[?'{key}']");
    let named = |key: &str| format!("{new}[?'{key}'].orValue('') != ''");
    let of_driver = PROVISIONER.map(|key| format!("{old}[?'{key}'].orValue('') == '{DRIVER_NAME}'")).join(" || ");
    // A claim that was bound to an existing PV has no provisioner.
    let of_no_other =
        PROVISIONER.map(|key| format!("{old}[?'{key}'].orValue('{DRIVER_NAME}') == '{DRIVER_NAME}'")).join(" && ");
    let remains = "!has(oldObject.metadata.deletionTimestamp)";
    let field = |name: &str| format!("oldObject.spec.?dataSource.?{name}.orValue('')");
    let (group, kind) = (field("apiGroup"), field("kind"));
    // The API server writes null for the group of a claim, and accepts no other group with this kind.
    let (snapshots, snapshot) = (snapshot::GROUP, snapshot::SNAPSHOT);
    let cloned = format!("({kind} == '{CLAIM}' || ({kind} == '{snapshot}' && {group} == '{snapshots}'))");
    let selected = format!(
        "{} || (!({BOUND}) && ({of_driver}) && {remains} && (!('{SELECTED_NODE}' in {new}) || \
         ({} && (!('{SELECTED_NODE}' in {old}) || {cloned}))))",
        unchanged(SELECTED_NODE),
        named(SELECTED_NODE)
    );
    let placed = format!(
        "{} || ({BOUND} && oldObject.?status.?phase.orValue('') == 'Bound' && {of_no_other} && {remains} && \
         ({}) && {} == '' && {})",
        unchanged(VOLUME_NODE),
        changing(),
        node_of_volume(),
        named(VOLUME_NODE)
    );
    claim_updates(
        "the reclaimer returns a claim to the scheduler, selects the node of a claim that has none or is a clone, or names \
         the node of a bound claim that has none and is changing, and changes nothing else of it",
        [others, selected, placed],
    )
}

/// Expression equal to [`crate::bound::changing`]: the bound claim is being expanded, gets another
/// VolumeAttributesClass, or returns to a snapshot.
fn changing() -> String {
    // Use `dyn`, because the API server's types lack the map of quantities.
    let size = |sizes: &str| format!("quantity(dyn(oldObject).?{sizes}[?'storage'].orValue('0'))");
    let larger = format!("{}.compareTo({}) > 0", size("spec.?resources.?requests"), size("status.?capacity"));
    let begun = "oldObject.?status.?allocatedResourceStatuses.orValue({}).size() > 0";
    let modified = "oldObject.?status.?modifyVolumeStatus.hasValue() || \
                    oldObject.spec.?volumeAttributesClassName.orValue('') != \
                    oldObject.?status.?currentVolumeAttributesClassName.orValue('')";
    let rolled_back = format!("['{RESTORE_FROM}', '{ROLLBACK}'].exists(key, key in {})", annotations("oldObject"));
    format!("{larger} || {begun} || {modified} || {rolled_back}")
}

/// The write updates the claim as the expressions require, and changes nothing else.
fn claim_updates<const N: usize>(message: &str, expressions: [String; N]) -> Vec<Validation> {
    let updated = "request.operation == 'UPDATE'".to_owned();
    let rest = expressions.into_iter().chain([same("spec"), same_metadata()]);
    let rest = rest.map(|expression| format!("request.operation != 'UPDATE' || ({expression})"));
    explained(message, [updated].into_iter().chain(rest))
}

/// The claim is bound to a volume on the node, and is expanded or gets another class.
fn claim_status() -> Vec<Validation> {
    let node = node_of_volume();
    let others = |claim: &str| {
        format!(
            "{claim}.?status.?conditions.orValue([]).filter(condition, !(condition.type in \
             ['Resizing', 'FileSystemResizePending', 'ControllerResizeError', 'NodeResizeError', 'ModifyingVolume', \
             'ModifyVolumeError']))"
        )
    };
    let capacity = |claim: &str| format!("quantity({claim}.?status.?capacity[?'storage'].orValue('0'))");
    let kept = ["phase", "accessModes"].map(|field| same(&format!("status.?{field}"))).join(" && ");
    let target =
        |claim: &str| format!("{claim}.?status.?modifyVolumeStatus.?targetVolumeAttributesClassName.orValue('')");
    // The class that the claim requests becomes the target, and the target the class of the volume.
    let begun = format!(
        "{0} == '' || {0} == {1} || {0} == object.spec.?volumeAttributesClassName.orValue('')",
        target("object"),
        target("oldObject")
    );
    let current = same("status.?currentVolumeAttributesClassName");
    let modified = format!(
        "{current} || ({0} != '' && object.?status.?currentVolumeAttributesClassName.orValue('') == {0})",
        target("oldObject")
    );
    explained(
        "a node writes the size of volumes that are on it and their VolumeAttributesClass, and nothing else in the status of a \
         claim",
        [
            format!("{node} == variables.node"),
            BOUND.to_owned(),
            format!("{}.compareTo({}) >= 0", capacity("object"), capacity("oldObject")),
            kept,
            begun,
            modified,
            format!("{} == {}", others("object"), others("oldObject")),
            format!("{} && {}", same("metadata.?annotations"), same_metadata()),
        ],
    )
}

/// The node serves the content. A write sets the label of a content without a node, or removes the finalizer of a
/// content that is being deleted. The expression `created` allows the contents that a node may create.
fn contents(protection: &str, created: &str) -> Vec<Validation> {
    let node = |content: &str| format!("{content}.metadata.?labels[?'{MANAGED_BY}'].orValue('')");
    let labels = |content: &str| format!("({content}.metadata.?labels.orValue({{}}))");
    let (old, new) = (labels("oldObject"), labels("object"));
    let others = format!(
        "{old}.all(key, key == '{MANAGED_BY}' || {new}[?key] == {old}[?key]) && \
         {new}.all(key, key == '{MANAGED_BY}' || key in {old})"
    );
    let finalizers = |content: &str| format!("{content}.metadata.?finalizers.orValue([])");
    let others_of = |content: &str| format!("{}.filter(name, name != '{protection}')", finalizers(content));
    let protection = format!(
        "('{protection}' in {}) == ('{protection}' in {}) || (!('{protection}' in {}) && \
         has(oldObject.metadata.deletionTimestamp))",
        finalizers("object"),
        finalizers("oldObject"),
        finalizers("object")
    );
    let rest = ["metadata.?annotations", "metadata.?ownerReferences", "spec"].map(same).join(" && ");
    let when = |operation: &str, expression: String| format!("request.operation != '{operation}' || ({expression})");
    let when_updated = |expression: String| when("UPDATE", expression);
    let written = |expression: String| format!("request.operation == 'DELETE' || ({expression})");
    explained(
        &format!(
            "a node serves contents of {DRIVER_NAME} with its label {MANAGED_BY}, creates those of rollbacks, and removes only \
             their finalizer"
        ),
        [
            "request.operation != 'DELETE'".to_owned(),
            written(format!("object.spec.driver == '{DRIVER_NAME}'")),
            written(format!("{} == variables.node", node("object"))),
            when("CREATE", created.to_owned()),
            when_updated(format!("{} == '' || {} == variables.node", node("oldObject"), node("oldObject"))),
            when_updated(others),
            when_updated(format!("{} == {}", others_of("object"), others_of("oldObject"))),
            when_updated(protection),
            when_updated(rest),
        ],
    )
}

/// A new content must refer to an existing snapshot: the former content of a volume after a rollback.
fn kept() -> String {
    let bare = "object.metadata.?annotations.orValue({}).size() == 0 && object.metadata.?finalizers.orValue([]).size() == 0 && \
                object.metadata.?ownerReferences.orValue([]).size() == 0";
    format!(
        "object.spec.source.?snapshotHandle.orValue('') == object.metadata.name && \
         object.metadata.name.startsWith('{ID_PREFIX}') && object.spec.deletionPolicy == 'Delete' && \
         {}.size() == 1 && {bare}",
        "object.metadata.?labels.orValue({})"
    )
}

/// A new snapshot must be the former content of a volume after a rollback. Creating it must not take a snapshot.
fn snapshots() -> Vec<Validation> {
    let kept = format!(
        "request.operation != 'CREATE' || (object.spec.source.?volumeSnapshotContentName.orValue('').startsWith('{ID_PREFIX}') \
         && object.metadata.name.contains('-before-rollback-') && !has(object.spec.source.persistentVolumeClaimName))"
    );
    explained("a node creates the snapshots that rollbacks keep", ["request.operation == 'CREATE'".to_owned(), kept])
}

/// The handle is that of a snapshot that the node has taken for the content, or the handle in the content's source.
fn snapshot_handle() -> String {
    let written = "object.?status.?snapshotHandle.orValue('')";
    format!(
        "{written} == '' || \
         {written} == object.spec.source.?snapshotHandle.orValue('{ID_PREFIX}' + object.metadata.uid)"
    )
}

/// Handles of a group and its members. The snapshot controller creates a content for each member in the status.
fn group_handles() -> String {
    let written = "object.?status.?volumeGroupSnapshotHandle.orValue('')";
    let taken = format!("('{}' + object.metadata.uid)", group::HANDLE_PREFIX);
    format!(
        "({written} == '' || {written} == \
         object.spec.source.?groupSnapshotHandles.?volumeGroupSnapshotHandle.orValue({taken})) && \
         object.?status.?volumeSnapshotInfoList.orValue([]).all(member, \
         member.?volumeHandle.orValue('') in object.spec.source.?volumeHandles.orValue([]) && \
         member.?snapshotHandle.orValue('') == {taken} + '-' + member.?volumeHandle.orValue(''))"
    )
}

fn content_status(handles: String) -> Vec<Validation> {
    explained(
        &format!("a node writes the status of contents of {DRIVER_NAME} with its label {MANAGED_BY}"),
        [
            format!("object.spec.driver == '{DRIVER_NAME}'"),
            format!("oldObject.metadata.?labels[?'{MANAGED_BY}'].orValue('') == variables.node"),
            handles,
            format!("{} && {} && {}", same("spec"), same("metadata.?annotations"), same_metadata()),
        ],
    )
}

/// The capacity is that of the node, has a name that no other node uses, and the Node as its owner.
fn capacities() -> Vec<Validation> {
    // Require exactly 16 digits of a hash before the node: otherwise the name could be one of another node.
    let own = |capacity: &str| {
        format!(
            "request.namespace == '{SYSTEM_NAMESPACE}' && \
             {capacity}.?nodeTopology.?matchLabels.orValue({{}}) == {{'{TOPOLOGY_KEY}': variables.node}} && \
             {capacity}.?nodeTopology.?matchExpressions.orValue([]).size() == 0 && \
             {capacity}.metadata.name.matches('^[0-9a-f]{{16}}[.]') && \
             {capacity}.metadata.name.substring(17) == variables.node + '.{DRIVER_NAME}'"
        )
    };
    let owners = "object == null || object.metadata.?ownerReferences.orValue([]).all(owner, \
                  owner.apiVersion == 'v1' && owner.kind == 'Node' && owner.name == variables.node)";
    let expressions = before_and_after(own).into_iter().chain([owners.to_owned()]);
    explained("a node publishes only its own capacity", expressions)
}

/// Only annotations with the prefix may change, and only on the own Node.
fn nodes() -> Vec<Validation> {
    let (old, new) = (annotations("oldObject"), annotations("object"));
    let when_updated = |expression: String| format!("request.operation != 'UPDATE' || ({expression})");
    explained(
        &format!("a node's storage changes the annotations {NODE_ANNOTATIONS}* of its own Node, and nothing else"),
        [
            "request.operation == 'UPDATE' && request.name == variables.node".to_owned(),
            when_updated(format!(
                "{old}.all(key, key.startsWith('{NODE_ANNOTATIONS}') || {new}[?key] == {old}[?key]) && \
                 {new}.all(key, key.startsWith('{NODE_ANNOTATIONS}') || key in {old})"
            )),
            when_updated(same("spec")),
            when_updated(same_metadata()),
        ],
    )
}

/// The cluster assigns the pod network of a Node, and the storage identity writes its annotations. NodeRestriction lets
/// a kubelet choose a network as long as its Node has none.
fn kubelets() -> Vec<Validation> {
    let (old, new) = (annotations("oldObject"), annotations("object"));
    let when = |operation: &str, expression: String| format!("request.operation != '{operation}' || ({expression})");
    let ranges = ["spec.?podCIDR", "spec.?podCIDRs"].map(same).join(" && ");
    let addresses = explained(
        "a kubelet does not choose the addresses of its pods",
        [
            when("CREATE", "object.?spec.?podCIDR.orValue('') == ''".to_owned()),
            when("CREATE", "object.?spec.?podCIDRs.orValue([]).size() == 0".to_owned()),
            when("UPDATE", ranges),
        ],
    );
    let annotations = explained(
        &format!("a kubelet does not write annotations {NODE_ANNOTATIONS}*"),
        [
            when("CREATE", format!("{new}.all(key, !key.startsWith('{NODE_ANNOTATIONS}'))")),
            when(
                "UPDATE",
                format!(
                    "{old}.all(key, !key.startsWith('{NODE_ANNOTATIONS}') || {new}[?key] == {old}[?key]) && \
                     {new}.all(key, !key.startsWith('{NODE_ANNOTATIONS}') || key in {old})"
                ),
            ),
        ],
    );
    // NodeRestriction lets a kubelet choose this label, by which the scheduler finds the node of a volume.
    let name = explained(
        &format!("a kubelet labels its Node as {TOPOLOGY_KEY} with its own name"),
        [format!("object.metadata.?labels[?'{TOPOLOGY_KEY}'].orValue(variables.node) == variables.node")],
    );
    [addresses, annotations, name].into_iter().flatten().collect()
}

fn events() -> Vec<Validation> {
    let message = format!("a node reports as {DRIVER_NAME} and in its own name");
    explained(&message, before_and_after(|event| reported_by(event, "variables.node")))
}

fn events_of_reclaimer() -> Vec<Validation> {
    let own = |event: &str| {
        format!(
            "{} && {event}.?regarding.?kind.orValue('') == 'PersistentVolumeClaim'",
            reported_by(event, &format!("'{INSTANCE}'"))
        )
    };
    explained(&format!("the reclaimer reports as {DRIVER_NAME}, in its own name and on claims"), before_and_after(own))
}

fn reported_by(event: &str, instance: &str) -> String {
    format!(
        "{event}.?reportingController.orValue('') == '{DRIVER_NAME}' && \
         {event}.?reportingInstance.orValue('') == {instance}"
    )
}

fn rule(group: &str, resources: &[&str], operations: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": operations, "resources": resources})
}

/// Rule for all versions of a group. A cluster may serve only some of them.
fn all_versions(group: &str, resource: &str, operations: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["*"], "operations": operations, "resources": [resource]})
}

pub(crate) fn policy(guard: &Guard, writers: &Writers, metadata: Value) -> Value {
    let Guard { rule, validations, .. } = guard;
    let validations: Vec<Value> = writers
        .first
        .iter()
        .chain(validations)
        .map(|Validation { expression, message, message_expression }| {
            let mut validation = json!({"expression": expression, "message": message});
            if let Some(expression) = message_expression {
                validation["messageExpression"] = expression.as_str().into();
            }
            validation
        })
        .collect();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "writers", "expression": writers.condition}],
            "variables": [{"name": "node", "expression": writers.node}],
            "validations": validations,
        },
    })
}

pub(crate) fn binding(policy: &str, metadata: Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": policy, "validationActions": ["Deny"]},
    })
}
