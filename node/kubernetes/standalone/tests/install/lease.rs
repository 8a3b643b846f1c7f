//! Leader election of the reclaimer: replicas with the rights of their account, against a real API server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use envtest::{Cluster, Failure, PATIENCE, Seen, eventually, forbidden, merge, until};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use standalone::lease::{Candidate, Times};
use supervisor::{Settings, Supervisor};
use tokio::runtime::Runtime;

use crate::accounts::{Pods, RECLAIMER, SELECTED_NODE, waiting};
use crate::objects::NAMESPACE;

/// Times that are shorter than the defaults, in the same order.
const TIMES: Times =
    Times { duration: Duration::from_secs(6), renewal: Duration::from_secs(3), retry: Duration::from_millis(300) };

/// Replicas that act now, and the largest number that acted at once.
#[derive(Clone, Default)]
struct Actors(Arc<Mutex<(Vec<&'static str>, usize)>>);

struct ActingReplica(Actors, &'static str);

impl Actors {
    fn enter(&self, replica: &'static str) -> ActingReplica {
        let mut actors = self.0.lock().unwrap();
        actors.0.push(replica);
        actors.1 = actors.1.max(actors.0.len());
        ActingReplica(self.clone(), replica)
    }

    fn now(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().0.clone()
    }
}

impl Drop for ActingReplica {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().0.retain(|replica| *replica != self.1);
    }
}

/// Threads of a replica. Dropping them ends the replica like a killed process, without giving up the Lease.
struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

struct Replica {
    name: &'static str,
    threads: Threads,
    tree: Supervisor,
}

impl Replica {
    fn start(name: &'static str, client: &Client, actors: &Actors) -> Result<Self, Failure> {
        let leases = Api::namespaced(client.clone(), NAMESPACE);
        let candidate = Candidate { leases, name: RECLAIMER.into(), identity: name.into(), times: TIMES };
        let (client, actors) = (client.clone(), actors.clone());
        let runtime = Runtime::new()?;
        let entered = runtime.enter();
        let tree = Supervisor::start(name, Settings::default(), move |cx| {
            let (candidate, client, actors) = (candidate.clone(), client.clone(), actors.clone());
            async move {
                let act = move |cx| {
                    let (client, actors) = (client.clone(), actors.clone());
                    async move {
                        let _acting = actors.enter(name);
                        reconciler::reclaim(cx, client).await
                    }
                };
                candidate.run(&cx, act).await
            }
        });
        drop(entered);
        Ok(Self { name, threads: Threads(Some(runtime)), tree })
    }
}

struct Observer {
    leases: Api<Lease>,
    claims: Api<PersistentVolumeClaim>,
    actors: Actors,
}

impl Observer {
    async fn holder(&self) -> Result<String, kube::Error> {
        let spec = self.leases.get(RECLAIMER).await?.spec.unwrap_or_default();
        Ok(spec.holder_identity.unwrap_or_default())
    }

    async fn set_holder(&self, holder: Value) -> Result<(), kube::Error> {
        let patch = json!({"spec": {"holderIdentity": holder, "leaseDurationSeconds": 3600}});
        merge(&self.leases, RECLAIMER, patch).await.map(drop)
    }

    /// Waits until the holder of the Lease is the only acting replica, and returns it.
    async fn acting(&self, expected: &[&'static str]) -> Result<&'static str, Failure> {
        let acting = eventually(PATIENCE, "one acting replica", async || {
            let (holder, acting) = (self.holder().await?, self.actors.now());
            Ok::<_, kube::Error>(match &*acting {
                [one] if *one == holder && expected.contains(one) => Seen::Done(*one),
                other => Seen::NotYet(format!("holder {holder}, acting {other:?}")),
            })
        });
        Ok(acting.await?)
    }

    /// Waits until a claim of a missing node is returned to the scheduler.
    async fn reclaims(&self) -> Result<(), Failure> {
        let name = self.claims.create(&PostParams::default(), &waiting("reclaimed-")?).await?.name_any();
        until("a claim without a selected node", async || {
            Ok(self.claims.get(&name).await?.annotations().get(SELECTED_NODE).cloned())
        })
        .await?;
        self.claims.delete(&name, &DeleteParams::default()).await?;
        Ok(())
    }
}

pub async fn one_replica_of_the_reclaimer_acts(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Pods::start(&cluster).await?;
    pods.node("n1", "n1").await?;
    let observer = Observer {
        leases: Api::namespaced(pods.admin.clone(), NAMESPACE),
        claims: Api::default_namespaced(pods.admin.clone()),
        actors: Actors::default(),
    };
    let client = pods.client(RECLAIMER, Some("n1")).await?;
    let mut replicas = Vec::new();
    for name in ["one", "two"] {
        let replica = Replica::start(name, &client, &observer.actors)?;
        // Wait until the replica has read the Lease.
        replica.tree.handle().healthy().await?;
        replicas.push(replica);
    }
    let first = observer.acting(&["one", "two"]).await?;
    observer.reclaims().await?;

    let holder = replicas.iter().position(|replica| replica.name == first).expect("a replica");
    drop(replicas.remove(holder));
    let remaining = replicas.remove(0);
    observer.acting(&[remaining.name]).await?;
    observer.reclaims().await?;

    // A holder that loses its Lease stops.
    observer.set_holder(json!("another")).await?;
    eventually(PATIENCE, "no acting replica", async || {
        let acting = observer.actors.now();
        Ok::<_, kube::Error>(if acting.is_empty() { Seen::Done(()) } else { Seen::NotYet(format!("{acting:?}")) })
    })
    .await?;
    assert_eq!(observer.holder().await?, "another");
    observer.set_holder(Value::Null).await?;
    observer.acting(&[remaining.name]).await?;

    let Replica { threads: _threads, tree, .. } = remaining;
    tree.stop(PATIENCE).await?;
    assert_eq!(observer.holder().await?, "", "a replica that stops gives up the Lease");
    assert_eq!(observer.actors.0.lock().unwrap().1, 1, "replicas that acted at once");

    let leases = Api::<Lease>::namespaced(client, NAMESPACE);
    let other = serde_json::from_value(json!({"metadata": {"name": "other"}}))?;
    forbidden(leases.create(&PostParams::default(), &other).await);
    forbidden(leases.get("other").await);
    Ok(())
}
