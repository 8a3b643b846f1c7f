//! What a node's storage identity may write: roles cannot tell one node's objects from another's, admission policies
//! can. Expressions are CEL.

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::ApiResource;
use serde_json::{Value, json};
use volume::{DRIVER_NAME, TOPOLOGY_KEY};

use crate::objects::{NODES_GROUP, Object, metadata};

/// The identity of a node is this and the node's name.
const USER_PREFIX: &str = "granary:node:";

/// Where the scheduler tells which node a claim's volume is to be made on.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

const VOLUMES: &str = "volumes.local.granary.dev";
const CLAIMS: &str = "claims.local.granary.dev";
const EVENTS: &str = "events.local.granary.dev";

/// The policies, each with the binding that puts it in force.
pub(crate) fn all() -> [Object; 6] {
    [
        policy(VOLUMES, &rule("", "persistentvolumes", &["CREATE", "UPDATE", "DELETE"]), &volumes()),
        binding(VOLUMES),
        policy(CLAIMS, &rule("", "persistentvolumeclaims", &["CREATE", "UPDATE", "DELETE"]), &claims()),
        binding(CLAIMS),
        policy(EVENTS, &rule("events.k8s.io", "events", &["CREATE", "UPDATE", "DELETE"]), &events()),
        binding(EVENTS),
    ]
}

/// An expression that must hold, and what the node is told if it does not.
struct Validation {
    expression: String,
    message: String,
}

/// The volume is of our driver, and nowhere but on the node, before and after.
fn volumes() -> Vec<Validation> {
    let own = |pv: &str| {
        format!(
            "{pv} == null || (has({pv}.spec.csi) && {pv}.spec.csi.driver == '{DRIVER_NAME}' && \
             has({pv}.spec.nodeAffinity) && has({pv}.spec.nodeAffinity.required) && \
             {pv}.spec.nodeAffinity.required.nodeSelectorTerms.size() > 0 && \
             {pv}.spec.nodeAffinity.required.nodeSelectorTerms.all(term, has(term.matchExpressions) && \
             term.matchExpressions.exists(only, only.key == '{TOPOLOGY_KEY}' && only.operator == 'In' && \
             has(only.values) && only.values == [variables.node])))"
        )
    };
    ["object", "oldObject"]
        .map(|pv| Validation {
            expression: own(pv),
            message: format!("a node writes PVs of {DRIVER_NAME} that are on it alone"),
        })
        .into()
}

/// The claim waits for the node, and nothing but that is taken back.
fn claims() -> Vec<Validation> {
    let annotations = |claim: &str| format!("({claim}.metadata.?annotations.orValue({{}}))");
    let (old, new) = (annotations("oldObject"), annotations("object"));
    let same = |field: &str| format!("object.?{field} == oldObject.?{field}");
    let message = "a node gives a claim back to the scheduler, and changes nothing else of it";
    [
        "request.operation == 'UPDATE'".to_owned(),
        format!("request.operation != 'UPDATE' || {old}[?'{SELECTED_NODE}'].orValue('') == variables.node"),
        format!(
            "request.operation != 'UPDATE' || ({old}.all(key, key == '{SELECTED_NODE}' || \
             {new}[?key].orValue('') == {old}[key]) && {new}.all(key, key in {old} && key != '{SELECTED_NODE}'))"
        ),
        format!("request.operation != 'UPDATE' || ({})", same("spec")),
        format!(
            "request.operation != 'UPDATE' || ({} && {} && {})",
            same("metadata.?labels"),
            same("metadata.?finalizers"),
            same("metadata.?ownerReferences")
        ),
    ]
    .map(|expression| Validation { expression, message: message.to_owned() })
    .into()
}

/// The node speaks in its own name.
fn events() -> Vec<Validation> {
    let own = |event: &str| {
        format!(
            "{event} == null || ({event}.?reportingController.orValue('') == '{DRIVER_NAME}' && \
             {event}.?reportingInstance.orValue('') == variables.node)"
        )
    };
    ["object", "oldObject"]
        .map(|event| Validation {
            expression: own(event),
            message: format!("a node reports as {DRIVER_NAME} and in its own name"),
        })
        .into()
}

fn rule(group: &str, resource: &str, operations: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": operations, "resources": [resource]})
}

fn policy(name: &'static str, rule: &Value, validations: &[Validation]) -> Object {
    let length = USER_PREFIX.len();
    let validations: Vec<Value> = validations
        .iter()
        .map(|Validation { expression, message }| json!({"expression": expression, "message": message}))
        .collect();
    Object {
        resource: ApiResource::erase::<ValidatingAdmissionPolicy>(&()),
        name,
        want: json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata(name),
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [rule]},
                "matchConditions": [{
                    "name": "nodes-storage",
                    "expression": format!("'{NODES_GROUP}' in request.userInfo.groups"),
                }],
                // Of another user in the group: no node's name.
                "variables": [{
                    "name": "node",
                    "expression": format!(
                        "request.userInfo.username.startsWith('{USER_PREFIX}') ? \
                         request.userInfo.username.substring({length}) : ''"
                    ),
                }],
                "validations": validations,
            },
        }),
        immutable: &[],
    }
}

fn binding(name: &'static str) -> Object {
    Object {
        resource: ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&()),
        name,
        want: json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata(name),
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        }),
        immutable: &[],
    }
}
