//! Values of the unit tests, and a fake API server.

use std::convert::Infallible;
use std::future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use envtest::FakeVolumes;
use fsquota::ProjectId;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use supervisor::{Context, Settings, Supervisor};
use tokio::time::sleep;
use tower::service_fn;
use units::Bytes;
use volume::{Allocation, Claim, IoLimits, Mode, Owner, Record, State, VolumeId};

use crate::Metrics;
use crate::context::{Provisioner, RunError};

pub(crate) const NODE: &str = "granary";

pub(crate) fn id(text: &str) -> VolumeId {
    text.parse().expect("an identifier")
}

/// The record of a volume or a snapshot of 1 GiB.
pub(crate) fn record(mode: Mode, state: State) -> Record {
    Record {
        claim: Claim { uid: "u".into(), namespace: "shop".into(), name: "data".into() },
        owner: Owner::Provisioner,
        class: "local".into(),
        mode,
        size: Bytes::GIB,
        project: ProjectId::new(7).expect("an ID"),
        cloning: None,
        io: IoLimits::NONE,
        state,
    }
}

/// Status code and body of a response.
pub(crate) type Answer = (u16, String);

/// Client of a fake API server. A request without an answer waits forever.
pub(crate) fn client(answer: impl Fn(&Request<Body>) -> Option<Answer> + Send + 'static) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let answer = answer(&request);
        async move {
            let (code, body) = match answer {
                Some(answer) => answer,
                None => future::pending().await,
            };
            let response = Response::builder().status(code).body(Body::from(body.into_bytes()));
            Ok::<_, Infallible>(response.expect("a response"))
        }
    });
    Client::new(service, "default")
}

/// Client of a fake API server that has no objects and accepts all changes, and the number of its lists.
pub(crate) fn empty() -> (Client, Arc<AtomicU32>) {
    let lists = Arc::<AtomicU32>::default();
    let counter = Arc::clone(&lists);
    let answer = move |request: &Request<Body>| {
        let is_list = *request.method() == Method::GET;
        counter.fetch_add(u32::from(is_list), Ordering::Relaxed);
        Some(if is_list { page(&[], request) } else { (200, "{}".to_owned()) })
    };
    (client(answer), lists)
}

/// Answer of an API server that does not have the kind.
pub(crate) fn no_kind() -> Answer {
    (404, "404 page not found".to_owned())
}

/// Page of a list that has one object on each page. The token of the next page is its number.
pub(crate) fn page(objects: &[Value], request: &Request<Body>) -> Answer {
    let token = request.uri().query().unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("continue="));
    let number = token.map_or(0, |token| token.parse::<usize>().expect("a token of this server"));
    let next = (number + 1 < objects.len()).then(|| (number + 1).to_string());
    let metadata = json!({"resourceVersion": "1", "continue": next});
    let items: Vec<_> = objects.get(number).into_iter().collect();
    (200, json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}).to_string())
}

/// A provisioner with this client, and its disk without volumes.
pub(crate) fn with_client(client: Client) -> (Arc<Provisioner>, Arc<FakeVolumes>) {
    let disk = Arc::new(FakeVolumes::with_size(Bytes::new(100 << 30)));
    let provisioner = Provisioner::new(client, NODE.to_owned(), disk.clone(), Metrics::default());
    (Arc::new(provisioner), disk)
}

/// A provisioner whose API server answers no request, and its disk, which has these block volumes of 1 GiB.
pub(crate) fn unanswered(volumes: &[&VolumeId]) -> (Arc<Provisioner>, Arc<FakeVolumes>) {
    let (provisioner, disk) = with_client(client(|_| None));
    for volume in volumes {
        disk.put(volume, record(Mode::Block { allocation: Allocation::Thick }, State::Announced));
    }
    (provisioner, disk)
}

/// Whether as many passes as there are places get turns over clones of these sources.
pub(crate) fn has_turns(provisioner: &Provisioner, sources: [&VolumeId; 2]) -> bool {
    let turns = sources.map(|source| provisioner.clone_turn([source]));
    turns.iter().all(Option::is_some)
}

/// Verifies that a service is stalled after its deadline, and not before. The clock of the test is paused.
pub(crate) async fn stalls<F>(service: impl Fn(Context) -> F + Send + Sync + 'static)
where
    F: Future<Output = Result<(), RunError>> + Send + 'static,
{
    let settings = Settings::default();
    let deadline = settings.round_deadline;
    let tree = Supervisor::start("service", settings, service);
    sleep(deadline / 2).await;
    assert_eq!(tree.status().stalled, None);
    sleep(deadline).await;
    assert!(tree.status().stalled.is_some());
    tree.stop(deadline).await.expect("it ends");
}
