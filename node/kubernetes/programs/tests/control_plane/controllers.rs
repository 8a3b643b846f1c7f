//! Behavior of kube-controller-manager.

use std::sync::Arc;

use envtest::{Cluster, Failure, PATIENCE, Seen, Suite, eventually, merge, merge_status, remove, until};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

pub fn cases(suite: Suite) -> Suite {
    suite
        .case("the_controllers_bind_a_claim_to_a_volume", the_controllers_bind_a_claim_to_a_volume)
        .case("a_claim_of_a_missing_class_gets_an_event", a_claim_of_a_missing_class_gets_an_event)
        .case("a_cron_job_names_a_time_zone", a_cron_job_names_a_time_zone)
        .case("a_cron_job_runs_at_the_time_of_its_zone", a_cron_job_runs_at_the_time_of_its_zone)
}

fn claim(class: &str) -> Result<PersistentVolumeClaim, serde_json::Error> {
    serde_json::from_value(envtest::claim(json!({"name": class}), class, json!({})))
}

/// Waits until kube-controller-manager has processed the PV. A claim that was created earlier is bound at the next
/// comparison, up to 15 s later.
pub async fn is_available(volumes: &Api<PersistentVolume>, name: &str) -> Result<(), Failure> {
    until(&format!("the phase Available of PV {name}"), async || {
        let phase = volumes.get(name).await?.status.and_then(|status| status.phase).unwrap_or_default();
        Ok((phase != "Available").then_some(phase))
    })
    .await
}

async fn the_controllers_bind_a_claim_to_a_volume(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (volumes, claims) = (Api::all(cluster.admin()), Api::default_namespaced(cluster.admin()));
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": "by-hand"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "by-hand",
            "hostPath": {"path": "/nowhere"},
        },
    }))?;
    volumes.create(&PostParams::default(), &volume).await?;
    is_available(&volumes, "by-hand").await?;
    claims.create(&PostParams::default(), &claim("by-hand")?).await?;
    envtest::bound(&claims, "by-hand").await?;
    claims.delete("by-hand", &DeleteParams::default()).await?;
    remove(&volumes, "by-hand").await
}

/// The provisioner cannot report this error: only a class names a provisioner.
async fn a_claim_of_a_missing_class_gets_an_event(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let claims = Api::<PersistentVolumeClaim>::default_namespaced(cluster.admin());
    let uid = claims.create(&PostParams::default(), &claim("missing")?).await?.uid();
    let events = Api::<Event>::default_namespaced(cluster.admin());
    let note = eventually(PATIENCE, "the event ProvisioningFailed", async || {
        let all = events.list(&ListParams::default()).await?.items;
        let about = |event: &&Event| event.regarding.as_ref().is_some_and(|object| object.uid == uid);
        let failed = |event: &&Event| event.reason.as_deref() == Some("ProvisioningFailed");
        Ok::<_, kube::Error>(match all.iter().filter(about).find(failed) {
            Some(event) => Seen::Done(event.note.clone().unwrap_or_default()),
            None => Seen::NotYet(format!("{} events", all.len())),
        })
    })
    .await?;
    assert!(note.contains("\"missing\" not found"), "{note}");
    let phase = claims.get("missing").await?.status.and_then(|status| status.phase);
    assert_eq!(phase.as_deref(), Some("Pending"));
    remove(&claims, "missing").await
}

/// A suspended CronJob with the name `nightly`. Its Jobs are suspended too, so that they have no pods.
fn cron_job(schedule: &str, zone: &str) -> Result<CronJob, serde_json::Error> {
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "granary.invalid/none"}]});
    serde_json::from_value(json!({
        "metadata": {"name": "nightly"},
        "spec": {
            "schedule": schedule, "timeZone": zone, "suspend": true,
            "jobTemplate": {"spec": {"suspend": true, "template": {"spec": pod}}},
        },
    }))
}

/// If the machine has files of the time zones, this test does not show whether the program has its own: see
/// `contents_test` of the image.
async fn a_cron_job_names_a_time_zone(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let cron_jobs = Api::<CronJob>::default_namespaced(cluster.admin());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let created = cron_jobs.create(&dry, &cron_job("0 3 * * *", "Europe/Berlin")?).await?;
    assert_eq!(created.spec.time_zone.as_deref(), Some("Europe/Berlin"));
    let rejected = cron_jobs.create(&dry, &cron_job("0 3 * * *", "Europe/Nowhere")?).await;
    let unknown = matches!(&rejected, Err(kube::Error::Api(status)) if status.message.contains("unknown time zone"));
    assert!(unknown, "{rejected:?}");
    Ok(())
}

/// The controller creates the Job of a time that has passed since `lastScheduleTime`, so that the test need not wait
/// for the next minute. In UTC, the time of this schedule is 5.5 hours later.
async fn a_cron_job_runs_at_the_time_of_its_zone(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let cron_jobs = Api::<CronJob>::default_namespaced(cluster.admin());
    let jobs = Api::<Job>::default_namespaced(cluster.admin());
    let due_minute = Timestamp::now().as_second() / 60 - 1;
    let local_minute = (due_minute + 5 * 60 + 30) % (24 * 60);
    let schedule = format!("{} {} * * *", local_minute % 60, local_minute / 60);
    cron_jobs.create(&PostParams::default(), &cron_job(&schedule, "Asia/Kolkata")?).await?;
    let last = Timestamp::from_second((due_minute - 1) * 60)?.to_string();
    merge_status(&cron_jobs, "nightly", json!({"status": {"lastScheduleTime": last}})).await?;
    merge(&cron_jobs, "nightly", json!({"spec": {"suspend": false}})).await?;
    // The controller adds the scheduled time to the name, in minutes.
    let name = format!("nightly-{due_minute}");
    until(&format!("Job {name} of the schedule {schedule}"), async || {
        Ok(match jobs.get_opt(&name).await? {
            Some(_) => None,
            None => Some(format!("{:?}", cron_jobs.get("nightly").await?.status)),
        })
    })
    .await?;
    remove(&cron_jobs, "nightly").await
}
