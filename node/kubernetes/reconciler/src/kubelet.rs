//! Whether a kubelet gets the certificates that it asks for. Pure.
//!
//! A machine that joins has a bootstrap token, which was made for one node name: with it, it gets a client's certificate
//! of that name and no other, as long as no Node has the name; then the token is deleted (tokens.rs).
//! Afterwards a kubelet renews its own, and asks for one to serve with. kube-controller-manager's approval, which is off,
//! would take any name from any token.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cluster::BOOTSTRAP_NODE_ANNOTATION;
use ipnet::Ipv4Net;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::csr::{self, Csr, KUBELET_PREFIX, KUBELETS_GROUP, ServerName};
use crate::removed::NodeRemoved;

/// The signer of certificates by which the API server knows kubelets.
pub(crate) const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The signer of those by which it knows them as servers.
pub(crate) const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

/// The user of a bootstrap token is this and the token's ID.
const TOKEN_PREFIX: &str = "system:bootstrap:";
const TOKENS_GROUP: &str = "system:bootstrappers";

const CLIENT_USAGES: [&str; 2] = ["client auth", "digital signature"];
const SERVING_USAGES: [&str; 2] = ["digital signature", "server auth"];

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A machine with the bootstrap token of this ID.
    Token(String),
    /// The kubelet of this node.
    Kubelet(String),
    /// Somebody else.
    Other(String),
}

/// A kubelet's request that nobody has decided on.
pub(crate) struct Question<'a> {
    request: &'a CertificateSigningRequest,
    asked: Csr,
    /// Of the subject, if it is a kubelet's.
    node: Option<String>,
    asker: Asker,
}

/// What the cluster knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The node for which the asker's token was made.
    pub(crate) token_is_for: Option<String>,
    /// Whether there is a Node of the name that is asked for.
    pub(crate) registered: bool,
    /// Whether that node was removed for good.
    pub(crate) removed: bool,
    /// Addresses of all other Nodes, and whose each is.
    pub(crate) of_others: BTreeMap<IpAddr, String>,
}

/// Why a request is denied.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denial {
    #[error("{user} has neither a bootstrap token nor a kubelet's identity")]
    Asker { user: String },
    #[error("the subject has to be CN={KUBELET_PREFIX}NAME, O={KUBELETS_GROUP}, and nothing else")]
    Subject,
    #[error(
        "the bootstrap token {id} was deleted or is for no node: its Secret needs the annotation \
         {BOOTSTRAP_NODE_ANNOTATION} with the node's name"
    )]
    FreeToken { id: String },
    #[error("the bootstrap token {id} is for the node {bound}, not for {asked}; make one for {asked}")]
    OtherName { id: String, bound: String, asked: String },
    #[error(
        "there is a Node {node} already: choose another name, or, if that machine is gone for good or its certificate has \
         expired, delete the Node first, and make a new token then"
    )]
    Taken { node: String },
    #[error(transparent)]
    Removed(NodeRemoved),
    #[error("{asker} asks for {asked}: a kubelet gets its own certificates only")]
    OtherNode { asker: String, asked: String },
    #[error("only a kubelet that has joined gets a certificate to serve with")]
    NotJoined,
    #[error("a kubelet may serve under its node's name {node} and the node's addresses, not as {name}")]
    ServerName { node: String, name: String },
    #[error("{address} is the address of the Node {owner}; if that node is gone, delete it")]
    AddressTaken { address: IpAddr, owner: String },
    #[error("the request has attributes beside names; none are granted")]
    Attributes,
    #[error("the usages have to be {} and {}", .0[0], .0[1])]
    Usages([&'static str; 2]),
    #[error("the key has to be ECDSA on P-256")]
    Key,
    #[error("the request is not signed with its own key")]
    Signature,
}

impl Denial {
    /// The condition's reason.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::Asker { .. } => "UnknownAsker",
            Self::Subject => "OtherSubject",
            Self::FreeToken { .. } => "TokenWithoutNode",
            Self::OtherName { .. } => "TokenOfOtherNode",
            Self::Taken { .. } => "NameTaken",
            Self::Removed(_) => NodeRemoved::REASON,
            Self::OtherNode { .. } => "OtherNode",
            Self::NotJoined => "NotJoined",
            Self::ServerName { .. } => "OtherServerName",
            Self::AddressTaken { .. } => "AddressTaken",
            Self::Attributes => "AttributesNotAllowed",
            Self::Usages(_) => "OtherUsages",
            Self::Key => "OtherKeyType",
            Self::Signature => "BadSignature",
        }
    }
}

impl<'a> Question<'a> {
    /// `None` if it is decided, for another signer, or no request at all.
    pub(crate) fn of(request: &'a CertificateSigningRequest) -> Option<Self> {
        let spec = &request.spec;
        if csr::is_decided(request) || ![CLIENT_SIGNER, SERVING_SIGNER].contains(&spec.signer_name.as_str()) {
            return None;
        }
        let asked = Csr::read(&spec.request.0)?;
        let user = spec.username.as_deref().unwrap_or_default();
        let in_group = |group: &str| spec.groups.iter().flatten().any(|found| found == group);
        let asker = match (csr::kubelet(spec), user.strip_prefix(TOKEN_PREFIX)) {
            (Some(node), _) => Asker::Kubelet(node.to_owned()),
            (None, Some(id)) if in_group(TOKENS_GROUP) => Asker::Token(id.to_owned()),
            (None, _) => Asker::Other(user.to_owned()),
        };
        Some(Self { request, node: asked.kubelet(), asked, asker })
    }

    pub(crate) fn asker(&self) -> &Asker {
        &self.asker
    }

    /// The node whose name is asked for.
    pub(crate) fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// The node that gets its certificate.
    ///
    /// # Errors
    /// [`Denial`].
    pub(crate) fn judge(&self, facts: &Facts, reserved: &[Ipv4Net]) -> Result<&str, Denial> {
        let node = self.node().ok_or(Denial::Subject)?;
        let serving = self.request.spec.signer_name == SERVING_SIGNER;
        match &self.asker {
            Asker::Token(_) if serving => return Err(Denial::NotJoined),
            Asker::Token(id) => may_join(id, node, facts)?,
            Asker::Kubelet(asker) if asker == node => {}
            Asker::Kubelet(asker) => {
                return Err(Denial::OtherNode { asker: asker.clone(), asked: node.to_owned() });
            }
            Asker::Other(user) => return Err(Denial::Asker { user: user.clone() }),
        }
        if facts.removed {
            return Err(Denial::Removed(NodeRemoved { node: node.to_owned() }));
        }
        let (names, usages) = if serving {
            (self.asked.names().ok_or(Denial::Attributes)?, SERVING_USAGES)
        } else {
            (Vec::new(), CLIENT_USAGES)
        };
        for name in &names {
            may_serve_as(name, node, facts, reserved)?;
        }
        if !self.asked.has_attributes(&names) {
            return Err(Denial::Attributes);
        }
        if !csr::has_usages(&self.request.spec, usages) {
            return Err(Denial::Usages(usages));
        }
        if !self.asked.is_p256() {
            return Err(Denial::Key);
        }
        if !self.asked.is_signed() {
            return Err(Denial::Signature);
        }
        Ok(node)
    }
}

fn may_join(id: &str, node: &str, facts: &Facts) -> Result<(), Denial> {
    let id = id.to_owned();
    match &facts.token_is_for {
        Some(bound) if bound != node => Err(Denial::OtherName { id, bound: bound.clone(), asked: node.to_owned() }),
        // The token may be deleted by now for this reason.
        _ if facts.registered => Err(Denial::Taken { node: node.to_owned() }),
        None => Err(Denial::FreeToken { id }),
        Some(_) => Ok(()),
    }
}

/// Whether a server of that node may be called so. A node tells its addresses itself: all that can be said is that
/// none is another node's, one of the cluster's own networks, or one that means another machine to everybody.
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
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, SanType};

    use super::*;

    #[derive(Clone, Debug)]
    struct Asked {
        user: &'static str,
        group: &'static str,
        common_name: &'static str,
        names: Vec<&'static str>,
        addresses: Vec<IpAddr>,
        authority: bool,
        usages: [&'static str; 2],
        signer: &'static str,
    }

    fn joining() -> Asked {
        Asked {
            user: "system:bootstrap:abcdef",
            group: TOKENS_GROUP,
            common_name: "system:node:two",
            names: vec![],
            addresses: vec![],
            authority: false,
            usages: ["digital signature", "client auth"],
            signer: CLIENT_SIGNER,
        }
    }

    fn serving() -> Asked {
        Asked {
            user: "system:node:two",
            group: KUBELETS_GROUP,
            names: vec!["two"],
            addresses: vec![[10, 0, 2, 16].into()],
            usages: ["digital signature", "server auth"],
            signer: SERVING_SIGNER,
            ..joining()
        }
    }

    fn request(asked: &Asked) -> CertificateSigningRequest {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, KUBELETS_GROUP);
        params.distinguished_name.push(DnType::CommonName, asked.common_name);
        params.subject_alt_names =
            asked.names.iter().map(|name| SanType::DnsName((*name).try_into().unwrap())).collect();
        params.subject_alt_names.extend(asked.addresses.iter().map(|address| SanType::IpAddress(*address)));
        if asked.authority {
            params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                request: ByteString(pem.into_bytes()),
                signer_name: asked.signer.to_owned(),
                usages: Some(asked.usages.map(str::to_owned).into()),
                username: Some(asked.user.to_owned()),
                groups: Some(vec![asked.group.to_owned()]),
                ..CertificateSigningRequestSpec::default()
            },
            ..CertificateSigningRequest::default()
        }
    }

    fn facts() -> Facts {
        let of_others = BTreeMap::from([([10, 0, 2, 15].into(), "one".to_owned())]);
        Facts { token_is_for: Some("two".to_owned()), of_others, ..Facts::default() }
    }

    fn judged(asked: &Asked, facts: &Facts) -> Result<String, Denial> {
        let reserved = ["10.96.0.0/16".parse().unwrap(), "10.244.0.0/16".parse().unwrap()];
        Question::of(&request(asked)).expect("a question").judge(facts, &reserved).map(str::to_owned)
    }

    #[test]
    fn a_token_admits_the_node_that_it_was_made_for() {
        assert_eq!(judged(&joining(), &facts()), Ok("two".to_owned()));
        let other = Asked { common_name: "system:node:three", ..joining() };
        let denial = judged(&other, &facts()).unwrap_err();
        assert_eq!(
            denial.to_string(),
            "the bootstrap token abcdef is for the node two, not for three; make one for three"
        );
        let free = Facts { token_is_for: None, ..facts() };
        assert_eq!(judged(&joining(), &free), Err(Denial::FreeToken { id: "abcdef".into() }));
    }

    #[test]
    fn a_name_that_is_taken_is_not_given_again() {
        let taken = Facts { registered: true, ..facts() };
        assert_eq!(judged(&joining(), &taken), Err(Denial::Taken { node: "two".into() }));
        let deleted = Facts { token_is_for: None, ..taken.clone() };
        assert_eq!(judged(&joining(), &deleted), Err(Denial::Taken { node: "two".into() }));
        let itself = Asked { user: "system:node:two", group: KUBELETS_GROUP, ..joining() };
        assert_eq!(judged(&itself, &taken), Ok("two".to_owned()), "a kubelet renews its own");
    }

    #[test]
    fn a_node_that_was_removed_gets_nothing() {
        let removed = Facts { removed: true, ..facts() };
        for asked in [joining(), serving()] {
            let denial = judged(&asked, &removed).unwrap_err();
            assert_eq!(
                denial.to_string(),
                "the node two was removed from the cluster: its name is in the ConfigMap \
                 kube-system/granary-removed-nodes; take it out to let a machine of that name in again"
            );
        }
    }

    #[test]
    fn a_kubelet_gets_its_own_certificates_only() {
        let other = Asked { user: "system:node:one", group: KUBELETS_GROUP, ..joining() };
        assert!(matches!(judged(&other, &facts()), Err(Denial::OtherNode { .. })));
        let outside = Asked { user: "system:node:two", group: "system:authenticated", ..joining() };
        assert!(matches!(judged(&outside, &facts()), Err(Denial::Asker { .. })));
        let token = Asked { group: "system:authenticated", ..joining() };
        assert!(matches!(judged(&token, &facts()), Err(Denial::Asker { .. })));
    }

    #[test]
    fn a_kubelet_serves_under_its_own_name_and_addresses() {
        assert_eq!(judged(&serving(), &facts()), Ok("two".to_owned()));
        // To the signer, an address of IPv4 that is mapped into IPv6 is that address.
        let both =
            |address: [u8; 4]| [IpAddr::V4(address.into()), IpAddr::V6(Ipv4Addr::from(address).to_ipv6_mapped())];
        let asking = |address| judged(&Asked { addresses: vec![address], ..serving() }, &facts());
        for address in [[10, 96, 0, 1], [10, 244, 1, 1], [127, 0, 0, 1], [0, 0, 0, 0], [224, 0, 0, 1]] {
            for address in both(address) {
                assert!(matches!(asking(address), Err(Denial::ServerName { .. })), "{address}");
            }
        }
        for address in both([10, 0, 2, 15]) {
            assert_eq!(
                asking(address).unwrap_err().to_string(),
                "10.0.2.15 is the address of the Node one; if that node is gone, delete it"
            );
        }
        let [_, mapped] = both([10, 0, 2, 16]);
        assert_eq!(asking(mapped), Err(Denial::Attributes));
        let named = Asked { names: vec!["kubernetes.default.svc"], ..serving() };
        assert!(matches!(judged(&named, &facts()), Err(Denial::ServerName { .. })));
        let nameless = Asked { names: vec![], addresses: vec![], ..serving() };
        assert_eq!(judged(&nameless, &facts()), Err(Denial::Attributes));
        let token = Asked { user: "system:bootstrap:abcdef", group: TOKENS_GROUP, ..serving() };
        assert_eq!(judged(&token, &facts()), Err(Denial::NotJoined));
    }

    #[test]
    fn nothing_is_granted_beside() {
        let authority = Asked { authority: true, ..serving() };
        assert_eq!(judged(&authority, &facts()), Err(Denial::Attributes));
        let named = Asked { names: vec!["two"], ..joining() };
        assert_eq!(judged(&named, &facts()), Err(Denial::Attributes));
        let server = Asked { usages: SERVING_USAGES, ..joining() };
        assert_eq!(judged(&server, &facts()), Err(Denial::Usages(CLIENT_USAGES)));
    }

    #[test]
    fn requests_of_others_and_decided_ones_are_no_question() {
        assert!(
            Question::of(&request(&Asked { signer: "kubernetes.io/kube-apiserver-client", ..joining() })).is_none()
        );
        let mut decided = request(&joining());
        decided.status = Some(k8s_openapi::api::certificates::v1::CertificateSigningRequestStatus {
            certificate: Some(ByteString(b"signed".to_vec())),
            conditions: None,
        });
        assert!(Question::of(&decided).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// What is compared byte by byte is what another implementation writes.
        #[test]
        fn names_are_read_as_they_were_written(
            names in prop::collection::vec(Just("two"), 0..40),
            addresses in prop::collection::vec(any::<u32>().prop_map(|bits| IpAddr::V4((bits | 0x0100_0000).into())), 1..20),
        ) {
            let asked = Asked { names, addresses, ..serving() };
            let made = request(&asked);
            let csr = Csr::read(&made.spec.request.0).unwrap();
            let read = csr.names().unwrap();
            prop_assert_eq!(read.len(), asked.names.len() + asked.addresses.len());
            prop_assert!(csr.has_attributes(&read));
            prop_assert!(!csr.has_attributes(&read[1..]));
        }
    }
}
