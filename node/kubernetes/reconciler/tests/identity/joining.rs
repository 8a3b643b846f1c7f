//! Bootstrap tokens: a machine becomes a node with a token for its name.

use std::sync::Arc;

use cluster::Token;
use envtest::{Cluster, Failure, accepted, create, gone, start};
use futures::future::join;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt as _};
use programs::discovery::{self, ca_digest};
use programs::{
    BOOTSTRAP_NAMESPACE, Config, Credentials, Identity, IdentityError, Requested, bootstrap_secret,
    bootstrap_secret_name,
};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use serde_json::json;
use supervisor::Supervisor;
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};
use tokio::time::timeout;

use crate::certificate::{Approver, decision};
use crate::{Nodes, until};

/// Time in which a machine would send another request.
const MOMENT: std::time::Duration = std::time::Duration::from_secs(3);

const STOP: std::time::Duration = std::time::Duration::from_secs(10);

pub(crate) async fn token(cluster: &Cluster, node: &str, expires: OffsetDateTime) -> Result<Token, Failure> {
    let token = Token::generate()?;
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    secrets.create(&PostParams::default(), &bootstrap_secret(&token, node, expires)?).await?;
    Ok(token)
}

pub(crate) fn in_an_hour() -> OffsetDateTime {
    OffsetDateTime::now_utc() + Duration::HOUR
}

async fn client(cluster: &Cluster, token: &Token) -> Result<Client, Failure> {
    let mut config = Kubeconfig::read_from(cluster.config().paths.pki.join("admin.kubeconfig"))?;
    for user in &mut config.auth_infos {
        user.auth_info = serde_json::from_value(json!({"token": token.reveal()}))?;
    }
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Requests the certificate of the node's kubelet, and returns the request's name.
async fn ask(client: Client, node: &str) -> Result<String, kube::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    let key = KeyPair::generate().expect("a key");
    let text = params.serialize_request(&key).and_then(|request| request.pem()).expect("a request");
    let request = json!({
        "metadata": {"generateName": "joining-"},
        "spec": {
            "request": ByteString(text.into_bytes()), "usages": ["client auth", "digital signature"],
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        },
    });
    let request: CertificateSigningRequest = serde_json::from_value(request).expect("a request");
    Ok(Api::all(client).create(&PostParams::default(), &request).await?.name_any())
}

/// Requests the certificate, and retries because the API server's watch of the Secret may be behind.
pub(crate) async fn ask_eventually(cluster: &Cluster, token: &Token, node: &str) -> Result<String, Failure> {
    let client = client(cluster, token).await?;
    accepted("the token to be accepted", async || ask(client.clone(), node).await).await
}

async fn rejected(cluster: &Cluster, token: &Token) -> Result<(), Failure> {
    let client = client(cluster, token).await?;
    until("the rejection of the token", async || {
        Ok(match ask(client.clone(), "two").await {
            Err(kube::Error::Api(status)) if status.code == 401 => None,
            other => Some(format!("{other:?}")),
        })
    })
    .await
}

pub(crate) async fn a_token_admits_one_node_and_no_other(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let approver = Approver::start(&cluster).await?;
    let token = token(&cluster, "two", in_an_hour()).await?;
    let own = ask_eventually(&cluster, &token, "two").await?;
    assert_eq!(decision(&cluster, &own).await?, "Approved OwnNode: the kubelet of two");
    let requests = Api::<CertificateSigningRequest>::all(cluster.admin());
    until("the certificate", async || {
        let signed = requests.get(&own).await?.status.and_then(|status| status.certificate);
        Ok(signed.is_none().then(|| "none".to_owned()))
    })
    .await?;
    let other = ask_eventually(&cluster, &token, "three").await?;
    let why = decision(&cluster, &other).await?;
    assert!(why.starts_with("Denied TokenOfOtherNode"), "{why}");
    assert!(why.ends_with("is for the node two, not for three; create one for three"), "{why}");
    approver.stop().await
}

pub(crate) async fn a_registered_name_is_denied(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let approver = Approver::start(&cluster).await?;
    let nodes = Api::<Node>::all(cluster.admin());
    create(&nodes, json!({"metadata": {"name": "taken"}})).await?;
    let token = token(&cluster, "taken", in_an_hour()).await?;
    let denied = ask_eventually(&cluster, &token, "taken").await?;
    let why = decision(&cluster, &denied).await?;
    assert!(why.starts_with("Denied NameTaken: there is a Node taken already"), "{why}");
    match Machine::of(&cluster, "taken").await?.kubelet(token.clone()).ensure().await {
        Err(IdentityError::Denied { why, .. }) => assert!(why.contains("there is a Node taken already"), "{why}"),
        other => panic!("{other:?}"),
    }
    nodes.delete("taken", &DeleteParams::default()).await?;
    let admitted = ask_eventually(&cluster, &token, "taken").await?;
    let why = decision(&cluster, &admitted).await?;
    assert!(why.starts_with("Approved"), "{why}");
    approver.stop().await
}

/// Both cases run concurrently, because the API server caches a token for 10 s.
pub(crate) async fn a_token_ends_when_it_expires_or_is_deleted(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let (expired, deleted) = join(a_token_expires(&cluster), a_token_is_deleted(&cluster)).await;
    expired?;
    deleted?;
    rejected(&cluster, &Token::generate()?).await
}

async fn a_token_expires(cluster: &Cluster) -> Result<(), Failure> {
    // The lifetime is long enough for the API server's watch.
    let expires = token(cluster, "two", OffsetDateTime::now_utc() + Duration::seconds(10)).await?;
    ask_eventually(cluster, &expires, "two").await?;
    rejected(cluster, &expires).await?;
    let machine = Machine::of(cluster, "two").await?;
    machine.is_rejected(&expires).await;
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    gone(&secrets, &bootstrap_secret_name(expires.id())).await
}

async fn a_token_is_deleted(cluster: &Cluster) -> Result<(), Failure> {
    let revoked = token(cluster, "two", in_an_hour()).await?;
    ask_eventually(cluster, &revoked, "two").await?;
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    secrets.delete(&bootstrap_secret_name(revoked.id()), &DeleteParams::default()).await?;
    rejected(cluster, &revoked).await
}

/// No approver runs in this case.
pub(crate) async fn a_token_deleted_during_a_request_is_named(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let machine = Machine::of(&cluster, "waiting").await?;
    let token = token(&cluster, "waiting", in_an_hour()).await?;
    ask_eventually(&cluster, &token, "elsewhere").await?;
    let kubelet = machine.kubelet(token.clone());
    let requests = Api::<CertificateSigningRequest>::all(cluster.admin());
    let user = format!("system:bootstrap:{}", token.id());
    let asked = async || {
        let all = requests.list(&ListParams::default()).await?.items;
        let machines = all.iter().filter(|request| request.name_any().starts_with("granary-kubelet-"));
        Ok::<_, kube::Error>(machines.filter(|request| request.spec.username.as_ref() == Some(&user)).count())
    };
    let waits = until("the request", async || {
        let count = asked().await?;
        Ok((count != 1).then(|| format!("{count} requests")))
    });
    let mut first = Box::pin(kubelet.ensure());
    tokio::select! {
        early = &mut first => panic!("{early:?}"),
        waits = waits => waits?,
    }
    // The machine waits for the decision.
    assert!(timeout(MOMENT, &mut first).await.is_err());
    drop(first);
    assert!(timeout(MOMENT, kubelet.ensure()).await.is_err());
    assert_eq!(asked().await?, 1, "it waits for its first request");
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    secrets.delete(&bootstrap_secret_name(token.id()), &DeleteParams::default()).await?;
    rejected(&cluster, &token).await?;
    match kubelet.ensure().await {
        Err(IdentityError::Token { id }) => assert_eq!(id, token.id()),
        other => panic!("{other:?}"),
    }
    Ok(())
}

pub(crate) async fn a_token_gives_no_other_rights(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let token = token(&cluster, "two", in_an_hour()).await?;
    ask_eventually(&cluster, &token, "two").await?;
    let client = client(&cluster, &token).await?;
    crate::forbidden(Api::<Secret>::namespaced(client.clone(), BOOTSTRAP_NAMESPACE).list(&ListParams::default()).await);
    crate::forbidden(Api::<Node>::all(client.clone()).list(&ListParams::default()).await);
    crate::forbidden(Api::<ConfigMap>::default_namespaced(client).list(&ListParams::default()).await);
    Ok(())
}

/// A machine that has the API server's address and the digest of its CA.
struct Machine {
    config: Config,
    credentials: Arc<Credentials>,
    _disk: TempDir,
}

impl Machine {
    async fn of(cluster: &Cluster, node: &str) -> Result<Self, Failure> {
        let disk = TempDir::with_prefix("machine-")?;
        let mut config = Config { node: node.to_owned(), address: [192, 0, 2, 7].into(), ..cluster.config().clone() };
        config.paths.pki = disk.path().join("pki");
        let known = std::fs::read_to_string(cluster.config().paths.pki.join("ca.crt"))?;
        let digest = ca_digest(&known).ok_or("no CA")?;
        let shown = discovery::ca([127, 0, 0, 1].into(), 6443, digest).await?;
        assert_eq!(shown.trim(), known.trim(), "the API server presents the cluster's CA");
        let credentials = Arc::new(Credentials::joining(&config, "127.0.0.1:6443", &shown)?);
        Ok(Self { config, credentials, _disk: disk })
    }

    fn kubelet(&self, token: impl Into<Option<Token>>) -> Requested {
        Requested::kubelet(&self.config, &self.credentials, token.into())
    }

    /// Replaces the kubelet's certificate by one that the cluster's CA signed so many days ago, for a year.
    fn age(&self, cluster: &Cluster, days: i64) -> Result<(), Failure> {
        let read = |name| std::fs::read_to_string(cluster.config().paths.pki.join(name));
        let ca = Issuer::from_ca_cert_pem(&read("ca.crt")?, KeyPair::from_pem(&read("ca.key")?)?)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{}", self.config.node));
        params.not_before = OffsetDateTime::now_utc() - Duration::days(days);
        params.not_after = params.not_before + Duration::days(365);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &ca)?.pem();
        std::fs::write(self.config.paths.pki.join("kubelet.crt"), certificate)?;
        Ok(std::fs::write(self.config.paths.pki.join("kubelet.key"), key.serialize_pem())?)
    }

    async fn is_rejected(&self, token: &Token) {
        match self.kubelet(token.clone()).ensure().await {
            Err(IdentityError::Token { id }) => assert_eq!(id, token.id()),
            other => panic!("{other:?}"),
        }
    }

    /// User of the last request for a certificate of this machine's kubelet.
    async fn requested_by(&self, cluster: &Cluster) -> Result<Option<String>, Failure> {
        let requests = Api::<CertificateSigningRequest>::all(cluster.admin()).list(&ListParams::default()).await?;
        let kubelets = requests.items.into_iter().filter(|request| request.name_any().starts_with("granary-kubelet-"));
        let of_signer = kubelets.filter(|request| request.spec.signer_name.ends_with("client-kubelet"));
        let version = |request: &CertificateSigningRequest| request.resource_version()?.parse::<u64>().ok();
        let last = of_signer.max_by_key(version);
        Ok(last.and_then(|request| request.spec.username))
    }

    async fn register(&self) -> Result<(), Failure> {
        let nodes = Api::<Node>::all(self.credentials.client(Identity::Kubelet).await?);
        create(&nodes, json!({"metadata": {"name": self.config.node}})).await?;
        Ok(())
    }

    async fn user(&self) -> Result<Option<String>, Failure> {
        let reviews = Api::<SelfSubjectReview>::all(self.credentials.client(Identity::Kubelet).await?);
        let review = reviews.create(&PostParams::default(), &<_>::default()).await?;
        Ok(review.status.and_then(|status| status.user_info?.username))
    }
}

pub(crate) async fn a_machine_becomes_a_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let approver = Approver::start(&cluster).await?;
    let machine = Machine::of(&cluster, "joined").await?;
    let token = token(&cluster, "joined", in_an_hour()).await?;
    ask_eventually(&cluster, &token, "elsewhere").await?;
    let kubelet = machine.kubelet(token.clone());
    let lasting = kubelet.ensure().await?;
    assert_eq!(machine.user().await?.as_deref(), Some("system:node:joined"));
    assert_eq!(kubelet.ensure().await?, lasting, "the certificate is kept");
    Requested::kubelet_server(&machine.config, &machine.credentials).ensure().await?;
    Requested::storage(&machine.config, &machine.credentials).ensure().await?;
    for name in ["kubelet", "kubelet-server", "storage"] {
        assert!(machine.config.paths.pki.join(name).with_extension("key").exists(), "{name}");
    }
    approver.stop().await
}

pub(crate) async fn a_node_renews_itself_without_a_token(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let approver = Approver::start(&cluster).await?;
    let machine = Machine::of(&cluster, "renewed").await?;
    let token = token(&cluster, "renewed", in_an_hour()).await?;
    ask_eventually(&cluster, &token, "elsewhere").await?;
    machine.kubelet(token.clone()).ensure().await?;
    assert_eq!(machine.requested_by(&cluster).await?, Some(format!("system:bootstrap:{}", token.id())));
    let nodes = Api::<Node>::all(cluster.admin());
    create(&nodes, json!({"metadata": {"name": "renewed"}})).await?;

    machine.age(&cluster, 250)?;
    let certificate = machine.config.paths.pki.join("kubelet.crt");
    let old = std::fs::read_to_string(&certificate)?;
    // The machine does not use the token, which is still valid.
    let kubelet = machine.kubelet(token);
    let lasting = kubelet.ensure().await?;
    assert_eq!(machine.requested_by(&cluster).await?.as_deref(), Some("system:node:renewed"));
    assert_ne!(std::fs::read_to_string(&certificate)?, old);
    assert_eq!(machine.user().await?.as_deref(), Some("system:node:renewed"));
    assert_eq!(kubelet.ensure().await?, lasting, "the certificate is kept");
    nodes.delete("renewed", &DeleteParams::default()).await?;
    approver.stop().await
}

/// The machine must not use the expired certificate for the request.
pub(crate) async fn a_node_with_an_expired_certificate_needs_a_token(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let approver = Approver::start(&cluster).await?;
    let machine = Machine::of(&cluster, "late").await?;
    machine.age(&cluster, 400)?;
    let without = machine.kubelet(None).ensure().await;
    assert!(matches!(without, Err(IdentityError::NoToken)), "{without:?}");
    let storage = Requested::storage(&machine.config, &machine.credentials).ensure().await;
    assert!(matches!(storage, Err(IdentityError::KubeletExpired { name: "storage", .. })), "{storage:?}");
    let token = token(&cluster, "late", in_an_hour()).await?;
    ask_eventually(&cluster, &token, "elsewhere").await?;
    machine.kubelet(token.clone()).ensure().await?;
    assert_eq!(machine.requested_by(&cluster).await?, Some(format!("system:bootstrap:{}", token.id())));
    assert_eq!(machine.user().await?.as_deref(), Some("system:node:late"));
    approver.stop().await
}

async fn tokens(cluster: &Cluster) -> Result<Supervisor, Failure> {
    start("tokens", cluster.admin(), reconciler::tokens).await
}

async fn deleted(cluster: &Cluster, token: &Token) -> Result<(), Failure> {
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    gone(&secrets, &bootstrap_secret_name(token.id())).await
}

pub(crate) async fn a_token_is_deleted_when_its_node_has_registered(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (approver, tokens) = (Approver::start(&cluster).await?, tokens(&cluster).await?);
    let machine = Machine::of(&cluster, "registering").await?;
    let used = token(&cluster, "registering", in_an_hour()).await?;
    let spare = token(&cluster, "registering", in_an_hour()).await?;
    let of_another = token(&cluster, "another", in_an_hour()).await?;
    ask_eventually(&cluster, &used, "elsewhere").await?;
    machine.kubelet(used.clone()).ensure().await?;

    // Until its Node exists, the machine may request a certificate again.
    let again = decision(&cluster, &ask_eventually(&cluster, &used, "registering").await?).await?;
    assert_eq!(again, "Approved OwnNode: the kubelet of registering");
    let other = decision(&cluster, &ask_eventually(&cluster, &used, "another").await?).await?;
    assert!(other.starts_with("Denied TokenOfOtherNode"), "{other}");

    machine.register().await?;
    deleted(&cluster, &used).await?;
    deleted(&cluster, &spare).await?;
    // A later token for the name of an existing Node is deleted, too.
    let late = token(&cluster, "registering", in_an_hour()).await?;
    deleted(&cluster, &late).await?;
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    secrets.get_metadata(&bootstrap_secret_name(of_another.id())).await?;
    Api::<Node>::all(cluster.admin()).delete("registering", &DeleteParams::default()).await?;
    secrets.delete(&bootstrap_secret_name(of_another.id()), &DeleteParams::default()).await?;
    tokens.stop(STOP).await?;
    approver.stop().await
}

pub(crate) async fn a_node_whose_token_was_deleted_stays_in_the_cluster(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let (approver, tokens) = (Approver::start(&cluster).await?, tokens(&cluster).await?);
    let machine = Machine::of(&cluster, "staying").await?;
    let first = token(&cluster, "staying", in_an_hour()).await?;
    ask_eventually(&cluster, &first, "elsewhere").await?;
    machine.kubelet(first.clone()).ensure().await?;
    machine.register().await?;
    deleted(&cluster, &first).await?;
    rejected(&cluster, &first).await?;

    // The configuration of the machine contains the deleted token.
    machine.age(&cluster, 250)?;
    machine.kubelet(first.clone()).ensure().await?;
    assert_eq!(machine.requested_by(&cluster).await?.as_deref(), Some("system:node:staying"));

    // The certificate of the machine has expired.
    machine.age(&cluster, 400)?;
    match machine.kubelet(first.clone()).ensure().await {
        Err(error @ IdentityError::Token { .. }) => {
            let text = error.to_string();
            let remedy = "delete the Node of this node if there is one, then create a new token";
            assert!(text.contains(first.id()) && text.contains(remedy), "{text}");
        }
        other => panic!("{other:?}"),
    }
    Api::<Node>::all(cluster.admin()).delete("staying", &DeleteParams::default()).await?;
    let second = token(&cluster, "staying", in_an_hour()).await?;
    ask_eventually(&cluster, &second, "elsewhere").await?;
    machine.kubelet(second.clone()).ensure().await?;
    assert_eq!(machine.requested_by(&cluster).await?, Some(format!("system:bootstrap:{}", second.id())));
    assert_eq!(machine.user().await?.as_deref(), Some("system:node:staying"));
    tokens.stop(STOP).await?;
    approver.stop().await
}

pub(crate) async fn a_machine_that_cannot_join_gets_the_reason(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let approver = Approver::start(&cluster).await?;
    let machine = Machine::of(&cluster, "stranger").await?;
    machine.is_rejected(&Token::generate()?).await;
    let of_another = token(&cluster, "another", in_an_hour()).await?;
    ask_eventually(&cluster, &of_another, "another").await?;
    match machine.kubelet(of_another).ensure().await {
        Err(IdentityError::Denied { why, .. }) => {
            assert!(why.contains("is for the node another, not for stranger"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    let left: Vec<_> = std::fs::read_dir(&machine.config.paths.pki)?.collect::<Result<_, _>>()?;
    let keys = left.iter().filter(|entry| entry.path().extension().is_some_and(|kind| kind == "key"));
    assert_eq!(keys.count(), 0, "no key is left: {left:?}");
    approver.stop().await
}
