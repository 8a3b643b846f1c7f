//! Certificates of the control plane's programs that are not an `Identity`: those of servers, and the API server's
//! client certificates.

use std::collections::BTreeSet;

use cluster::API_SERVER_USER;

use crate::Config;
use crate::pki::certificate::{Purpose, ServerName, Signer, Wanted};
use crate::pki::front_proxy;

pub(crate) fn of_programs(config: &Config) -> [Wanted; 6] {
    [api_server(config), kubelets_client(), etcd(), etcds_client(), kubelet_server(config), front_proxy::wanted()]
}

fn dns(name: &str) -> ServerName {
    ServerName::Dns(name.to_owned())
}

fn api_server(config: &Config) -> Wanted {
    let mut names: BTreeSet<_> =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"].map(dns).into();
    names.extend([[127, 0, 0, 1].into(), config.address].map(|address| ServerName::Ip(address.into())));
    names.extend(config.api_service().map(|address| ServerName::Ip(address.into())));
    Wanted {
        name: "apiserver",
        common_name: "kube-apiserver".into(),
        organization: None,
        purpose: Purpose::Server(names),
        signer: Signer::Cluster,
    }
}

/// The API server's client certificate for the kubelet. The reconciler binds this user to the required role only.
fn kubelets_client() -> Wanted {
    Wanted {
        name: "apikubelet",
        common_name: API_SERVER_USER.into(),
        organization: None,
        purpose: Purpose::Client,
        signer: Signer::Cluster,
    }
}

fn etcd() -> Wanted {
    let names = [dns("localhost"), ServerName::Ip([127, 0, 0, 1].into())];
    Wanted {
        name: "etcd",
        common_name: "etcd".into(),
        organization: None,
        purpose: Purpose::Server(names.into()),
        signer: Signer::Cluster,
    }
}

fn etcds_client() -> Wanted {
    Wanted {
        name: "apietcd",
        common_name: API_SERVER_USER.into(),
        organization: None,
        purpose: Purpose::EtcdClient,
        signer: Signer::Cluster,
    }
}

pub(crate) fn kubelet_server(config: &Config) -> Wanted {
    let names = [ServerName::Dns(config.node.clone()), ServerName::Ip(config.address.into())];
    Wanted {
        name: "kubelet-server",
        common_name: format!("system:node:{}", config.node),
        organization: Some("system:nodes"),
        purpose: Purpose::Server(names.into()),
        signer: Signer::Cluster,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;

    /// A certificate cannot be revoked, and no role limits the group `system:masters`.
    #[test]
    fn only_the_administrators_certificate_is_in_masters() {
        let identities = Identity::ALL.map(|identity| identity.wanted("granary"));
        let masters = of_programs(&Config::default()).into_iter().chain(identities);
        let masters = masters.filter(|wanted| wanted.organization == Some("system:masters")).map(|wanted| wanted.name);
        assert_eq!(masters.collect::<Vec<_>>(), ["admin"]);
    }

    /// Aggregated API servers accept every user name with a certificate of this CA.
    #[test]
    fn only_the_certificate_for_aggregated_api_servers_has_another_ca() {
        let identities = Identity::ALL.map(|identity| identity.wanted("granary"));
        let others = of_programs(&Config::default()).into_iter().chain(identities);
        let others = others.filter(|wanted| wanted.signer != Signer::Cluster).map(|wanted| wanted.name);
        assert_eq!(others.collect::<Vec<_>>(), [front_proxy::NAME]);
    }

    #[test]
    fn the_api_server_is_known_by_all_its_names() {
        let [api, ..] = of_programs(&Config::default());
        let Purpose::Server(names) = api.purpose else { panic!("a server") };
        let shown: Vec<String> = names
            .iter()
            .map(|name| match name {
                ServerName::Dns(name) => name.clone(),
                ServerName::Ip(address) => address.to_string(),
            })
            .collect();
        assert_eq!(
            shown,
            [
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "localhost",
                "10.0.2.15",
                "10.96.0.1",
                "127.0.0.1"
            ]
        );
    }
}
