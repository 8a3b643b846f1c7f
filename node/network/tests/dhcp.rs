//! The client on a real device, with a server at the other end.

use std::fs;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex as SyncMutex};
use std::time::{Duration, Instant};

use cluster::{Addresses, Card, Static, Uplink};
use futures::TryStreamExt;
use network::{Addressing, Network};
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::{Handle, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tokio::net::UdpSocket;
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::Level;
use tracing::subscriber::DefaultGuard;

const SERVER: [u8; 4] = [192, 0, 2, 1];
const GIVEN: [u8; 4] = [192, 0, 2, 10];

/// Time for two attempts in a VM.
const LIMIT: Duration = Duration::from_secs(60);

/// Options of a lease: an MTU of 1400, a router and a name server.
const ALL: &[u8] = &[26, 2, 5, 120, 3, 4, 192, 0, 2, 1, 6, 4, 192, 0, 2, 1];

/// The name server alone.
const NAME_SERVER: &[u8] = &[6, 4, 192, 0, 2, 1];

/// Held by each test: all devices share the client's port, and Linux would send from the address of another device.
static SERIAL: Mutex<()> = Mutex::const_new(());

struct Cable {
    netlink: Handle,
    _driver: JoinSet<()>,
    near: String,
    far: String,
}

impl Cable {
    async fn lay(number: u8) -> Self {
        let (connection, netlink, _) = rtnetlink::new_connection().unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let (near, far) = (format!("near{number}"), format!("far{number}"));
        netlink.link().add(LinkVeth::new(&near, &far).build()).execute().await.unwrap();
        netlink.link().set(LinkUnspec::new_with_name(&far).up().build()).execute().await.unwrap();
        Self { netlink, _driver: driver, near, far }
    }

    /// Both ends belong to this machine: each receives packets from the machine's own address.
    fn accept_own_packets(&self) {
        for end in [&self.near, &self.far] {
            fs::write(format!("/proc/sys/net/ipv4/conf/{end}/accept_local"), "1").unwrap();
        }
    }

    async fn cut(self) {
        let ends: Vec<_> = self.netlink.link().get().match_name(self.far).execute().try_collect().await.unwrap();
        self.netlink.link().del(ends[0].header.index).execute().await.unwrap();
    }

    /// Addresses of the near end with prefix lengths.
    async fn addresses(&self) -> Vec<(Ipv4Addr, u8)> {
        let all: Vec<_> = self.netlink.address().get().execute().try_collect().await.unwrap();
        let own = all.iter().filter(|message| message.attributes.contains(&AddressAttribute::Label(self.near.clone())));
        let local = |attribute: &AddressAttribute| match attribute {
            AddressAttribute::Local(std::net::IpAddr::V4(address)) => Some(*address),
            _ => None,
        };
        own.filter_map(|message| Some((message.attributes.iter().find_map(local)?, message.header.prefix_len)))
            .collect()
    }
}

fn uplink(cable: &Cable) -> Uplink {
    Uplink { card: Card::interface(&cable.near).unwrap(), ..Uplink::default() }
}

#[derive(Clone, Default)]
struct CapturedLog(Arc<SyncMutex<Vec<u8>>>);

impl CapturedLog {
    /// Captures the log of this thread until the guard is dropped.
    fn capture(&self) -> DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone());
        tracing::subscriber::set_default(subscriber.with_max_level(Level::WARN).finish())
    }

    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

impl Write for CapturedLog {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a server until it is dropped. Ignores the first `ignored` messages; `received` counts all. Leases have the
/// options [`ALL`], and `renewed` after a renewal.
async fn serve(cable: &Cable, ignored: u32, received: &AtomicU32, renewed: &[u8]) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)).await.unwrap();
    socket.bind_device(Some(cable.far.as_bytes())).unwrap();
    socket.set_broadcast(true).unwrap();
    let mut bytes = [0; 1500];
    loop {
        let (length, from) = socket.recv_from(&mut bytes).await.unwrap();
        assert_eq!(from.port(), 68);
        if received.fetch_add(1, Ordering::SeqCst) < ignored {
            continue;
        }
        // The message type is the first option.
        let kind = match bytes[240..length] {
            [53, 1, 1, ..] => 2,
            [53, 1, 3, ..] => 5,
            ref other => panic!("{other:?}"),
        };
        let mut reply = vec![0; 236];
        reply[..3].copy_from_slice(&[2, 1, 6]);
        reply[4..8].copy_from_slice(&bytes[4..8]);
        reply[16..20].copy_from_slice(&GIVEN);
        reply[28..34].copy_from_slice(&bytes[28..34]);
        reply.extend([99, 130, 83, 99, 53, 1, kind, 1, 4, 255, 255, 255, 0, 51, 4, 0, 0, 14, 16, 54, 4]);
        reply.extend(SERVER);
        // A client that has an address writes it to `ciaddr`.
        reply.extend(if bytes[12..16] == GIVEN { renewed } else { ALL });
        reply.push(255);
        socket.send_to(&reply, (Ipv4Addr::BROADCAST, 68)).await.unwrap();
    }
}

fn gateways(device: &str) -> Vec<Ipv4Addr> {
    let table = fs::read_to_string("/proc/net/route").unwrap();
    let default = table.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (name, to, gateway) = (fields.next()?, fields.next()?, fields.next()?);
        (name == device && to == "00000000").then(|| u32::from_str_radix(gateway, 16).unwrap())
    });
    default.map(|gateway| Ipv4Addr::from(gateway.to_ne_bytes())).collect()
}

#[tokio::test]
async fn a_late_answer_configures_the_device() {
    let _guard = SERIAL.lock().await;
    let cable = Cable::lay(0).await;
    // The value of a device that appears after the default was changed.
    let source_check = format!("/proc/sys/net/ipv4/conf/{}/rp_filter", cable.near);
    fs::write(&source_check, "1").unwrap();
    let network = Network::open(uplink(&cable)).await.unwrap();
    let (received, start, log) = (AtomicU32::new(0), Instant::now(), CapturedLog::default());
    let _capture = log.capture();
    let addressing = tokio::select! {
        () = serve(&cable, 1, &received, ALL) => unreachable!("it never returns"),
        given = timeout(LIMIT, network.configure()) => given.expect("an answer in time").unwrap(),
    };
    // The second attempt follows after about four seconds and gets an offer.
    assert!(start.elapsed() > Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(received.load(Ordering::SeqCst), 3);
    assert_eq!(fs::read_to_string(source_check).unwrap(), "0\n", "answers of servers without a route are dropped");
    // Missing answers are logged, once per attempt except the first.
    let lines = log.lines();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(
        line.contains("no answer from a DHCP server, will retry; check the network or configure a static address"),
        "{line}"
    );
    assert!(line.contains(&format!(r#"device="{}" attempt=2"#, cable.near)), "{line}");
    assert_eq!(addressing.interface.to_string(), "192.0.2.10/24");
    assert_eq!(addressing.name_servers, [Ipv4Addr::from(SERVER)]);
    assert_eq!(cable.addresses().await, [(Ipv4Addr::from(GIVEN), 24)]);
    assert_eq!(gateways(&cable.near), [Ipv4Addr::from(SERVER)]);
    assert_eq!(fs::read_to_string(format!("/sys/class/net/{}/mtu", cable.near)).unwrap().trim(), "1400");
    cable.cut().await;
}

/// Regression: the node used the address until half of the lease had passed by its timers.
#[tokio::test]
async fn a_lease_that_expired_during_a_suspension_is_renewed() {
    let _guard = SERIAL.lock().await;
    let cable = Cable::lay(2).await;
    cable.accept_own_packets();
    let network = Network::open(uplink(&cable)).await.unwrap();
    let (received, missed) = (AtomicU32::new(0), watch::Sender::new(Duration::ZERO));
    let renewed = async {
        let given = network.configure().await.unwrap();
        // Two messages, and one more for each that was lost while the link came up.
        let before = received.load(Ordering::SeqCst);
        let renewed = async {
            missed.send_replace(Duration::from_secs(7200));
            while received.load(Ordering::SeqCst) < before + 2 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            biased;
            moved = network.keep(&given, missed.subscribe(), |_| panic!("nothing has changed")) => panic!("{moved:?}"),
            () = renewed => {}
        }
    };
    tokio::select! {
        () = serve(&cable, 0, &received, ALL) => unreachable!("it never returns"),
        renewed = timeout(LIMIT, renewed) => renewed.expect("the client asks again in time"),
    }
    assert_eq!(cable.addresses().await, [(Ipv4Addr::from(GIVEN), 24)]);
    cable.cut().await;
}

/// Renews a lease by one without a router and an MTU. Before, another program replaces the default route by one to
/// `other`. Returns the gateways and the MTU afterwards.
async fn renew(number: u8, other: Option<Ipv4Addr>) -> (Vec<Ipv4Addr>, Option<u32>) {
    let cable = Cable::lay(number).await;
    cable.accept_own_packets();
    let (network, received) = (Network::open(uplink(&cable)).await.unwrap(), AtomicU32::new(0));
    let renewed = async {
        let given = network.configure().await.unwrap();
        assert_eq!((gateways(&cable.near), network.mtu()), (vec![Ipv4Addr::from(SERVER)], Some(1400)));
        if let Some(other) = other {
            let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(other).build();
            cable.netlink.route().add(route).replace().execute().await.unwrap();
            assert_eq!(gateways(&cable.near), [other]);
        }
        // The client asks any server between 7/8 of the lease and its end.
        let (missed, applied) = (watch::Sender::new(Duration::from_secs(3300)), Notify::new());
        let changed = |now: &Addressing| {
            assert_eq!((now.gateway, now.mtu), (None, None));
            applied.notify_one();
        };
        tokio::select! {
            moved = network.keep(&given, missed.subscribe(), changed) => panic!("{moved:?}"),
            () = applied.notified() => {}
        }
    };
    tokio::select! {
        () = serve(&cable, 0, &received, NAME_SERVER) => unreachable!("it never returns"),
        renewed = timeout(LIMIT, renewed) => renewed.expect("the lease is renewed in time"),
    }
    assert_eq!(cable.addresses().await, [(Ipv4Addr::from(GIVEN), 24)]);
    let found = (gateways(&cable.near), network.mtu());
    cable.cut().await;
    found
}

/// Regression: the router of the former lease was kept, or the MTU became that of the device, which the mesh and the
/// pods did not follow.
#[tokio::test]
async fn a_renewed_lease_without_router_and_mtu_removes_the_router_alone() {
    let _guard = SERIAL.lock().await;
    assert_eq!(renew(4, None).await, (vec![], Some(1400)));
}

/// Regression: the renewal removed each default route of the device if a former lease had a router.
#[tokio::test]
async fn a_route_that_replaced_that_of_the_lease_is_kept() {
    let _guard = SERIAL.lock().await;
    let other = Ipv4Addr::new(192, 0, 2, 7);
    assert_eq!(renew(6, Some(other)).await, (vec![other], Some(1400)));
}

#[tokio::test]
async fn a_static_address_replaces_another() {
    let _guard = SERIAL.lock().await;
    let cable = Cable::lay(1).await;
    let fixed = |address: &str| Uplink {
        addresses: Addresses::Static(Static { interface: address.parse().unwrap(), gateway: None }),
        mtu: Some(1280),
        name_servers: vec![Ipv4Addr::from(SERVER)],
        ..uplink(&cable)
    };
    for address in ["198.51.100.7/24", "198.51.100.7/24", "198.51.100.8/25"] {
        let network = Network::open(fixed(address)).await.unwrap();
        let addressing = network.configure().await.unwrap();
        assert_eq!(addressing.name_servers, [Ipv4Addr::from(SERVER)]);
    }
    assert_eq!(cable.addresses().await, [(Ipv4Addr::new(198, 51, 100, 8), 25)]);
    assert_eq!(fs::read_to_string(format!("/sys/class/net/{}/mtu", cable.near)).unwrap().trim(), "1280");
    cable.cut().await;
}

/// Regression: each renewal of a lease without a router and an MTU removed them.
#[tokio::test]
async fn a_route_and_an_mtu_of_another_program_are_kept() {
    let _guard = SERIAL.lock().await;
    let cable = Cable::lay(5).await;
    let interface = "198.51.100.7/24".parse().unwrap();
    let fixed = Uplink { addresses: Addresses::Static(Static { interface, gateway: None }), ..uplink(&cable) };
    let network = Network::open(fixed).await.unwrap();
    network.configure().await.unwrap();
    let other = LinkUnspec::new_with_name(&cable.near).mtu(1600).build();
    cable.netlink.link().set(other).execute().await.unwrap();
    let router = Ipv4Addr::new(198, 51, 100, 1);
    let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(router).build();
    cable.netlink.route().add(route).execute().await.unwrap();
    network.configure().await.unwrap();
    assert_eq!((gateways(&cable.near), network.mtu()), (vec![router], Some(1600)));
    cable.cut().await;
}

/// While no test has a cable, the guest has no interface except loopback.
#[tokio::test]
async fn a_machine_without_a_network_card_gets_the_remedy() {
    let _guard = SERIAL.lock().await;
    let error = Network::open(Uplink::default()).await.unwrap_err().to_string();
    let wanted = "the image has no driver for a network card of the machine; add a card that ";
    assert!(error.starts_with(wanted), "{error}");
}

#[tokio::test]
async fn a_card_is_chosen_by_its_address_or_reported_missing() {
    let _guard = SERIAL.lock().await;
    let cable = Cable::lay(3).await;
    let address = |end: &str| fs::read_to_string(format!("/sys/class/net/{end}/address")).unwrap().trim().to_owned();
    let interface = "198.51.100.9/24".parse().unwrap();
    let fixed =
        |card| Uplink { card, addresses: Addresses::Static(Static { interface, gateway: None }), ..Uplink::default() };
    let (near, far) = (address(&cable.near), address(&cable.far));
    let network = Network::open(fixed(Card::mac(&near).unwrap())).await.unwrap();
    network.configure().await.unwrap();
    assert_eq!(cable.addresses().await, [(Ipv4Addr::new(198, 51, 100, 9), 24)]);

    let error = Network::open(fixed(Card::driver("igb").unwrap())).await.unwrap_err().to_string();
    assert!(error.starts_with("no network card has the driver igb; the machine has "), "{error}");
    for found in [format!("near3, address {near}"), format!("far3, address {far}")] {
        assert!(error.contains(&found), "{error}");
    }
    cable.cut().await;
}
