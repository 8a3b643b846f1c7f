//! Decides which nodes get client identities for their storage and their CoreDNS. Pure.

use std::collections::BTreeSet;

use cluster::{DNS_GROUP, DNS_USER_PREFIX, STORAGE_GROUP, STORAGE_USER_PREFIX};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};

use crate::csr::{self, Csr, Denial, Name};

pub(crate) const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

const USAGES: [&str; 2] = ["client auth", "digital signature"];

/// Users of one purpose: one user for each node, all in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeUsers {
    pub(crate) group: &'static str,
    /// Prefix of the user name. The node's name follows.
    pub(crate) prefix: &'static str,
}

const STORAGE: NodeUsers = NodeUsers { group: STORAGE_GROUP, prefix: STORAGE_USER_PREFIX };
const DNS: NodeUsers = NodeUsers { group: DNS_GROUP, prefix: DNS_USER_PREFIX };

impl NodeUsers {
    fn include(self, name: &Name) -> bool {
        match name {
            Name::Common(name) => name.starts_with(self.prefix),
            Name::Organization(name) => name == self.group,
            Name::Other => false,
        }
    }
}

/// Returns the node that gets the certificate. `None` if the request is decided, or its subject contains no name of
/// these users.
pub(crate) fn judge(request: &CertificateSigningRequest, removed: &BTreeSet<String>) -> Option<Result<String, Denial>> {
    let spec = &request.spec;
    if csr::is_decided(request) || spec.signer_name != SIGNER {
        return None;
    }
    let csr = Csr::read(&spec.request.0)?;
    let subject = csr.subject();
    let users = [STORAGE, DNS].into_iter().find(|users| subject.iter().any(|name| users.include(name)))?;
    Some(check(spec, &csr, users, removed))
}

fn check(
    spec: &CertificateSigningRequestSpec,
    csr: &Csr,
    users: NodeUsers,
    removed: &BTreeSet<String>,
) -> Result<String, Denial> {
    let Some(node) = csr::kubelet(spec) else {
        return Err(Denial::NoKubelet { user: spec.username.clone().unwrap_or_default() });
    };
    let NodeUsers { group, prefix } = users;
    if !csr.has_subject([Name::Organization(group.to_owned()), Name::Common(format!("{prefix}{node}"))]) {
        return Err(Denial::UserSubject { node: node.to_owned(), users });
    }
    if removed.contains(node) {
        return Err(Denial::Removed { node: node.to_owned() });
    }
    csr.check(&[], spec, USAGES)?;
    Ok(node.to_owned())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::certificates::v1::{CertificateSigningRequestCondition, CertificateSigningRequestStatus};
    use proptest::prelude::*;
    use rcgen::DnType;
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::pem::parse_x509_pem;
    use x509_parser::prelude::FromDer as _;

    use super::*;
    use crate::csr::tests::TestRequest;

    fn node_one() -> TestRequest {
        TestRequest {
            user: "system:node:one",
            groups: vec!["system:nodes", "system:authenticated"],
            subject: vec![(DnType::OrganizationName, "granary:nodes"), (DnType::CommonName, "granary:node:one")],
            names: vec![],
            addresses: vec![],
            is_ca: false,
            usages: vec!["digital signature", "client auth"],
            signer: SIGNER,
            key: &rcgen::PKCS_ECDSA_P256_SHA256,
        }
    }

    fn judged(request: &CertificateSigningRequest) -> Option<Result<String, Denial>> {
        judge(request, &BTreeSet::new())
    }

    fn denied(asked: &TestRequest) -> Denial {
        judged(&asked.request()).expect("a decision").expect_err("a denial")
    }

    #[test]
    fn a_node_gets_its_own_certificate() {
        let mut asked = node_one();
        assert_eq!(judged(&asked.request()), Some(Ok("one".into())));
        asked.subject.reverse();
        asked.usages.reverse();
        assert_eq!(judged(&asked.request()), Some(Ok("one".into())));
        asked.subject = vec![(DnType::OrganizationName, "granary:dns"), (DnType::CommonName, "granary:dns:one")];
        assert_eq!(judged(&asked.request()), Some(Ok("one".into())));
    }

    #[test]
    fn a_denial_has_its_reason() {
        let good = node_one();
        let other = TestRequest { user: "system:node:two", ..good.clone() };
        assert_eq!(denied(&other), Denial::UserSubject { node: "two".into(), users: STORAGE });
        let admin = TestRequest { user: "granary:admin", groups: vec!["system:masters"], ..good.clone() };
        assert_eq!(denied(&admin), Denial::NoKubelet { user: "granary:admin".into() });
        let outside = TestRequest { groups: vec!["system:authenticated"], ..good.clone() };
        assert_eq!(denied(&outside), Denial::NoKubelet { user: "system:node:one".into() });
        let named = TestRequest { names: vec!["kubernetes.default.svc"], ..good.clone() };
        assert_eq!(denied(&named), Denial::Attributes);
        let server = TestRequest { usages: vec!["client auth", "digital signature", "server auth"], ..good.clone() };
        assert_eq!(denied(&server), Denial::Usages(USAGES));
        let key = TestRequest { key: &rcgen::PKCS_ED25519, ..good.clone() };
        assert_eq!(denied(&key), Denial::Key);
        let mut masters = good.clone();
        masters.subject.push((DnType::OrganizationalUnitName, "system:masters"));
        assert_eq!(denied(&masters), Denial::UserSubject { node: "one".into(), users: STORAGE });
    }

    /// etcd accepts each client certificate of the CA with this name.
    #[test]
    fn no_certificate_has_the_name_of_clients_of_etcd() {
        let named = TestRequest { names: vec!["etcd-client.granary.invalid"], ..node_one() };
        assert_eq!(denied(&named), Denial::Attributes);
        let subject = vec![(DnType::OrganizationName, "granary:dns"), (DnType::CommonName, "granary:dns:one")];
        assert_eq!(denied(&TestRequest { subject, ..named }), Denial::Attributes);
    }

    #[test]
    fn a_removed_node_gets_no_certificate() {
        let removed = BTreeSet::from(["one".to_owned()]);
        let one = node_one();
        let denial = Denial::Removed { node: "one".into() };
        assert_eq!(denial.reason(), "NodeRemoved");
        assert_eq!(judge(&one.request(), &removed), Some(Err(denial)));
        let subject = vec![(DnType::OrganizationName, "granary:nodes"), (DnType::CommonName, "granary:node:two")];
        let two = TestRequest { user: "system:node:two", subject, ..one };
        assert_eq!(judge(&two.request(), &removed), Some(Ok("two".into())));
    }

    fn armored(der: Vec<u8>) -> String {
        let body = serde_json::to_string(&ByteString(der)).unwrap();
        let body = body.trim_matches('"');
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")
    }

    #[test]
    fn a_request_with_another_signature_is_denied() {
        let pem = node_one().pem();
        let (_, block) = parse_x509_pem(pem.as_bytes()).unwrap();
        let mut der = block.contents;
        let last = der.len() - 1;
        der[last] ^= 1;
        let request = node_one().with_text(armored(der));
        assert_eq!(judged(&request), Some(Err(Denial::Signature)));
    }

    #[test]
    fn requests_without_names_of_nodes_are_ignored() {
        let good = node_one();
        let user = TestRequest {
            subject: vec![(DnType::CommonName, "jane"), (DnType::OrganizationName, "dev")],
            ..good.clone()
        };
        assert_eq!(judged(&user.request()), None);
        let serving = TestRequest { signer: "kubernetes.io/kubelet-serving", ..good.clone() };
        assert_eq!(judged(&serving.request()), None);
        assert_eq!(judged(&good.with_text("garbage")), None);
    }

    #[test]
    fn a_text_with_several_requests_is_ignored() {
        let good = node_one();
        let two = format!("{}{}", TestRequest { user: "system:node:two", ..good.clone() }.pem(), good.pem());
        assert_eq!(judged(&good.with_text(two)), None);
        let before = format!("-----BEGIN CERTIFICATE REQUEST-----\n{}", good.pem());
        assert_eq!(judged(&good.with_text(before)), None);
        let headers = good.pem().replacen("-----\n", "-----\nProc-Type: 4\n\n", 1);
        assert_eq!(judged(&good.with_text(headers)), None);
    }

    #[test]
    fn decided_requests_are_ignored() {
        let mut request = node_one().request();
        let condition = CertificateSigningRequestCondition { type_: "Denied".into(), ..Default::default() };
        let status = CertificateSigningRequestStatus { conditions: Some(vec![condition]), certificate: None };
        request.status = Some(status);
        assert_eq!(judged(&request), None);
        let certificate = Some(ByteString(b"signed".to_vec()));
        request.status = Some(CertificateSigningRequestStatus { conditions: None, certificate });
        assert_eq!(judged(&request), None);
    }

    fn any_request() -> impl Strategy<Value = TestRequest> {
        let names =
            ["granary:node:one", "granary:node:two", "granary:node:", "granary:dns:one", "granary:dns:two", "jane"];
        let name = move || prop::sample::select(names.to_vec());
        let groups = ["granary:nodes", "granary:dns", "system:masters", "granary:nodes "];
        let group = move || prop::sample::select(groups.to_vec());
        let part = || {
            prop_oneof![
                3 => name().prop_map(|name| (DnType::CommonName, name)),
                3 => group().prop_map(|group| (DnType::OrganizationName, group)),
                1 => group().prop_map(|group| (DnType::OrganizationalUnitName, group)),
            ]
        };
        let good = node_one().subject;
        let usage = || prop::sample::select(vec!["client auth", "digital signature", "server auth"]);
        (
            prop::sample::select(vec!["system:node:one", "system:node:two", "system:node:", "granary:node:one", ""]),
            prop::sample::subsequence(vec!["system:nodes", "system:masters", "granary:nodes"], 0..=3),
            prop_oneof![2 => Just(good), 3 => prop::collection::vec(part(), 0..4)],
            prop_oneof![2 => Just(vec![]), 1 => Just(vec!["name.invalid"])],
            prop_oneof![2 => Just(vec!["client auth", "digital signature"]), 1 => prop::collection::vec(usage(), 0..4)],
            prop::sample::select(vec![
                SIGNER,
                SIGNER,
                "kubernetes.io/kube-apiserver-client-kubelet",
                "example.com/any",
            ]),
            prop::sample::select(vec![
                &rcgen::PKCS_ECDSA_P256_SHA256,
                &rcgen::PKCS_ECDSA_P256_SHA256,
                &rcgen::PKCS_ECDSA_P384_SHA384,
                &rcgen::PKCS_ED25519,
            ]),
        )
            .prop_map(|(user, groups, subject, names, usages, signer, key)| TestRequest {
                user,
                groups,
                subject,
                names,
                usages,
                signer,
                key,
                ..node_one()
            })
    }

    /// An independent implementation of the rules. rcgen keeps the last value of each type.
    fn is_allowed(asked: &TestRequest) -> bool {
        let only = |kind: DnType| asked.subject.iter().rev().find(|(found, _)| *found == kind).map(|(_, value)| *value);
        let own = match asked.user {
            "system:node:one" => [("granary:node:one", "granary:nodes"), ("granary:dns:one", "granary:dns")],
            "system:node:two" => [("granary:node:two", "granary:nodes"), ("granary:dns:two", "granary:dns")],
            _ => return false,
        };
        let subject = (only(DnType::CommonName), only(DnType::OrganizationName));
        let usages = [vec!["client auth", "digital signature"], vec!["digital signature", "client auth"]];
        asked.groups.contains(&"system:nodes")
            && own.into_iter().any(|(name, group)| subject == (Some(name), Some(group)))
            && only(DnType::OrganizationalUnitName).is_none()
            && asked.names.is_empty()
            && usages.contains(&asked.usages)
            && asked.signer == SIGNER
            && std::ptr::eq(asked.key, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    proptest! {
        #[test]
        fn a_node_gets_only_its_own_certificate(asked in any_request()) {
            let decision = judged(&asked.request());
            prop_assert_eq!(matches!(decision, Some(Ok(_))), is_allowed(&asked), "{:?}", decision);
            if let Some(Ok(node)) = decision {
                prop_assert_eq!(asked.user, format!("system:node:{node}"));
            }
        }

        #[test]
        fn only_requests_with_names_of_nodes_are_denied(asked in any_request()) {
            if matches!(judged(&asked.request()), Some(Err(_))) {
                let is_nodes = |(_, value): &(DnType, &str)| {
                    value.starts_with("granary:node") || value.starts_with("granary:dns")
                };
                prop_assert!(asked.subject.iter().any(is_nodes));
                prop_assert_eq!(asked.signer, SIGNER);
            }
        }

        #[test]
        fn any_text_is_accepted(text in prop::collection::vec(any::<u8>(), 0..200), body in "[A-Za-z0-9+/=\n]{0,300}") {
            let asked = node_one();
            prop_assert_eq!(judged(&asked.with_text(text)), None);
            let framed = format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----");
            prop_assert_eq!(judged(&asked.with_text(framed)), None);
        }

        /// Only signed bytes are changed: other bytes, such as the tag of the signature algorithm, do not change the
        /// request.
        #[test]
        fn a_changed_byte_is_never_approved(at in any::<prop::sample::Index>(), flip in 1u8..) {
            let asked = node_one();
            let (_, mut block) = parse_x509_pem(asked.pem().as_bytes()).unwrap();
            let (_, parsed) = X509CertificationRequest::from_der(&block.contents).unwrap();
            let signed = parsed.certification_request_info.raw.to_vec();
            let start = block.contents.windows(signed.len()).position(|window| window == signed).unwrap();
            let at = start + at.index(signed.len());
            block.contents[at] ^= flip;
            let decision = judged(&asked.with_text(armored(block.contents)));
            prop_assert!(!matches!(decision, Some(Ok(_))), "byte {}: {:?}", at, decision);
        }
    }
}
