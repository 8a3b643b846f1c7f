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

/// A certificate of the cluster's CA.
fn certificate(name: &'static str, common_name: impl Into<String>, purpose: Purpose) -> Wanted {
    Wanted { name, common_name: common_name.into(), organization: None, purpose, signer: Signer::Cluster }
}

fn api_server(config: &Config) -> Wanted {
    let mut names: BTreeSet<_> =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"].map(dns).into();
    names.extend([[127, 0, 0, 1].into(), config.address].map(|address| ServerName::Ip(address.into())));
    names.extend(config.api_service().map(|address| ServerName::Ip(address.into())));
    certificate("apiserver", "kube-apiserver", Purpose::Server(names))
}

/// The API server's client certificate for the kubelet. The reconciler binds this user to the required role only.
fn kubelets_client() -> Wanted {
    certificate("apikubelet", API_SERVER_USER, Purpose::Client)
}

fn etcd() -> Wanted {
    let names = [dns("localhost"), ServerName::Ip([127, 0, 0, 1].into())];
    certificate("etcd", "etcd", Purpose::Server(names.into()))
}

fn etcds_client() -> Wanted {
    certificate("apietcd", API_SERVER_USER, Purpose::EtcdClient)
}

pub(crate) fn kubelet_server(config: &Config) -> Wanted {
    let names = [dns(&config.node), ServerName::Ip(config.address.into())];
    let common_name = format!("system:node:{}", config.node);
    let server = certificate("kubelet-server", common_name, Purpose::Server(names.into()));
    Wanted { organization: Some("system:nodes"), ..server }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;

    /// Names of the certificates with this property.
    fn names(is_wanted: impl Fn(&Wanted) -> bool) -> Vec<&'static str> {
        let identities = Identity::ALL.map(|identity| identity.wanted("granary"));
        let all = of_programs(&Config::default()).into_iter().chain(identities);
        all.filter(is_wanted).map(|wanted| wanted.name).collect()
    }

    /// A certificate cannot be revoked, and no role limits the group `system:masters`.
    #[test]
    fn only_the_administrators_certificate_is_in_masters() {
        assert_eq!(names(|wanted| wanted.organization == Some("system:masters")), ["admin"]);
    }

    /// Aggregated API servers accept every user name with a certificate of this CA.
    #[test]
    fn only_the_certificate_for_aggregated_api_servers_has_another_ca() {
        assert_eq!(names(|wanted| wanted.signer != Signer::Cluster), [front_proxy::NAME]);
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
