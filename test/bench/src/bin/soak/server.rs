//! An in-memory API server with the kinds and requests that the provisioner uses, and the controller that binds claims.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tower::service_fn;

use crate::Failure;

pub(crate) const CLAIMS: &str = "persistentvolumeclaims";
pub(crate) const PVS: &str = "persistentvolumes";
pub(crate) const CAPACITIES: &str = "csistoragecapacities";

/// Number of kept changes. A watch that begins before the oldest one must list again.
const HISTORY: usize = 2000;
/// Duration of a watch. Then the client continues with another watch.
const WATCH: Duration = Duration::from_secs(45);

#[derive(Default)]
pub(crate) struct Server {
    objects: Mutex<Objects>,
    version: watch::Sender<u64>,
}

/// Plural and name. All objects of a kind are in one namespace.
type Key = (String, String);

#[derive(Default)]
struct Objects {
    version: u64,
    all: BTreeMap<Key, Value>,
    history: VecDeque<Change>,
}

struct Change {
    version: u64,
    plural: String,
    kind: &'static str,
    object: Value,
}

/// The path of a request: `/api/v1/namespaces/default/persistentvolumeclaims/data/status`.
struct Target {
    plural: String,
    name: Option<String>,
}

type ResponseBody = UnsyncBoxBody<Bytes, Infallible>;
type Answer = Result<Value, (StatusCode, &'static str)>;

const CONFLICT: (StatusCode, &str) = (StatusCode::CONFLICT, "Conflict");
const NOT_FOUND: (StatusCode, &str) = (StatusCode::NOT_FOUND, "NotFound");

impl Server {
    pub(crate) fn client(self: &Arc<Self>) -> Client {
        let server = Arc::clone(self);
        let service = service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                Ok::<_, kube::Error>(server.respond(&head, &body))
            }
        });
        Client::new(service, "default")
    }

    pub(crate) fn create(&self, plural: &str, object: Value) -> Result<Value, Failure> {
        self.change(|objects| objects.create(plural, object)).map_err(|(_, reason)| reason.into())
    }

    pub(crate) fn patch(&self, plural: &str, name: &str, patch: Value) -> Result<Value, Failure> {
        let key = (plural.to_owned(), name.to_owned());
        self.change(|objects| objects.merge(&key, patch)).map_err(|(_, reason)| format!("{name}: {reason}").into())
    }

    pub(crate) fn delete(&self, plural: &str, name: &str) -> Result<Value, Failure> {
        let key = (plural.to_owned(), name.to_owned());
        self.change(|objects| objects.delete(&key, &Value::Null))
            .map_err(|(_, reason)| format!("{name}: {reason}").into())
    }

    pub(crate) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.lock().all.get(&(plural.to_owned(), name.to_owned())).cloned()
    }

    pub(crate) fn all(&self, plural: &str) -> Vec<Value> {
        self.lock().of(plural).cloned().collect()
    }

    /// Waits until an object, or its absence, fulfils the condition.
    pub(crate) async fn until<T>(
        &self,
        (plural, name): (&str, &str),
        what: &str,
        mut wanted: impl FnMut(Option<&Value>) -> Option<T>,
    ) -> Result<T, Failure> {
        let deadline = Instant::now() + crate::PATIENCE;
        let mut changed = self.version.subscribe();
        loop {
            let found = self.get(plural, name);
            if let Some(done) = wanted(found.as_ref()) {
                return Ok(done);
            }
            if timeout_at(deadline, changed.changed()).await.is_err() {
                return Err(format!("{name} is not {what} after {:?}: {found:?}", crate::PATIENCE).into());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Objects) -> Answer) -> Answer {
        let mut objects = self.lock();
        let answer = change(&mut objects);
        objects.bind();
        self.version.send_replace(objects.version);
        answer
    }

    fn respond(self: &Arc<Self>, head: &Parts, body: &[u8]) -> Response<ResponseBody> {
        let query = head.uri.query().unwrap_or_default();
        let Some(Target { plural, name }) = Target::of(head.uri.path()) else { return answer(Err(NOT_FOUND)) };
        let content: Value = serde_json::from_slice(body).unwrap_or_default();
        if plural == "events" {
            // No component reads events, so the event is only returned and not stored.
            let metadata = json!({"name": "event", "namespace": "default"});
            return answer(Ok(json!({ "metadata": metadata })));
        }
        let key = (plural.clone(), name.clone().unwrap_or_default());
        match (&head.method, name) {
            (&Method::GET, None) if query.contains("watch=true") => {
                let version = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
                let from = version.and_then(|version| version.parse().ok()).unwrap_or_default();
                let changes = Arc::clone(self).watch(plural, from);
                Response::new(StreamBody::new(changes).boxed_unsync())
            }
            (&Method::GET, None) => {
                let objects = self.lock();
                let items: Vec<_> = objects.of(&plural).collect();
                let metadata = json!({"resourceVersion": objects.version.to_string()});
                answer(Ok(json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items})))
            }
            (&Method::GET, Some(_)) => answer(self.lock().all.get(&key).cloned().ok_or(NOT_FOUND)),
            (&Method::POST, _) => answer(self.change(|objects| objects.create(&plural, content))),
            (&Method::PATCH, Some(_)) => {
                let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
                answer(self.change(|objects| match kind {
                    Some("application/apply-patch+yaml") if !objects.all.contains_key(&key) => {
                        objects.create(&plural, content)
                    }
                    _ => objects.merge(&key, content),
                }))
            }
            (&Method::DELETE, Some(_)) => {
                answer(self.change(|objects| objects.delete(&key, &content["preconditions"])))
            }
            _ => answer(Err((StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"))),
        }
    }

    fn watch(self: Arc<Self>, plural: String, from: u64) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
        let (changed, end) = (self.version.subscribe(), Instant::now() + WATCH);
        stream::unfold((from, changed, self, plural), move |(mut from, mut changed, server, plural)| async move {
            loop {
                let (next, lines) = server.lock().since(&plural, from);
                if !lines.is_empty() {
                    return Some((Ok(Frame::data(lines.into())), (next, changed, server, plural)));
                }
                from = next;
                if !matches!(timeout_at(end, changed.changed()).await, Ok(Ok(()))) {
                    return None;
                }
            }
        })
    }
}

impl Target {
    fn of(path: &str) -> Option<Self> {
        let mut parts = path.trim_start_matches('/').split('/');
        // The core group has no name in the path.
        let versions = if parts.next()? == "api" { 1 } else { 2 };
        let mut parts = parts.skip(versions).peekable();
        if parts.next_if_eq(&"namespaces").is_some() {
            parts.next();
        }
        Some(Self { plural: parts.next()?.to_owned(), name: parts.next().map(str::to_owned) })
    }
}

impl Objects {
    fn of(&self, plural: &str) -> impl Iterator<Item = &Value> {
        self.all.iter().filter(move |((of, _), _)| of == plural).map(|(_, object)| object)
    }

    /// Changes since version `from` as lines, and the version of the last change.
    fn since(&self, plural: &str, from: u64) -> (u64, String) {
        let is_lost =
            self.history.len() == HISTORY && self.history.front().is_some_and(|first| first.version > from + 1);
        if is_lost {
            let status =
                json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": ""});
            return (self.version, json!({"type": "ERROR", "object": status}).to_string() + "\n");
        }
        let new = self.history.iter().filter(|change| change.version > from && change.plural == plural);
        let lines = new.map(|change| json!({"type": change.kind, "object": change.object}).to_string() + "\n");
        (self.version, lines.collect())
    }

    fn record(&mut self, key: &Key, kind: &'static str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        if kind == "DELETED" {
            self.all.remove(key);
        } else {
            self.all.insert(key.clone(), object.clone());
        }
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        let plural = key.0.clone();
        self.history.push_back(Change { version: self.version, plural, kind, object: object.clone() });
        object
    }

    fn create(&mut self, plural: &str, mut object: Value) -> Answer {
        let name = object["metadata"]["name"].as_str().ok_or((StatusCode::UNPROCESSABLE_ENTITY, "Invalid"))?;
        let key = (plural.to_owned(), name.to_owned());
        if self.all.contains_key(&key) {
            return Err((StatusCode::CONFLICT, "AlreadyExists"));
        }
        object["metadata"]["uid"] = format!("00000000-0000-4000-8000-{:012x}", self.version).into();
        object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        Ok(self.record(&key, "ADDED", object))
    }

    /// Applies a merge patch. Of strategic merge patches, only the removal of finalizers is supported, which the
    /// provisioner sends.
    fn merge(&mut self, key: &Key, mut patch: Value) -> Answer {
        let mut object = self.all.get(key).ok_or(NOT_FOUND)?.clone();
        let Some(metadata) = patch.get_mut("metadata").and_then(Value::as_object_mut) else {
            merge(&mut object, &patch);
            return Ok(self.record(key, "MODIFIED", object));
        };
        for field in ["uid", "resourceVersion"] {
            let wanted = metadata.remove(field).unwrap_or_default();
            if !wanted.is_null() && wanted != object["metadata"][field] {
                return Err(CONFLICT);
            }
        }
        let removed = metadata.remove("$deleteFromPrimitiveList/finalizers").unwrap_or_default();
        merge(&mut object, &patch);
        if let (Some(removed), Some(all)) = (removed.as_array(), object["metadata"]["finalizers"].as_array_mut()) {
            all.retain(|finalizer| !removed.contains(finalizer));
        }
        let is_gone = !object["metadata"]["deletionTimestamp"].is_null() && !has_finalizers(&object);
        Ok(self.record(key, if is_gone { "DELETED" } else { "MODIFIED" }, object))
    }

    fn delete(&mut self, key: &Key, preconditions: &Value) -> Answer {
        let mut object = self.all.get(key).ok_or(NOT_FOUND)?.clone();
        for field in ["uid", "resourceVersion"] {
            let wanted = preconditions.get(field).unwrap_or(&Value::Null);
            if !wanted.is_null() && *wanted != object["metadata"][field] {
                return Err(CONFLICT);
            }
        }
        if has_finalizers(&object) {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            return Ok(self.record(key, "MODIFIED", object));
        }
        self.record(key, "DELETED", object);
        Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
    }

    /// Like kube-controller-manager, binds a claim to the PV that was created for it, and releases a PV whose claim was
    /// deleted.
    fn bind(&mut self) {
        let pvs: Vec<Value> = self.of(PVS).filter(|pv| pv["status"]["phase"] != "Released").cloned().collect();
        for pv in pvs {
            let (claim, pv_name) = (&pv["spec"]["claimRef"], pv["metadata"]["name"].clone());
            let key = (CLAIMS.to_owned(), claim["name"].as_str().unwrap_or_default().to_owned());
            let found = self.all.get(&key).filter(|found| found["metadata"]["uid"] == claim["uid"]);
            let phase = match found {
                Some(_) if pv["status"]["phase"] == "Bound" => continue,
                Some(found) => {
                    let mut bound = found.clone();
                    bound["spec"]["volumeName"] = pv_name.clone();
                    bound["status"] = json!({"phase": "Bound", "capacity": pv["spec"]["capacity"]});
                    self.record(&key, "MODIFIED", bound);
                    "Bound"
                }
                None => "Released",
            };
            let key = (PVS.to_owned(), pv_name.as_str().unwrap_or_default().to_owned());
            let mut pv = pv;
            pv["status"]["phase"] = phase.into();
            self.record(&key, "MODIFIED", pv);
        }
    }
}

fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
}

/// Merge patch (RFC 7386).
fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in fields {
        match into.as_object_mut().filter(|_| value.is_null()) {
            Some(object) => drop(object.remove(name)),
            None => merge(&mut into[name], value),
        }
    }
}

fn answer(answer: Answer) -> Response<ResponseBody> {
    let (status, content) = match answer {
        Ok(content) => (StatusCode::OK, content),
        Err((status, reason)) => {
            let code = status.as_u16();
            (status, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}))
        }
    };
    let mut response = Response::new(Full::from(content.to_string()).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
