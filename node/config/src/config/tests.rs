use std::net::SocketAddrV4;

use cluster::{AdministratorRequest, PodSecurity, SecretKey, SecretStorage, Token};
use ipnet::Ipv4Net;
use proptest::collection::{hash_set, vec};
use proptest::option;
use proptest::prelude::*;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use super::*;
use crate::role::{Networks, Worker};

fn problems(text: &str) -> Vec<String> {
    match Config::parse(text) {
        Err(ParseError::Problems(problems)) => problems.iter().map(ToString::to_string).collect(),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn an_empty_configuration_is_a_control_plane_with_dhcp() {
    let config = Config::parse("{}").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.node.as_str(), "granary");
    let Role::ControlPlane(networks) = config.role else { panic!("{config:?}") };
    let ProgramSettings { pod_security, secret_storage, secret_key, pod_processes, cluster_domain, .. } =
        config.programs;
    assert_eq!(cluster_domain.as_str(), "cluster.local");
    assert_eq!(
        (networks.pods.to_string(), networks.services.to_string()),
        ("10.244.0.0/16".into(), "10.96.0.0/16".into())
    );
    assert_eq!((pod_security, secret_storage), (PodSecurity::Baseline, SecretStorage::Encrypted));
    assert_eq!(secret_key, SecretKey::default());
    assert_eq!(pod_processes.get(), 1024);
    assert_eq!(config.network.addresses, Addresses::Dhcp);
}

#[test]
fn all_problems_are_reported_with_their_remedies() {
    let found = problems(
        r#"{
            "nodeName": "Node_1",
            "hostname": "n",
            "network": {"static": {"adress": "192.0.2.10/24", "gateway": "router"}, "dhcp": {}, "mtu": "large"},
            "timeServers": ["192.0.2.1", "pool.example.org", 5],
            "storage": {"keepFree": "10GB", "keepFree": "10G", "overcommit": 1.5},
            "onFailure": "PANIC"
        }"#,
    );
    let known: Vec<_> = message::CONFIG.as_ref().unwrap().fields().map(|field| field.json_name().to_owned()).collect();
    assert_eq!(
        found,
        [
            &*format!("hostname: unknown field; known fields: {}", known.join(", ")),
            "network.static.adress: unknown field; known fields: address, gateway",
            "network.dhcp: only one of this field and static can be set; remove one",
            "network.mtu: must be an integer from 0 to 4294967295, not a string",
            "timeServers[2]: must be a string, not a number",
            "storage.keepFree: the field is set twice; remove one",
            "storage.overcommit: must be a string, not a number",
            "onFailure: \"PANIC\" is not one of POWER_OFF, REBOOT",
            "network.static.address: the required field is missing",
            "network.static.gateway: \"router\" is not an IPv4 address, such as 192.0.2.1",
            "nodeName: a name has 1 to 63 lower-case letters, digits and '-', with a letter or digit at both ends",
        ]
    );
}

#[test]
fn invalid_values_and_conflicts_are_rejected() {
    for (text, field) in [
        (r#"{"controlPlane": {"podNetwork": "10.96.0.0/20"}}"#, "controlPlane.serviceNetwork"),
        (r#"{"controlPlane": {"podNetwork": "10.244.0.0/25"}}"#, "controlPlane.podNetwork"),
        (r#"{"controlPlane": {"serviceNetwork": "10.0.0.0/8"}}"#, "controlPlane.serviceNetwork"),
        (r#"{"controlPlane": {"podNetwork": "127.0.0.0/16"}}"#, "controlPlane.podNetwork"),
        (r#"{"network": {"static": {"address": "10.244.1.1/24"}}}"#, "network.static.address"),
        (r#"{"network": {"static": {"address": "10.96.3.4/24"}}}"#, "network.static.address"),
        (r#"{"network": {"static": {"address": "192.0.2.0/24"}}}"#, "network.static.address"),
        (r#"{"network": {"static": {"address": "192.0.2.1/24", "gateway": "192.0.3.1"}}}"#, "network.static.gateway"),
        (r#"{"network": {"nameServers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]}}"#, "network.nameServers"),
        (r#"{"network": {"mtu": 100}}"#, "network.mtu"),
        (r#"{"network": {"interface": "eth/0"}}"#, "network.interface"),
        (r#"{"network": {"mac": "52:54:00:12:34"}}"#, "network.mac"),
        (r#"{"network": {"driver": "e1000e.ko"}}"#, "network.driver"),
        (r#"{"network": {"driver": "e1000e", "mac": "52:54:00:12:34:56"}}"#, "network.mac"),
        (r#"{"podProcesses": 63}"#, "podProcesses"),
        (r#"{"podProcesses": 65537}"#, "podProcesses"),
        (r#"{"kernelModules": ["vxlan", "../vxlan"]}"#, "kernelModules[1]"),
        (r#"{"kernelModules": ["vxlan.ko"]}"#, "kernelModules[0]"),
        (r#"{"kernelModules": "vxlan"}"#, "kernelModules"),
        (r#"{"clusterDomain": "cluster.local."}"#, "clusterDomain"),
        (r#"{"cni": "flannel"}"#, "cni"),
        (r#"{"kubeProxy": false}"#, "kubeProxy"),
        (r#"{"kubeProxy": "NONE"}"#, "kubeProxy"),
        (r#"{"cni": "BUILT_IN", "kubeProxy": "NONE"}"#, "kubeProxy"),
        (r#"{"controlPlane": {"secretStorage": "AESCBC"}}"#, "controlPlane.secretStorage"),
        (r#"{"controlPlane": {"secretKey": 0}}"#, "controlPlane.secretKey"),
        (r#"{"storage": {"serial": "a", "partition": "b"}}"#, "storage.partition"),
        (r#"{"storage": {"serial": ""}}"#, "storage.serial"),
        (r#"{"storage": {"overcommit": "0.5"}}"#, "storage.overcommit"),
        (r#"{"storage": {"keepFree": ""}}"#, "storage.keepFree"),
        (r#"{"worker": {"server": "192.0.2.10", "authority": "sha256:0"}}"#, "worker.authority"),
        (r#"{"worker": {"server": "", "authority": "DIGEST"}}"#, "worker.server"),
        (r#"{"worker": {"authority": "DIGEST"}}"#, "worker.server"),
        (r#"{"worker": {"server": "10.244.0.1", "authority": "DIGEST"}}"#, "worker.server"),
        (r#"{"worker": {"server": "192.0.2.1", "authority": "DIGEST", "token": "secret"}}"#, "worker.token"),
        (r#"{"worker": {"server": "192.0.2.1", "authority": "DIGEST"}, "controlPlane": {}}"#, "controlPlane"),
        (
            r#"{"worker": {"server": "192.0.2.1", "authority": "DIGEST"}, "network": {"static": {"address": "192.0.2.1/24"}}}"#,
            "worker.server",
        ),
        (r#"{"nodeName": ""}"#, "nodeName"),
        (r#"{"timeServers": "192.0.2.1"}"#, "timeServers"),
        (r#"{"role": "worker"}"#, "role"),
        (r#"{"controlPlane": []}"#, "controlPlane"),
        ("[]", "(top)"),
    ] {
        let found = problems(&text.replace("DIGEST", &format!("sha256:{:064}", 0)));
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].starts_with(&format!("{field}: ")), "{text}: {found:?}");
    }
}

#[test]
fn the_error_lists_the_pod_security_levels() {
    for level in ["baseline", "POD_SECURITY_UNSPECIFIED", "2"] {
        assert_eq!(
            problems(&json!({"controlPlane": {"podSecurity": level}}).to_string()),
            [format!("controlPlane.podSecurity: {level:?} is not one of PRIVILEGED, BASELINE, RESTRICTED")]
        );
    }
}

fn administrator_request(name: &str) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
}

#[test]
fn administrators_have_a_request_and_a_name_each() {
    let requests = ["alice", "bob"].map(administrator_request);
    let text = json!({"controlPlane": {"administratorRequests": requests}}).to_string();
    let administrators = Config::parse(&text).unwrap().programs.administrators;
    let names: Vec<&str> = administrators.iter().map(AdministratorRequest::name).collect();
    assert_eq!(names, ["alice", "bob"]);
}

#[test]
fn an_invalid_administrator_is_reported_by_its_index() {
    let [alice, bob, other_alice, system] = ["alice", "bob", "alice", "system:admin"].map(administrator_request);
    let key = KeyPair::generate().unwrap().serialize_pem();
    let found = problems(
        &json!({"controlPlane": {"administratorRequests": [alice, "alice.csr", system, bob, other_alice, key]}})
            .to_string(),
    );
    let wanted = [
        "controlPlane.administratorRequests[1]: must contain one certificate signing request in PEM",
        "controlPlane.administratorRequests[2]: the subject must have one common name",
        "controlPlane.administratorRequests[4]: alice is listed twice; remove one",
        "controlPlane.administratorRequests[5]: contains a private key",
    ];
    assert_eq!(found.len(), wanted.len(), "{found:?}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!(found.starts_with(wanted) && !found.contains("BEGIN"), "{found}");
    }
    let many: Vec<String> = (0..17).map(|index| administrator_request(&format!("a{index}"))).collect();
    assert_eq!(
        problems(&json!({"controlPlane": {"administratorRequests": many}}).to_string()),
        ["controlPlane.administratorRequests: the list has 17 items; the maximum is 16"]
    );
}

/// A worker has no key to sign certificates.
#[test]
fn a_worker_has_no_administrators() {
    let digest = format!("sha256:{:064}", 7);
    let requests = [administrator_request("alice")];
    let worker = json!({"server": "192.0.2.10", "authority": digest, "administratorRequests": requests});
    let found = problems(&json!({"worker": worker}).to_string());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("worker.administratorRequests: unknown field; "), "{found:?}");
}

#[test]
fn a_worker_has_server_digest_and_token() {
    let digest = format!("sha256:{:064}", 7);
    let text = json!({"worker": {"server": "192.0.2.10", "authority": digest, "token": "abcdef.0123456789abcdef"}});
    let Role::Worker(worker) = Config::parse(&text.to_string()).unwrap().role else { panic!("{text}") };
    assert_eq!(worker.server.to_string(), "192.0.2.10:6443");
    assert_eq!(worker.ca.to_string(), digest);
    assert_eq!(worker.token.unwrap().id(), "abcdef");
    assert_eq!(worker.networks, Networks::default());
}

#[test]
fn errors_and_debug_output_omit_the_token() {
    let digest = format!("sha256:{:064}", 7);
    for token in ["abcdef.0123456789abcdef", "0123456789abcdef", "abcdef.0123456789abcdef "] {
        let text = json!({"nodeName": "A", "worker": {"server": "192.0.2.10", "authority": digest, "token": token}});
        let found = problems(&text.to_string());
        assert!(found.iter().all(|line| !line.contains("0123456789abcdef")), "{found:?}");
    }
    let text = json!({"worker": {"server": "192.0.2.10", "authority": digest, "token": "abcdef.0123456789abcdef"}});
    let config = Config::parse(&text.to_string()).unwrap();
    assert!(!format!("{config:?}").contains("0123456789abcdef"));
}

#[test]
fn null_is_the_same_as_a_missing_field() {
    let config =
        Config::parse(r#"{"nodeName": null, "network": {"dhcp": null, "static": {"address": "192.0.2.1/24"}}}"#);
    assert!(matches!(config.unwrap().network.addresses, Addresses::Static(_)));
}

#[test]
fn a_syntax_error_has_its_line() {
    let Err(ParseError::Syntax(error)) = Config::parse("{\n\"nodeName\": \"a\",\n}") else { panic!("no syntax error") };
    assert_eq!(error.line(), 3);
}

fn written(config: &Config) -> Value {
    let networks = config.role.networks();
    let mut role = json!({"podNetwork": networks.pods.to_string(), "serviceNetwork": networks.services.to_string()});
    match &config.role {
        Role::ControlPlane(_) => {
            role["podSecurity"] = json!(config.programs.pod_security.to_string().to_uppercase());
            role["secretStorage"] = json!(match config.programs.secret_storage {
                SecretStorage::Encrypted => "ENCRYPTED",
                SecretStorage::Plain => "PLAIN",
            });
            role["secretKey"] = json!(config.programs.secret_key.get());
        }
        Role::Worker(worker) => {
            role["server"] = json!(worker.server.to_string());
            role["authority"] = json!(worker.ca.to_string());
            role["token"] = json!(worker.token.as_ref().map(Token::reveal));
        }
    }
    let mut network = match config.network.addresses {
        Addresses::Dhcp => json!({"dhcp": {}}),
        Addresses::Static(Static { interface, gateway }) => {
            json!({"static": {"address": interface.to_string(), "gateway": gateway.map(|gateway| gateway.to_string())}})
        }
    };
    match &config.network.card {
        Card::First => {}
        Card::Interface(name) => network["interface"] = json!(name),
        Card::Mac(octets) => network["mac"] = json!(cluster::card::shown(*octets)),
        Card::Driver(name) => network["driver"] = json!(name),
    }
    network["mtu"] = json!(config.network.mtu);
    network["nameServers"] = json!(config.network.name_servers);
    let mut storage = json!({
        "keepFree": config.storage.keep_free.get().to_string(),
        "overcommit": config.storage.overcommit.to_string(),
    });
    match &config.storage.disk {
        Disk::Any => {}
        Disk::Serial(name) => storage["serial"] = json!(name),
        Disk::Partition(name) => storage["partition"] = json!(name),
    }
    json!({
        "nodeName": config.node.as_str(),
        config.role.field(): role,
        "network": network,
        "timeServers": config.time_servers,
        "storage": storage,
        "onFailure": match config.on_failure {
            FailureAction::PowerOff => "POWER_OFF",
            FailureAction::Reboot => "REBOOT",
        },
        "podProcesses": config.programs.pod_processes.get(),
        "kernelModules": config.kernel_modules.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "clusterDomain": config.programs.cluster_domain.as_str(),
        "cni": if config.programs.networking == Networking::BuiltIn { "BUILT_IN" } else { "NONE" },
        "kubeProxy": if config.programs.networking.has_kube_proxy() { "BUILT_IN" } else { "NONE" },
    })
}

fn hosts(most: usize) -> impl Strategy<Value = Vec<Ipv4Addr>> {
    vec((1_u32..0x7f00_0000).prop_filter("a machine's", |bits| bits >> 24 != 0).prop_map(Ipv4Addr::from), 0..=most)
}

fn network() -> impl Strategy<Value = Uplink> {
    let interface = (1_u8..254, 2_u8..=254, 20_u8..=24)
        .prop_map(|(third, last, prefix)| Ipv4Net::new_assert(Ipv4Addr::new(192, 168, third, last), prefix));
    let fixed = (interface, any::<bool>()).prop_map(|(interface, routed)| {
        let gateway = Ipv4Addr::from(interface.addr().to_bits() ^ 3);
        Addresses::Static(Static {
            interface,
            gateway: (routed && address::reaches(interface, gateway)).then_some(gateway),
        })
    });
    let addresses = prop_oneof![Just(Addresses::Dhcp), fixed];
    let card = prop_oneof![
        Just(Card::First),
        "[a-z0-9_-]{1,15}".prop_map(|name| Card::Interface(name.into())),
        any::<[u8; 6]>().prop_map(Card::Mac),
        "[a-z0-9_-]{1,55}".prop_map(|name| Card::Driver(name.into())),
    ];
    (card, addresses, option::of(576_u32..=65_535), hosts(NAME_SERVERS))
        .prop_map(|(card, addresses, mtu, name_servers)| Uplink { card, addresses, mtu, name_servers })
}

fn configs() -> impl Strategy<Value = Config> {
    let disk =
        prop_oneof![Just(Disk::Any), "[!-~]{1,64}".prop_map(Disk::Serial), "[!-~]{1,64}".prop_map(Disk::Partition)];
    let overcommit = (1000_u32..=100_000).prop_map(|n| format!("{}.{:03}", n / 1000, n % 1000).parse().unwrap());
    let storage = (disk, any::<u64>(), overcommit).prop_map(|(disk, bytes, overcommit)| Storage {
        disk,
        keep_free: Bytes::new(bytes),
        overcommit,
    });
    let networks = || {
        (8_u8..=24, 12_u8..=27).prop_map(|(pods, services)| {
            let at = |first, prefix| Ipv4Net::new_assert(Ipv4Addr::new(first, 0, 0, 0), prefix);
            Networks { pods: at(10, pods), services: at(11, services) }
        })
    };
    let server = (1_u8..254, 1_u16..).prop_map(|(last, port)| SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, last), port));
    let ca = "sha256:[0-9a-f]{64}".prop_map(|text| text.parse().unwrap());
    let token = option::of("[a-z0-9]{6}\\.[a-z0-9]{16}".prop_map(|text| text.parse().unwrap()));
    let worker = (server, ca, token, networks()).prop_map(|(server, ca, token, networks)| Worker {
        server,
        ca,
        token,
        networks,
    });
    let levels = [PodSecurity::Privileged, PodSecurity::Baseline, PodSecurity::Restricted];
    let storages = [SecretStorage::Encrypted, SecretStorage::Plain];
    let (level, form) = (proptest::sample::select(levels.to_vec()), proptest::sample::select(storages.to_vec()));
    let keys = (1_u32..).prop_map(|number| SecretKey::new(number).unwrap());
    let control_plane =
        (networks(), level, form, keys).prop_map(|(networks, pod_security, secret_storage, secret_key)| {
            let programs = ProgramSettings { pod_security, secret_storage, secret_key, ..ProgramSettings::default() };
            (Role::ControlPlane(networks), programs)
        });
    let worker = worker.prop_map(|worker| (Role::Worker(worker), ProgramSettings::default()));
    let cluster = prop_oneof![control_plane, worker];
    let action = prop_oneof![Just(FailureAction::PowerOff), Just(FailureAction::Reboot)];
    let processes = (POD_PROCESSES.0..=POD_PROCESSES.1).prop_map(PodProcesses::new);
    let domain = "[a-z]{1,20}(\\.[a-z0-9]{1,20}){0,2}".prop_map(|text| text.parse().unwrap());
    let modules = vec("[a-zA-Z0-9_]{1,55}".prop_map(|name| name.parse().unwrap()), 0..4);
    let networking = proptest::sample::select(vec![
        Networking::BuiltIn,
        Networking::Plugin(ServiceProxy::KubeProxy),
        Networking::Plugin(ServiceProxy::Plugin),
    ]);
    let all_roles = (processes, domain, networking);
    ("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", cluster, network(), hosts(TIME_SERVERS), storage, action, all_roles, modules)
        .prop_map(|(name, (role, programs), network, time_servers, storage, on_failure, all_roles, kernel_modules)| {
            let (pod_processes, cluster_domain, networking) = all_roles;
            let programs = ProgramSettings { pod_processes, cluster_domain, networking, ..programs };
            let node = name.parse().unwrap();
            Config { node, role, network, time_servers, storage, on_failure, programs, kernel_modules }
        })
}

/// JSON with names of fields and other names, at any depth.
fn anything() -> impl Strategy<Value = Value> {
    let fields = message::CONFIG.as_ref().unwrap().parent_pool().all_messages();
    let fields =
        fields.flat_map(|message| message.fields().map(|field| field.json_name().to_owned()).collect::<Vec<_>>());
    let name = prop_oneof![proptest::sample::select(fields.collect::<Vec<_>>()), "[^.]{0,8}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[0-9./a-zA-Z:-]{0,24}".prop_map(Value::from),
        ".{0,24}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 8, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((name.clone(), inner), 0..8).prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_configuration_is_parsed_from_its_json(config in configs()) {
        prop_assert_eq!(Config::parse(&written(&config).to_string()).unwrap(), config);
    }

    #[test]
    fn any_json_is_accepted_or_rejected_by_field(json in anything(), text in ".{0,64}") {
        let _ = Config::parse(&text);
        if let Err(error) = Config::parse(&json.to_string()) {
            let ParseError::Problems(problems) = error else { panic!("{json} is JSON: {error}") };
            prop_assert!(!problems.is_empty());
            for Problem { field, violation } in problems {
                prop_assert!(!field.is_empty() && !violation.to_string().is_empty());
                // The defaults are valid, so the path is part of the JSON.
                let top = field.split(['.', '[']).next().unwrap_or_default();
                let odd = field == "(top)" || field.starts_with('"');
                prop_assert!(odd || json.get(top).is_some(), "{}", field);
            }
        }
    }

    #[test]
    fn each_unknown_field_is_named(names in hash_set("x[a-z]{1,8}", 1..6)) {
        let json = Value::Object(names.iter().map(|name| (name.clone(), Value::Null)).collect());
        let found = problems(&json.to_string());
        prop_assert_eq!(found.len(), names.len());
        for name in names {
            let is_named = found.iter().any(|line| line.starts_with(&format!("{name}: ")));
            prop_assert!(is_named, "{}", name);
        }
    }
}
