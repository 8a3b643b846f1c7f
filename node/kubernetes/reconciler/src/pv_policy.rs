//! Policy on the PVs that a node may write: PVs that its provisioner creates (`build` in provisioner/src/pv/object.rs),
//! and the changes of the provisioner.
//!
//! A PV can refer to Secrets of any namespace. If the PV also names a claim of a pod on a node, the Node authorizer
//! lets that node's kubelet read the Secrets. Therefore the policy lists the fields of a new PV. All other fields are
//! rejected, including fields that a later Kubernetes release adds.

use cluster::{DRIVER_NAME, FINALIZER, PROVISIONED_BY, TOPOLOGY_KEY};

use crate::admission::{Validation, annotations, before_and_after, explained, same};

/// Fields of the objects in a new PV. All of them are required except [`OPTIONAL`]: the API server sets `volumeMode`
/// and the reclaim policy if they are missing.
const FIELDS: [(&str, &[&str]); 5] = [
    ("spec.csi", &["driver", "volumeHandle"]),
    (
        "spec",
        &[
            "accessModes",
            "capacity",
            "claimRef",
            "csi",
            "nodeAffinity",
            "persistentVolumeReclaimPolicy",
            "storageClassName",
            "volumeMode",
        ],
    ),
    ("spec.claimRef", &["apiVersion", "kind", "name", "namespace", "uid"]),
    ("spec.capacity", &["storage"]),
    ("metadata.annotations", &[PROVISIONED_BY]),
];

/// Field of a new PV whose claim has this field.
const OPTIONAL: &str = "volumeAttributesClassName";

/// The API server adds this finalizer to each new PV (admission plugin `StorageObjectInUseProtection`).
const PROTECTION: &str = "kubernetes.io/pv-protection";

/// Start of the messages about a new PV. The text is part of CEL strings, so it must not contain quotes.
const CREATES: &str = "a node creates PVs as its provisioner does";

/// Before and after a write, the volume is of Granary's driver and only on the node. A new PV has the provisioner's
/// shape, and an update changes only the fields that the provisioner updates. The policy cannot check whether the claim
/// in `claimRef` was placed on the node: an expression reads only the written object.
pub(crate) fn pvs() -> Vec<Validation> {
    let on_node =
        explained(&format!("a node writes PVs of {DRIVER_NAME} that are on it alone"), before_and_after(on_node));
    on_node.into_iter().chain(FIELDS.into_iter().flat_map(fields)).chain(values()).chain([update()]).collect()
}

fn on_node(pv: &str) -> String {
    format!(
        "has({pv}.spec.csi) && {pv}.spec.csi.driver == '{DRIVER_NAME}' && \
         has({pv}.spec.nodeAffinity) && has({pv}.spec.nodeAffinity.required) && \
         {pv}.spec.nodeAffinity.required.nodeSelectorTerms.size() > 0 && \
         {pv}.spec.nodeAffinity.required.nodeSelectorTerms.all(term, has(term.matchExpressions) && \
         term.matchExpressions.exists(only, only.key == '{TOPOLOGY_KEY}' && only.operator == 'In' && \
         has(only.values) && only.values == [variables.node]))"
    )
}

/// In a new PV, the object at this path has these fields and no others. The message lists the other fields.
fn fields((path, fields): (&str, &[&str])) -> [Validation; 2] {
    // Use `dyn`: for the type checker, the object is a message whose fields cannot be listed. With `dyn`, it is a map.
    let steps: String = path.split('.').map(|step| format!(".?{step}")).collect();
    let found = format!("dyn(object){steps}.orValue({{}})");
    let (needed, allowed) = (
        list(fields),
        match path {
            "spec" => list(&[fields, &[OPTIONAL]].concat()),
            _ => list(fields),
        },
    );
    let others = format!("{found}.map(field, !(field in {allowed}), '{path}.' + field).join(', ')");
    [
        Validation {
            expression: when_created(&format!("{found}.all(field, field in {allowed})")),
            message: format!("{CREATES}, without other fields in {path}"),
            message_expression: Some(format!("'{CREATES}, without ' + {others}")),
        },
        Validation {
            expression: when_created(&format!("{needed}.all(field, field in {found})")),
            message: format!("{CREATES}: {path} has {}", fields.join(", ")),
            message_expression: None,
        },
    ]
}

fn values() -> impl Iterator<Item = Validation> {
    let finalizers = "object.metadata.?finalizers.orValue([])";
    let terms = "object.spec.nodeAffinity.required.nodeSelectorTerms";
    let of_claim = "object.spec.claimRef.apiVersion == 'v1' && object.spec.claimRef.kind == 'PersistentVolumeClaim' && \
                    object.metadata.name == 'pvc-' + object.spec.claimRef.uid && \
                    object.spec.csi.volumeHandle == object.metadata.name";
    [
        ("without metadata.labels", "object.metadata.?labels.orValue({}).size() == 0".to_owned()),
        ("without metadata.ownerReferences", "object.metadata.?ownerReferences.orValue([]).size() == 0".to_owned()),
        ("metadata.name and spec.csi.volumeHandle are pvc- and the UID of the claim in spec.claimRef", of_claim.to_owned()),
        (
            "metadata.annotations name the provisioner",
            format!("object.metadata.annotations['{PROVISIONED_BY}'] == '{DRIVER_NAME}'"),
        ),
        (
            "metadata.finalizers has the finalizer of the driver if spec.persistentVolumeReclaimPolicy is Delete, and no other",
            format!(
                "{finalizers}.all(name, name in {}) && \
                 ('{FINALIZER}' in {finalizers}) == (object.spec.persistentVolumeReclaimPolicy == 'Delete')",
                list(&[FINALIZER, PROTECTION])
            ),
        ),
        (
            "spec.persistentVolumeReclaimPolicy is Delete or Retain",
            format!("object.spec.persistentVolumeReclaimPolicy in {}", list(&["Delete", "Retain"])),
        ),
        (
            "spec.accessModes are ReadWriteOnce or ReadWriteOncePod",
            format!("object.spec.accessModes.all(mode, mode in {})", list(&["ReadWriteOnce", "ReadWriteOncePod"])),
        ),
        (
            "spec.nodeAffinity names the node and nothing else",
            format!(
                "{terms}.size() == 1 && \
                 {terms}.all(term, term.matchExpressions.size() == 1 && !has(term.matchFields))"
            ),
        ),
    ]
    .into_iter()
    .map(|(what, expression)| Validation::new(when_created(&expression), format!("{CREATES}: {what}")))
}

/// Only the size, which grows, the class of the claim, the driver's finalizer and the annotation of the provisioner may
/// change.
fn update() -> Validation {
    let (old, new) = ("dyn(oldObject.spec)", "dyn(object.spec)");
    let spec = format!(
        "{old}.all(field, field in ['capacity', '{OPTIONAL}'] || {new}[?field] == {old}[?field]) && \
         {new}.all(field, field == '{OPTIONAL}' || field in {old})"
    );
    // The API server's types of a PV lack the map of quantities.
    let size = |pv: &str| format!("quantity(dyn({pv}.spec).?capacity[?'storage'].orValue('0'))");
    let size = format!("{}.compareTo({}) >= 0", size("object"), size("oldObject"));
    let finalizers = |pv: &str| format!("{pv}.metadata.?finalizers.orValue([]).filter(name, name != '{FINALIZER}')");
    let finalizers = format!("{} == {}", finalizers("object"), finalizers("oldObject"));
    let (old, new) = (annotations("oldObject"), annotations("object"));
    let annotations = format!(
        "{old}.all(key, key == '{PROVISIONED_BY}' || {new}[?key] == {old}[?key]) && \
         {new}.all(key, key == '{PROVISIONED_BY}' || key in {old}) && \
         ({new}[?'{PROVISIONED_BY}'] == {old}[?'{PROVISIONED_BY}'] || \
         {new}[?'{PROVISIONED_BY}'].orValue('') == '{DRIVER_NAME}')"
    );
    let metadata = ["metadata.?labels", "metadata.?ownerReferences"].map(same).join(" && ");
    let unchanged = [spec, size, finalizers, annotations, metadata].join(" && ");
    Validation::new(
        format!("request.operation != 'UPDATE' || ({unchanged})"),
        format!(
            "a node enlarges spec.capacity of its PVs, and sets spec.{OPTIONAL}, the finalizer {FINALIZER} and the \
             annotation {PROVISIONED_BY}; it changes nothing else"
        ),
    )
}

fn when_created(expression: &str) -> String {
    format!("request.operation != 'CREATE' || ({expression})")
}

/// A CEL list of strings. The texts contain no quotes.
fn list(texts: &[&str]) -> String {
    format!("['{}']", texts.join("', '"))
}
