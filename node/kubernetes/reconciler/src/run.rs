//! Looks, plans, acts; alone here the API server is awaited.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use supervisor::Context;
use tracing::{debug, info, warn};

use crate::objects::{Object, REVISION, waves};
use crate::plan::{Step, plan};

/// The owner of our fields in the API.
const FIELD_MANAGER: &str = "granary";

/// A watch may miss a change: look again after this.
const INTERVAL: Duration = Duration::from_mins(5);

/// If somebody else keeps changing an object too, nobody shall do it in a busy loop.
const PAUSE: Duration = Duration::from_secs(5);

/// Objects that are looked at and written at once. Each needs a connection of its own, and a handshake for it.
const PARALLEL: usize = 4;

/// Why the reconciler has to be started again.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A request failed.
    #[error("cannot {what} {kind} {name}")]
    Api {
        /// What was to be done.
        what: &'static str,
        /// With what kind of object.
        kind: String,
        /// Its name.
        name: &'static str,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// What the API server sent is no JSON object any more.
    #[error("cannot read {kind} {name}")]
    Syntax {
        /// The kind of object.
        kind: String,
        /// Its name.
        name: &'static str,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
}

/// Keeps the objects until it is cancelled. Healthy as long as all of them are right.
///
/// # Errors
/// [`RunError`]: to be started again after a while.
pub async fn run(cx: Context, client: Client) -> Result<(), RunError> {
    let waves = waves();
    let mut changes = stream::select_all(kinds(waves.iter().flatten()).into_iter().map(|kind| changes(kind, &client)));
    while !cx.is_cancelled() {
        let mut changed = false;
        for wave in &waves {
            let passes: Vec<_> = wave.iter().map(|object| reconcile(object, &client)).collect();
            let mut passes = stream::iter(passes).buffer_unordered(PARALLEL);
            while let Some(pass) = passes.next().await {
                changed |= pass?;
            }
        }
        cx.healthy();
        if changed {
            tokio::select! {
                () = cx.cancelled() => break,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
        tokio::select! {
            () = cx.cancelled() => {}
            () = tokio::time::sleep(INTERVAL) => {}
            _ = changes.next() => {}
        }
    }
    Ok(())
}

/// Whether it changed something.
async fn reconcile(object: &Object, client: &Client) -> Result<bool, RunError> {
    let Object { resource, name, want, .. } = object;
    let kind = resource.kind.as_str();
    let failed = |what| move |error| RunError::Api { what, kind: kind.to_owned(), name, source: Box::new(error) };
    let api = Api::<DynamicObject>::all_with(client.clone(), resource);
    let found = api.get_opt(name).await.map_err(failed("look at"))?;
    let seen: Option<Value> = found
        .as_ref()
        .map(serde_json::to_value)
        .transpose()
        .map_err(|source| RunError::Syntax { kind: kind.to_owned(), name, source })?;

    match plan(object, seen.as_ref()) {
        Step::Keep => return Ok(false),
        Step::Leave { revision } => {
            debug!(kind, name, revision, ours = REVISION, "object of a newer release left alone");
            return Ok(false);
        }
        Step::Recreate => {
            // Only the one that was looked at: another control-plane node may have made it anew since.
            let preconditions = found.map(|found| Preconditions { uid: found.uid(), resource_version: None });
            let params = DeleteParams { preconditions, ..DeleteParams::default() };
            match api.delete(name, &params).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(failed("delete")(error)),
            }
        }
        Step::Create | Step::Apply => {}
    }
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(name, &params, &Patch::Apply(want)).await.map_err(failed("apply"))?;
    info!(kind, name, revision = REVISION, existed = seen.is_some(), "object applied");
    Ok(true)
}

/// What is watched together.
struct Kind {
    resource: ApiResource,
    names: Vec<&'static str>,
}

fn kinds<'a>(objects: impl Iterator<Item = &'a Object>) -> Vec<Kind> {
    let mut kinds = Vec::<Kind>::new();
    for Object { resource, name, .. } in objects {
        match kinds.iter_mut().find(|kind| kind.resource == *resource) {
            Some(kind) => kind.names.push(name),
            None => kinds.push(Kind { resource: resource.clone(), names: vec![name] }),
        }
    }
    kinds
}

/// Something for each change of one of the objects. Failures of the watch are logged; it goes on, with a back-off.
fn changes(Kind { resource, names }: Kind, client: &Client) -> BoxStream<'static, ()> {
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let config = match names.as_slice() {
        [name] => watcher::Config::default().fields(&format!("metadata.name={name}")),
        _ => watcher::Config::default(),
    };
    watcher(api, config)
        .default_backoff()
        .touched_objects()
        .filter_map(move |change| {
            let ours = match change {
                Ok(object) => names.contains(&object.name_any().as_str()),
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    warn!(kind = resource.kind, error, "watch failed, it goes on");
                    true
                }
            };
            std::future::ready(ours.then_some(()))
        })
        .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_watched_once() {
        let waves = waves();
        let kinds = kinds(waves.iter().flatten());
        let watched: Vec<_> = kinds.iter().map(|kind| (kind.resource.kind.as_str(), kind.names.len())).collect();
        assert_eq!(
            watched,
            [
                ("ValidatingAdmissionPolicy", 8),
                ("ValidatingAdmissionPolicyBinding", 8),
                ("ClusterRole", 1),
                ("ClusterRoleBinding", 4),
                ("FlowSchema", 1),
                ("CSIDriver", 1),
                ("StorageClass", 1),
            ]
        );
    }
}
