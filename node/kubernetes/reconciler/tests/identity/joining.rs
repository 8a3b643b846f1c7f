//! How a machine becomes a node: with a bootstrap token that was made for its name.

use std::sync::Arc;

use cluster::Token;
use envtest::{Cluster, Failure, PATIENCE, Suite};
use eventually::{Seen, eventually};
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
use supervisor::{Settings, Supervisor};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};
use tokio::time::timeout;

use crate::Nodes;
use crate::certificate::{Approver, decision};

/// Enough to ask once too often.
const MOMENT: std::time::Duration = std::time::Duration::from_secs(3);

/// How long a service may take to end.
const STOP: std::time::Duration = std::time::Duration::from_secs(10);

pub(crate) fn cases(suite: Suite) -> Suite {
    suite
        .case("a_token_admits_one_node_and_no_other", a_token_admits_one_node_and_no_other)
        .case("a_name_that_is_taken_is_not_given_again", a_name_that_is_taken_is_not_given_again)
        .case("a_token_ends_when_it_expires_or_is_deleted", a_token_ends_when_it_expires_or_is_deleted)
        .case("a_token_that_ends_while_its_request_waits_is_named", a_token_that_ends_while_its_request_waits_is_named)
        .case("a_token_gives_no_other_rights", a_token_gives_no_other_rights)
        .case("a_machine_becomes_a_node", a_machine_becomes_a_node)
        .case("a_node_renews_itself_without_a_token", a_node_renews_itself_without_a_token)
        .case("a_node_that_was_off_for_a_year_needs_a_token", a_node_that_was_off_for_a_year_needs_a_token)
        .case("a_token_is_deleted_when_its_node_has_registered", a_token_is_deleted_when_its_node_has_registered)
        .case(
            "a_node_whose_token_was_deleted_stays_in_the_cluster",
            a_node_whose_token_was_deleted_stays_in_the_cluster,
        )
        .case("a_machine_that_cannot_join_is_told_why", a_machine_that_cannot_join_is_told_why)
}

/// A token for a node, which the API server accepts until then.
pub(crate) async fn token(cluster: &Cluster, node: &str, expires: OffsetDateTime) -> Result<Token, Failure> {
    let token = Token::generate()?;
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    secrets.create(&PostParams::default(), &bootstrap_secret(&token, node, expires)?).await?;
    Ok(token)
}

pub(crate) fn in_an_hour() -> OffsetDateTime {
    OffsetDateTime::now_utc() + Duration::HOUR
}

/// A client that shows the token, and nothing else.
async fn client(cluster: &Cluster, token: &Token) -> Result<Client, Failure> {
    let mut config = Kubeconfig::read_from(cluster.config().paths.pki.join("admin.kubeconfig"))?;
    for user in &mut config.auth_infos {
        user.auth_info = serde_json::from_value(json!({"token": token.reveal()}))?;
    }
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Asks for the certificate of that node's kubelet, and returns the request's name.
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

/// The API server learns of a new Secret by a watch.
pub(crate) async fn ask_eventually(cluster: &Cluster, token: &Token, node: &str) -> Result<String, Failure> {
    let client = client(cluster, token).await?;
    Ok(eventually(PATIENCE, "the token is known", async || ask(client.clone(), node).await.map(Seen::Done)).await?)
}

/// What the API server says to a token that it does not accept.
async fn refused(cluster: &Cluster, token: &Token) -> Result<(), Failure> {
    let client = client(cluster, token).await?;
    eventually(PATIENCE, "the token is refused", async || {
        Ok::<_, kube::Error>(match ask(client.clone(), "two").await {
            Err(kube::Error::Api(status)) if status.code == 401 => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;
    Ok(())
}

async fn a_token_admits_one_node_and_no_other(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let approver = Approver::start(&cluster).await?;
    let token = token(&cluster, "two", in_an_hour()).await?;
    let own = ask_eventually(&cluster, &token, "two").await?;
    assert_eq!(decision(&cluster, &own).await?, "Approved OwnNode: the kubelet of two");
    let requests = Api::<CertificateSigningRequest>::all(cluster.admin());
    eventually(PATIENCE, "the certificate", async || {
        let signed = requests.get(&own).await?.status.and_then(|status| status.certificate);
        Ok::<_, kube::Error>(signed.map_or(Seen::NotYet("none".into()), |_| Seen::Done(())))
    })
    .await?;
    let other = ask_eventually(&cluster, &token, "three").await?;
    let why = decision(&cluster, &other).await?;
    assert!(why.starts_with("Denied TokenOfOtherNode"), "{why}");
    assert!(why.ends_with("is for the node two, not for three; make one for three"), "{why}");
    approver.stop().await
}

async fn a_name_that_is_taken_is_not_given_again(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let approver = Approver::start(&cluster).await?;
    let nodes = Api::<Node>::all(cluster.admin());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "taken"}}))?;
    nodes.create(&PostParams::default(), &node).await?;
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

/// Both at once: the API server accepts a token for 10 s after it has last looked at it.
async fn a_token_ends_when_it_expires_or_is_deleted(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let (expired, deleted) = join(a_token_expires(&cluster), a_token_is_deleted(&cluster)).await;
    expired?;
    deleted?;
    refused(&cluster, &Token::generate()?).await
}

async fn a_token_expires(cluster: &Cluster) -> Result<(), Failure> {
    // Long enough for the API server to learn of it.
    let expires = token(cluster, "two", OffsetDateTime::now_utc() + Duration::seconds(10)).await?;
    ask_eventually(cluster, &expires, "two").await?;
    refused(cluster, &expires).await?;
    let machine = Machine::of(cluster, "two").await?;
    machine.is_refused(&expires).await;
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    eventually(PATIENCE, "the Secret of a token that has expired to be deleted", async || {
        let left = secrets.get_opt(&bootstrap_secret_name(expires.id())).await?;
        Ok::<_, kube::Error>(left.map_or(Seen::Done(()), |secret| Seen::NotYet(format!("{:?}", secret.metadata))))
    })
    .await?;
    Ok(())
}

async fn a_token_is_deleted(cluster: &Cluster) -> Result<(), Failure> {
    let revoked = token(cluster, "two", in_an_hour()).await?;
    ask_eventually(cluster, &revoked, "two").await?;
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    secrets.delete(&bootstrap_secret_name(revoked.id()), &DeleteParams::default()).await?;
    refused(cluster, &revoked).await
}

/// Nobody decides here.
async fn a_token_that_ends_while_its_request_waits_is_named(cluster: Arc<Cluster>) -> Result<(), Failure> {
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
    let waits = eventually(PATIENCE, "the request", async || {
        let count = asked().await?;
        Ok::<_, kube::Error>(if count == 1 { Seen::Done(()) } else { Seen::NotYet(format!("{count} requests")) })
    });
    let mut first = Box::pin(kubelet.ensure());
    tokio::select! {
        early = &mut first => panic!("{early:?}"),
        waits = waits => waits?,
    }
    // The machine hears a moment later that its request was taken.
    assert!(timeout(MOMENT, &mut first).await.is_err());
    drop(first);
    assert!(timeout(MOMENT, kubelet.ensure()).await.is_err());
    assert_eq!(asked().await?, 1, "it waits for what it has asked for");
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    secrets.delete(&bootstrap_secret_name(token.id()), &DeleteParams::default()).await?;
    refused(&cluster, &token).await?;
    match kubelet.ensure().await {
        Err(IdentityError::Token { id }) => assert_eq!(id, token.id()),
        other => panic!("{other:?}"),
    }
    Ok(())
}

async fn a_token_gives_no_other_rights(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let token = token(&cluster, "two", in_an_hour()).await?;
    ask_eventually(&cluster, &token, "two").await?;
    let client = client(&cluster, &token).await?;
    crate::forbidden(Api::<Secret>::namespaced(client.clone(), BOOTSTRAP_NAMESPACE).list(&ListParams::default()).await);
    crate::forbidden(Api::<Node>::all(client.clone()).list(&ListParams::default()).await);
    crate::forbidden(Api::<ConfigMap>::default_namespaced(client).list(&ListParams::default()).await);
    Ok(())
}

/// A machine that knows the API server's address and the digest of its authority.
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
        let digest = ca_digest(&known).ok_or("no authority")?;
        let shown = discovery::authority([127, 0, 0, 1].into(), 6443, digest).await?;
        assert_eq!(shown.trim(), known.trim(), "what the API server shows is the cluster's authority");
        let credentials = Arc::new(Credentials::joining(&config, "127.0.0.1:6443", &shown)?);
        Ok(Self { config, credentials, _disk: disk })
    }

    fn kubelet(&self, token: impl Into<Option<Token>>) -> Requested {
        Requested::kubelet(&self.config, &self.credentials, token.into())
    }

    /// Gives kubelet a certificate for a year that the cluster's authority signed so many days ago.
    fn age(&self, cluster: &Cluster, days: i64) -> Result<(), Failure> {
        let read = |name| std::fs::read_to_string(cluster.config().paths.pki.join(name));
        let authority = Issuer::from_ca_cert_pem(&read("ca.crt")?, KeyPair::from_pem(&read("ca.key")?)?)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{}", self.config.node));
        params.not_before = OffsetDateTime::now_utc() - Duration::days(days);
        params.not_after = params.not_before + Duration::days(365);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?.pem();
        std::fs::write(self.config.paths.pki.join("kubelet.crt"), certificate)?;
        Ok(std::fs::write(self.config.paths.pki.join("kubelet.key"), key.serialize_pem())?)
    }

    /// It is told that its token is not accepted.
    async fn is_refused(&self, token: &Token) {
        match self.kubelet(token.clone()).ensure().await {
            Err(IdentityError::Token { id }) => assert_eq!(id, token.id()),
            other => panic!("{other:?}"),
        }
    }

    /// Who asked last for the certificate of this machine's kubelet.
    async fn asked_by(&self, cluster: &Cluster) -> Result<Option<String>, Failure> {
        let requests = Api::<CertificateSigningRequest>::all(cluster.admin()).list(&ListParams::default()).await?;
        let kubelets = requests.items.into_iter().filter(|request| request.name_any().starts_with("granary-kubelet-"));
        let of_signer = kubelets.filter(|request| request.spec.signer_name.ends_with("client-kubelet"));
        let version = |request: &CertificateSigningRequest| request.resource_version()?.parse::<u64>().ok();
        let last = of_signer.max_by_key(version);
        Ok(last.and_then(|request| request.spec.username))
    }

    /// As its kubelet does with its certificate.
    async fn register(&self) -> Result<(), Failure> {
        let nodes = Api::<Node>::all(self.credentials.client(Identity::Kubelet).await?);
        nodes
            .create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": self.config.node}}))?)
            .await?;
        Ok(())
    }

    /// Whom the API server takes kubelet for.
    async fn user(&self) -> Result<Option<String>, Failure> {
        let reviews = Api::<SelfSubjectReview>::all(self.credentials.client(Identity::Kubelet).await?);
        let review = reviews.create(&PostParams::default(), &<_>::default()).await?;
        Ok(review.status.and_then(|status| status.user_info?.username))
    }
}

async fn a_machine_becomes_a_node(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let approver = Approver::start(&cluster).await?;
    let machine = Machine::of(&cluster, "joined").await?;
    let token = token(&cluster, "joined", in_an_hour()).await?;
    ask_eventually(&cluster, &token, "elsewhere").await?;
    let kubelet = machine.kubelet(token.clone());
    let lasting = kubelet.ensure().await?;
    assert_eq!(machine.user().await?.as_deref(), Some("system:node:joined"));
    assert_eq!(kubelet.ensure().await?, lasting, "it is kept");
    Requested::kubelet_server(&machine.config, &machine.credentials).ensure().await?;
    Requested::storage(&machine.config, &machine.credentials).ensure().await?;
    for name in ["kubelet", "kubelet-server", "storage"] {
        assert!(machine.config.paths.pki.join(name).with_extension("key").exists(), "{name}");
    }
    approver.stop().await
}

async fn a_node_renews_itself_without_a_token(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let approver = Approver::start(&cluster).await?;
    let machine = Machine::of(&cluster, "renewed").await?;
    let token = token(&cluster, "renewed", in_an_hour()).await?;
    ask_eventually(&cluster, &token, "elsewhere").await?;
    machine.kubelet(token.clone()).ensure().await?;
    assert_eq!(machine.asked_by(&cluster).await?, Some(format!("system:bootstrap:{}", token.id())));
    let node: Node = serde_json::from_value(json!({"metadata": {"name": "renewed"}}))?;
    let nodes = Api::<Node>::all(cluster.admin());
    nodes.create(&PostParams::default(), &node).await?;

    machine.age(&cluster, 250)?;
    let certificate = machine.config.paths.pki.join("kubelet.crt");
    let old = std::fs::read_to_string(&certificate)?;
    // The token is still valid, and not used.
    let kubelet = machine.kubelet(token);
    let lasting = kubelet.ensure().await?;
    assert_eq!(machine.asked_by(&cluster).await?.as_deref(), Some("system:node:renewed"));
    assert_ne!(std::fs::read_to_string(&certificate)?, old);
    assert_eq!(machine.user().await?.as_deref(), Some("system:node:renewed"));
    assert_eq!(kubelet.ensure().await?, lasting, "it is kept");
    nodes.delete("renewed", &DeleteParams::default()).await?;
    approver.stop().await
}

/// It asked with the certificate that nobody accepted any more, whatever token it was given.
async fn a_node_that_was_off_for_a_year_needs_a_token(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
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
    assert_eq!(machine.asked_by(&cluster).await?, Some(format!("system:bootstrap:{}", token.id())));
    assert_eq!(machine.user().await?.as_deref(), Some("system:node:late"));
    approver.stop().await
}

/// What the control plane runs beside the approver.
async fn tokens(cluster: &Cluster) -> Result<Supervisor, Failure> {
    let client = cluster.admin();
    let tree = Supervisor::start("tokens", Settings::default(), move |cx| reconciler::tokens(cx, client.clone()));
    tree.handle().healthy().await?;
    Ok(tree)
}

/// Waits until there is no Secret of the token.
async fn deleted(cluster: &Cluster, token: &Token) -> Result<(), Failure> {
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    eventually(PATIENCE, "the end of the token", async || {
        let found = secrets.get_metadata_opt(&bootstrap_secret_name(token.id())).await?;
        Ok::<_, kube::Error>(found.map_or(Seen::Done(()), |found| Seen::NotYet(found.name_any())))
    })
    .await?;
    Ok(())
}

async fn a_token_is_deleted_when_its_node_has_registered(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let (approver, tokens) = (Approver::start(&cluster).await?, tokens(&cluster).await?);
    let machine = Machine::of(&cluster, "registering").await?;
    let used = token(&cluster, "registering", in_an_hour()).await?;
    let spare = token(&cluster, "registering", in_an_hour()).await?;
    let of_another = token(&cluster, "another", in_an_hour()).await?;
    ask_eventually(&cluster, &used, "elsewhere").await?;
    machine.kubelet(used.clone()).ensure().await?;

    // Until the Node is there, the machine may lose what it got.
    let again = decision(&cluster, &ask_eventually(&cluster, &used, "registering").await?).await?;
    assert_eq!(again, "Approved OwnNode: the kubelet of registering");
    let other = decision(&cluster, &ask_eventually(&cluster, &used, "another").await?).await?;
    assert!(other.starts_with("Denied TokenOfOtherNode"), "{other}");

    machine.register().await?;
    deleted(&cluster, &used).await?;
    deleted(&cluster, &spare).await?;
    // A token of a name that has a Node is of no use.
    let late = token(&cluster, "registering", in_an_hour()).await?;
    deleted(&cluster, &late).await?;
    let secrets = Api::<Secret>::namespaced(cluster.admin(), BOOTSTRAP_NAMESPACE);
    secrets.get_metadata(&bootstrap_secret_name(of_another.id())).await?;
    Api::<Node>::all(cluster.admin()).delete("registering", &DeleteParams::default()).await?;
    secrets.delete(&bootstrap_secret_name(of_another.id()), &DeleteParams::default()).await?;
    tokens.stop(STOP).await?;
    approver.stop().await
}

async fn a_node_whose_token_was_deleted_stays_in_the_cluster(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let (approver, tokens) = (Approver::start(&cluster).await?, tokens(&cluster).await?);
    let machine = Machine::of(&cluster, "staying").await?;
    let first = token(&cluster, "staying", in_an_hour()).await?;
    ask_eventually(&cluster, &first, "elsewhere").await?;
    machine.kubelet(first.clone()).ensure().await?;
    machine.register().await?;
    deleted(&cluster, &first).await?;
    refused(&cluster, &first).await?;

    // Its configuration still has the token.
    machine.age(&cluster, 250)?;
    machine.kubelet(first.clone()).ensure().await?;
    assert_eq!(machine.asked_by(&cluster).await?.as_deref(), Some("system:node:staying"));

    // It was off for longer than its certificate lasts.
    machine.age(&cluster, 400)?;
    match machine.kubelet(first.clone()).ensure().await {
        Err(error @ IdentityError::Token { .. }) => {
            let text = error.to_string();
            let remedy = "delete the Node of this node if there is one, then make a new token";
            assert!(text.contains(first.id()) && text.contains(remedy), "{text}");
        }
        other => panic!("{other:?}"),
    }
    Api::<Node>::all(cluster.admin()).delete("staying", &DeleteParams::default()).await?;
    let second = token(&cluster, "staying", in_an_hour()).await?;
    ask_eventually(&cluster, &second, "elsewhere").await?;
    machine.kubelet(second.clone()).ensure().await?;
    assert_eq!(machine.asked_by(&cluster).await?, Some(format!("system:bootstrap:{}", second.id())));
    assert_eq!(machine.user().await?.as_deref(), Some("system:node:staying"));
    tokens.stop(STOP).await?;
    approver.stop().await
}

async fn a_machine_that_cannot_join_is_told_why(cluster: Arc<Cluster>) -> Result<(), Failure> {
    Nodes::of(&cluster).await?;
    let approver = Approver::start(&cluster).await?;
    let machine = Machine::of(&cluster, "stranger").await?;
    machine.is_refused(&Token::generate()?).await;
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
    assert_eq!(keys.count(), 0, "nothing is half-joined: {left:?}");
    approver.stop().await
}
