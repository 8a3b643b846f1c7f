//! Certificates of nodes.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use envtest::{Cluster, Failure, Identity, PATIENCE, Seen, eventually, reached, remove};
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use programs::discovery::{self, DiscoveryError, ca_digest};
use programs::{Config, Credentials, IdentityError, Requested};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::json;
use supervisor::{Settings, Supervisor};
use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use crate::storage::{FOREIGN_VOLUME, retained};
use crate::{Nodes, denied};

pub(crate) struct Approver(Supervisor);

impl Approver {
    pub(crate) async fn start(cluster: &Cluster) -> Result<Self, Failure> {
        Nodes::of(cluster).await?;
        let (client, reserved) = (cluster.admin(), cluster.config().not_for_workers());
        let tree = Supervisor::start("approver", Settings::default(), move |cx| {
            reconciler::approve(cx, client.clone(), reserved.clone())
        });
        tree.handle().healthy().await?;
        Ok(Self(tree))
    }

    pub(crate) async fn stop(self) -> Result<(), Failure> {
        Ok(self.0.stop(Duration::from_secs(10)).await?)
    }
}

pub(crate) struct CertificateRequest<'a> {
    common_name: &'a str,
    organization: &'a str,
    names: &'a [&'a str],
    addresses: &'a [&'a str],
    usages: &'a [&'a str],
    signer: &'a str,
}

/// A valid request for the storage identity of the node `one`.
pub(crate) const GOOD: CertificateRequest<'_> = CertificateRequest {
    common_name: "granary:node:one",
    organization: "granary:nodes",
    names: &[],
    addresses: &[],
    usages: &["client auth", "digital signature"],
    signer: "kubernetes.io/kube-apiserver-client",
};

impl CertificateRequest<'_> {
    pub(crate) async fn by(self, client: Client) -> Result<String, Failure> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, self.organization);
        params.distinguished_name.push(DnType::CommonName, self.common_name);
        for name in self.names {
            params.subject_alt_names.push(SanType::DnsName((*name).try_into()?));
        }
        for address in self.addresses {
            params.subject_alt_names.push(SanType::IpAddress(address.parse()?));
        }
        let text = params.serialize_request(&KeyPair::generate()?)?.pem()?;
        let request: CertificateSigningRequest = serde_json::from_value(json!({
            "metadata": {"generateName": "test-"},
            "spec": {
                "request": ByteString(text.into_bytes()), "usages": self.usages,
                "signerName": self.signer,
            },
        }))?;
        Ok(Api::all(client).create(&PostParams::default(), &request).await?.name_any())
    }
}

/// Waits for the decision, and returns type, reason and message.
pub(crate) async fn decision(cluster: &Cluster, request: &str) -> Result<String, Failure> {
    let requests = Api::<CertificateSigningRequest>::all(cluster.admin());
    let decision = eventually(PATIENCE, "a decision", async || {
        let status = requests.get(request).await?.status.unwrap_or_default();
        let condition = status.conditions.unwrap_or_default().into_iter().next();
        Ok::<_, kube::Error>(condition.map_or(Seen::NotYet("none".into()), |condition| {
            let text = [condition.reason, condition.message].map(Option::unwrap_or_default);
            Seen::Done(format!("{} {}: {}", condition.type_, text[0], text[1]))
        }))
    });
    Ok(decision.await?)
}

pub(crate) async fn kubelet(cluster: &Cluster, node: &str) -> Result<Client, Failure> {
    let groups = ["system:nodes", "system:authenticated"];
    Ok(cluster.impersonate(&format!("system:node:{node}"), &groups).await?)
}

pub(crate) async fn a_node_gets_its_certificate_and_can_use_it(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let nodes = Nodes::of(&cluster).await?;
    let approver = Approver::start(&cluster).await?;
    let identity = Requested::storage(cluster.config(), cluster.credentials());
    let lasting = identity.ensure().await?;
    let requests = Api::<CertificateSigningRequest>::all(cluster.admin());
    let count = async || Ok::<_, Failure>(requests.list(&kube::api::ListParams::default()).await?.items.len());
    let before = count().await?;
    assert_eq!(identity.ensure().await?, lasting, "the certificate is kept");
    assert_eq!(count().await?, before, "without a request");
    std::fs::remove_file(cluster.config().paths.pki.join("storage.crt"))?;
    identity.ensure().await?;
    assert_eq!(count().await?, before + 1, "a lost certificate is requested again");
    approver.stop().await?;

    let own = cluster.credentials().client(Identity::Storage).await?;
    let review = Api::<SelfSubjectReview>::all(own.clone()).create(&PostParams::default(), &<_>::default()).await?;
    let user = review.status.and_then(|status| status.user_info).unwrap_or_default();
    assert_eq!(user.username.as_deref(), Some(format!("granary:node:{}", cluster.node()).as_str()));
    assert!(user.groups.unwrap_or_default().contains(&"granary:nodes".to_owned()));

    let volumes = Api::<PersistentVolume>::all(own);
    volumes.create(&PostParams::default(), &retained("with-certificate", cluster.node())).await?;
    volumes.delete("pvc-with-certificate", &DeleteParams::default()).await?;
    let others = Api::<PersistentVolume>::all(nodes.other);
    others.create(&PostParams::default(), &retained("others", "two")).await?;
    denied(volumes.delete("pvc-others", &DeleteParams::default()).await, FOREIGN_VOLUME);
    denied(volumes.create(&PostParams::default(), &retained("mine", "two")).await, FOREIGN_VOLUME);
    remove(&others, "pvc-others").await
}

pub(crate) async fn a_certificate_for_another_node_is_denied(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let approver = Approver::start(&cluster).await?;
    let one = kubelet(&cluster, "one").await?;
    let two = kubelet(&cluster, "two").await?;
    for (asked, client, wanted) in [
        (GOOD, two, "Denied OtherSubject: the subject must be CN=granary:node:two"),
        (CertificateRequest { organization: "granary:admins", ..GOOD }, one.clone(), "Denied OtherSubject"),
        (CertificateRequest { common_name: "another", ..GOOD }, one.clone(), "Denied OtherSubject"),
        (CertificateRequest { names: &["kubernetes.default.svc"], ..GOOD }, one.clone(), "Denied AttributesNotAllowed"),
        (CertificateRequest { usages: &["client auth"], ..GOOD }, one.clone(), "Denied OtherUsages"),
        (GOOD, cluster.admin(), "Denied NoKubelet: granary:admin is not a kubelet"),
        (GOOD, one, "Approved OwnNode"),
    ] {
        let request = asked.by(client).await?;
        let decision = decision(&cluster, &request).await?;
        assert!(decision.starts_with(wanted), "{decision}, expected {wanted}");
    }
    approver.stop().await
}

pub(crate) async fn a_denied_node_gets_the_reason(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let approver = Approver::start(&cluster).await?;
    let other = Config { node: "other".to_owned(), ..cluster.config().clone() };
    let error = Requested::storage(&other, cluster.credentials()).ensure().await.err();
    let Some(IdentityError::Denied { why, .. }) = error else { panic!("expected a denial, got {error:?}") };
    assert!(why.starts_with("OtherSubject: the subject must be CN=granary:node:granary"), "{why}");
    approver.stop().await
}

pub(crate) async fn unrelated_requests_are_ignored(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let approver = Approver::start(&cluster).await?;
    let node = kubelet(&cluster, "one").await?;
    let person = CertificateRequest { common_name: "jane", organization: "dev", ..GOOD }.by(cluster.admin()).await?;
    // Only the configuration of the control plane has administrators.
    let administrator = CertificateRequest {
        common_name: "granary:administrator:jane:0123456789abcdef",
        organization: "granary:administrators",
        ..GOOD
    };
    let administrator = administrator.by(node.clone()).await?;
    // This request is created later, and therefore decided later.
    let own = GOOD.by(node).await?;
    assert!(decision(&cluster, &own).await?.starts_with("Approved"));
    let requests = Api::<CertificateSigningRequest>::all(cluster.admin());
    for request in [person, administrator] {
        let left = requests.get(&request).await?.status.unwrap_or_default();
        assert_eq!((left.conditions.unwrap_or_default().len(), left.certificate), (0, None), "{request}");
        requests.delete(&request, &DeleteParams::default()).await?;
    }
    approver.stop().await
}

/// With such a certificate, an attacker on a node could impersonate the API server or another node.
pub(crate) async fn a_serving_certificate_has_no_foreign_address(cluster: Arc<Cluster>) -> Result<(), Failure> {
    // No Node has the address of the API server.
    let server = cluster.config().api_server.ip().to_string();
    let ask = async |address| {
        let asked = CertificateRequest {
            common_name: "system:node:two",
            organization: "system:nodes",
            addresses: &[address],
            usages: &["digital signature", "server auth"],
            signer: "kubernetes.io/kubelet-serving",
            ..GOOD
        };
        asked.by(kubelet(&cluster, "two").await?).await
    };
    // The signer writes a mapped address as an IPv4 address. No approver runs here.
    let mapped = ask("::ffff:10.96.0.1").await?;
    let requests = Api::<CertificateSigningRequest>::all(cluster.admin());
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Test"}]}});
    requests.patch_approval(&mapped, &PatchParams::default(), &Patch::Merge(approved)).await?;
    let signed = async || requests.get(&mapped).await.map(|found| found.status.and_then(|status| status.certificate));
    let signed = reached("the certificate", signed, Option::is_some).await?.ok_or("no certificate")?;
    let (_, pem) = parse_x509_pem(&signed.0)?;
    let certificate = pem.parse_x509()?;
    let names = certificate.subject_alternative_name()?.ok_or("no names")?.value.general_names.clone();
    assert_eq!(names, [GeneralName::IPAddress(&[10, 96, 0, 1])]);

    let approver = Approver::start(&cluster).await?;
    for address in ["10.96.0.1", "::ffff:10.96.0.1", "::ffff:10.244.0.7", "::ffff:127.0.0.1", server.as_str()] {
        let decision = decision(&cluster, &ask(address).await?).await?;
        assert!(decision.starts_with("Denied OtherServerName"), "{address}: {decision}");
    }
    let decision = decision(&cluster, &ask("192.0.2.2").await?).await?;
    assert!(decision.starts_with("Approved"), "{decision}");
    approver.stop().await
}

/// The API server reloads the certificate without a restart. The new certificate has one more address.
pub(crate) async fn a_renewed_certificate_is_served_soon(cluster: Arc<Cluster>) -> Result<(), Failure> {
    let ca = std::fs::read_to_string(cluster.config().paths.pki.join("ca.crt"))?;
    let ca = ca_digest(&ca).ok_or("no CA")?;
    let address = Ipv4Addr::new(127, 0, 0, 2);
    let shake_hands = async || discovery::ca(address.into(), 6443, ca).await.map(drop);
    let before = shake_hands().await;
    assert!(matches!(before, Err(DiscoveryError::Server { .. })), "{before:?}");

    let moved = Config { address, ..cluster.config().clone() };
    Credentials::ensure(&moved, OffsetDateTime::now_utc())?;
    eventually(PATIENCE, "the new certificate", async || match shake_hands().await {
        Err(error @ DiscoveryError::Server { .. }) => Ok(Seen::NotYet(error.to_string())),
        shown => shown.map(Seen::Done),
    })
    .await?;
    Credentials::ensure(cluster.config(), OffsetDateTime::now_utc())?;
    Ok(())
}
