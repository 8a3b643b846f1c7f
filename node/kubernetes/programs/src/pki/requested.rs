//! Certificates that a worker requests. The cluster approves and signs them; the worker stores them on the data disk.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cluster::Token;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::runtime::wait::{self, await_condition};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use rcgen::KeyPair;
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;
use tracing::info;

use crate::Config;
use crate::pki::certificate::{self, Pair, Purpose, Stale, Validity, Wanted};
use crate::pki::expiry::{Expiry, Lasting};
use crate::pki::identity::Identity;
use crate::pki::store::{PkiError, Store};
use crate::pki::wanted;
use crate::pki::{ClientError, Credentials};

/// Deadline of the cluster's answer. At a first boot, the controllers have just been started.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(transparent)]
    Disk(#[from] PkiError),
    #[error("a task for the files of certificates panicked")]
    Panicked(#[from] JoinError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("cannot {step}")]
    Step { step: String, source: Box<dyn Error + Send + Sync> },
    #[error(
        "the API server does not accept the bootstrap token {id}: it has expired, was deleted after its node had \
         registered, or belongs to another cluster; delete the Node of this node if there is one, then create a new \
         token, and write it into worker.token"
    )]
    Token { id: String },
    #[error(
        "the node has not joined its cluster, or its certificate has expired, and the configuration has no token: delete the \
         Node of this node if there is one, then create a token, and write it into worker.token"
    )]
    NoToken,
    /// The machine's clock is probably behind, which is not a reason to delete the Node.
    #[error("the node's certificate {name} is not valid yet at {now}; set the machine's clock")]
    Clock { name: &'static str, now: OffsetDateTime },
    /// The kubelet's certificate has expired, and the API server would answer 401.
    #[error(
        "cannot request the certificate {name}: the certificate of the node's kubelet expired at {at}; delete the \
         Node of this worker, and write a new token into worker.token"
    )]
    KubeletExpired { name: &'static str, at: OffsetDateTime },
    #[error("the certificate signing request {request} was denied: {why}")]
    Denied { request: String, why: String },
    #[error("the certificate signing request {request} has no certificate: {why}")]
    NotSigned { request: String, why: String },
    #[error("the certificate of the signing request {request} cannot be used")]
    Unusable { request: String, source: Stale },
}

pub struct Requested {
    pki: PathBuf,
    wanted: Wanted,
    signer: &'static str,
    credentials: Arc<Credentials>,
    requester: Requester,
    /// Pending request, kept over failures, so that a retry does not send another request.
    pending: Mutex<Option<PendingRequest>>,
}

enum Requester {
    Kubelet,
    /// The kubelet, with a token while it has no valid certificate.
    Token(Option<Token>),
}

#[derive(Debug)]
enum Credential<'a> {
    Token(&'a Token),
    Certificate,
}

impl Credential<'_> {
    /// The error for a credential that the API server rejects; `None` for other errors.
    fn refused(&self, error: &kube::Error) -> Option<IdentityError> {
        match (self, error) {
            (Self::Token(token), kube::Error::Api(status)) if status.code == 401 => {
                Some(IdentityError::Token { id: token.id().to_owned() })
            }
            _ => None,
        }
    }
}

/// A request and its key. The key is written to the disk only together with the certificate.
struct PendingRequest {
    request: String,
    key: KeyPair,
}

impl Requested {
    /// Certificate of the node's storage, [`Identity::Storage`].
    pub fn storage(config: &Config, credentials: &Arc<Credentials>) -> Self {
        Self::of_client(config, credentials, Identity::Storage)
    }

    /// Certificate of the node's CoreDNS, [`Identity::Dns`].
    pub fn dns(config: &Config, credentials: &Arc<Credentials>) -> Self {
        Self::of_client(config, credentials, Identity::Dns)
    }

    fn of_client(config: &Config, credentials: &Arc<Credentials>, identity: Identity) -> Self {
        let wanted = identity.wanted(&config.node);
        Self::new(config, credentials, wanted, "kubernetes.io/kube-apiserver-client", Requester::Kubelet)
    }

    /// Client certificate of a joining node's kubelet, [`Identity::Kubelet`]. A node that has joined needs no token.
    pub fn kubelet(config: &Config, credentials: &Arc<Credentials>, token: Option<Token>) -> Self {
        let wanted = Identity::Kubelet.wanted(&config.node);
        Self::new(config, credentials, wanted, "kubernetes.io/kube-apiserver-client-kubelet", Requester::Token(token))
    }

    /// Serving certificate of the kubelet of a node that has joined.
    pub fn kubelet_server(config: &Config, credentials: &Arc<Credentials>) -> Self {
        let wanted = wanted::kubelet_server(config);
        Self::new(config, credentials, wanted, "kubernetes.io/kubelet-serving", Requester::Kubelet)
    }

    fn new(
        config: &Config,
        credentials: &Arc<Credentials>,
        wanted: Wanted,
        signer: &'static str,
        requester: Requester,
    ) -> Self {
        let (pki, credentials) = (config.paths.pki.clone(), Arc::clone(credentials));
        Self { pki, wanted, signer, credentials, requester, pending: Mutex::default() }
    }

    /// Returns when the certificate is on the disk, where [`Credentials::client`] reads it. Keeps a certificate that is
    /// not due for renewal. Otherwise the node requests one for a new key, and waits up to some minutes. Afterwards,
    /// [`Credentials::requested`] has the expiry. Cancel-safe: the next call continues to wait for the same request.
    pub async fn ensure(&self) -> Result<Lasting, IdentityError> {
        let mut pending = self.pending.lock().await;
        let stale = match self.on_disk().await? {
            Ok(lasting) => return Ok(lasting),
            Err(stale) => stale,
        };
        let shown = self.shown(stale)?;
        let requests = Api::all(self.client(&shown).await?);
        let (request, key) = match &*pending {
            Some(PendingRequest { request, key }) => (request, key),
            None => {
                let new = self.ask(&requests, &shown).await?;
                info!(name = self.wanted.name, request = new.request, reason = %stale, "certificate requested");
                let PendingRequest { request, key } = pending.insert(new);
                (&*request, &*key)
            }
        };
        let request = request.clone();
        let answer = match timeout(LIMIT, answer(&requests, &request, &shown)).await {
            Ok(answer) => answer?,
            Err(_) => {
                let why = format!("no decision for {} s; check that the cluster's approver runs", LIMIT.as_secs());
                return Err(IdentityError::NotSigned { request, why });
            }
        };
        let key = key.serialize_pem();
        *pending = None;
        let certificate = match answer {
            Answer::Signed(certificate) => certificate,
            Answer::Denied(why) => return Err(IdentityError::Denied { request, why }),
            Answer::NotSigned(why) => {
                let why = format!("the request was approved, but not signed: {why}");
                return Err(IdentityError::NotSigned { request, why });
            }
            Answer::Gone => {
                return Err(IdentityError::NotSigned { request, why: "the request was deleted".to_owned() });
            }
        };
        let lasting = self.keep(Pair { certificate, key }, &request).await?;
        info!(name = self.wanted.name, request, "certificate stored");
        Ok(lasting)
    }

    /// The credential for the request. A kubelet with a valid certificate renews it itself. An expired certificate is
    /// treated as a missing one.
    fn shown(&self, stale: Stale) -> Result<Credential<'_>, IdentityError> {
        match (&self.requester, stale) {
            (Requester::Kubelet, _) | (Requester::Token(_), Stale::Expiring) => Ok(Credential::Certificate),
            (Requester::Token(Some(token)), _) => Ok(Credential::Token(token)),
            (Requester::Token(None), Stale::NotYet) => {
                Err(IdentityError::Clock { name: self.wanted.name, now: OffsetDateTime::now_utc() })
            }
            (Requester::Token(None), _) => Err(IdentityError::NoToken),
        }
    }

    async fn client(&self, shown: &Credential<'_>) -> Result<kube::Client, IdentityError> {
        Ok(match shown {
            Credential::Token(token) => self.credentials.client_with(token).await?,
            Credential::Certificate => {
                self.kubelets_counts().await?;
                self.credentials.client(Identity::Kubelet).await?
            }
        })
    }

    async fn kubelets_counts(&self) -> Result<(), IdentityError> {
        let pki = self.pki.clone();
        let pair = spawn_blocking(move || Store::open(&pki)?.read_pair(Identity::Kubelet.name())).await??;
        let validity = pair.and_then(|pair| certificate::validity(&pair.certificate).ok());
        match validity.map(Validity::to) {
            Some(at) if at < OffsetDateTime::now_utc() => {
                Err(IdentityError::KubeletExpired { name: self.wanted.name, at })
            }
            // The client reports other errors.
            _ => Ok(()),
        }
    }

    /// Renewal time of the certificate on the disk, or the reason that prevents its use. Cancel-safe.
    pub async fn on_disk(&self) -> Result<Result<Lasting, Stale>, IdentityError> {
        let (pki, wanted) = (self.pki.clone(), self.wanted.clone());
        let look = move || {
            let store = Store::open(&pki)?;
            let found = store.read("ca.crt")?.zip(store.read_pair(wanted.name)?);
            let found = found.ok_or(Stale::Absent);
            Ok::<_, PkiError>(found.and_then(|(ca, pair)| certificate::verify(&ca, &wanted, &pair)))
        };
        let found = spawn_blocking(look).await??;
        // A certificate that is overdue for renewal is published too: its expiry is a metric.
        Ok(found
            .inspect(|&validity| self.publish(validity))
            .and_then(|found| lasting(found, OffsetDateTime::now_utc())))
    }

    fn publish(&self, validity: Validity) {
        self.credentials.publish(Expiry { name: self.wanted.name, at: validity.to() });
    }

    async fn ask(
        &self,
        requests: &Api<CertificateSigningRequest>,
        shown: &Credential<'_>,
    ) -> Result<PendingRequest, IdentityError> {
        let name = self.wanted.name;
        let (text, key) = certificate::request(&self.wanted).map_err(|error| IdentityError::Step {
            step: format!("create a key for the certificate {name}"),
            source: error.into(),
        })?;
        let request = CertificateSigningRequest {
            metadata: ObjectMeta { generate_name: Some(format!("granary-{name}-")), ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: ByteString(text.into_bytes()),
                signer_name: self.signer.to_owned(),
                usages: Some(usages(&self.wanted.purpose).map(str::to_owned).into()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let made = requests.create(&PostParams::default(), &request).await;
        match made {
            Ok(made) => Ok(PendingRequest { request: made.name_any(), key }),
            Err(error) => Err(shown.refused(&error).unwrap_or_else(|| IdentityError::Step {
                step: format!("request the certificate {name}"),
                source: error.into(),
            })),
        }
    }

    /// Writes the pair only if it is usable.
    async fn keep(&self, pair: Pair, request: &str) -> Result<Lasting, IdentityError> {
        let (pki, wanted) = (self.pki.clone(), self.wanted.clone());
        let keep = move || {
            let store = Store::open(&pki)?;
            let ca = store.read("ca.crt")?.unwrap_or_default();
            let verified = certificate::verify(&ca, &wanted, &pair)
                .and_then(|validity| Ok((validity, lasting(validity, OffsetDateTime::now_utc())?)));
            if verified.is_ok() {
                store.write_pair(wanted.name, &pair)?;
            }
            Ok::<_, PkiError>(verified)
        };
        let kept = spawn_blocking(keep).await??;
        let (validity, lasting) =
            kept.map_err(|source| IdentityError::Unusable { request: request.to_owned(), source })?;
        self.publish(validity);
        Ok(lasting)
    }
}

const fn usages(purpose: &Purpose) -> [&'static str; 2] {
    match purpose {
        Purpose::Client | Purpose::EtcdClient => ["client auth", "digital signature"],
        Purpose::Server(_) => ["digital signature", "server auth"],
    }
}

fn lasting(validity: Validity, now: OffsetDateTime) -> Result<Lasting, Stale> {
    let renewal = validity.after_two_thirds();
    validity.check(now, renewal).map(|()| Lasting { renewal })
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Signed(String),
    Denied(String),
    NotSigned(String),
    Gone,
}

impl Answer {
    /// `None` while the request is pending.
    fn of(request: Option<&CertificateSigningRequest>) -> Option<Self> {
        let Some(request) = request else { return Some(Self::Gone) };
        let status = request.status.as_ref()?;
        let condition = |kind: &str| {
            let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind)?;
            let [reason, message] = [&found.reason, &found.message].map(|text| text.as_deref().unwrap_or("no word"));
            Some(format!("{reason}: {message}"))
        };
        // The conditions Denied and Failed are permanent, and such a request has no certificate.
        condition("Denied").map(Self::Denied).or_else(|| condition("Failed").map(Self::NotSigned)).or_else(|| {
            let certificate = status.certificate.as_ref()?;
            Some(Self::Signed(String::from_utf8_lossy(&certificate.0).into_owned()))
        })
    }
}

async fn answer(
    requests: &Api<CertificateSigningRequest>,
    request: &str,
    shown: &Credential<'_>,
) -> Result<Answer, IdentityError> {
    let answered = |found: Option<&CertificateSigningRequest>| Answer::of(found).is_some();
    match await_condition(requests.clone(), request, answered).await {
        Ok(found) => Ok(Answer::of(found.as_ref()).unwrap_or(Answer::Gone)),
        // A token may expire while its request is pending.
        Err(error) => {
            Err(cause(&error).and_then(|error| shown.refused(error)).unwrap_or_else(|| IdentityError::Step {
                step: format!("wait for the answer to the certificate signing request {request}"),
                source: error.into(),
            }))
        }
    }
}

const fn cause(error: &wait::Error) -> Option<&kube::Error> {
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    match error {
        wait::Error::ProbeFailed(InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error)) => {
            Some(error)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::certificates::v1::{CertificateSigningRequestCondition, CertificateSigningRequestStatus};

    use super::*;
    use crate::pki::certificate::Ca;

    fn request(condition: Option<&str>, certificate: Option<&str>) -> CertificateSigningRequest {
        let condition = condition.map(|kind| CertificateSigningRequestCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: Some("Because".to_owned()),
            message: Some("of this".to_owned()),
            ..CertificateSigningRequestCondition::default()
        });
        let certificate = certificate.map(|text| ByteString(text.as_bytes().to_vec()));
        let status = CertificateSigningRequestStatus { conditions: condition.map(|one| vec![one]), certificate };
        CertificateSigningRequest { status: Some(status), ..CertificateSigningRequest::default() }
    }

    #[test]
    fn a_request_waits_until_it_is_signed_or_refused() {
        assert_eq!(Answer::of(Some(&CertificateSigningRequest::default())), None);
        assert_eq!(Answer::of(Some(&request(None, None))), None);
        assert_eq!(Answer::of(Some(&request(Some("Approved"), None))), None);
        let why = "Because: of this".to_owned();
        assert_eq!(Answer::of(Some(&request(Some("Denied"), None))), Some(Answer::Denied(why.clone())));
        assert_eq!(Answer::of(Some(&request(Some("Failed"), None))), Some(Answer::NotSigned(why)));
        assert_eq!(Answer::of(Some(&request(Some("Approved"), Some("pem")))), Some(Answer::Signed("pem".into())));
        assert_eq!(Answer::of(None), Some(Answer::Gone));
    }

    struct Node {
        identity: Requested,
        ca: Ca,
        store: Store,
        _scratch: tempfile::TempDir,
    }

    impl Node {
        fn new() -> Self {
            let scratch = tempfile::tempdir().unwrap();
            let config = crate::config::example_in(scratch.path());
            let (ca, pair) = Ca::make(OffsetDateTime::now_utc()).unwrap();
            let credentials = Credentials::joining(&config, "192.0.2.1:6443", &pair.certificate).unwrap();
            let (credentials, store) = (Arc::new(credentials), Store::open(&config.paths.pki).unwrap());
            Self { identity: Requested::storage(&config, &credentials), ca, store, _scratch: scratch }
        }

        /// A certificate that was signed `days` ago and is valid for a year.
        fn issue(&self, wanted: &Wanted, days: i64) -> Pair {
            self.ca.issue(wanted, OffsetDateTime::now_utc() - time::Duration::days(days)).unwrap()
        }

        async fn after_writing(&self, pair: &Pair) -> Result<Lasting, Stale> {
            self.store.write_pair("storage", pair).unwrap();
            self.identity.on_disk().await.unwrap()
        }
    }

    #[tokio::test]
    async fn a_certificate_is_kept_for_two_thirds_of_its_life() {
        let node = Node::new();
        assert_eq!(node.identity.on_disk().await.unwrap(), Err(Stale::Absent));
        let wanted = Identity::Storage.wanted("granary");
        assert!(node.after_writing(&node.issue(&wanted, 0)).await.is_ok());
        let kept = node.after_writing(&node.issue(&wanted, 240)).await.unwrap();
        assert!(kept.renewal > OffsetDateTime::now_utc());
        assert_eq!(node.identity.ensure().await.unwrap(), kept, "no request is sent");
        assert_eq!(node.after_writing(&node.issue(&wanted, 250)).await, Err(Stale::Expiring));
        assert_eq!(node.after_writing(&node.issue(&wanted, 400)).await, Err(Stale::Expired));
    }

    /// Regression: a worker that was off for a year used its expired certificate instead of a new token.
    #[test]
    fn the_token_is_shown_unless_kubelets_certificate_still_counts() {
        let node = Node::new();
        let kubelet = |token| Requested::kubelet(&Config::default(), &node.identity.credentials, token);
        let with = kubelet(Some(Token::generate().unwrap()));
        for stale in [Stale::Absent, Stale::Expired, Stale::OtherCa, Stale::NotYet] {
            assert!(matches!(with.shown(stale), Ok(Credential::Token(_))), "{stale}");
        }
        for stale in [Stale::Absent, Stale::Expired, Stale::OtherCa] {
            assert!(matches!(kubelet(None).shown(stale), Err(IdentityError::NoToken)), "{stale}");
        }
        // Regression: the error asked to delete the Node.
        let error = kubelet(None).shown(Stale::NotYet).unwrap_err().to_string();
        assert!(error.ends_with("; set the machine's clock"), "{error}");
        for token in [None, Some(Token::generate().unwrap())] {
            assert!(matches!(kubelet(token).shown(Stale::Expiring), Ok(Credential::Certificate)));
        }
        assert!(matches!(node.identity.shown(Stale::Expired), Ok(Credential::Certificate)), "storage has no token");
    }

    #[tokio::test]
    async fn an_expired_kubelet_certificate_is_an_error() {
        let node = Node::new();
        let expired = node.issue(&Identity::Kubelet.wanted("granary"), 400);
        node.store.write_pair("kubelet", &expired).unwrap();
        let error = node.identity.ensure().await.unwrap_err();
        assert!(matches!(error, IdentityError::KubeletExpired { name: "storage", .. }), "{error}");
    }

    #[tokio::test]
    async fn a_certificate_of_another_node_or_time_is_replaced() {
        let node = Node::new();
        assert_eq!(
            node.after_writing(&node.issue(&Identity::Storage.wanted("two"), 0)).await,
            Err(Stale::OtherSubject)
        );
        assert_eq!(node.after_writing(&node.issue(&Identity::Storage.wanted("granary"), -3)).await, Err(Stale::NotYet));
        let (other, _) = Ca::make(OffsetDateTime::now_utc()).unwrap();
        let foreign = other.issue(&Identity::Storage.wanted("granary"), OffsetDateTime::now_utc()).unwrap();
        assert_eq!(node.after_writing(&foreign).await, Err(Stale::OtherCa));
    }

    #[tokio::test]
    async fn what_was_signed_is_kept_only_if_it_can_be_used() {
        let node = Node::new();
        let error = node.identity.keep(node.issue(&Identity::Admin.wanted("granary"), 0), "csr-1").await.unwrap_err();
        assert!(matches!(error, IdentityError::Unusable { source: Stale::OtherSubject, .. }), "{error}");
        assert_eq!(node.identity.on_disk().await.unwrap(), Err(Stale::Absent));
        let wanted = Identity::Storage.wanted("granary");
        let kept = node.identity.keep(node.issue(&wanted, 1), "csr-2").await.unwrap();
        assert_eq!(node.identity.on_disk().await.unwrap(), Ok(kept));
        node.identity.credentials.client(Identity::Storage).await.unwrap();
    }

    #[tokio::test]
    async fn the_expiry_of_a_found_or_renewed_certificate_is_published() {
        let node = Node::new();
        let mut expiries = node.identity.credentials.requested();
        node.identity.on_disk().await.unwrap().unwrap_err();
        assert_eq!(*expiries.borrow_and_update(), [], "there is none");
        let days_left = |expiries: &[Expiry]| {
            let days = |expiry: &Expiry| ((expiry.at - OffsetDateTime::now_utc()).as_seconds_f64() / 86400.0).round();
            expiries.iter().map(|expiry| (expiry.name, days(expiry))).collect::<Vec<_>>()
        };
        let wanted = Identity::Storage.wanted("granary");
        node.after_writing(&node.issue(&wanted, 250)).await.unwrap_err();
        assert_eq!(days_left(&expiries.borrow_and_update()), [("storage", 115.0)]);
        node.identity.keep(node.issue(&wanted, 1), "csr-1").await.unwrap();
        assert_eq!(days_left(&expiries.borrow_and_update()), [("storage", 364.0)]);
        node.identity.keep(node.issue(&Identity::Admin.wanted("granary"), 0), "csr-2").await.unwrap_err();
        assert!(!expiries.has_changed().unwrap(), "an unusable certificate is not published");
    }

    #[tokio::test(start_paused = true)]
    async fn renewal_is_waited_for_by_the_clock_on_the_wall() {
        let over = Lasting { renewal: OffsetDateTime::now_utc() - time::Duration::seconds(1) };
        over.renewal().await;
        let later = Lasting { renewal: OffsetDateTime::now_utc() + time::Duration::days(30) };
        // The runtime's paused clock advances here, the system clock does not.
        assert!(timeout(Duration::from_secs(90 * 86400), later.renewal()).await.is_err());
    }
}
