//! The reconciler's objects in a real API server, and the resulting rights of the identities of a node.

mod administrators;
mod capacity;
mod certificate;
mod clones;
mod dns;
mod immediate;
mod joining;
mod kubelet;
mod names;
mod node;
mod objects;
mod pods;
mod removed;
mod resize;
mod roles;
mod secrets;
mod snapshots;
mod storage;

use std::process::ExitCode;
use std::time::Duration;

use envtest::{Cluster, Failure, PATIENCE, Seen, accepted, denied, eventually, forbidden, start, suite, until};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

fn main() -> ExitCode {
    // The cases of `objects` are first, because they delete and change the objects.
    let suite = suite![
        objects::missing_objects_are_created,
        objects::a_claim_without_a_class_gets_the_nodes_class,
        objects::deleted_objects_are_created_again,
        objects::a_changed_field_is_repaired,
        objects::an_object_with_a_changed_immutable_field_is_recreated,
        objects::fields_of_other_clients_stay,
        objects::objects_of_a_newer_release_are_ignored,
        objects::objects_of_an_older_release_are_updated,
        objects::policies_are_created_before_roles,
        objects::every_expression_passes_the_type_check,
        objects::the_reconciler_survives_an_unreachable_api_server,
        objects::correct_objects_are_not_written,
        objects::the_api_server_has_only_rights_at_kubelets,
        objects::requests_of_nodes_have_the_system_priority,
        objects::a_claim_returns_to_the_scheduler_when_its_node_is_deleted,
        snapshots::the_kinds_are_created_and_correct_ones_are_not_written,
        snapshots::a_changed_kind_is_repaired_and_that_of_another_client_stays,
        clones::a_clone_gets_the_node_of_its_source,
        storage::a_node_creates_changes_and_deletes_its_own_pv,
        storage::a_node_creates_only_pvs_with_the_listed_fields,
        storage::a_node_changes_nothing_else_of_its_pv,
        storage::a_manual_pv_gets_the_finalizer_of_its_node,
        storage::a_node_cannot_write_another_nodes_pv,
        storage::a_node_cannot_create_foreign_pvs,
        storage::a_node_returns_only_its_own_claims,
        storage::a_node_changes_nothing_else_of_a_claim,
        storage::a_node_reports_in_its_own_name,
        storage::other_users_are_not_restricted,
        secrets::a_node_reads_no_secret_by_a_pv_of_its_own,
        resize::a_node_writes_the_size_of_its_own_claims_only,
        resize::a_claim_bound_by_hand_is_of_the_node_of_its_pv,
        resize::the_selected_node_writes_the_size_of_the_volume_that_it_created,
        resize::a_node_changes_nothing_else_in_a_status,
        resize::a_claim_without_a_volume_gets_no_size,
        resize::an_identity_without_a_node_writes_nothing,
        capacity::a_node_publishes_its_own_capacity,
        capacity::a_node_cannot_write_another_nodes_capacity,
        capacity::a_capacity_with_other_fields_is_denied,
        node::a_node_writes_only_its_own_annotations,
        node::a_node_reads_its_csinode_object,
        roles::the_roles_edit_and_admin_write_claims_and_no_volumes,
        dns::coredns_reads_the_objects_of_names_and_no_others,
        dns::the_service_has_an_endpoint_on_each_node,
        joining::a_token_admits_one_node_and_no_other,
        joining::a_registered_name_is_denied,
    ];
    // The API server caches a token for 10 s, so these cases run concurrently. Neither has an approver.
    let suite = suite.at_once(suite![
        joining::a_token_ends_when_it_expires_or_is_deleted,
        joining::a_token_deleted_during_a_request_is_named,
    ]);
    let suite = suite![
        suite;
        joining::a_token_gives_no_other_rights,
        joining::a_machine_becomes_a_node,
        joining::a_node_renews_itself_without_a_token,
        joining::a_node_with_an_expired_certificate_needs_a_token,
        joining::a_token_is_deleted_when_its_node_has_registered,
        joining::a_machine_that_cannot_join_gets_the_reason,
        kubelet::a_kubelet_does_not_choose_the_addresses_of_its_pods,
        kubelet::a_kubelet_does_not_write_a_public_key,
        kubelet::a_kubelet_does_not_take_another_nodes_name,
        removed::a_removed_node_stays_removed,
        pods::pods_have_addresses_of_the_assigned_network,
        certificate::a_node_gets_its_certificate_and_can_use_it,
        certificate::a_certificate_for_another_node_is_denied,
        certificate::a_denied_node_gets_the_reason,
        certificate::unrelated_requests_are_ignored,
        certificate::a_serving_certificate_has_no_foreign_address,
        certificate::a_renewed_certificate_is_served_soon,
        administrators::an_administrator_has_all_rights_while_the_request_is_listed,
    ];
    // These cases wait for the cache of tokens, and for intervals of 5 s or 10 s.
    let suite = suite.at_once(suite![
        immediate::a_claim_with_immediate_binding_gets_a_node,
        joining::a_node_whose_token_was_deleted_stays_in_the_cluster,
        administrators::a_replaced_key_of_an_administrator_has_no_rights,
    ]);
    let suite = suite![
        suite;
        // These cases are last, because they stop the name server and the API server.
        names::services_and_their_pods_have_addresses,
        names::services_have_ports,
        names::aliases_lead_to_other_names,
        names::unknown_names_and_types_are_denied,
        names::a_long_answer_comes_by_tcp,
        names::a_silent_name_server_is_passed_over,
        names::the_cluster_has_names_without_a_name_server,
        names::the_cluster_has_names_without_an_api_server,
    ];
    suite.run()
}

/// Clients of two nodes and an administrator. Roles and policies are in force.
#[derive(Clone)]
struct Nodes {
    own: Client,
    other: Client,
    admin: Client,
}

impl Nodes {
    /// Creates the reconciler's objects and waits for them, once for all cases.
    async fn of(cluster: &Cluster) -> Result<Self, Failure> {
        static NODES: OnceCell<Nodes> = OnceCell::const_new();
        Ok(NODES.get_or_try_init(|| Self::start(cluster)).await?.clone())
    }

    async fn start(cluster: &Cluster) -> Result<Self, Failure> {
        let admin = cluster.admin();
        start("reconciler", admin.clone(), reconciler::run).await?.stop(Duration::from_secs(10)).await?;
        let nodes = Self { own: cluster.storage_of("one").await?, other: cluster.storage_of("two").await?, admin };
        nodes.wait().await?;
        Ok(nodes)
    }

    /// Waits until all policies are in force. The API server watches roles and policies in the order of their creation,
    /// and enforces all policies at once, a second later. Therefore all are in force when a later one is.
    async fn wait(&self) -> Result<(), Failure> {
        let everything = PatchParams::apply("test").force();
        for last in last_policy() {
            let resource = ApiResource::from_gvk(&kube::api::GroupVersionKind::gvk(
                "admissionregistration.k8s.io",
                "v1",
                last["kind"].as_str().unwrap_or_default(),
            ));
            let api = Api::<DynamicObject>::all_with(self.admin.clone(), &resource);
            api.patch("last.example.invalid", &everything, &Patch::Apply(&last)).await?;
        }
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "last"}}))?;
        let maps = Api::default_namespaced(self.admin.clone());
        eventually(PATIENCE, "the policies", async || {
            Ok::<_, Error>(match maps.create(&dry, &map).await {
                Err(Error::Api(status)) if status.is_invalid() || status.is_forbidden() => Seen::Done(()),
                other => Seen::NotYet(format!("{other:?}")),
            })
        })
        .await?;
        let events = Api::default_namespaced(self.own.clone());
        let event = storage::event("local.granary.dev", "one");
        accepted("the role", async || events.create(&dry, &event).await).await?;
        Ok(())
    }
}

/// A policy that denies ConfigMaps named `last`, and its binding.
fn last_policy() -> [Value; 2] {
    let of_kind = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": "last.example.invalid"}, "spec": spec,
        })
    };
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
    });
    let policy = json!({
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "object.metadata.name != 'last'"}],
    });
    let binding = json!({"policyName": "last.example.invalid", "validationActions": ["Deny"]});
    [of_kind("ValidatingAdmissionPolicy", policy), of_kind("ValidatingAdmissionPolicyBinding", binding)]
}
