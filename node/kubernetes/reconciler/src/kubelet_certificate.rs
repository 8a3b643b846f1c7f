//! Decides which kubelets get certificates. Pure.
//!
//! A bootstrap token is for one node name. A machine with the token gets a client certificate of this name as long as
//! no Node has the name; then the token is deleted (tokens.rs). Afterwards the kubelet renews its own certificate and
//! requests a serving certificate. The approval of kube-controller-manager, which accepts any name from any token, is
//! off.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::Ipv4Net;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::csr::{self, Csr, Denial, ServerName};

pub(crate) const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(crate) const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

/// Prefix of the user name of a bootstrap token. The ID of the token follows.
const TOKEN_PREFIX: &str = "system:bootstrap:";
const TOKENS_GROUP: &str = "system:bootstrappers";

const CLIENT_USAGES: [&str; 2] = ["client auth", "digital signature"];
const SERVING_USAGES: [&str; 2] = ["digital signature", "server auth"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    /// A machine with the bootstrap token of this ID.
    Token(String),
    Kubelet(String),
    Other(String),
}

pub(crate) struct KubeletRequest<'a> {
    request: &'a CertificateSigningRequest,
    csr: Csr,
    node: Option<String>,
    requester: Requester,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Node that the requester's token is for.
    pub(crate) token_is_for: Option<String>,
    pub(crate) registered: bool,
    pub(crate) removed: bool,
    /// Addresses of all other Nodes, with their names.
    pub(crate) of_others: BTreeMap<IpAddr, String>,
}

impl<'a> KubeletRequest<'a> {
    /// Parses a kubelet's request. `None` if the request is decided, for another signer, or invalid.
    pub(crate) fn of(request: &'a CertificateSigningRequest) -> Option<Self> {
        let spec = &request.spec;
        if csr::is_decided(request) || ![CLIENT_SIGNER, SERVING_SIGNER].contains(&spec.signer_name.as_str()) {
            return None;
        }
        let csr = Csr::read(&spec.request.0)?;
        let user = spec.username.as_deref().unwrap_or_default();
        let in_group = |group: &str| spec.groups.iter().flatten().any(|found| found == group);
        let requester = match (csr::kubelet(spec), user.strip_prefix(TOKEN_PREFIX)) {
            (Some(node), _) => Requester::Kubelet(node.to_owned()),
            (None, Some(id)) if in_group(TOKENS_GROUP) => Requester::Token(id.to_owned()),
            (None, _) => Requester::Other(user.to_owned()),
        };
        Some(Self { request, node: csr.kubelet(), csr, requester })
    }

    pub(crate) fn requester(&self) -> &Requester {
        &self.requester
    }

    pub(crate) fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    pub(crate) fn judge(&self, facts: &Facts, reserved: &[Ipv4Net]) -> Result<&str, Denial> {
        let node = self.node().ok_or(Denial::Subject)?;
        let serving = self.request.spec.signer_name == SERVING_SIGNER;
        match &self.requester {
            Requester::Token(_) if serving => return Err(Denial::NotJoined),
            Requester::Token(id) => may_join(id, node, facts)?,
            Requester::Kubelet(requester) if requester == node => {}
            Requester::Kubelet(requester) => {
                return Err(Denial::OtherNode { requester: requester.clone(), requested: node.to_owned() });
            }
            Requester::Other(user) => return Err(Denial::Requester { user: user.clone() }),
        }
        if facts.removed {
            return Err(Denial::Removed { node: node.to_owned() });
        }
        let (names, usages) = if serving {
            (self.csr.names().ok_or(Denial::Attributes)?, SERVING_USAGES)
        } else {
            (Vec::new(), CLIENT_USAGES)
        };
        for name in &names {
            may_serve_as(name, node, facts, reserved)?;
        }
        self.csr.check(&names, &self.request.spec, usages)?;
        Ok(node)
    }
}

fn may_join(id: &str, node: &str, facts: &Facts) -> Result<(), Denial> {
    let id = id.to_owned();
    match &facts.token_is_for {
        Some(bound) if bound != node => Err(Denial::OtherName { id, bound: bound.clone(), requested: node.to_owned() }),
        // The token may have been deleted because the node has registered.
        _ if facts.registered => Err(Denial::NameTaken { node: node.to_owned() }),
        None => Err(Denial::FreeToken { id }),
        Some(_) => Ok(()),
    }
}

/// Checks a name of a serving certificate. A node reports its own addresses, so only addresses of other nodes, of the
/// cluster's networks, of the API server, and addresses that do not identify one machine are denied.
fn may_serve_as(name: &ServerName, node: &str, facts: &Facts, reserved: &[Ipv4Net]) -> Result<(), Denial> {
    let denial = |name: &dyn ToString| Denial::ServerName { node: node.to_owned(), name: name.to_string() };
    match name {
        ServerName::Dns(name) if name == node => Ok(()),
        ServerName::Dns(name) => Err(denial(name)),
        ServerName::Ip(address) => {
            let ordinary = !(address.is_loopback() || address.is_unspecified() || address.is_multicast());
            let inside = |network: &Ipv4Net| matches!(address, IpAddr::V4(address) if network.contains(address));
            if !ordinary || reserved.iter().any(inside) {
                return Err(denial(address));
            }
            facts
                .of_others
                .get(address)
                .map_or(Ok(()), |owner| Err(Denial::AddressTaken { address: *address, owner: owner.clone() }))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use k8s_openapi::ByteString;
    use proptest::prelude::*;
    use rcgen::DnType;

    use super::*;
    use crate::csr::tests::TestRequest;
    use crate::identity::KUBELETS_GROUP;

    fn subject(common_name: &'static str) -> Vec<(DnType, &'static str)> {
        vec![(DnType::OrganizationName, KUBELETS_GROUP), (DnType::CommonName, common_name)]
    }

    fn joining() -> TestRequest {
        TestRequest {
            user: "system:bootstrap:abcdef",
            groups: vec![TOKENS_GROUP],
            subject: subject("system:node:two"),
            names: vec![],
            addresses: vec![],
            is_ca: false,
            usages: vec!["digital signature", "client auth"],
            signer: CLIENT_SIGNER,
            key: &rcgen::PKCS_ECDSA_P256_SHA256,
        }
    }

    fn serving() -> TestRequest {
        TestRequest {
            user: "system:node:two",
            groups: vec![KUBELETS_GROUP],
            names: vec!["two"],
            addresses: vec![[10, 0, 2, 16].into()],
            usages: vec!["digital signature", "server auth"],
            signer: SERVING_SIGNER,
            ..joining()
        }
    }

    fn facts() -> Facts {
        let of_others = BTreeMap::from([([10, 0, 2, 15].into(), "one".to_owned())]);
        Facts { token_is_for: Some("two".to_owned()), of_others, ..Facts::default() }
    }

    fn judged(asked: &TestRequest, facts: &Facts) -> Result<String, Denial> {
        let reserved = ["10.96.0.0/16".parse().unwrap(), "10.244.0.0/16".parse().unwrap()];
        KubeletRequest::of(&asked.request()).expect("a request").judge(facts, &reserved).map(str::to_owned)
    }

    #[test]
    fn a_token_admits_only_its_node() {
        assert_eq!(judged(&joining(), &facts()), Ok("two".to_owned()));
        let other = TestRequest { subject: subject("system:node:three"), ..joining() };
        let denial = judged(&other, &facts()).unwrap_err();
        assert_eq!(
            denial.to_string(),
            "the bootstrap token abcdef is for the node two, not for three; create one for three"
        );
        let free = Facts { token_is_for: None, ..facts() };
        assert_eq!(judged(&joining(), &free), Err(Denial::FreeToken { id: "abcdef".into() }));
    }

    #[test]
    fn a_registered_name_is_denied() {
        let taken = Facts { registered: true, ..facts() };
        assert_eq!(judged(&joining(), &taken), Err(Denial::NameTaken { node: "two".into() }));
        let deleted = Facts { token_is_for: None, ..taken.clone() };
        assert_eq!(judged(&joining(), &deleted), Err(Denial::NameTaken { node: "two".into() }));
        let itself = TestRequest { user: "system:node:two", groups: vec![KUBELETS_GROUP], ..joining() };
        assert_eq!(judged(&itself, &taken), Ok("two".to_owned()), "a kubelet renews its certificate");
    }

    #[test]
    fn a_removed_node_gets_no_certificate() {
        let removed = Facts { removed: true, ..facts() };
        for asked in [joining(), serving()] {
            let denial = judged(&asked, &removed).unwrap_err();
            assert_eq!(
                denial.to_string(),
                "the node two was removed from the cluster: its name is in the ConfigMap \
                 kube-system/granary-removed-nodes; remove the name from it to admit a machine with this name again"
            );
        }
    }

    #[test]
    fn a_kubelet_gets_only_its_own_certificates() {
        let other = TestRequest { user: "system:node:one", groups: vec![KUBELETS_GROUP], ..joining() };
        assert!(matches!(judged(&other, &facts()), Err(Denial::OtherNode { .. })));
        let outside = TestRequest { user: "system:node:two", groups: vec!["system:authenticated"], ..joining() };
        assert!(matches!(judged(&outside, &facts()), Err(Denial::Requester { .. })));
        let token = TestRequest { groups: vec!["system:authenticated"], ..joining() };
        assert!(matches!(judged(&token, &facts()), Err(Denial::Requester { .. })));
    }

    #[test]
    fn a_kubelet_serves_with_its_own_name_and_addresses() {
        assert_eq!(judged(&serving(), &facts()), Ok("two".to_owned()));
        // The signer writes a mapped IPv4 address as an IPv4 address.
        let both =
            |address: [u8; 4]| [IpAddr::V4(address.into()), IpAddr::V6(Ipv4Addr::from(address).to_ipv6_mapped())];
        let asking = |address| judged(&TestRequest { addresses: vec![address], ..serving() }, &facts());
        for address in [[10, 96, 0, 1], [10, 244, 1, 1], [127, 0, 0, 1], [0, 0, 0, 0], [224, 0, 0, 1]] {
            for address in both(address) {
                assert!(matches!(asking(address), Err(Denial::ServerName { .. })), "{address}");
            }
        }
        for address in both([10, 0, 2, 15]) {
            assert_eq!(
                asking(address).unwrap_err().to_string(),
                "10.0.2.15 is an address of the Node one; if that node does not exist any more, delete it"
            );
        }
        let [_, mapped] = both([10, 0, 2, 16]);
        assert_eq!(asking(mapped), Err(Denial::Attributes));
        let named = TestRequest { names: vec!["kubernetes.default.svc"], ..serving() };
        assert!(matches!(judged(&named, &facts()), Err(Denial::ServerName { .. })));
        let nameless = TestRequest { names: vec![], addresses: vec![], ..serving() };
        assert_eq!(judged(&nameless, &facts()), Err(Denial::Attributes));
        let token = TestRequest { user: "system:bootstrap:abcdef", groups: vec![TOKENS_GROUP], ..serving() };
        assert_eq!(judged(&token, &facts()), Err(Denial::NotJoined));
    }

    #[test]
    fn other_attributes_and_usages_are_denied() {
        let ca = TestRequest { is_ca: true, ..serving() };
        assert_eq!(judged(&ca, &facts()), Err(Denial::Attributes));
        let named = TestRequest { names: vec!["two"], ..joining() };
        assert_eq!(judged(&named, &facts()), Err(Denial::Attributes));
        let server = TestRequest { usages: SERVING_USAGES.into(), ..joining() };
        assert_eq!(judged(&server, &facts()), Err(Denial::Usages(CLIENT_USAGES)));
    }

    /// etcd accepts each client certificate of the CA with this name.
    #[test]
    fn no_certificate_has_the_name_of_clients_of_etcd() {
        let names = vec!["etcd-client.granary.invalid"];
        let client = TestRequest { names: names.clone(), ..joining() };
        assert_eq!(judged(&client, &facts()), Err(Denial::Attributes));
        let server = TestRequest { names, ..serving() };
        assert!(matches!(judged(&server, &facts()), Err(Denial::ServerName { .. })));
    }

    #[test]
    fn decided_requests_and_other_signers_are_ignored() {
        let other = TestRequest { signer: "kubernetes.io/kube-apiserver-client", ..joining() };
        assert!(KubeletRequest::of(&other.request()).is_none());
        let mut decided = joining().request();
        decided.status = Some(k8s_openapi::api::certificates::v1::CertificateSigningRequestStatus {
            certificate: Some(ByteString(b"signed".to_vec())),
            conditions: None,
        });
        assert!(KubeletRequest::of(&decided).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Another implementation writes the same bytes.
        #[test]
        fn names_are_read_as_they_were_written(
            names in prop::collection::vec(Just("two"), 0..40),
            addresses in prop::collection::vec(any::<u32>().prop_map(|bits| IpAddr::V4((bits | 0x0100_0000).into())), 1..20),
        ) {
            let asked = TestRequest { names, addresses, ..serving() };
            let made = asked.request();
            let csr = Csr::read(&made.spec.request.0).unwrap();
            let read = csr.names().unwrap();
            prop_assert_eq!(read.len(), asked.names.len() + asked.addresses.len());
            prop_assert!(csr.has_attributes(&read));
            prop_assert!(!csr.has_attributes(&read[1..]));
        }
    }
}
