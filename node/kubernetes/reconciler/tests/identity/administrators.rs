//! Rights of the administrators in the configuration of a control plane.

use std::sync::Arc;
use std::time::Duration;

use cluster::{ADMINISTRATORS_GROUP, API_PORT, AdministratorRequest};
use envtest::{Cluster, Failure, create, merge};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use programs::Credentials;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use supervisor::{Settings, Supervisor};
use time::OffsetDateTime;

use crate::{forbidden, until};

struct Administrator {
    request: AdministratorRequest,
    key: KeyPair,
}

impl Administrator {
    /// Creates a key and a request, which also contains the group of masters.
    fn new(name: &str) -> Result<Self, Failure> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        Ok(Self { request: params.serialize_request(&key)?.pem()?.parse()?, key })
    }

    /// A client with the own key and with the certificates that a control plane with this request publishes.
    async fn client(&self, cluster: &Cluster) -> Result<Client, Failure> {
        let mut config = cluster.config().clone();
        config.settings.administrators = vec![self.request.clone()];
        let public = Credentials::ensure(&config, OffsetDateTime::now_utc())?.public();
        let base64 = |pem: &str| ByteString(pem.as_bytes().to_vec());
        let server = format!("https://127.0.0.1:{API_PORT}");
        let kubeconfig: Kubeconfig = serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "granary",
                "cluster": {"server": server, "certificate-authority-data": base64(&public.ca)},
            }],
            "users": [{
                "name": "granary",
                "user": {
                    "client-certificate-data": base64(&public.administrators[0].certificate),
                    "client-key-data": base64(&self.key.serialize_pem()),
                },
            }],
            "contexts": [{"name": "granary", "context": {"cluster": "granary", "user": "granary"}}],
            "current-context": "granary",
        }))?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }
}

struct Service(Supervisor);

impl Service {
    /// Starts the service of a control plane with these requests in its configuration.
    async fn start(cluster: &Cluster, administrators: &[&Administrator]) -> Result<Self, Failure> {
        let users: Vec<String> = administrators.iter().map(|one| one.request.user()).collect();
        let client = cluster.admin();
        let tree = Supervisor::start("administrators", Settings::default(), move |cx| {
            reconciler::administrators(cx, client.clone(), users.clone())
        });
        tree.handle().healthy().await?;
        Ok(Self(tree))
    }

    async fn stop(self) -> Result<(), Failure> {
        Ok(self.0.stop(Duration::from_secs(10)).await?)
    }
}

/// Whether the client has this right. Every authenticated client may ask.
async fn may(client: &Client, spec: &Value) -> Result<bool, kube::Error> {
    let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
    let review = create(&reviews, json!({"spec": spec})).await?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

fn everything() -> [Value; 2] {
    [
        json!({"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}}),
        json!({"nonResourceAttributes": {"verb": "*", "path": "*"}}),
    ]
}

/// Waits until the client has all rights, because the authorizer reads a cache.
async fn becomes_administrator(client: &Client) -> Result<(), Failure> {
    for spec in everything() {
        until("all rights", async || Ok((!may(client, &spec).await?).then(|| spec.to_string()))).await?;
    }
    Api::<Secret>::all(client.clone()).list(&ListParams::default()).await?;
    Ok(())
}

/// Waits until the client has lost all rights but those of every authenticated client.
async fn becomes_powerless(client: &Client) -> Result<(), Failure> {
    for spec in everything() {
        until("no rights", async || Ok(may(client, &spec).await?.then(|| spec.to_string()))).await?;
    }
    let attempts = [
        ("get", "", "secrets"),
        ("create", "", "pods"),
        ("list", "", "nodes"),
        ("get", "", "nodes/proxy"),
        ("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
        ("impersonate", "", "users"),
        ("approve", "certificates.k8s.io", "signers"),
    ];
    for (verb, group, resource) in attempts {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes = json!({"verb": verb, "group": group, "resource": resource, "subresource": subresource});
        assert!(!may(client, &json!({"resourceAttributes": attributes})).await?, "{verb} {resource}");
    }
    forbidden(Api::<Secret>::all(client.clone()).list(&ListParams::default()).await);
    Ok(())
}

pub(crate) async fn an_administrator_has_all_rights_while_the_request_is_listed(
    cluster: Arc<Cluster>,
) -> Result<(), Failure> {
    let [alice, bob] = [Administrator::new("alice")?, Administrator::new("bob")?];
    let (hers, his) = (alice.client(&cluster).await?, bob.client(&cluster).await?);
    becomes_powerless(&hers).await?;

    let service = Service::start(&cluster, &[&alice, &bob]).await?;
    becomes_administrator(&hers).await?;
    becomes_administrator(&his).await?;
    let review = Api::<SelfSubjectReview>::all(hers.clone()).create(&PostParams::default(), &<_>::default()).await?;
    let user = review.status.and_then(|status| status.user_info).unwrap_or_default();
    assert_eq!(user.username, Some(alice.request.user()));
    let mut groups = user.groups.unwrap_or_default();
    groups.sort_unstable();
    assert_eq!(groups, [ADMINISTRATORS_GROUP, "system:authenticated"], "not system:masters");
    service.stop().await?;

    // The certificate is still valid for a year.
    let service = Service::start(&cluster, &[&bob]).await?;
    becomes_powerless(&hers).await?;
    becomes_administrator(&his).await?;
    service.stop().await?;
    Service::start(&cluster, &[]).await?.stop().await?;
    becomes_powerless(&his).await
}

/// A stolen certificate of the first key must not have the rights of the name.
pub(crate) async fn a_replaced_key_of_an_administrator_has_no_rights(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let [stolen, new] = [Administrator::new("alice")?, Administrator::new("alice")?];
    let (thief, alice) = (stolen.client(&cluster).await?, new.client(&cluster).await?);
    let service = Service::start(&cluster, &[&stolen]).await?;
    becomes_administrator(&thief).await?;
    service.stop().await?;

    let service = Service::start(&cluster, &[&new]).await?;
    becomes_administrator(&alice).await?;
    becomes_powerless(&thief).await?;

    // The service repairs its binding.
    let bindings = Api::<ClusterRoleBinding>::all(cluster.admin());
    let user = |one: &Administrator| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": one.request.user()});
    merge(&bindings, ADMINISTRATORS_GROUP, json!({"subjects": [user(&stolen), user(&new)]})).await?;
    until("the binding of one user", async || {
        let found = bindings.get_opt(ADMINISTRATORS_GROUP).await?.and_then(|binding| binding.subjects);
        let users: Vec<String> = found.into_iter().flatten().map(|subject| subject.name).collect();
        Ok((users != [new.request.user()]).then(|| format!("{users:?}")))
    })
    .await?;
    becomes_powerless(&thief).await?;
    bindings.delete(ADMINISTRATORS_GROUP, &DeleteParams::default()).await?;
    becomes_administrator(&alice).await?;
    service.stop().await?;
    Service::start(&cluster, &[]).await?.stop().await
}
