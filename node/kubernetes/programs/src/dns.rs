//! CoreDNS, which answers the pods of its node. Names of the cluster come from the API server's objects, all others
//! from the node's name servers.

use std::net::Ipv4Addr;

use crate::pki::identity::Identity;
use crate::program::{Program, Service};
use crate::{Config, Credentials, Rights, User, ready};

pub(crate) const READINESS_PORT: u16 = 10251;
pub(crate) const METRICS_PORT: u16 = 10252;

/// Limit of concurrent forwarded queries. Each query has a socket and some 2 KiB.
const FORWARDED: u32 = 1000;

/// CoreDNS at [`Config::dns_service`], which must be an address of the node. `servers` are the node's name servers, the
/// preferred one first. Healthy when CoreDNS has listed the cluster's objects. Later it answers from these objects,
/// even if the API server is unreachable.
pub fn service(config: &Config, credentials: &Credentials, servers: &[Ipv4Addr]) -> Service {
    program(config, credentials, servers).service(&config.paths, || ready::http(READINESS_PORT, "/ready"))
}

fn program(config: &Config, credentials: &Credentials, servers: &[Ipv4Addr]) -> Program {
    let file = config.paths.generated("Corefile");
    let keys = [credentials.kubeconfig(Identity::Dns), credentials.key(Identity::Dns.name())];
    let rights = Rights { reads: vec![file.clone()], ..Rights::new(User::Dns, keys) };
    Program {
        name: User::Dns.program(),
        arguments: vec!["-conf".to_owned(), file.display().to_string()],
        rights: Some(rights),
        files: vec![(file, corefile(config, credentials, servers))],
        // The answers soon become garbage, and the start is short: memory matters more than the time of Go's garbage
        // collector.
        environment: vec![("GOGC", "100".into())],
        ..Program::default()
    }
}

/// The kubernetes plugin is authoritative for the cluster's domain, and for the addresses of Services and pods. The
/// plugin has all objects in memory and is faster than a cache, so only forwarded names are cached.
///
/// `pods insecure`, as in the deployments of upstream: names such as `10-244-0-2.NAMESPACE.pod.DOMAIN` are computed. To
/// verify them, each node would have to watch all pods.
pub(crate) fn corefile(config: &Config, credentials: &Credentials, servers: &[Ipv4Addr]) -> String {
    let (domain, address) = (&config.settings.cluster_domain, config.dns_service());
    let kubeconfig = credentials.kubeconfig(Identity::Dns);
    format!(
        r#".:53 {{
    bind {address}
    ready 127.0.0.1:{READINESS_PORT}
    prometheus 127.0.0.1:{METRICS_PORT}
    errors {{
        consolidate 5m .* error show_first
    }}
    cache 30 {{
        disable success {domain}
        disable denial {domain}
    }}
    kubernetes {domain} {services} {pods} {{
        kubeconfig "{kubeconfig}"
        pods insecure
    }}
{forward}}}
"#,
        services = config.services,
        pods = config.cluster_pods,
        kubeconfig = kubeconfig.display(),
        forward = forward(servers.iter().filter(|server| **server != address)),
    )
}

/// Empty without name servers. CoreDNS then rejects queries for names outside of the cluster.
fn forward<'a>(servers: impl Iterator<Item = &'a Ipv4Addr>) -> String {
    let servers: String = servers.map(|server| format!(" {server}")).collect();
    if servers.is_empty() {
        return String::new();
    }
    format!(
        "    forward .{servers} {{
        policy sequential
        failfast_all_unhealthy_upstreams
        max_concurrent {FORWARDED}
    }}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Capability;
    use crate::config::with_credentials;

    fn written(config: Config, servers: &[[u8; 4]]) -> String {
        let (config, credentials, _scratch) = with_credentials(config);
        let servers: Vec<Ipv4Addr> = servers.iter().copied().map(Ipv4Addr::from).collect();
        corefile(&config, &credentials, &servers)
    }

    #[test]
    fn names_of_the_cluster_are_answered_and_others_are_forwarded() {
        let text = written(Config::default(), &[[192, 0, 2, 1], [192, 0, 2, 2]]);
        for line in [
            "    bind 10.96.0.10",
            "    kubernetes cluster.local 10.96.0.0/16 10.244.0.0/16 {",
            "    forward . 192.0.2.1 192.0.2.2 {",
            "        policy sequential",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count(), "{text}");
    }

    /// CoreDNS does not start if `forward` has no server.
    #[test]
    fn nothing_is_forwarded_without_a_name_server() {
        let config = Config::default();
        let own = config.dns_service().octets();
        for servers in [&[][..], &[own]] {
            let text = written(config.clone(), servers);
            assert!(!text.contains("forward"), "a query would come back: {text}");
        }
    }

    #[test]
    fn the_domain_is_that_of_the_configuration() {
        let mut config = Config::default();
        config.settings.cluster_domain = "k8s.example.org".parse().unwrap();
        let text = written(config, &[]);
        assert!(text.contains("kubernetes k8s.example.org 10.96") && !text.contains("cluster.local"), "{text}");
    }

    #[test]
    fn it_may_bind_a_low_port_and_read_its_own_key() {
        let (config, credentials, _scratch) = with_credentials(Config::default());
        let rights = program(&config, &credentials, &[]).rights.unwrap();
        assert_eq!((rights.user, rights.capabilities), (User::Dns, &[Capability::NetBindService][..]));
        let names: Vec<_> = rights.keys.iter().map(|key| key.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["dns.kubeconfig", "dns.key"]);
        assert!(rights.owns.is_empty() && rights.starts.is_empty());
    }
}
