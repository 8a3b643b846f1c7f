//! The objects in a real API server, and what they let the identities of a node do.

mod capacity;
mod certificate;
mod joining;
mod kubelet;
mod node;
mod objects;
mod pods;
mod removed;
mod resize;
mod secrets;
mod storage;

use std::process::ExitCode;
use std::time::Duration;

use envtest::{Cluster, Failure, PATIENCE, Seen, Suite, eventually};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use serde_json::{Value, json};
use supervisor::{Settings, Supervisor};
use tokio::sync::OnceCell;

fn main() -> ExitCode {
    // First: no other case deletes or changes the objects, and the first case finds none.
    let suite = objects::cases(Suite::new());
    let suite = storage::cases(suite);
    let suite = secrets::cases(suite);
    let suite = resize::cases(suite);
    let suite = capacity::cases(suite);
    let suite = node::cases(suite);
    let suite = joining::cases(suite);
    let suite = kubelet::cases(suite);
    let suite = removed::cases(suite);
    let suite = pods::cases(suite);
    certificate::cases(suite).run()
}

/// Nodes whose rights are in force.
#[derive(Clone)]
struct Nodes {
    own: Client,
    other: Client,
    admin: Client,
}

impl Nodes {
    /// Creates the objects of the reconciler and waits for them, once for all cases.
    async fn of(cluster: &Cluster) -> Result<Self, Failure> {
        static NODES: OnceCell<Nodes> = OnceCell::const_new();
        Ok(NODES.get_or_try_init(|| Self::start(cluster)).await?.clone())
    }

    async fn start(cluster: &Cluster) -> Result<Self, Failure> {
        let admin = cluster.admin();
        let client = admin.clone();
        let reconciler =
            Supervisor::start("reconciler", Settings::default(), move |cx| reconciler::run(cx, client.clone()));
        reconciler.handle().healthy().await?;
        reconciler.stop(Duration::from_secs(10)).await?;
        let nodes = Self { own: cluster.storage_of("one").await?, other: cluster.storage_of("two").await?, admin };
        nodes.wait().await?;
        Ok(nodes)
    }

    /// The API server learns of roles and policies by watches, of each kind in the order of their making, and puts
    /// policies in force all at once, a second later. So when one that was made after them is in force, they are.
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
        eventually(PATIENCE, "the role", async || {
            events.create(&dry, &storage::event("local.granary.dev", "one")).await.map(|_| Seen::Done(()))
        })
        .await?;
        Ok(())
    }
}

/// A policy, and what binds it: nobody makes a ConfigMap named `last`.
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
    [
        of_kind(
            "ValidatingAdmissionPolicy",
            json!({
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": "object.metadata.name != 'last'"}],
            }),
        ),
        of_kind(
            "ValidatingAdmissionPolicyBinding",
            json!({"policyName": "last.example.invalid", "validationActions": ["Deny"]}),
        ),
    ]
}

#[track_caller]
fn denied<T: std::fmt::Debug>(result: Result<T, Error>, message: &str) {
    match result {
        Err(Error::Api(status)) if status.message.contains(message) => {}
        other => panic!("wanted a refusal with {message:?}, got {other:?}"),
    }
}

/// The role does not have it at all.
#[track_caller]
fn forbidden<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(&result, Err(Error::Api(status)) if status.is_forbidden()), "{result:?}");
}
