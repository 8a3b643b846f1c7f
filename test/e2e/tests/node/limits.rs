//! I/O limits of a block volume.

use e2e::{Case, DRIVER, Failure, PATIENCE, Seen, Server, eventually};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::device;

/// Path through the root of PID 1, whose cgroup hierarchy no namespace hides.
const LIMITS: &str = "/proc/1/root/sys/fs/cgroup/kubepods/io.max";

/// Applies limits to a running pod, which keeps its device. The limit is high, so that it delays no other case.
pub async fn apply_to_a_running_pod(case: &Case, pod: &Server) -> Result<(), Failure> {
    let class = case.unique("limited");
    let object = json!({
        "metadata": {"name": class, "labels": case.labels()},
        "driverName": DRIVER,
        "parameters": {"writeBytesPerSecond": "1Gi", "readIOPS": "1000000"},
    });
    let classes = case.cluster::<VolumeAttributesClass>();
    let created = classes.create(&PostParams::default(), &serde_json::from_value(object)?).await;
    created.map_err(Failure::api("create a VolumeAttributesClass"))?;
    let claims = case.api::<PersistentVolumeClaim>();
    let patch = Patch::Merge(json!({"spec": {"volumeAttributesClassName": class}}));
    let patched = claims.patch("device", &PatchParams::default(), &patch).await;
    patched.map_err(Failure::api("set the class of the claim"))?;
    eventually(PATIENCE, "the class of the claim", async || {
        let status = case.read_claim("device").await?.status.unwrap_or_default();
        let has_class = status.current_volume_attributes_class_name.as_ref() == Some(&class);
        let seen = serde_json::to_string(&status)?;
        Ok(if has_class && status.modify_volume_status.is_none() { Seen::Done(()) } else { Seen::NotYet(seen) })
    })
    .await?;
    let limits = case.observer().read(LIMITS).await?;
    let number = pod.device(device::PATH).await?.number;
    let line = format!("{number} rbps=max wbps=1073741824 riops=1000000 wiops=max");
    assert!(limits.lines().any(|found| found == line), "{line}: {limits}");
    // The claim keeps its status after the deletion of the class.
    let deleted = classes.delete(&class, &DeleteParams::default()).await;
    deleted.map(drop).map_err(Failure::api("delete the VolumeAttributesClass"))
}
