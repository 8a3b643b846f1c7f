//! What the identities of a node may write: roles cannot tell one node's objects from another's, admission policies
//! can. Expressions are CEL.
//!
//! Most of them hold the storage identity to its node. kubelet's own is held by NodeRestriction; one policy adds what
//! that leaves open.

use cluster::{DRIVER_NAME, NODE_ANNOTATIONS, STORAGE_GROUP, STORAGE_USER_PREFIX, TOPOLOGY_KEY};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::ApiResource;
use serde_json::{Value, json};

use crate::csr::{KUBELET_PREFIX, KUBELETS_GROUP};
use crate::objects::{Object, metadata};
use crate::volumes::volumes;

/// Where the scheduler tells which node a claim's volume is to be made on.
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Where the capacities of all nodes are.
const SYSTEM_NAMESPACE: &str = "kube-system";

const VOLUMES: &str = "volumes.local.granary.dev";
const CLAIMS: &str = "claims.local.granary.dev";
const CLAIM_STATUS: &str = "claim-status.local.granary.dev";
const CAPACITIES: &str = "capacities.local.granary.dev";
const NODES: &str = "nodes.local.granary.dev";
const EVENTS: &str = "events.local.granary.dev";
const KUBELETS: &str = "kubelets.local.granary.dev";

const WRITES: &[&str] = &["CREATE", "UPDATE", "DELETE"];

/// Whose writes a policy looks at, and how the API server tells which node they are made for.
pub(crate) struct Writers {
    /// Whether a request is one of theirs.
    pub(crate) condition: String,
    /// The node's name; empty if there is none.
    pub(crate) node: String,
    /// What must hold before all that a guard says.
    pub(crate) first: Option<Validation>,
}

impl Writers {
    /// The storage identities of nodes.
    fn identities() -> Self {
        Self::named(STORAGE_USER_PREFIX, STORAGE_GROUP)
    }

    /// The kubelets.
    fn kubelets() -> Self {
        Self::named(KUBELET_PREFIX, KUBELETS_GROUP)
    }

    /// Users of a group, who have the node's name behind a prefix in their own.
    fn named(prefix: &str, group: &str) -> Self {
        // Else one that names no node could write what is on none: the status of a claim that no scheduler placed.
        let first = Validation::new("variables.node != ''", format!("users in {group} are named {prefix}NAME"));
        Self {
            condition: format!("'{group}' in request.userInfo.groups"),
            // Of another user in the group: no node's name.
            node: node_behind(prefix, "''"),
            first: Some(first),
        }
    }
}

/// What stands behind the prefix in the user's name; another expression for users whose names begin otherwise.
pub(crate) fn node_behind(prefix: &str, otherwise: &str) -> String {
    let length = prefix.len();
    format!(
        "request.userInfo.username.startsWith('{prefix}') ? request.userInfo.username.substring({length}) : {otherwise}"
    )
}

/// What one policy is about.
pub(crate) struct Guard {
    pub(crate) name: &'static str,
    rule: Value,
    validations: Vec<Validation>,
}

/// What the storage of a node may write, on every cluster.
pub(crate) fn guards() -> Vec<Guard> {
    let guard = |name, rule, validations| Guard { name, rule, validations };
    vec![
        guard(VOLUMES, rule("", &["persistentvolumes"], WRITES), volumes()),
        guard(CLAIMS, rule("", &["persistentvolumeclaims"], WRITES), claims("== variables.node")),
        guard(CLAIM_STATUS, rule("", &["persistentvolumeclaims/status"], &["UPDATE"]), claim_status()),
        guard(CAPACITIES, rule("storage.k8s.io", &["csistoragecapacities"], WRITES), capacities()),
        guard(EVENTS, rule("events.k8s.io", &["events"], WRITES), events()),
    ]
}

/// What the storage identity of a node may write of its Node: the mesh publishes its key there.
fn node_guard() -> Guard {
    Guard { name: NODES, rule: rule("", &["nodes"], WRITES), validations: nodes() }
}

/// Limits of the account that returns claims of deleted nodes to the scheduler.
pub(crate) fn reclaimer_guard() -> Guard {
    Guard { name: CLAIMS, rule: rule("", &["persistentvolumeclaims"], WRITES), validations: claims("!= ''") }
}

/// What a kubelet may not write although NodeRestriction lets it. Annotations and labels can be written with the status
/// as well.
fn kubelet_guard() -> Guard {
    let rule = rule("", &["nodes", "nodes/status"], &["CREATE", "UPDATE"]);
    Guard { name: KUBELETS, rule, validations: kubelets() }
}

/// The policies, each with the binding that puts it in force.
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

/// An expression that must hold, and what the node is told if it does not.
pub(crate) struct Validation {
    pub(crate) expression: String,
    pub(crate) message: String,
    /// Another expression, for a message that names what it finds; `message` is used if it fails.
    pub(crate) message_expression: Option<String>,
}

impl Validation {
    pub(crate) fn new(expression: impl Into<String>, message: impl Into<String>) -> Self {
        Self { expression: expression.into(), message: message.into(), message_expression: None }
    }
}

/// All of them must hold, and one message says what for.
pub(crate) fn explained(message: &str, expressions: impl IntoIterator<Item = String>) -> Vec<Validation> {
    expressions.into_iter().map(|expression| Validation::new(expression, message)).collect()
}

/// Both what is there before and what is there after, as far as there is one.
pub(crate) fn before_and_after(own: impl Fn(&str) -> String) -> [String; 2] {
    ["object", "oldObject"].map(|object| format!("{object} == null || ({})", own(object)))
}

/// The field is what it was.
pub(crate) fn same(field: &str) -> String {
    format!("object.?{field} == oldObject.?{field}")
}

/// All of the metadata that a client may change but the annotations.
fn same_metadata() -> String {
    ["metadata.?labels", "metadata.?finalizers", "metadata.?ownerReferences"].map(same).join(" && ")
}

pub(crate) fn annotations(object: &str) -> String {
    format!("({object}.metadata.?annotations.orValue({{}}))")
}

/// The claim waits for a node that is so, and nothing but that is taken back.
fn claims(is_so: &str) -> Vec<Validation> {
    let (old, new) = (annotations("oldObject"), annotations("object"));
    let when_updated = |expression: String| format!("request.operation != 'UPDATE' || ({expression})");
    explained(
        "a node gives a claim back to the scheduler, and changes nothing else of it",
        [
            "request.operation == 'UPDATE'".to_owned(),
            when_updated(format!("{old}[?'{SELECTED_NODE}'].orValue('') {is_so}")),
            when_updated(format!(
                "{old}.all(key, key == '{SELECTED_NODE}' || {new}[?key] == {old}[?key]) && \
                 {new}.all(key, key in {old} && key != '{SELECTED_NODE}')"
            )),
            when_updated(same("spec")),
            when_updated(same_metadata()),
        ],
    )
}

/// The claim is bound to a volume that the scheduler wanted on the node, and grows.
fn claim_status() -> Vec<Validation> {
    let old = annotations("oldObject");
    let others = |claim: &str| {
        format!(
            "{claim}.?status.?conditions.orValue([]).filter(condition, !(condition.type in \
             ['Resizing', 'FileSystemResizePending', 'ControllerResizeError', 'NodeResizeError']))"
        )
    };
    let capacity = |claim: &str| format!("quantity({claim}.?status.?capacity[?'storage'].orValue('0'))");
    let kept = ["phase", "accessModes", "currentVolumeAttributesClassName", "modifyVolumeStatus"]
        .map(|field| same(&format!("status.?{field}")))
        .join(" && ");
    explained(
        "a node tells the size of volumes that are on it, and nothing else in the status of a claim",
        [
            format!("{old}[?'{SELECTED_NODE}'].orValue('') == variables.node"),
            "oldObject.spec.?volumeName.orValue('') != ''".to_owned(),
            format!("{}.compareTo({}) >= 0", capacity("object"), capacity("oldObject")),
            kept,
            format!("{} == {}", others("object"), others("oldObject")),
            format!("{} && {}", same("metadata.?annotations"), same_metadata()),
        ],
    )
}

/// The capacity is the node's, has a name that no other node uses, and goes when the Node goes.
fn capacities() -> Vec<Validation> {
    // Sixteen digits of a hash, and the rest: with more freedom, a name could be one that belongs to another node.
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
    explained("a node publishes the capacity of itself alone", expressions)
}

/// The Node is the node's own, and only annotations of ours change.
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

/// A Node gets its addresses from the cluster, and what others believe of its annotations is not kubelet's to say.
/// NodeRestriction and the API itself let a kubelet choose a range as long as its Node has none.
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
    // NodeRestriction lets a kubelet choose this label, by which the scheduler finds the node that has a volume.
    let name = explained(
        &format!("a kubelet labels its Node as {TOPOLOGY_KEY} with its own name"),
        [format!("object.metadata.?labels[?'{TOPOLOGY_KEY}'].orValue(variables.node) == variables.node")],
    );
    [addresses, annotations, name].into_iter().flatten().collect()
}

/// The node speaks in its own name.
fn events() -> Vec<Validation> {
    let own = |event: &str| {
        format!(
            "{event}.?reportingController.orValue('') == '{DRIVER_NAME}' && \
             {event}.?reportingInstance.orValue('') == variables.node"
        )
    };
    explained(&format!("a node reports as {DRIVER_NAME} and in its own name"), before_and_after(own))
}

fn rule(group: &str, resources: &[&str], operations: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": operations, "resources": resources})
}

/// The whole object.
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

/// Puts the policy of this name in force.
pub(crate) fn binding(policy: &str, metadata: Value) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": policy, "validationActions": ["Deny"]},
    })
}
