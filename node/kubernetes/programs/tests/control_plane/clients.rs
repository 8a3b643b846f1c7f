//! Which clients the API server accepts.

use std::sync::Arc;

use cluster::API_SERVER_USER;
use envtest::{Cluster, Failure, Identity, Suite};
use http::Request;
use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use serde_json::json;

pub fn cases(suite: Suite) -> Suite {
    suite
        .case("a_request_without_an_identity_is_unauthorized", a_request_without_an_identity_is_unauthorized)
        .case("an_identity_without_a_role_is_forbidden", an_identity_without_a_role_is_forbidden)
        .case("kubelet_learns_that_anonymous_clients_may_do_nothing", kubelet_learns_about_anonymous_clients)
}

/// Paths that an API server with anonymous requests shows to all clients, and some that it does not.
const PATHS: [&str; 8] =
    ["/", "/api", "/version", "/healthz", "/livez", "/readyz", "/metrics", "/api/v1/namespaces/default/configmaps"];

async fn client_as(cluster: &Cluster, user: AuthInfo) -> Result<Client, Failure> {
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
    let base64 = |pem: String| serde_json::to_value(ByteString(pem.into_bytes()));
    Ok(serde_json::from_value(json!({
        "client-certificate-data": base64(certificate)?, "client-key-data": base64(key.serialize_pem())?,
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
    // The same requests with an identity reach their handlers.
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

/// The review that the kubelet's webhook sends to the API server before it answers a request to port 10250.
async fn kubelet_learns_about_anonymous_clients(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let reviews = Api::<SubjectAccessReview>::all(cluster.client(Identity::Kubelet).await?);
    for (user, groups, allowed) in [
        ("system:anonymous", ["system:unauthenticated"], false),
        ("jane", ["system:authenticated"], false),
        // The API server as kubelet's client: the reconciler, which does not run here, binds its role.
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
