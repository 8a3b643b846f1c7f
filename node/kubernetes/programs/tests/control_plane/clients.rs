//! Authentication and authorization of the API server's clients.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cluster::API_SERVER_USER;
use envtest::{Cluster, Failure, Identity, PATIENCE, Seen, Suite, eventually, remove};
use http::Request;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt as _};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use serde_json::{Value, json};

pub fn cases(suite: Suite) -> Suite {
    suite
        .case("a_request_without_an_identity_is_unauthorized", a_request_without_an_identity_is_unauthorized)
        .case("an_identity_without_a_role_is_forbidden", an_identity_without_a_role_is_forbidden)
        .case("kubelet_learns_that_anonymous_clients_may_do_nothing", kubelet_learns_about_anonymous_clients)
        .case("a_pods_token_is_valid_for_an_hour_and_not_without_its_pod", a_pods_token_ends)
}

/// Paths that an API server with anonymous requests serves to all clients, and some that it does not.
const PATHS: [&str; 8] =
    ["/", "/api", "/version", "/healthz", "/livez", "/readyz", "/metrics", "/api/v1/namespaces/default/configmaps"];

pub async fn client_as(cluster: &Cluster, user: AuthInfo) -> Result<Client, Failure> {
    let mut kubeconfig = Kubeconfig::read_from(cluster.credentials().kubeconfig(Identity::Admin))?;
    for named in &mut kubeconfig.auth_infos {
        named.auth_info = Some(user.clone());
    }
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// The administrator's subject in a certificate that the cluster's CA did not sign.
fn self_signed() -> Result<AuthInfo, Failure> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.distinguished_name.push(DnType::CommonName, "granary:admin");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    with_certificate(certificate, key.serialize_pem())
}

pub fn with_certificate(certificate: String, key: String) -> Result<AuthInfo, Failure> {
    let base64 = |pem: String| serde_json::to_value(ByteString(pem.into_bytes()));
    Ok(serde_json::from_value(json!({
        "client-certificate-data": base64(certificate)?, "client-key-data": base64(key)?,
    }))?)
}

async fn a_request_without_an_identity_is_unauthorized(cluster: Arc<Cluster>) -> Result<(), Failure> {
    for (who, user) in [
        ("no identity", AuthInfo::default()),
        ("an unknown token", serde_json::from_value(json!({"token": "0123456789abcdef"}))?),
        ("a certificate of another CA", self_signed()?),
    ] {
        let client = client_as(&cluster, user).await?;
        for path in PATHS {
            match client.request_text(Request::get(path).body(Vec::new())?).await {
                Err(kube::Error::Api(status)) => assert_eq!(status.code, 401, "{who}, {path}: {status:?}"),
                other => panic!("{who}, {path}: {other:?}"),
            }
        }
    }
    // With an identity, the same requests reach their handlers.
    for path in PATHS {
        cluster.admin().request_text(Request::get(path).body(Vec::new())?).await?;
    }
    Ok(())
}

async fn an_identity_without_a_role_is_forbidden(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let maps = Api::<ConfigMap>::default_namespaced(cluster.client(Identity::Storage).await?);
    let refused = maps.list(&ListParams::default()).await;
    assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 403), "{refused:?}");
    Ok(())
}

/// The review that the kubelet's webhook sends to the API server before the kubelet answers a request on port 10250.
async fn kubelet_learns_about_anonymous_clients(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let reviews = Api::<SubjectAccessReview>::all(cluster.client(Identity::Kubelet).await?);
    for (user, groups, allowed) in [
        ("system:anonymous", ["system:unauthenticated"], false),
        ("jane", ["system:authenticated"], false),
        // The API server as the kubelet's client. The reconciler, which does not run here, binds the role of this user.
        (API_SERVER_USER, ["system:authenticated"], false),
        ("granary:admin", ["system:masters"], true),
    ] {
        let node =
            json!({"group": "", "resource": "nodes", "subresource": "proxy", "verb": "get", "name": cluster.node()});
        let review = json!({"spec": {"user": user, "groups": groups, "resourceAttributes": node}});
        let review = reviews.create(&PostParams::default(), &serde_json::from_value(review)?).await?;
        assert_eq!(review.status.map(|status| status.allowed), Some(allowed), "{user}");
    }
    Ok(())
}

/// Each of two pods gets a token with the lifetime that a kubelet requests. Then one pod is deleted.
async fn a_pods_token_ends(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let pods = Api::<Pod>::default_namespaced(cluster.admin());
    let accounts = Api::<ServiceAccount>::default_namespaced(cluster.admin());
    let mut clients = Vec::new();
    for name in ["deleted", "kept"] {
        let containers = json!([{"name": "c", "image": "granary.invalid/none"}]);
        let pod = json!({"metadata": {"name": name}, "spec": {"containers": containers}});
        let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let request: TokenRequest = serde_json::from_value(json!({"spec": {
            "audiences": [],
            "expirationSeconds": lifetime(&pod),
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.uid()},
        }}))?;
        let granted = accounts.create_token_request("default", &PostParams::default(), &request).await?;
        let token = granted.status.and_then(|status| status.token).ok_or("the answer has no token")?;
        let claims = claims(&token)?;
        let [from, to] = ["iat", "exp"].map(|claim| claims[claim].as_i64().unwrap_or_default());
        // The status of the response has the requested time, even if the token is valid for a year.
        assert!(from > 0 && to - from == 3607, "{claims}");
        clients.push(client_as(&cluster, serde_json::from_value(json!({"token": token}))?).await?);
    }
    // The pod has no node, so the API server deletes it immediately.
    pods.delete("deleted", &DeleteParams::default()).await?;
    let [deleted, kept] = &*clients else { panic!("{} clients", clients.len()) };
    assert_eq!(code(kept).await?, 200);
    // The API server watches pods, and caches the result of a token for 10 s.
    eventually(PATIENCE, "the end of the token", async || {
        let code = code(deleted).await?;
        Ok::<_, kube::Error>(if code == 401 { Seen::Done(()) } else { Seen::NotYet(code.to_string()) })
    })
    .await?;
    remove(&pods, "kept").await
}

/// Lifetime of the token in the volume that the API server adds to the pod.
fn lifetime(pod: &Pod) -> Option<i64> {
    let volumes = pod.spec.as_ref()?.volumes.iter().flatten();
    let projected = volumes.filter_map(|volume| volume.projected.as_ref());
    let mut sources = projected.flat_map(|projected| projected.sources.iter().flatten());
    sources.find_map(|source| source.service_account_token.as_ref()?.expiration_seconds)
}

fn claims(token: &str) -> Result<Value, Failure> {
    let claims = token.split('.').nth(1).ok_or("the token has no claims")?;
    Ok(serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims)?)?)
}

/// Status code of the response to a request that each identity may send.
async fn code(client: &Client) -> Result<u16, kube::Error> {
    let request = Request::get("/version").body(Vec::new()).map_err(kube::Error::HttpError)?;
    match client.request_text(request).await {
        Ok(_) => Ok(200),
        Err(kube::Error::Api(status)) => Ok(status.code),
        Err(error) => Err(error),
    }
}
