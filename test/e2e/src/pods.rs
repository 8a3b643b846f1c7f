//! What a case does with pods.

use crate::{Case, Failure, PATIENCE, Pod, Seen, Server, eventually};
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::Value;
use workload::Finding;

impl Case {
    /// Makes a pod and leaves it to its fate.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn start(&self, pod: &Pod) -> Result<(), Failure> {
        let doing = format!("create pod {}", pod.name);
        self.pods().create(&PostParams::default(), &pod.object()?).await.map_err(Failure::api(doing))?;
        Ok(())
    }

    /// Makes a pod of [`Pod::server`], and waits until it answers.
    ///
    /// # Errors
    /// It does not.
    pub async fn open(&self, pod: &Pod) -> Result<Server, Failure> {
        self.start(pod).await?;
        self.find(&pod.name).await
    }

    /// Waits until a pod of [`Pod::server`] answers that somebody else made, or that comes back after a boot.
    ///
    /// # Errors
    /// It does not.
    pub async fn find(&self, pod: &str) -> Result<Server, Failure> {
        let server = Server::of(self, pod);
        let what = format!("an answer of pod {pod}");
        let answers = eventually(PATIENCE, &what, async || {
            let found = self.pods().get_opt(pod).await.map_err(Failure::api("look for the pod"))?;
            let status = found.and_then(|pod| pod.status).unwrap_or_default();
            // The proxy waits long for an address that is not there any more: that of the last boot.
            let ready = status.container_statuses.iter().flatten().any(|container| container.ready);
            let phase = status.phase.unwrap_or_default();
            if phase != "Running" || !ready {
                return Ok(Seen::NotYet(format!("{phase}, ready: {ready}")));
            }
            server.inspect("/").await?;
            Ok(Seen::Done(server.clone()))
        });
        let answers = answers.await;
        self.with_events(pod, answers).await
    }

    /// What has been said about a pod, if it was waited for in vain.
    async fn with_events<T>(&self, pod: &str, waited: Result<T, Failure>) -> Result<T, Failure> {
        let Err(Failure::Late(mut late)) = waited else { return waited };
        late.last = format!("{}; {}", late.last, self.events(pod).await?.join("; "));
        Err(Failure::Late(late))
    }

    /// Makes a pod, waits for its end, removes it, and returns what it found.
    ///
    /// # Errors
    /// The pod does not end, or its check could not be made.
    pub async fn run(&self, pod: &Pod) -> Result<Finding, Failure> {
        self.start(pod).await?;
        let what = format!("the end of pod {}", pod.name);
        let ended = eventually(PATIENCE, &what, async || {
            let found = self.pods().get(&pod.name).await.map_err(Failure::api("read the pod"))?;
            let status = found.status.unwrap_or_default();
            match status.phase.as_deref() {
                Some(phase @ ("Succeeded" | "Failed")) => Ok(Seen::Done((phase.to_owned(), message(&status)))),
                phase => Ok(Seen::NotYet(phase.unwrap_or_default().to_owned())),
            }
        });
        let ended = ended.await;
        let (phase, message) = self.with_events(&pod.name, ended).await?;
        self.remove(&pod.name).await?;
        if phase == "Failed" {
            return Err(Failure::Pod { pod: pod.name.clone(), message });
        }
        serde_json::from_str(&message).map_err(|source| Failure::Report { pod: pod.name.clone(), message, source })
    }

    /// Deletes a pod and waits until it is gone.
    ///
    /// # Errors
    /// It does not go.
    pub async fn remove(&self, pod: &str) -> Result<(), Failure> {
        let deleted = self.pods().delete(pod, &DeleteParams::default()).await;
        deleted.map_err(Failure::api(format!("delete pod {pod}")))?;
        eventually(PATIENCE, &format!("the removal of pod {pod}"), async || {
            let found = self.pods().get_opt(pod).await.map_err(Failure::api("look for the pod"))?;
            Ok(found.map_or(Seen::Done(()), |_| Seen::NotYet("it is there".to_owned())))
        })
        .await
    }

    /// Waits until a pod that the scheduler cannot place says why, with this part in it.
    ///
    /// # Errors
    /// It is placed, or says something else.
    pub async fn unschedulable(&self, pod: &str, part: &str) -> Result<String, Failure> {
        eventually(PATIENCE, &format!("pod {pod} to wait because of {part:?}"), async || {
            let found = self.pods().get(pod).await.map_err(Failure::api("read the pod"))?;
            let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
            let reason = conditions.into_iter().find(|one| one.type_ == "PodScheduled" && one.status == "False");
            let message = reason.and_then(|reason| reason.message).unwrap_or_default();
            Ok(if message.contains(part) { Seen::Done(message) } else { Seen::NotYet(message) })
        })
        .await
    }

    /// kubelet's statistics of a claim's volume in a pod, by `/stats/summary`, once it has them.
    ///
    /// # Errors
    /// There are none.
    pub async fn volume_statistics(&self, pod: &str, claim: &str) -> Result<Value, Failure> {
        eventually(PATIENCE, &format!("kubelet's statistics of claim {claim}"), async || {
            let text = self.get("/api/v1/nodes/granary/proxy/stats/summary").await?;
            let summary: Value = serde_json::from_str(&text)?;
            let pods = summary["pods"].as_array().cloned().unwrap_or_default();
            let its = pods
                .into_iter()
                .find(|one| one["podRef"]["name"] == pod && one["podRef"]["namespace"] == self.namespace());
            let volumes = its.map(|pod| pod["volume"].clone()).unwrap_or_default();
            let found = volumes.as_array().and_then(|all| all.iter().find(|one| one["pvcRef"]["name"] == claim));
            Ok(found.map_or_else(|| Seen::NotYet(volumes.to_string()), |volume| Seen::Done(volume.clone())))
        })
        .await
    }

    pub(crate) fn pods(&self) -> Api<core::Pod> {
        self.api()
    }
}

/// What the container reported, or what kubelet says about the pod.
fn message(status: &core::PodStatus) -> String {
    let container = status.container_statuses.iter().flatten().next();
    let reported = container.and_then(|container| container.state.as_ref()?.terminated.as_ref()?.message.clone());
    reported.or_else(|| status.message.clone()).unwrap_or_default()
}
