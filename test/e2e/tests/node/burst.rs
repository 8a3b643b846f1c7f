//! Claims and pods that are created and deleted at once while the storage tasks restart.

use crate::killed::no_place_has_two_mounts;
use crate::status::restarts;
use e2e::{Case, Claim, Failure, PATIENCE, Part, Pod, Seen, Server, Stopped, Volume, eventually};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod as PodObject};
use kube::api::{DeleteParams, ListParams};

const MIB: u64 = 1 << 20;
/// signal(7), x86.
const SIGUSR1: i32 = 10;
const POD: &str = "burst";
/// Claims of a single pod, because the start of a pod takes much longer than its volumes.
const CLAIMS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const DEVICES: [&str; 2] = ["a", "b"];
/// Services that restart after SIGUSR1: the CSI plugin and the provisioner.
const STORAGE: [&str; 2] = ["csi", "provisioner"];

pub async fn run(part: Part) -> Result<(), Stopped> {
    part.alone().await;
    let case = &part.case;
    let created = create(case);
    let pod = part.must_show("a_burst_is_created_although_the_storage_tasks_end", created).await?;
    part.shows("a_burst_is_deleted_although_the_storage_tasks_end", delete(&part, pod)).await;
    Ok(())
}

fn claim(name: &'static str) -> Claim {
    if DEVICES.contains(&name) { Claim::block(name, 8 * MIB) } else { Claim::new(name, 8 * MIB) }
}

async fn create(case: &Case) -> Result<Server, Failure> {
    let mut pod = Pod::server(POD);
    for claim in CLAIMS.map(claim) {
        case.claim(&claim).await?;
        pod = pod.with(Volume::of(&claim));
    }
    case.start(&pod).await?;
    eventually(PATIENCE, "the first claim to be bound", async || {
        let all = case.api::<PersistentVolumeClaim>().list(&ListParams::default()).await;
        let all = all.map_err(Failure::api("list claims"))?.items;
        let phases = all.into_iter().filter_map(|claim| claim.status?.phase);
        let bound = phases.filter(|phase| phase == "Bound").count();
        Ok(if bound > 0 { Seen::Done(()) } else { Seen::NotYet("none is".to_owned()) })
    })
    .await?;
    // Restart the tasks while the other claims are provisioned and while the pod's volumes are published.
    end_the_storage_tasks(case).await?;
    end_the_storage_tasks(case).await?;
    let pod = case.find(POD).await?;
    no_place_has_two_mounts(case).await?;
    for device in DEVICES {
        let found = case.on_the_node(&case.volume_name(device).await?).await?;
        assert_eq!(found.loops.len(), 1, "{found:?}");
    }
    Ok(pod)
}

async fn delete(part: &Part, pod: Server) -> Result<(), Failure> {
    let case = &part.case;
    let mut volumes = Vec::new();
    for claim in CLAIMS {
        volumes.push(case.volume_name(claim).await?);
        if !DEVICES.contains(&claim) {
            pod.write(format!("/{claim}/note"), "hello").await?;
        }
    }
    let deleted = case.api::<PodObject>().delete(pod.name(), &DeleteParams::default()).await;
    deleted.map_err(Failure::api("delete a pod"))?;
    // Claims exist as long as a pod uses them.
    for claim in CLAIMS {
        case.delete_claim(claim).await?;
    }
    end_the_storage_tasks(case).await?;
    part.end_of_turn();
    for volume in volumes {
        case.volume_is_gone(&volume, None).await?;
    }
    Ok(())
}

/// SIGUSR1 ends the tasks at any point of their work. Waits until each task has restarted and is ready.
async fn end_the_storage_tasks(case: &Case) -> Result<(), Failure> {
    let before = restarts(case, STORAGE).await?;
    assert_eq!(case.signal("init", SIGUSR1).await?, [1]);
    eventually(PATIENCE, "another start of the storage's tasks", async || {
        let now = restarts(case, STORAGE).await?;
        let is_done = now.iter().zip(&before).all(|(now, before)| now.is_ready && now.count > before.count);
        Ok(if is_done { Seen::Done(()) } else { Seen::NotYet(format!("{before:?}, then {now:?}")) })
    })
    .await
}
