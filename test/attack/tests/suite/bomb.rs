//! State of the node during a fork bomb. The bomb runs until the test creates a file in the pod's volume.

use attack::{BOMB_END, BOMB_LIMIT_REACHED};
use e2e::{Case, Failure, PATIENCE, Seen, eventually};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::jiff::Timestamp;

const NODE: &str = "granary";
const VOLUMES: &str = "/volumes";

/// The node stays Ready and renews its lease while a pod at its process limit tries to start more.
pub async fn is_survived(case: &Case, claim: &str) -> Result<(), Failure> {
    let before = ready(case).await?;
    let volume = limit_reached(case, claim).await?;
    let survived = heartbeat(case).await;
    // Stop the bomb now. Otherwise it stops only after ten minutes.
    case.observer().write(format!("{volume}/{}", name(BOMB_END)), "").await?;
    survived?;
    assert_eq!(
        ready(case).await?.last_transition_time,
        before.last_transition_time,
        "the node was not Ready meanwhile"
    );
    Ok(())
}

/// Waits until the pod has reached its process limit. Returns the directory of the claim's volume as the observer sees
/// it.
async fn limit_reached(case: &Case, claim: &str) -> Result<String, Failure> {
    eventually(PATIENCE, "a fork bomb at the limit of its pod", async || {
        let volume = case.volume_name(claim).await?;
        let found = case.on_the_node(&volume).await?;
        for entry in found.entries.iter().filter(|entry| entry.project.is_some()) {
            let directory = format!("{VOLUMES}/{}", entry.path);
            match case.observer().inspect(format!("{directory}/{}", name(BOMB_LIMIT_REACHED))).await {
                Ok(_) => return Ok(Seen::Done(directory)),
                Err(Failure::Pod { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Seen::NotYet(format!("{found:?}")))
    })
    .await
}

/// Waits until the kubelet renews the lease after this call.
async fn heartbeat(case: &Case) -> Result<(), Failure> {
    let begun = renewed(case).await?;
    eventually(PATIENCE, "the kubelet to renew the lease of its node", async || {
        let now = renewed(case).await?;
        Ok(if now > begun { Seen::Done(()) } else { Seen::NotYet(format!("{now:?}")) })
    })
    .await
}

async fn renewed(case: &Case) -> Result<Option<Timestamp>, Failure> {
    let lease = case.api_of::<Lease>("kube-node-lease").get(NODE).await;
    let lease = lease.map_err(Failure::api("read the lease of the node"))?;
    Ok(lease.spec.and_then(|spec| spec.renew_time).map(|time| time.0))
}

async fn ready(case: &Case) -> Result<NodeCondition, Failure> {
    let node = case.cluster::<Node>().get(NODE).await.map_err(Failure::api("read the node"))?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready =
        conditions.into_iter().find(|condition| condition.type_ == "Ready").expect("the node has a condition Ready");
    assert_eq!(ready.status, "True", "{ready:?}");
    Ok(ready)
}

fn name(file: &std::ffi::CStr) -> &str {
    file.to_str().expect("the name is ASCII")
}
