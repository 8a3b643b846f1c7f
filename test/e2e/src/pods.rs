//! Operations of a case on pods.

use crate::cost::cost;
use crate::watch::watch;
use crate::{Case, Failure, PATIENCE, Pod, Seen, Server, eventually};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

impl Case {
    pub async fn start(&self, pod: &Pod) -> Result<(), Failure> {
        let doing = format!("create pod {}", pod.name);
        self.pods().create(&PostParams::default(), &pod.object()?).await.map_err(Failure::api(doing))?;
        cost("pods");
        Ok(())
    }

    /// Creates a pod of [`Pod::server`] and waits until it responds.
    pub async fn open(&self, pod: &Pod) -> Result<Server, Failure> {
        self.start(pod).await?;
        self.find(&pod.name).await
    }

    /// Waits until an existing pod of [`Pod::server`] responds, which may restart after a boot.
    pub async fn find(&self, pod: &str) -> Result<Server, Failure> {
        let server = Server::of(self, pod);
        let what = format!("an answer of pod {pod}");
        let answers = eventually(PATIENCE, &what, async || {
            watch(self.pods(), pod, is_ready).await;
            let found = self.pods().get_opt(pod).await.map_err(Failure::api("look for the pod"))?;
            if !is_ready(found.as_ref()) {
                let status = found.and_then(|pod| pod.status).unwrap_or_default();
                return Ok(Seen::NotYet(format!("{:?}, {:?}", status.phase, status.container_statuses)));
            }
            server.inspect("/").await?;
            Ok(Seen::Done(server.clone()))
        });
        let answers = answers.await;
        self.with_events(pod, answers).await
    }

    /// Waits until a pod with another UID than `before` is ready. Returns its UID.
    pub async fn ready_pod(&self, pod: &str, before: Option<&str>) -> Result<String, Failure> {
        let what = format!("another ready pod {pod}");
        let ready = eventually(PATIENCE, &what, async || {
            watch(self.pods(), pod, is_ready).await;
            let found = self.pods().get_opt(pod).await.map_err(Failure::api("look for the pod"))?;
            let is_ready = is_ready(found.as_ref());
            let (id, status) = found.map(|pod| (pod.metadata.uid, pod.status)).unwrap_or_default();
            Ok(match id.filter(|id| is_ready && Some(id.as_str()) != before) {
                Some(id) => Seen::Done(id),
                None => Seen::NotYet(format!("{:?}", status.unwrap_or_default().container_statuses)),
            })
        });
        let ready = ready.await;
        self.with_events(pod, ready).await
    }

    /// Changes an annotation of a pod, so that the kubelet synchronizes the pod and its volumes now.
    pub async fn touch(&self, pod: &str) -> Result<(), Failure> {
        // Another value at each call: the kubelet ignores an update without a change.
        let now = Timestamp::now().to_string();
        let patch = json!({"metadata": {"annotations": {"e2e.granary.dev/touched": now}}});
        let patched = self.pods().patch(pod, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.map(drop).map_err(Failure::api(format!("annotate pod {pod}")))
    }

    /// Adds the events about an object to the error of a wait for it.
    pub(crate) async fn with_events<T>(&self, object: &str, waited: Result<T, Failure>) -> Result<T, Failure> {
        let Err(Failure::Late(mut late)) = waited else { return waited };
        late.last = format!("{}; {}", late.last, self.events(object).await?.join("; "));
        Err(Failure::Late(late))
    }

    pub async fn remove(&self, pod: &str) -> Result<(), Failure> {
        let deleted = self.pods().delete(pod, &DeleteParams::default()).await;
        deleted.map_err(Failure::api(format!("delete pod {pod}")))?;
        eventually(PATIENCE, &format!("the removal of pod {pod}"), async || {
            watch(self.pods(), pod, |found| found.is_none()).await;
            let found = self.pods().get_opt(pod).await.map_err(Failure::api("look for the pod"))?;
            Ok(found.map_or(Seen::Done(()), |_| Seen::NotYet("it is there".to_owned())))
        })
        .await
    }

    pub async fn volume_statistics(&self, pod: &str, claim: &str) -> Result<Value, Failure> {
        eventually(PATIENCE, &format!("kubelet's statistics of claim {claim}"), async || {
            let text = self.get("/api/v1/nodes/granary/proxy/stats/summary").await?;
            let summary: Value = serde_json::from_str(&text)?;
            let pods = summary["pods"].as_array().cloned().unwrap_or_default();
            let pod_stats = pods
                .into_iter()
                .find(|one| one["podRef"]["name"] == pod && one["podRef"]["namespace"] == self.namespace());
            let volumes = pod_stats.map(|pod| pod["volume"].clone()).unwrap_or_default();
            let found = volumes.as_array().and_then(|all| all.iter().find(|one| one["pvcRef"]["name"] == claim));
            Ok(found.map_or_else(|| Seen::NotYet(volumes.to_string()), |volume| Seen::Done(volume.clone())))
        })
        .await
    }

    pub(crate) fn pods(&self) -> Api<core::Pod> {
        self.api()
    }
}

/// Whether the pod runs. Without this check, the API server's proxy waits long for the pod's address of the last boot.
fn is_ready(pod: Option<&core::Pod>) -> bool {
    let Some(status) = pod.and_then(|pod| pod.status.as_ref()) else { return false };
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let are_ready = !containers.is_empty() && containers.iter().all(|container| container.ready);
    are_ready && status.phase.as_deref() == Some("Running")
}
