//! A node with two pods, an outside network, and another node behind the mesh's interface, which is a veth pair here.
//! Pods have links, addresses and routes like those of the CNI plugin `ptp`:
//!
//! ```text
//! pod 10.244.1.5 ── veth0 10.244.1.1 ─┐      ┌── eth0 192.0.2.1 ────────── 192.0.2.9 outside
//!                                     ├ node ┤
//! pod 10.244.1.6 ── veth1 10.244.1.1 ─┘      └── clusternet 10.244.1.1 ─── 10.244.2.5 other
//! ```

use std::fs;
use std::io::ErrorKind::AddrInUse;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster::API_PORT;
use ktest_support::{Namespace, eventually};
use nix::net::if_::if_nametoindex;
use programs::{Config, Paths, pods};
use rtnetlink::packet_route::route::RouteScope;
use rtnetlink::{LinkUnspec, LinkVeth, RouteMessageBuilder};
use supervisor::{Backoff, Settings, State, Supervisor};
use tempfile::TempDir;

use crate::api;

pub const LIMIT: Duration = Duration::from_secs(30);

pub const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
/// The node's own address in the pod range: the gateway of its pods, and its address in the mesh.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 1);
pub const PODS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 244, 1, 5), Ipv4Addr::new(10, 244, 1, 6)];
pub const OTHER: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 5);

pub const PORT: u16 = 7000;

pub const TUNNEL: u16 = 7838;

pub const LINKS: [&str; 2] = ["veth0", "veth1"];

pub const RANGE: &str = "10.244.1.0/24";

pub struct Node {
    pub host: Namespace,
    pub pods: [Namespace; 2],
    pub outside: Namespace,
    pub other: Namespace,
    scratch: TempDir,
}

impl Node {
    pub fn bare() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let new = Namespace::new;
        let node = Self { host: new(), pods: [new(), new()], outside: new(), other: new(), scratch };
        cable(&node.host, "eth0", &node.outside);
        cable(&node.host, "clusternet", &node.other);
        cable(&node.host, LINKS[0], &node.pods[0]);
        cable(&node.host, LINKS[1], &node.pods[1]);
        node.host.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        let cluster = ([10, 244, 0, 0].into(), 16);
        let any = (Ipv4Addr::UNSPECIFIED, 0);
        addresses(&node.host, "eth0", &[(NODE, 24)]);
        addresses(&node.host, "clusternet", &[(GATEWAY, 32)]);
        route(&node.host, cluster, "clusternet", None, Some(GATEWAY));
        route(&node.host, any, "eth0", Some(OUTSIDE), None);
        for ((pod, address), link) in node.pods.iter().zip(PODS).zip(LINKS) {
            addresses(&node.host, link, &[(GATEWAY, 32)]);
            route(&node.host, (address, 32), link, None, None);
            addresses(pod, "end", &[(address, 32)]);
            route(pod, (GATEWAY, 32), "end", None, None);
            route(pod, any, "end", Some(GATEWAY), None);
        }
        // The outside host has a route to pods and Services through the node.
        addresses(&node.outside, "end", &[(OUTSIDE, 24)]);
        for network in [cluster, ([10, 96, 0, 0].into(), 16)] {
            route(&node.outside, network, "end", Some(NODE), None);
        }
        addresses(&node.other, "end", &[(OTHER, 32)]);
        route(&node.other, (GATEWAY, 32), "end", None, None);
        route(&node.other, any, "end", Some(GATEWAY), None);
        node
    }

    pub fn new() -> Self {
        let node = Self::bare();
        node.network(RANGE).unwrap();
        node
    }

    /// Runs the service that configures the pod network until it is healthy, and stops it. Returns its error.
    pub fn network(&self, range: &'static str) -> Result<(), String> {
        self.network_with(range, "/usr/bin".into())
    }

    /// Like [`Self::network`], with the programs of another directory.
    pub fn network_with(&self, range: &'static str, programs: PathBuf) -> Result<(), String> {
        self.network_while(range, programs, async || ())
    }

    /// Like [`Self::network_with`], and runs `meanwhile` on this host before the service stops.
    pub fn network_while(
        &self,
        range: &'static str,
        programs: PathBuf,
        meanwhile: impl AsyncFnOnce() + Send + 'static,
    ) -> Result<(), String> {
        let config = self.config(programs);
        let start = move |settings| {
            let client = api::with_range(range);
            Supervisor::start("pods", settings, move |cx| pods::run(cx, client.clone(), config.clone()))
        };
        self.supervise(start, meanwhile)
    }

    /// Loads the rules of a node whose pod network belongs to a CNI plugin.
    pub fn protect_itself(&self) {
        let config = self.config("/usr/bin".into());
        let start = |settings| Supervisor::start("rules", settings, move |cx| pods::protect(cx, config.clone()));
        self.supervise(start, async || ()).unwrap();
    }

    fn config(&self, programs: PathBuf) -> Config {
        let paths = Paths { programs, cgroups: None, ephemeral: self.scratch.path().to_owned(), ..Paths::default() };
        let api_server = SocketAddrV4::new(NODE, API_PORT);
        Config { node: "one".to_owned(), address: NODE, api_server, paths, ..Config::default() }
    }

    /// Runs a service until it is healthy and `meanwhile` has ended, and stops it. Returns its error.
    fn supervise(
        &self,
        start: impl FnOnce(Settings) -> Supervisor + Send + 'static,
        meanwhile: impl AsyncFnOnce() + Send + 'static,
    ) -> Result<(), String> {
        self.host.block_on(async move || {
            let backoff = Backoff { first: Duration::from_secs(1000), ..Backoff::default() };
            let tree = start(Settings { backoff, ..Settings::default() });
            let end = Instant::now() + LIMIT;
            let result = loop {
                let status = tree.status();
                match status.state {
                    State::Healthy => break Ok(()),
                    State::Failed => break Err(status.last_error.unwrap_or_default()),
                    _ => assert!(Instant::now() < end, "{status:?}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            };
            if result.is_ok() {
                meanwhile().await;
            }
            tree.stop(LIMIT).await.unwrap();
            result
        })
    }

    pub fn conflist(&self) -> Option<String> {
        fs::read_to_string(self.scratch.path().join("cni/net.d/10-pods.conflist")).ok()
    }

    pub fn rules(&self) -> Vec<String> {
        self.host.run(rules).unwrap()
    }

    /// Loads rules beside those of the node, like those of kube-proxy and the plugins.
    pub fn load(&self, rules: &str) {
        let file = self.scratch.path().join("more.nft");
        fs::write(&file, rules).unwrap();
        let status = self.host.run(move || Command::new("/usr/bin/nft").arg("--file").arg(file).status());
        assert!(status.unwrap().success());
    }

    /// Permits packets from pods' links to loopback addresses, as portmap does as soon as a pod has a host port.
    pub fn route_loopback(&self) {
        self.host
            .netlink(async |netlink| netlink.link().set(LinkUnspec::new_with_name("lo").up().build()).execute().await);
        self.host.run(|| {
            for link in LINKS {
                fs::write(format!("/proc/sys/net/ipv4/conf/{link}/route_localnet"), "1").unwrap();
            }
        });
    }

    /// Number of packets that the rules with this comment have dropped.
    pub fn dropped(&self, comment: &str) -> u64 {
        let mut rules = self.rules();
        rules.retain(|rule| rule.ends_with(&format!("drop comment \"{comment}\"")));
        assert!(!rules.is_empty(), "no rule has the comment {comment:?}");
        let count = |rule: &String| {
            let (_, counted) = rule.split_once("counter packets ").unwrap();
            counted.split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        rules.iter().map(count).sum()
    }

    /// Asserts that the rules with this comment drop a packet, and that the packet does not arrive.
    #[track_caller]
    pub fn loses(&self, comment: &str, from: (&Namespace, Ipv4Addr), to: (&Namespace, Ipv4Addr)) {
        self.loses_by(comment, from, (to.1, PORT).into(), to);
    }

    /// Like [`Self::loses`], with `by` as the packet's destination address.
    #[track_caller]
    pub fn loses_by(
        &self,
        comment: &str,
        (from, source): (&Namespace, Ipv4Addr),
        by: SocketAddr,
        to: (&Namespace, Ipv4Addr),
    ) {
        self.loses_what(comment, to, || assert_eq!(socket(from, source, 0).send_to(b"?", by).unwrap(), 1));
    }

    /// Like [`Self::loses`], with the packets that `send` sends.
    #[track_caller]
    pub fn loses_what(&self, comment: &str, to: (&Namespace, Ipv4Addr), send: impl FnOnce()) {
        let there = socket(to.0, to.1, PORT);
        there.set_nonblocking(true).unwrap();
        let before = self.dropped(comment);
        send();
        eventually("a packet to be dropped", || self.dropped(comment) > before);
        let found = there.recv_from(&mut [0; 8]).map(|(_, from)| from);
        assert!(found.is_err(), "a packet came from {found:?}");
    }
}

pub fn rules() -> Result<Vec<String>, String> {
    let output = Command::new("/usr/bin/nft").args(["list", "table", "inet", "granary"]).output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).unwrap());
    }
    Ok(String::from_utf8(output.stdout).unwrap().lines().map(|line| line.trim().to_owned()).collect())
}

/// Sends a packet to `by`, asserts that it reaches `to` and that its answer arrives. Returns the packet's source
/// address at the receiver.
pub fn reaches_by(from: (&Namespace, Ipv4Addr), by: SocketAddr, to: (&Namespace, Ipv4Addr)) -> IpAddr {
    let (here, there) = (socket(from.0, from.1, 0), socket(to.0, to.1, PORT));
    // A connected socket drops packets of other senders.
    here.connect(by).unwrap();
    here.send(b"ping").unwrap();
    let mut bytes = [0; 8];
    let (length, source) = there.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..length], b"ping");
    there.send_to(b"pong", source).unwrap();
    let length = here.recv(&mut bytes).unwrap();
    assert_eq!(&bytes[..length], b"pong");
    source.ip()
}

pub fn reaches(from: (&Namespace, Ipv4Addr), to: (&Namespace, Ipv4Addr)) -> IpAddr {
    reaches_by(from, (to.1, PORT).into(), to)
}

/// Asserts that the packet of `send` arrives. Returns its source address.
#[track_caller]
pub fn receives(to: (&Namespace, Ipv4Addr), send: impl FnOnce()) -> IpAddr {
    let there = socket(to.0, to.1, PORT);
    send();
    there.recv_from(&mut [0; 8]).unwrap().1.ip()
}

pub fn socket(host: &Namespace, address: Ipv4Addr, port: u16) -> UdpSocket {
    let end = Instant::now() + LIMIT;
    let socket = loop {
        match host.run(move || UdpSocket::bind((address, port))) {
            // A child process of another test keeps the last test's socket open until its exec(2).
            Err(error) if error.kind() == AddrInUse && Instant::now() < end => sleep(Duration::from_millis(1)),
            bound => break bound.unwrap(),
        }
    };
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

pub fn addresses(host: &Namespace, interface: &'static str, addresses: &[(Ipv4Addr, u8)]) {
    let addresses = addresses.to_vec();
    host.netlink(async move |netlink| {
        for (address, prefix) in addresses {
            netlink.address().add(index(interface), address.into(), prefix).execute().await?;
        }
        Ok(())
    });
}

pub fn remove(host: &Namespace, interface: &'static str) {
    host.netlink(async move |netlink| netlink.link().del(index(interface)).execute().await);
}

fn route(
    host: &Namespace,
    (network, prefix): (Ipv4Addr, u8),
    interface: &'static str,
    gateway: Option<Ipv4Addr>,
    source: Option<Ipv4Addr>,
) {
    host.netlink(async move |netlink| {
        let mut route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(network, prefix)
            .output_interface(index(interface));
        route = match gateway {
            Some(gateway) => route.gateway(gateway),
            None => route.scope(RouteScope::Link),
        };
        if let Some(source) = source {
            route = route.pref_source(source);
        }
        netlink.route().add(route.build()).execute().await
    });
}

/// Creates a veth pair between the interface `name` of `host` and the interface `end` of `to`.
fn cable(host: &Namespace, name: &'static str, to: &Namespace) {
    let there = to.descriptor();
    host.netlink(async move |netlink| {
        netlink.link().add(LinkVeth::new(name, "end").build()).execute().await?;
        netlink.link().set(LinkUnspec::new_with_name("end").setns_by_fd(there).build()).execute().await?;
        netlink.link().set(LinkUnspec::new_with_name(name).up().build()).execute().await
    });
    to.netlink(async |netlink| {
        for name in ["lo", "end"] {
            netlink.link().set(LinkUnspec::new_with_name(name).up().build()).execute().await?;
        }
        Ok(())
    });
}

fn index(interface: &str) -> u32 {
    if_nametoindex(interface).unwrap()
}
