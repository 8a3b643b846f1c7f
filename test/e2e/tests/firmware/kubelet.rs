//! Access of other machines to the kubelet's port.

use e2e::Case;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{AuthInfo, Kubeconfig};
use kube::{Client, Error};
use launch::Node;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use serde_json::json;

pub const PORT: u16 = 10250;
/// Name in the kubelet's certificate. The test connects to 127.0.0.1 instead.
const NAME: &str = "granary";

/// Requests, each with the status code for a client with all rights. The pod does not exist.
const REQUESTS: [(&str, &str, u16); 9] = [
    ("GET", "/healthz", 200),
    ("GET", "/pods", 200),
    ("GET", "/runningpods/", 200),
    ("GET", "/metrics", 200),
    ("GET", "/configz", 200),
    ("GET", "/logs/node/", 200),
    ("GET", "/containerLogs/default/pod/container", 404),
    ("GET", "/exec/default/pod/container?command=id&output=1", 404),
    ("POST", "/run/default/pod/container?cmd=id", 404),
];

/// Verifies access to the kubelet, to which `port` is forwarded.
pub async fn accepts_clients_with_rights_only(node: &Node, port: u16, case: &Case) {
    let connect = async |user: Option<AuthInfo>| client(node, port, user).await;
    for (name, user) in [
        ("no identity", AuthInfo::default()),
        ("an unknown token", token("0123456789abcdef")),
        ("a certificate of another CA", self_signed()),
    ] {
        let client = connect(Some(user)).await;
        for (method, path, _) in REQUESTS {
            assert_eq!(code(&client, method, path).await, 401, "{name}: {method} {path}");
        }
    }
    // Service account of a pod.
    let request = serde_json::from_value::<TokenRequest>(json!({"spec": {"audiences": []}})).unwrap();
    let accounts = case.api::<ServiceAccount>();
    let granted = accounts.create_token_request("default", &PostParams::default(), &request).await.unwrap();
    let granted = granted.status.and_then(|status| status.token).expect("a token");
    let account = connect(Some(token(&granted))).await;
    let administrator = connect(None).await;
    for (method, path, with_rights) in REQUESTS {
        assert_eq!(code(&account, method, path).await, 403, "an account without a role: {method} {path}");
        assert_eq!(code(&administrator, method, path).await, with_rights, "the administrator: {method} {path}");
    }
}

/// Client of the port with the node's kubeconfig, or with `user` instead of the kubeconfig's user.
async fn client(node: &Node, port: u16, user: Option<AuthInfo>) -> Client {
    let mut kubeconfig = Kubeconfig::read_from(node.kubeconfig()).unwrap();
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        cluster.server = Some(format!("https://127.0.0.1:{port}"));
        cluster.tls_server_name = Some(NAME.to_owned());
    }
    if let Some(user) = user {
        for named in &mut kubeconfig.auth_infos {
            named.auth_info = Some(user.clone());
        }
    }
    crate::client(kubeconfig).await
}

fn token(token: &str) -> AuthInfo {
    serde_json::from_value(json!({"token": token})).unwrap()
}

/// Self-signed certificate with the subject of the break-glass certificate.
fn self_signed() -> AuthInfo {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.distinguished_name.push(DnType::CommonName, "granary:admin");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let base64 = |pem: String| ByteString(pem.into_bytes());
    serde_json::from_value(json!({
        "client-certificate-data": base64(certificate), "client-key-data": base64(key.serialize_pem()),
    }))
    .unwrap()
}

async fn code(client: &Client, method: &str, path: &str) -> u16 {
    let request = http::Request::builder().method(method).uri(path).body(Vec::new()).unwrap();
    match client.request_text(request).await {
        Ok(_) => 200,
        Err(Error::Api(status)) => status.code,
        Err(error) => panic!("{method} {path}: {error:?}"),
    }
}
