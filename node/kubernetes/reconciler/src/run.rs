//! Creates the objects and repairs changed ones.

use std::future::ready;
use std::pin::pin;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use supervisor::Context;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::object::{Object, REVISION};
use crate::objects::waves;
use crate::plan::{Step, plan, wanted};
use crate::removed::{self, Removed};

pub(crate) const FIELD_MANAGER: &str = "granary";

/// Interval of passes, because a watch may miss a change.
const INTERVAL: Duration = Duration::from_mins(5);

/// Pause after a pass with changes. It prevents a busy loop if another client keeps changing an object.
const PAUSE: Duration = Duration::from_secs(5);

/// Time to collect changes, such as the first lists of all kinds, for one pass.
const SETTLE: Duration = Duration::from_secs(1);

/// Time limit for the API server to serve a new kind.
const ESTABLISH_LIMIT: Duration = Duration::from_secs(30);

/// Number of concurrent passes. Each pass has its own connection and TLS handshake.
const PARALLEL: usize = 4;

/// The reconciler failed and must be restarted.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {kind} {name}")]
pub struct RunError {
    what: &'static str,
    kind: String,
    name: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Maintains the objects until cancelled. Healthy while all of them are correct. Begins again when the names of removed
/// nodes change, because a policy contains them.
pub async fn run(cx: Context, client: Client) -> Result<(), RunError> {
    let mut changes = pin!(removed::changes(cx.clone(), client.clone()));
    let mut names = None;
    loop {
        let maintained = async {
            match &names {
                Some(names) => maintain(cx.clone(), client.clone(), &waves(names)).await,
                None => {
                    cx.cancelled().await;
                    Ok(())
                }
            }
        };
        tokio::select! {
            ended = maintained => return ended,
            Some(changed) = other(&mut changes, names.as_ref()) => names = Some(changed),
        }
    }
}

/// The next names that differ from `current`.
async fn other(changes: &mut (impl Stream<Item = Removed> + Unpin), current: Option<&Removed>) -> Option<Removed> {
    changes.filter(|names| ready(Some(names) != current)).next().await
}

/// Maintains these objects, one wave after the other.
pub(crate) async fn maintain(cx: Context, client: Client, waves: &[Vec<Object>]) -> Result<(), RunError> {
    let mut changes = stream::select_all(kinds(waves.iter().flatten()).into_iter().map(|kind| changes(kind, &client)));
    while !cx.is_cancelled() {
        let changed = cx.round(reconcile_all(waves, &client), Result::is_ok).await?;
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
            () = settled(&mut changes) => {}
        }
    }
    Ok(())
}

/// Waits for a change, and for changes that follow soon.
async fn settled(changes: &mut (impl Stream<Item = ()> + Unpin)) {
    if changes.next().await.is_some() {
        let others = async { while changes.next().await.is_some() {} };
        // The watches do not end.
        _ = timeout(SETTLE, others).await;
    }
}

async fn reconcile_all(waves: &[Vec<Object>], client: &Client) -> Result<bool, RunError> {
    let mut changed = false;
    for wave in waves {
        let passes: Vec<_> = wave.iter().map(|object| reconcile(object, client)).collect();
        let mut passes = stream::iter(passes).buffer_unordered(PARALLEL);
        while let Some(pass) = passes.next().await {
            changed |= pass?;
        }
        established(wave, client).await?;
    }
    Ok(changed)
}

/// Returns when the API server serves the kinds that the wave defines.
async fn established(wave: &[Object], client: &Client) -> Result<(), RunError> {
    for Object { resource, name, .. } in wave.iter().filter(|object| object.is_definition()) {
        let failed = |source| RunError { what: "establish", kind: resource.kind.clone(), name, source };
        let definitions = Api::<CustomResourceDefinition>::all(client.clone());
        let established = await_condition(definitions, name, conditions::is_crd_established());
        match timeout(ESTABLISH_LIMIT, established).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(failed(error.into())),
            Err(late) => return Err(failed(late.into())),
        }
    }
    Ok(())
}

async fn reconcile(object: &Object, client: &Client) -> Result<bool, RunError> {
    let Object { resource, name, .. } = object;
    let kind = resource.kind.as_str();
    let failed = |what| move |error: kube::Error| RunError { what, kind: kind.to_owned(), name, source: error.into() };
    let api = Api::<DynamicObject>::all_with(client.clone(), resource);
    let found = api.get_opt(name).await.map_err(failed("get"))?;
    let value = found.as_ref().map(serde_json::to_value).transpose().map_err(kube::Error::SerdeError);
    let value = value.map_err(failed("read"))?;

    match plan(object, value.as_ref()) {
        Step::Keep => return Ok(false),
        Step::Leave { revision } => {
            debug!(kind, name, revision, own_revision = REVISION, "object of a newer release ignored");
            return Ok(false);
        }
        Step::Ignore => {
            debug!(kind, name, "definition of another client ignored");
            return Ok(false);
        }
        Step::Recreate => {
            // Delete only this object: another control-plane node may have created it again.
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
    api.patch(name, &params, &Patch::Apply(wanted(object, value.as_ref()))).await.map_err(failed("apply"))?;
    info!(kind, name, revision = REVISION, existed = value.is_some(), "object applied");
    Ok(true)
}

struct Kind {
    resource: ApiResource,
    objects: Vec<Object>,
}

fn kinds<'a>(objects: impl Iterator<Item = &'a Object>) -> Vec<Kind> {
    let mut kinds = Vec::<Kind>::new();
    for object in objects {
        match kinds.iter_mut().find(|kind| kind.resource == object.resource) {
            Some(kind) => kind.objects.push(object.clone()),
            None => kinds.push(Kind { resource: object.resource.clone(), objects: vec![object.clone()] }),
        }
    }
    kinds
}

/// A stream with an item for each event that needs a pass. The watch continues after failures, with a back-off.
fn changes(Kind { resource, objects }: Kind, client: &Client) -> BoxStream<'static, ()> {
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let config = match objects.as_slice() {
        [object] => watcher::Config::default().fields(&format!("metadata.name={}", object.name)),
        _ => watcher::Config::default(),
    };
    watcher(api, config)
        .default_backoff()
        .filter_map(move |event| {
            let is_relevant = match event {
                Ok(event) => needs_pass(&objects, &event),
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    warn!(kind = resource.kind, error, "watch failed, will continue");
                    true
                }
            };
            ready(is_relevant.then_some(()))
        })
        .boxed()
}

/// Whether the event needs a pass. Events of correct objects do not: the API server and its controllers write the
/// status of policies and definitions.
fn needs_pass(objects: &[Object], event: &watcher::Event<DynamicObject>) -> bool {
    let named = |found: &DynamicObject| {
        let name = found.metadata.name.as_deref();
        objects.iter().find(|object| name == Some(object.name))
    };
    match event {
        watcher::Event::Init | watcher::Event::InitApply(_) => false,
        // The list may lack an object.
        watcher::Event::InitDone => true,
        watcher::Event::Delete(found) => named(found).is_some(),
        watcher::Event::Apply(found) => named(found).is_some_and(|object| is_drift(object, found)),
    }
}

fn is_drift(object: &Object, found: &DynamicObject) -> bool {
    match serde_json::to_value(found) {
        Ok(found) => match plan(object, Some(&found)) {
            Step::Create | Step::Apply | Step::Recreate => true,
            Step::Keep | Step::Leave { .. } | Step::Ignore => false,
        },
        // The pass reports the error.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Method;
    use serde_json::{Value, json};
    use supervisor::{Settings, Supervisor};

    use super::*;
    use crate::fixture;

    /// An API server that has all objects, and the number of requests for one of them.
    fn with_all_objects() -> (Client, Arc<AtomicUsize>) {
        let all = waves(&Removed::new()).into_iter().flatten().map(|Object { resource, name, want, .. }| {
            (format!("/apis/{}/{}/{name}", resource.api_version, resource.plural), want)
        });
        let all: Arc<HashMap<String, Value>> = Arc::new(all.collect());
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let client = fixture::client(move |request| {
            let (all, counted) = (Arc::clone(&all), Arc::clone(&counted));
            async move {
                assert_eq!(request.method(), Method::GET, "correct objects are not written");
                let path = request.uri().path();
                let answer = if let Some(object) = all.get(path) {
                    counted.fetch_add(1, Ordering::Relaxed);
                    object.clone()
                } else if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                    pending().await
                } else {
                    let of_kind = |other: &str| other.rsplit_once('/').is_some_and(|(kind, _)| kind == path);
                    let items: Vec<_> =
                        all.iter().filter(|(path, _)| of_kind(path)).map(|(_, object)| object).collect();
                    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})
                };
                (200, answer)
            }
        });
        (client, reads)
    }

    /// Regression test: each object in the first list had its own pass, about 1300 requests at a boot.
    #[tokio::test(start_paused = true)]
    async fn the_first_list_has_one_pass() {
        let (client, reads) = with_all_objects();
        let tree = Supervisor::start("reconciler", Settings::default(), move |cx| run(cx, client.clone()));
        timeout(INTERVAL, tree.handle().healthy()).await.unwrap().unwrap();
        tokio::time::sleep(INTERVAL / 2).await;
        let objects = waves(&Removed::new()).iter().flatten().count();
        assert_eq!(reads.load(Ordering::Relaxed), 2 * objects, "one pass at the start, and one for the list");
        tree.stop(Duration::from_secs(10)).await.unwrap();
    }

    #[test]
    fn correct_objects_and_their_status_need_no_pass() {
        let objects = waves(&Removed::new()).into_iter().flatten().take(1).collect::<Vec<_>>();
        let correct: DynamicObject = serde_json::from_value(objects[0].want.clone()).unwrap();
        let with_status = {
            let mut found = correct.clone();
            found.data["status"] = json!({"observedGeneration": 1, "typeChecking": {}});
            found
        };
        let changed = {
            let mut found = correct.clone();
            found.data["spec"]["failurePolicy"] = json!("Ignore");
            found
        };
        let other = {
            let mut found = changed.clone();
            found.metadata.name = Some("other".to_owned());
            found
        };
        let needs_pass = |event| needs_pass(&objects, &event);
        assert!(needs_pass(watcher::Event::InitDone));
        assert!(needs_pass(watcher::Event::Apply(changed)));
        assert!(needs_pass(watcher::Event::Delete(correct.clone())));
        for unchanged in [correct, with_status, other.clone()] {
            assert!(!needs_pass(watcher::Event::Apply(unchanged)));
        }
        assert!(!needs_pass(watcher::Event::Delete(other)));
    }

    #[test]
    fn a_kind_is_watched_once() {
        let waves = waves(&Removed::new());
        let kinds = kinds(waves.iter().flatten());
        let watched: Vec<_> = kinds.iter().map(|kind| (kind.resource.kind.as_str(), kind.objects.len())).collect();
        assert_eq!(
            watched,
            [
                ("ValidatingAdmissionPolicy", 13),
                ("ValidatingAdmissionPolicyBinding", 13),
                ("ClusterRole", 2),
                ("ClusterRoleBinding", 5),
                ("FlowSchema", 1),
                ("CSIDriver", 1),
                ("StorageClass", 1),
            ]
        );
    }
}
