//! One burst in one way: claims that wait for a node, then its provisioner, then as many PVs.

use std::error::Error;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bench::{BurstSample, Way};
use envtest::{Cluster, PATIENCE};
use eventually::{Seen, eventually};
use fakevolumes::FakeVolumes;
use futures::StreamExt as _;
use futures::stream;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim};
use kube::Api;
use kube::api::PostParams;
use provisioner::Volumes as _;
use serde_json::json;
use supervisor::Supervisor;
use units::Bytes;
use volume::State;

use crate::client::{Limit, Requests, counting};

type Failure = Box<dyn Error + Send + Sync>;

/// Of external-provisioner: 5 requests a second, 10 at once.
const LIMIT: Limit = Limit { each: Duration::from_millis(200), burst: 10 };

/// Requests of the benchmark itself at once.
const HANDS: usize = 16;

const STOP: Duration = Duration::from_secs(20);

/// Puts the storage class and the nodes' role into the cluster.
pub(crate) async fn prepare(cluster: &Cluster) -> Result<(), Failure> {
    let client = cluster.admin();
    let reconciler =
        Supervisor::start("reconciler", supervisor::Settings::default(), move |cx| reconciler::run(cx, client.clone()));
    reconciler.handle().healthy().await?;
    reconciler.stop(STOP).await?;
    Ok(())
}

/// Serves so many claims, which are all there when the provisioner starts.
pub(crate) async fn measure(cluster: &Cluster, way: Way, run: u32, claims: u32) -> Result<BurstSample, Failure> {
    // A node of its own: what other runs left is none of its provisioner's business.
    let name = format!("{}-{run}", serde_json::to_value(way)?.as_str().unwrap_or_default());
    let admin = cluster.admin();
    let made = json!({"metadata": {"name": name}});
    Api::<Node>::all(admin.clone()).create(&PostParams::default(), &serde_json::from_value(made.clone())?).await?;
    Api::<Namespace>::all(admin.clone()).create(&PostParams::default(), &serde_json::from_value(made)?).await?;
    let waiting = Api::<PersistentVolumeClaim>::namespaced(admin.clone(), &name);
    let mut made = stream::iter(0..claims)
        .map(|number| {
            let (api, node) = (waiting.clone(), name.clone());
            async move { api.create(&PostParams::default(), &claim(number, &node)?).await.map_err(Failure::from) }
        })
        .buffer_unordered(HANDS);
    while let Some(made) = made.next().await {
        made?;
    }

    let requests = Requests::default();
    let limit = (way == Way::LimitedClient).then_some(LIMIT);
    let client = counting(cluster.storage_of(&name).await?, requests.clone(), limit);
    let disk = Arc::new(FakeVolumes::with_size(Bytes::TIB));
    let mut settings = provisioner::Settings::new(client, name.clone(), disk.clone());
    if way == Way::OneWorker {
        settings.parallel = NonZeroU16::MIN;
    }
    let start = Instant::now();
    let tree = Supervisor::start("provisioner", supervisor::Settings::default(), move |cx| {
        provisioner::run(cx, settings.clone())
    });
    // A volume is announced when its PV is made. To ask the API server would be load.
    eventually(PATIENCE * 4, &format!("{claims} volumes"), async || {
        let records = disk.records()?.readable;
        let announced = records.values().filter(|record| record.state == State::Announced).count();
        Ok::<_, volume::ListError>(if u32::try_from(announced).is_ok_and(|announced| announced >= claims) {
            Seen::Done(())
        } else {
            Seen::NotYet(format!("{announced}"))
        })
    })
    .await?;
    let milliseconds = u64::try_from(start.elapsed().as_millis())?;
    tree.stop(STOP).await?;
    Ok(BurstSample { way, run, claims, requests: requests.counted(), flushes: 0, milliseconds })
}

/// As the scheduler leaves it when a pod with it is to run on `node`.
fn claim(number: u32, node: &str) -> Result<PersistentVolumeClaim, serde_json::Error> {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("claim-{number}"),
            "annotations": {
                "volume.kubernetes.io/selected-node": node,
                "volume.kubernetes.io/storage-provisioner": cluster::DRIVER_NAME,
            },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": reconciler::CLASS,
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }))
}
