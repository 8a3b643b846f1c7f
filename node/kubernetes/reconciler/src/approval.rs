//! Whether a node's storage gets the certificate that it asks for. Pure.

use std::collections::BTreeSet;

use cluster::{STORAGE_GROUP, STORAGE_USER_PREFIX};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};

use crate::csr::{self, Csr, KUBELETS_GROUP, Name};
use crate::removed::NodeRemoved;

/// The signer of certificates by which the API server knows its clients.
pub(crate) const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

const USAGES: [&str; 2] = ["client auth", "digital signature"];

/// What is done with a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is not about a node's storage, or it is decided.
    Leave,
    /// The node asks for itself.
    Approve {
        /// The node's name.
        node: String,
    },
    /// Somebody wants to be a node's storage who shall not.
    Deny(Denial),
}

/// Why a request is denied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    #[error("{user} is no kubelet: system:node:NAME in the group {KUBELETS_GROUP} asks for {STORAGE_USER_PREFIX}NAME")]
    NoKubelet { user: String },
    #[error(
        "the subject has to be CN={STORAGE_USER_PREFIX}{node}, O={STORAGE_GROUP}, and nothing else: {node} is who asks"
    )]
    Subject { node: String },
    #[error(transparent)]
    Removed(NodeRemoved),
    #[error("the request has attributes (names, extensions); none are granted")]
    Attributes,
    #[error("the usages have to be {} and {}", USAGES[0], USAGES[1])]
    Usages,
    #[error("the key has to be ECDSA on P-256")]
    Key,
    #[error("the request is not signed with its own key")]
    Signature,
}

impl Denial {
    /// The condition's reason.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::NoKubelet { .. } => "NoKubelet",
            Self::Subject { .. } => "OtherSubject",
            Self::Removed(_) => NodeRemoved::REASON,
            Self::Attributes => "AttributesNotAllowed",
            Self::Usages => "OtherUsages",
            Self::Key => "OtherKeyType",
            Self::Signature => "BadSignature",
        }
    }
}

/// Nodes with the names `removed` get nothing.
pub(crate) fn judge(request: &CertificateSigningRequest, removed: &BTreeSet<String>) -> Verdict {
    let spec = &request.spec;
    if csr::is_decided(request) || spec.signer_name != SIGNER {
        return Verdict::Leave;
    }
    let Some(asked) = Csr::read(&spec.request.0) else { return Verdict::Leave };
    if !asked.subject().iter().any(is_ours) {
        return Verdict::Leave;
    }
    match check(spec, &asked, removed) {
        Ok(node) => Verdict::Approve { node },
        Err(denial) => Verdict::Deny(denial),
    }
}

/// It is a name that only the storage of nodes has.
fn is_ours(name: &Name) -> bool {
    match name {
        Name::Common(name) => name.starts_with(STORAGE_USER_PREFIX),
        Name::Organization(name) => name == STORAGE_GROUP,
        Name::Other => false,
    }
}

/// The node's name, if it asks for what it may have.
fn check(spec: &CertificateSigningRequestSpec, asked: &Csr, removed: &BTreeSet<String>) -> Result<String, Denial> {
    let Some(node) = csr::kubelet(spec) else {
        return Err(Denial::NoKubelet { user: spec.username.clone().unwrap_or_default() });
    };
    let wanted = [Name::Organization(STORAGE_GROUP.to_owned()), Name::Common(format!("{STORAGE_USER_PREFIX}{node}"))];
    if !asked.has_subject(wanted) {
        return Err(Denial::Subject { node: node.to_owned() });
    }
    if removed.contains(node) {
        return Err(Denial::Removed(NodeRemoved { node: node.to_owned() }));
    }
    if !asked.has_attributes(&[]) {
        return Err(Denial::Attributes);
    }
    if !csr::has_usages(spec, USAGES) {
        return Err(Denial::Usages);
    }
    if !asked.is_p256() {
        return Err(Denial::Key);
    }
    if !asked.is_signed() {
        return Err(Denial::Signature);
    }
    Ok(node.to_owned())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::certificates::v1::{CertificateSigningRequestCondition, CertificateSigningRequestStatus};
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType, SignatureAlgorithm};
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::pem::parse_x509_pem;
    use x509_parser::prelude::FromDer as _;

    use super::*;

    /// What is asked for, and by whom.
    #[derive(Clone, Debug)]
    struct Asked {
        user: &'static str,
        groups: Vec<&'static str>,
        subject: Vec<(DnType, &'static str)>,
        names: Vec<&'static str>,
        usages: Vec<&'static str>,
        signer: &'static str,
        key: &'static SignatureAlgorithm,
    }

    impl Asked {
        fn by_the_node_one() -> Self {
            Self {
                user: "system:node:one",
                groups: vec!["system:nodes", "system:authenticated"],
                subject: vec![(DnType::OrganizationName, "granary:nodes"), (DnType::CommonName, "granary:node:one")],
                names: vec![],
                usages: vec!["digital signature", "client auth"],
                signer: SIGNER,
                key: &rcgen::PKCS_ECDSA_P256_SHA256,
            }
        }

        fn pem(&self) -> String {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            for (kind, value) in &self.subject {
                params.distinguished_name.push(kind.clone(), *value);
            }
            params.subject_alt_names =
                self.names.iter().map(|name| SanType::DnsName((*name).try_into().unwrap())).collect();
            let key = KeyPair::generate_for(self.key).unwrap();
            params.serialize_request(&key).unwrap().pem().unwrap()
        }

        fn request(&self) -> CertificateSigningRequest {
            self.with_text(self.pem())
        }

        fn with_text(&self, text: impl Into<Vec<u8>>) -> CertificateSigningRequest {
            let owned = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
            CertificateSigningRequest {
                spec: CertificateSigningRequestSpec {
                    request: ByteString(text.into()),
                    signer_name: self.signer.to_owned(),
                    usages: owned(&self.usages),
                    username: Some(self.user.to_owned()),
                    groups: owned(&self.groups),
                    ..CertificateSigningRequestSpec::default()
                },
                ..CertificateSigningRequest::default()
            }
        }
    }

    /// In a cluster from which nobody was removed.
    fn judged(request: &CertificateSigningRequest) -> Verdict {
        judge(request, &BTreeSet::new())
    }

    fn denied(asked: &Asked) -> Denial {
        match judged(&asked.request()) {
            Verdict::Deny(denial) => denial,
            other => panic!("{asked:?}: {other:?}"),
        }
    }

    #[test]
    fn a_node_gets_its_own_certificate() {
        let mut asked = Asked::by_the_node_one();
        assert_eq!(judged(&asked.request()), Verdict::Approve { node: "one".into() });
        asked.subject.reverse();
        asked.usages.reverse();
        assert_eq!(judged(&asked.request()), Verdict::Approve { node: "one".into() });
    }

    #[test]
    fn a_denial_says_what_is_wrong() {
        let good = Asked::by_the_node_one();
        let other = Asked { user: "system:node:two", ..good.clone() };
        assert_eq!(denied(&other), Denial::Subject { node: "two".into() });
        let admin = Asked { user: "granary:admin", groups: vec!["system:masters"], ..good.clone() };
        assert_eq!(denied(&admin), Denial::NoKubelet { user: "granary:admin".into() });
        let outside = Asked { groups: vec!["system:authenticated"], ..good.clone() };
        assert_eq!(denied(&outside), Denial::NoKubelet { user: "system:node:one".into() });
        let named = Asked { names: vec!["kubernetes.default.svc"], ..good.clone() };
        assert_eq!(denied(&named), Denial::Attributes);
        let server = Asked { usages: vec!["client auth", "digital signature", "server auth"], ..good.clone() };
        assert_eq!(denied(&server), Denial::Usages);
        let key = Asked { key: &rcgen::PKCS_ED25519, ..good.clone() };
        assert_eq!(denied(&key), Denial::Key);
        let mut masters = good.clone();
        masters.subject.push((DnType::OrganizationalUnitName, "system:masters"));
        assert_eq!(denied(&masters), Denial::Subject { node: "one".into() });
    }

    #[test]
    fn a_node_that_was_removed_gets_nothing() {
        let removed = BTreeSet::from(["one".to_owned()]);
        let one = Asked::by_the_node_one();
        let denial = Denial::Removed(NodeRemoved { node: "one".into() });
        assert_eq!(denial.reason(), "NodeRemoved");
        assert_eq!(judge(&one.request(), &removed), Verdict::Deny(denial));
        let subject = vec![(DnType::OrganizationName, "granary:nodes"), (DnType::CommonName, "granary:node:two")];
        let two = Asked { user: "system:node:two", subject, ..one };
        assert_eq!(judge(&two.request(), &removed), Verdict::Approve { node: "two".into() });
    }

    #[test]
    fn a_request_that_somebody_else_signed_is_denied() {
        let pem = Asked::by_the_node_one().pem();
        let (_, block) = parse_x509_pem(pem.as_bytes()).unwrap();
        let mut der = block.contents;
        let last = der.len() - 1;
        der[last] ^= 1;
        let body = serde_json::to_string(&ByteString(der)).unwrap();
        let text = format!(
            "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
            body.trim_matches('"')
        );
        let request = Asked::by_the_node_one().with_text(text);
        assert_eq!(judged(&request), Verdict::Deny(Denial::Signature));
    }

    #[test]
    fn what_is_not_about_a_nodes_storage_is_left_alone() {
        let good = Asked::by_the_node_one();
        let person =
            Asked { subject: vec![(DnType::CommonName, "jane"), (DnType::OrganizationName, "dev")], ..good.clone() };
        assert_eq!(judged(&person.request()), Verdict::Leave);
        let serving = Asked { signer: "kubernetes.io/kubelet-serving", ..good.clone() };
        assert_eq!(judged(&serving.request()), Verdict::Leave);
        assert_eq!(judged(&good.with_text("rubbish")), Verdict::Leave);
    }

    #[test]
    fn a_text_with_more_than_one_request_is_left_alone() {
        let good = Asked::by_the_node_one();
        let two = format!("{}{}", Asked { user: "system:node:two", ..good.clone() }.pem(), good.pem());
        assert_eq!(judged(&good.with_text(two)), Verdict::Leave);
        let before = format!("-----BEGIN CERTIFICATE REQUEST-----\n{}", good.pem());
        assert_eq!(judged(&good.with_text(before)), Verdict::Leave);
        let headers = good.pem().replacen("-----\n", "-----\nProc-Type: 4\n\n", 1);
        assert_eq!(judged(&good.with_text(headers)), Verdict::Leave);
    }

    #[test]
    fn what_is_decided_stays_decided() {
        let mut request = Asked::by_the_node_one().request();
        let condition = CertificateSigningRequestCondition { type_: "Denied".into(), ..Default::default() };
        let status = CertificateSigningRequestStatus { conditions: Some(vec![condition]), certificate: None };
        request.status = Some(status);
        assert_eq!(judged(&request), Verdict::Leave);
        let certificate = Some(ByteString(b"signed".to_vec()));
        request.status = Some(CertificateSigningRequestStatus { conditions: None, certificate });
        assert_eq!(judged(&request), Verdict::Leave);
    }

    fn any_asked() -> impl Strategy<Value = Asked> {
        let name = || prop::sample::select(vec!["granary:node:one", "granary:node:two", "granary:node:", "jane"]);
        let group = || prop::sample::select(vec!["granary:nodes", "system:masters", "granary:nodes "]);
        let part = || {
            prop_oneof![
                3 => name().prop_map(|name| (DnType::CommonName, name)),
                3 => group().prop_map(|group| (DnType::OrganizationName, group)),
                1 => group().prop_map(|group| (DnType::OrganizationalUnitName, group)),
            ]
        };
        let good = Asked::by_the_node_one().subject;
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
            .prop_map(|(user, groups, subject, names, usages, signer, key)| Asked {
                user,
                groups,
                subject,
                names,
                usages,
                signer,
                key,
            })
    }

    /// The rules in other words than [`check`]'s: rcgen keeps one value of a kind, the last.
    fn is_allowed(asked: &Asked) -> bool {
        let only = |kind: DnType| asked.subject.iter().rev().find(|(found, _)| *found == kind).map(|(_, value)| *value);
        let own = match asked.user {
            "system:node:one" => "granary:node:one",
            "system:node:two" => "granary:node:two",
            _ => return false,
        };
        let usages = [vec!["client auth", "digital signature"], vec!["digital signature", "client auth"]];
        asked.groups.contains(&"system:nodes")
            && only(DnType::CommonName) == Some(own)
            && only(DnType::OrganizationName) == Some("granary:nodes")
            && only(DnType::OrganizationalUnitName).is_none()
            && asked.names.is_empty()
            && usages.contains(&asked.usages)
            && asked.signer == SIGNER
            && std::ptr::eq(asked.key, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    proptest! {
        #[test]
        fn nobody_is_approved_but_a_node_for_itself(asked in any_asked()) {
            let verdict = judged(&asked.request());
            prop_assert_eq!(matches!(verdict, Verdict::Approve { .. }), is_allowed(&asked), "{:?}", verdict);
            if let Verdict::Approve { node } = verdict {
                prop_assert_eq!(asked.user, format!("system:node:{node}"));
            }
        }

        #[test]
        fn a_denial_is_about_our_names_only(asked in any_asked()) {
            if matches!(judged(&asked.request()), Verdict::Deny(_)) {
                let ours = |(_, value): &(DnType, &str)| value.starts_with("granary:node");
                prop_assert!(asked.subject.iter().any(ours));
                prop_assert_eq!(asked.signer, SIGNER);
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in prop::collection::vec(any::<u8>(), 0..200), body in "[A-Za-z0-9+/=\n]{0,300}") {
            let asked = Asked::by_the_node_one();
            prop_assert_eq!(judged(&asked.with_text(text)), Verdict::Leave);
            let framed = format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----");
            prop_assert_eq!(judged(&asked.with_text(framed)), Verdict::Leave);
        }

        /// Bytes around what is signed, as the tag of the signature's algorithm, say nothing of what is asked for.
        #[test]
        fn a_changed_byte_of_what_is_signed_is_never_approved(at in any::<prop::sample::Index>(), flip in 1u8..) {
            let asked = Asked::by_the_node_one();
            let (_, mut block) = parse_x509_pem(asked.pem().as_bytes()).unwrap();
            let (_, parsed) = X509CertificationRequest::from_der(&block.contents).unwrap();
            let signed = parsed.certification_request_info.raw.to_vec();
            let start = block.contents.windows(signed.len()).position(|window| window == signed).unwrap();
            let at = start + at.index(signed.len());
            block.contents[at] ^= flip;
            let body = serde_json::to_string(&ByteString(block.contents)).unwrap();
            let text = format!(
                "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----",
                body.trim_matches('"')
            );
            let verdict = judged(&asked.with_text(text));
            prop_assert!(!matches!(verdict, Verdict::Approve { .. }), "byte {}: {:?}", at, verdict);
        }
    }
}
