//! The table of contents: what happens to a claim, and to a PV, in order. Only this file and [`sweep`] await the API
//! server; the disk is worked on by threads that may wait.

use std::future::{self, Future};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dir::Ensured;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt as _};
use supervisor::Context;
use tokio::task::{JoinError, spawn_blocking};
use tracing::{Instrument as _, Span, debug, info, info_span, warn};
use units::Bytes;
use volume::{Record, VolumeId};

use crate::backoff::{self, Attempts, Retry};
use crate::claim::{self, Ask, Ours};
use crate::delete::{self, Verdict};
use crate::events::Events;
use crate::sweep::{self, Pending};
use crate::{FINALIZER, Volumes, pv};

/// Claims, and volumes, that are worked on at once: enough to share log forces, few enough for threads.
const PARALLEL: u16 = 8;

/// How often somebody else may be faster with a PV that is deleted, before it is tried again later.
const CONFLICTS: usize = 3;

/// A claim whose PV somebody deletes before it is bound does not change, and nothing else would wake its pass. Once
/// it is bound, it is not ours any more.
const UNTIL_BOUND: Duration = Duration::from_secs(30);

/// What a provisioner needs.
#[derive(Clone)]
pub struct Settings {
    /// With the storage identity of this node.
    pub client: Client,
    /// The node's name, in Kubernetes and in the label `kubernetes.io/hostname`.
    pub node: String,
    /// The node's volumes.
    pub store: Arc<dyn Volumes>,
}

/// Why the provisioner has to be started again.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A part of it ended for good.
    #[error("a part of the provisioner ended")]
    Part(#[from] supervisor::Ended),
    /// A watch ended, which it never does by itself.
    #[error("the watch of {0} ended")]
    WatchEnded(&'static str),
    /// The API server could not be asked.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The disk could not be read.
    #[error(transparent)]
    List(#[from] volume::ListError),
    /// A thread that worked on the disk panicked.
    #[error("work on the disk panicked")]
    Panicked(#[from] JoinError),
}

/// A request to the API server failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct ApiError {
    what: &'static str,
    source: ApiCause,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiCause {
    /// The API server said no; in its words.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// It was not reached, or not understood.
    #[error(transparent)]
    Failed(Box<kube::Error>),
}

impl ApiError {
    /// Somebody else changed the object first.
    fn is_conflict(&self) -> bool {
        matches!(&self.source, ApiCause::Refused(status) if status.is_conflict())
    }
}

/// All parts work on this.
pub(crate) struct Provisioner {
    pub(crate) node: String,
    pub(crate) client: Client,
    pub(crate) store: Arc<dyn Volumes>,
    pub(crate) volumes: Api<PersistentVolume>,
    pub(crate) pending: Pending,
    classes: Api<StorageClass>,
    events: Events,
    attempts: Attempts,
    /// All PVs that the watch has seen.
    seen: Mutex<Option<reflector::Store<PersistentVolume>>>,
}

/// Provisions and deletes until it is cancelled. Healthy once both controllers have seen the cluster.
///
/// # Errors
/// [`RunError`]; an API server that is away is waited for and is none.
pub async fn run(cx: Context, settings: Settings) -> Result<(), RunError> {
    let Settings { client, node, store } = settings;
    let provisioner = Arc::new(Provisioner {
        events: Events::new(client.clone(), &node),
        volumes: Api::all(client.clone()),
        classes: Api::all(client.clone()),
        pending: Pending::default(),
        attempts: Attempts::default(),
        seen: Mutex::default(),
        node,
        client,
        store,
    });
    let part = |provisioner: &Arc<Provisioner>| Arc::clone(provisioner);
    let (of_claims, of_volumes, of_sweep) = (part(&provisioner), part(&provisioner), part(&provisioner));
    let claims = cx.start("claims", move |cx| {
        let api = Api::<PersistentVolumeClaim>::all(of_claims.client.clone());
        control(cx, api, "claims", Arc::clone(&of_claims), |_| {}, claim_pass, claim_failed)
    });
    let volumes = cx.start("volumes", move |cx| {
        let api = of_volumes.volumes.clone();
        let keeper = Arc::clone(&of_volumes);
        let keep = move |seen| *keeper.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        control(cx, api, "volumes", Arc::clone(&of_volumes), keep, volume_pass, volume_failed)
    });
    cx.start("sweep", move |cx| sweep::run(cx, Arc::clone(&of_sweep)));
    tokio::select! {
        () = cx.cancelled() => return Ok(()),
        ready = async { claims.healthy().await?; volumes.healthy().await } => ready?,
    }
    cx.healthy();
    cx.cancelled().await;
    Ok(())
}

/// How a pass ended.
type Pass<K, E> = Result<(ObjectRef<K>, Action), controller::Error<E, watcher::Error>>;

/// Runs one controller until it is cancelled; passes that are under way are finished.
async fn control<K, E, Passing>(
    cx: Context,
    api: Api<K>,
    what: &'static str,
    provisioner: Arc<Provisioner>,
    keep: impl FnOnce(reflector::Store<K>),
    pass: fn(Arc<K>, Arc<Provisioner>) -> Passing,
    failed: fn(Arc<K>, &E, Arc<Provisioner>) -> Action,
) -> Result<(), RunError>
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Unpin,
    E: std::error::Error + Send + 'static,
    Passing: Future<Output = Result<Action, E>> + Send + 'static,
{
    let controller = Controller::new(api, watcher::Config::default())
        .with_config(controller::Config::default().concurrency(PARALLEL))
        .graceful_shutdown_on(cx.token().cancelled_owned());
    let seen = controller.store();
    keep(seen.clone());
    let passes = controller.run(pass, failed, provisioner).for_each(|pass| {
        log(what, pass);
        future::ready(())
    });
    let ready = async {
        if seen.wait_until_ready().await.is_ok() {
            cx.healthy();
        }
    };
    futures::join!(passes, ready);
    if cx.is_cancelled() { Ok(()) } else { Err(RunError::WatchEnded(what)) }
}

fn log<K: Resource, E: std::error::Error + 'static>(what: &str, pass: Pass<K, E>) {
    match pass {
        // Failed passes were logged and counted by their error policy.
        Ok(_) | Err(controller::Error::ReconcilerFailed(..)) => {}
        Err(controller::Error::ObjectNotFound(object)) => debug!(%object, "object is gone"),
        Err(error @ (controller::Error::QueueError(_) | controller::Error::RunnerError(_))) => {
            let error: &dyn std::error::Error = &error;
            warn!(what, error, "watch failed, it goes on");
        }
    }
}

/// Why a claim has no volume yet.
#[derive(Debug, thiserror::Error)]
enum ClaimError {
    #[error("the claim names no storage class; set spec.storageClassName")]
    NoClass,
    #[error("the storage class {class} does not exist; make it, or make the claim anew with another one")]
    UnknownClass { class: String },
    #[error(transparent)]
    Refused(#[from] claim::Refusal),
    #[error(transparent)]
    Full(volume::Error),
    #[error(transparent)]
    Store(volume::Error),
    #[error("PV {id} exists and is another volume; delete it")]
    NameTaken { id: VolumeId },
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("work on the disk panicked")]
    Panicked(#[from] JoinError),
}

impl ClaimError {
    /// Whether time alone may heal it. What is refused is looked at again as well, but rarely: somebody may have made
    /// its class anew.
    const fn is_retryable(&self) -> bool {
        match self {
            Self::NoClass | Self::Refused(_) => false,
            Self::UnknownClass { .. }
            | Self::Full(_)
            | Self::Store(_)
            | Self::NameTaken { .. }
            | Self::Api(_)
            | Self::Panicked(_) => true,
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::NoClass => "NoClass",
            Self::UnknownClass { .. } => "UnknownClass",
            Self::Refused(refusal) => refusal.kind(),
            Self::Full(_) => "Full",
            Self::Store(_) => "Store",
            Self::NameTaken { .. } => "NameTaken",
            Self::Api(_) => "Api",
            Self::Panicked(_) => "Panicked",
        }
    }
}

/// A claim becomes a volume.
async fn claim_pass(claim: Arc<PersistentVolumeClaim>, p: Arc<Provisioner>) -> Result<Action, ClaimError> {
    if let Some((has, wants)) = claim::wants_expansion(&claim, &p.node) {
        p.events.resize_refused(&claim, has, wants).await;
        return Ok(Action::await_change());
    }
    let Some(ours) = claim::ours(&claim, &p.node) else { return Ok(Action::await_change()) };
    if let Some(left) = p.attempts.wait(&ours.claim.uid) {
        return Ok(Action::requeue(left));
    }
    let span = info_span!("provision", volume = %ours.id, claim = %ours.claim);
    let made = p.provision(&claim, &ours).instrument(span).await;
    if let Err(error) = &made {
        p.events.provisioning_failed(&claim, error.kind(), error).await;
        if matches!(error, ClaimError::Full(_)) {
            p.release(&claim).await?;
        }
    } else {
        p.attempts.succeeded(&ours.claim.uid);
    }
    made.map(|()| Action::requeue(UNTIL_BOUND))
}

impl Provisioner {
    async fn provision(&self, claim: &PersistentVolumeClaim, ours: &Ours) -> Result<(), ClaimError> {
        let class = ours.class.as_ref().ok_or(ClaimError::NoClass)?;
        let class = self
            .classes
            .get_opt(class)
            .await
            .map_err(api("look up the storage class"))?
            .ok_or_else(|| ClaimError::UnknownClass { class: class.clone() })?;
        let Some(ask) = claim::check(ours, claim, &class)? else { return Ok(()) };
        if !self.attempts.is_failing(&ours.claim.uid) {
            self.events.provisioning(claim, &self.node).await;
        }
        let (id, request) = (ask.id.clone(), ask.request.clone());
        let record = self.on_disk(move |store| store.provision(&id, &request)).await?.map_err(of_store)?.into_inner();
        let announced = self.announce(&ask, &record).await?;
        let id = ask.id.clone();
        self.on_disk(move |store| store.announce(&id)).await?.map_err(of_store)?;
        if let Ensured::Created(()) = announced {
            let free = self.free().await;
            self.events.provisioned(claim, &ask.id, &record, free).await;
        }
        Ok(())
    }

    /// Makes the PV. `Created` if this call did.
    async fn announce(&self, ask: &Ask, record: &Record) -> Result<Ensured<()>, ClaimError> {
        let wanted = pv::build(ask, record, &self.node);
        match self.volumes.create(&PostParams::default(), &wanted).await {
            Ok(_) => {
                info!(limit = %record.size, "volume announced");
                Ok(Ensured::Created(()))
            }
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let found = self.volumes.get(ask.id.as_str()).await.map_err(api("look at the PV"))?;
                if pv::is_same(&found, &wanted, &self.node) {
                    Ok(Ensured::Unchanged(()))
                } else {
                    Err(ClaimError::NameTaken { id: ask.id.clone() })
                }
            }
            Err(error) => Err(api("make the PV")(error).into()),
        }
    }

    /// Gives the claim back to the scheduler, which may choose a node that has room.
    async fn release(&self, claim: &PersistentVolumeClaim) -> Result<(), ClaimError> {
        let namespace = claim.namespace().unwrap_or_default();
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), &namespace);
        let patch = serde_json::json!({ "metadata": {
            "resourceVersion": claim.resource_version(),
            "annotations": { claim::SELECTED_NODE: null },
        }});
        claims
            .patch(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map_err(api("give the claim back to the scheduler"))?;
        info!("no room: claim given back to the scheduler");
        Ok(())
    }

    async fn free(&self) -> Option<Bytes> {
        self.on_disk(|store| store.space().ok().map(|space| space.free())).await.ok().flatten()
    }

    /// Works on the disk in a thread that may wait. It ends by itself if nobody waits for it any more.
    pub(crate) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Volumes) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let store = Arc::clone(&self.store);
        let span = Span::current();
        spawn_blocking(move || span.in_scope(|| work(&*store))).await
    }
}

fn claim_failed(claim: Arc<PersistentVolumeClaim>, error: &ClaimError, p: Arc<Provisioner>) -> Action {
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    let cause: &dyn std::error::Error = error;
    if !error.is_retryable() {
        warn!(claim = %format_args!("{namespace}/{name}"), error = cause, "claim refused");
        return Action::requeue(backoff::MOST);
    }
    let Retry { attempt, after } = p.attempts.failed(&claim.uid().unwrap_or_default());
    warn!(claim = %format_args!("{namespace}/{name}"), error = cause, attempt, "volume not provisioned");
    Action::requeue(after)
}

/// Why a volume is not deleted yet.
#[derive(Debug, thiserror::Error)]
enum VolumeError {
    #[error(transparent)]
    Store(volume::Error),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("PV {other} stands for the same volume {id}; delete one of the two PVs with policy Retain first")]
    Shared { other: String, id: VolumeId },
    #[error("work on the disk panicked")]
    Panicked(#[from] JoinError),
}

impl VolumeError {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Store(_) => "Store",
            Self::Api(_) => "Api",
            Self::Shared { .. } => "Shared",
            Self::Panicked(_) => "Panicked",
        }
    }
}

/// A PV of ours is kept, marked, or deleted with its data.
async fn volume_pass(pv: Arc<PersistentVolume>, p: Arc<Provisioner>) -> Result<Action, VolumeError> {
    let Some(id) = pv::ours(&pv, &p.node) else {
        if pv::is_incomplete(&pv) {
            info!(pv = pv.name_any(), "PV names our driver, but no volume of one node; ignored");
        }
        return Ok(Action::await_change());
    };
    let uid = pv.uid().unwrap_or_default();
    if let Some(left) = p.attempts.wait(&uid) {
        return Ok(Action::requeue(left));
    }
    let span = info_span!("volume", volume = %id);
    let settled = match delete::judge(&pv) {
        Verdict::Keep => p.keep(&id).instrument(span).await,
        Verdict::Mark(finalizers) => {
            async {
                p.keep(&id).await?;
                Ok(p.set_finalizers(&pv, finalizers).await?)
            }
            .instrument(span)
            .await
        }
        Verdict::Delete => {
            let deleted = p.delete(&pv, &id).instrument(span).await;
            if let Err(error) = &deleted {
                p.events.delete_failed(&pv, error.kind(), error).await;
            }
            deleted
        }
    };
    settled?;
    p.attempts.succeeded(&uid);
    Ok(Action::await_change())
}

impl Provisioner {
    /// The PV exists: a run that ended before it could note that is made up for.
    async fn keep(&self, id: &VolumeId) -> Result<(), VolumeError> {
        let id = id.clone();
        self.on_disk(move |store| store.announce(&id)).await?.map_err(VolumeError::Store)?;
        Ok(())
    }

    async fn delete(&self, seen: &PersistentVolume, id: &VolumeId) -> Result<(), VolumeError> {
        // What the watch has seen may be old, and data does not come back: ask once more.
        let Some(pv) = self.volumes.get_opt(&seen.name_any()).await.map_err(api("look at the PV"))? else {
            return Ok(());
        };
        if pv.uid() != seen.uid() || delete::judge(&pv) != Verdict::Delete {
            return Ok(());
        }
        // Somebody adopted the volume by a second PV: its data is in use.
        if let Some(other) = self.other_of(&pv.name_any(), id) {
            return Err(VolumeError::Shared { other, id: id.clone() });
        }
        let retired = id.clone();
        self.on_disk(move |store| store.retire(&retired)).await?.map_err(VolumeError::Store)?;
        let leaving = if pv.metadata.deletion_timestamp.is_some() { Some(pv) } else { self.delete_pv(&pv).await? };
        if let Some(pv) = leaving {
            self.let_go(pv).await?;
        }
        info!("PV deleted");
        self.pending.add(id.clone());
        Ok(())
    }

    /// Another PV of the same volume, of those that the watch has seen.
    fn other_of(&self, name: &str, id: &VolumeId) -> Option<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let all = seen.as_ref()?.state();
        pv::others(all.iter().map(AsRef::as_ref), name, id, &self.node).next()
    }

    /// The PV as it is while it waits for its finalizers; `None` if it is gone.
    async fn delete_pv(&self, pv: &PersistentVolume) -> Result<Option<PersistentVolume>, VolumeError> {
        let preconditions = Some(Preconditions { uid: pv.uid(), resource_version: pv.resource_version() });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        match self.volumes.delete(&pv.name_any(), &params).await {
            Ok(answer) => Ok(answer.left().filter(|pv| pv.finalizers().iter().any(|name| name == FINALIZER))),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(api("delete the PV")(error).into()),
        }
    }

    /// Takes our finalizer off. The protection of PVs takes off its own at the same moment: nobody is told of that
    /// conflict, the PV is looked at once more.
    async fn let_go(&self, mut pv: PersistentVolume) -> Result<(), ApiError> {
        for _ in 0..CONFLICTS {
            match self.set_finalizers(&pv, delete::without_ours(&pv)).await {
                Err(error) if error.is_conflict() => {}
                done => return done,
            }
            match self.volumes.get_opt(&pv.name_any()).await.map_err(api("look at the PV"))? {
                Some(found) if found.uid() == pv.uid() => pv = found,
                Some(_) | None => return Ok(()),
            }
        }
        self.set_finalizers(&pv, delete::without_ours(&pv)).await
    }

    async fn set_finalizers(&self, pv: &PersistentVolume, finalizers: Vec<String>) -> Result<(), ApiError> {
        let patch = serde_json::json!({ "metadata": {
            "uid": pv.uid(),
            "resourceVersion": pv.resource_version(),
            "finalizers": finalizers,
        }});
        match self.volumes.patch_metadata(&pv.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(api("set the PV's finalizers")(error)),
        }
    }
}

fn volume_failed(pv: Arc<PersistentVolume>, error: &VolumeError, p: Arc<Provisioner>) -> Action {
    let retry = p.attempts.failed(&pv.uid().unwrap_or_default());
    let cause: &dyn std::error::Error = error;
    warn!(volume = pv.name_any(), error = cause, attempt = retry.attempt, "PV not settled");
    Action::requeue(retry.after)
}

fn of_store(error: volume::Error) -> ClaimError {
    match error {
        full @ volume::Error::Full { .. } => ClaimError::Full(full),
        other @ (volume::Error::Refused { .. }
        | volume::Error::Look { .. }
        | volume::Error::Act { .. }
        | volume::Error::Announced { .. }) => ClaimError::Store(other),
    }
}

/// For `map_err`: this request failed.
pub(crate) fn api(what: &'static str) -> impl FnOnce(kube::Error) -> ApiError {
    move |error| {
        let source = match error {
            kube::Error::Api(status) => ApiCause::Refused(status),
            other => ApiCause::Failed(Box::new(other)),
        };
        ApiError { what, source }
    }
}
