//! The image as a disk that UEFI firmware boots.

mod fault;
mod kubelet;
mod plugin;

use cluster::{ADMINISTRATORS_GROUP, AdministratorRequest, STATUS_PORT};
use e2e::{Failure, PATIENCE, Seen, Setting, cost, eventually};
use envtest::chain;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use launch::{Boot, BootError, Data, Hardware, Node, Options, SHUTDOWN_LIMIT};
use programs::discovery::ca_digest;
use qemu::{Card, DiskModel, Forward, free_port};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::json;
use std::fs::{self, File};
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const SECTOR: u32 = 512;
/// Size of a block of the system image and of dm-verity, in bytes.
const BLOCK: u64 = 4096;

/// The machine has no other disk, so the first boot creates a data partition behind the system partition. It has no
/// virtio disk and no virtio network card, but an NVMe disk with critical warnings, three cards, of which one is
/// connected, and a screen. Its administrator has only the console and the network. Its pods use the network of a CNI
/// plugin, which a DaemonSet installs.
///
/// Tests start in the order of their names. This test is the longest one and starts first; the others run in parallel.
#[tokio::test]
async fn a_disk_image_on_a_larger_disk_becomes_a_node() {
    let setting = Setting::from_target().unwrap();
    let mut options = setting.options();
    options.boot = Boot::Firmware(setting.disk().unwrap());
    options.hardware = Hardware {
        disks: DiskModel::Nvme { warnings: fault::WARNINGS },
        card: Card::E1000e,
        // Linux draws each line of the log, which is slow in emulation on a larger screen.
        more: ["vmxnet3,romfile=", "igb", "VGA,romfile=,xres=640,yres=480"].map(str::to_owned).to_vec(),
    };
    let administrator = Administrator::new("alice");
    let configuration = json!({
        "controlPlane": {"administratorRequests": [administrator.request]},
        "network": {"driver": "e1000e"},
        "cni": "NONE",
        "kubeProxy": "NONE",
    });
    options.configuration = Some(configuration.to_string());
    let status = Forward { host: free_port().unwrap(), guest: STATUS_PORT };
    let kubelet = Forward { host: free_port().unwrap(), guest: kubelet::PORT };
    options.forwards = vec![status, kubelet];
    options.images = vec![setting.plugin().unwrap()];
    let installed = async {
        let kubeconfig = setting.file("kubeconfig");
        let announced = eventually(PATIENCE, "the kubeconfig", async || {
            let read = Kubeconfig::read_from(&kubeconfig);
            Ok(read.map_or_else(|error| Seen::NotYet(error.to_string()), Seen::Done))
        });
        plugin::install(client(announced.await?).await).await
    };
    cost("boots");
    let booted = Node::boot(&options, |event| println!("{event}"));
    let (node, case) = tokio::try_join!(
        async { booted.await.map_err(|error| format!("the node did not boot: {}", chain(&error))) },
        async { installed.await.map_err(|error: Failure| format!("the plugin is not installed: {}", chain(&error))) },
    )
    .unwrap_or_else(|error| panic!("{error}"));
    let console = fs::read_to_string(node.console()).unwrap();
    // The archive with the plugin is on another disk, and the kernel numbers both disks in the order of their
    // discovery.
    expect(&console, "initramfs: /dev/nvme");
    expect(&console, "n1p2 (partition SYSTEM-A");
    let loaded = console.lines().find(|line| line.contains("drivers loaded")).expect("a line about drivers");
    for driver in ["e1000e", "igb", "vmxnet3"] {
        expect(loaded, driver);
    }
    let screen = setting.file("screen.ppm");
    node.screenshot(&screen).await.unwrap();
    let screen = fs::read(screen).unwrap();
    let written = pixels(&screen).filter(|pixel| *pixel == CONSOLE_TEXT).count();
    assert!(written > 2000, "{written} pixels of text are on the screen");
    let access = async {
        administrator.enters(&node, status.host).await;
        kubelet::accepts_clients_with_rights_only(&node, kubelet.host, &case).await;
    };
    let ((), used, reported) = tokio::join!(access, plugin::is_used(&case), fault::is_reported(&case));
    used.and(reported).unwrap_or_else(|error| panic!("{}", chain(&error)));
    node.shut_down(SHUTDOWN_LIMIT).await.unwrap();
}

/// A user with a key and a certificate request, as docs/operations/install.md describes.
struct Administrator {
    request: String,
    key: KeyPair,
}

impl Administrator {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Self { request: params.serialize_request(&key).unwrap().pem().unwrap(), key }
    }

    /// Reads the certificates from the status port, like another machine does. Compares the CA with the digest on the
    /// console, and requests objects that only an administrator can read.
    async fn enters(&self, node: &Node, status: u16) {
        let (line, ca) = read(status, "/ca.crt").await;
        assert!(line.contains(" 200 "), "{line}");
        let wanted = format!("digest of the cluster's CA ca={}", ca_digest(&ca).expect("a certificate"));
        let printed = eventually(PATIENCE, "the CA's digest on the console", async || {
            let console = fs::read(node.console()).unwrap_or_default();
            let console = String::from_utf8_lossy(&console).into_owned();
            Ok(if console.contains(&wanted) { Seen::Done(()) } else { Seen::NotYet(console) })
        });
        printed.await.unwrap_or_else(|error| panic!("{wanted:?}: {}", chain(&error)));
        let (line, certificate) = read(status, "/administrators/alice.crt").await;
        assert!(line.contains(" 200 "), "{line}");
        for path in ["/statusz", "/statusz.json", "/metrics", "/readyz", "/administrators/bob.crt"] {
            let (line, body) = read(status, path).await;
            assert!(line.contains(" 404 "), "{path}: {line} {body}");
        }

        let client = self.client(node.api_port(), &ca, &certificate).await;
        let reviews = Api::<SelfSubjectReview>::all(client.clone());
        let review = reviews.create(&PostParams::default(), &<_>::default()).await.unwrap();
        let user = review.status.and_then(|status| status.user_info).unwrap_or_default();
        let request: AdministratorRequest = self.request.parse().unwrap();
        assert_eq!(user.username, Some(request.user()));
        let groups = user.groups.unwrap_or_default();
        assert!(groups.iter().any(|group| group == ADMINISTRATORS_GROUP), "{groups:?}");
        assert!(!groups.iter().any(|group| group == "system:masters"), "{groups:?}");
        let secrets = Api::<Secret>::namespaced(client, "kube-system");
        let listed = eventually(PATIENCE, "the rights of the administrator", async || {
            match secrets.list(&ListParams::default()).await {
                Ok(_) => Ok(Seen::Done(())),
                Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(Seen::NotYet(status.message)),
                Err(error) => Err(Failure::api("list Secrets")(error)),
            }
        });
        listed.await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    }

    async fn client(&self, port: u16, ca: &str, certificate: &str) -> Client {
        let base64 = |pem: &str| ByteString(pem.as_bytes().to_vec());
        let user = json!({
            "client-certificate-data": base64(certificate), "client-key-data": base64(&self.key.serialize_pem()),
        });
        let cluster = json!({"server": format!("https://127.0.0.1:{port}"), "certificate-authority-data": base64(ca)});
        let kubeconfig: Kubeconfig = serde_json::from_value(json!({
            "clusters": [{"name": "granary", "cluster": cluster}],
            "users": [{"name": "alice", "user": user}],
            "contexts": [{"name": "granary", "context": {"cluster": "granary", "user": "alice"}}],
            "current-context": "granary",
        }))
        .unwrap();
        client(kubeconfig).await
    }
}

async fn client(kubeconfig: Kubeconfig) -> Client {
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    // A proxy from the environment cannot reach the loopback interface of this machine.
    config.proxy_url = None;
    Client::try_from(config).unwrap()
}

/// Status line and body of the response.
async fn read(port: u16, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer:?}"));
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

/// Grey of Linux' console. Firmware uses another color.
const CONSOLE_TEXT: [u8; 3] = [0xaa; 3];

/// Pixels of a picture in PPM format: `P6`, width, height and maximum value, each followed by white space.
fn pixels(picture: &[u8]) -> impl Iterator<Item = [u8; 3]> {
    let head = picture.split_inclusive(u8::is_ascii_whitespace).take(4).map(<[u8]>::len).sum::<usize>();
    picture[head..].chunks_exact(3).map(|pixel| [pixel[0], pixel[1], pixel[2]])
}

/// The initramfs verifies the first block, and the kernel verifies every block that it reads. kube-apiserver is the
/// first process of the damaged program. It starts when the data disk, the network and etcd are ready, so this boot
/// also uses a SATA disk and an igb card.
#[tokio::test]
async fn a_flipped_bit_of_a_program_stops_the_kernel_with_a_remedy() {
    let setting = Setting::from_target().unwrap();
    let mut options = setting.options();
    let start = start_of("/usr/bin/kube", &options.image.system);
    options.boot = Boot::Firmware(damaged(&setting, start + 100));
    options.hardware = Hardware { disks: DiskModel::Ahci, card: Card::Igb, more: Vec::new() };
    options.configuration = Some(json!({"network": {"driver": "igb"}}).to_string());
    let Stopped { stages, console } = boot_that_stops(&options).await;
    for stage in ["data-disk: ready", "network: ready"] {
        assert!(stages.iter().any(|event| event == stage), "{stage:?} is not in {stages:?}: {console}");
    }
    expect(&console, "/dev/sda2 (partition SYSTEM-A");
    expect(&console, "data disk mounted device=/dev/sda");
    let loaded = console.lines().find(|line| line.contains("drivers loaded")).expect("a line about drivers");
    expect(loaded, "igb");
    expect(&console, &format!("data block {} is corrupted", start / BLOCK));
    expect(&console, "Kernel panic - not syncing: dm-verity device corrupted");
    expect(&console, "write the image to the disk again");
}

/// The initramfs in the executable names the system. An argument that the machine adds would start another, unverified
/// system.
#[tokio::test]
async fn an_smbios_argument_with_another_system_stops_the_boot() {
    let setting = Setting::from_target().unwrap();
    let mut options = setting.options();
    options.boot = Boot::Firmware(setting.disk().unwrap());
    options.data = Data::File(setting.file("data.img"));
    options.kernel_arguments = "granary.system=5ad00000-0000-4000-8000-00000000000a".to_owned();
    let stopped = boot_that_stops(&options).await;
    expect(
        &stopped.console,
        "initramfs: error: the kernel command line has granary.system=, but a disk image starts its own system only",
    );
}

/// Position of a file's first block in the system image. `dump.erofs` prints one line per extent, with its bounds in
/// the file and in the image: `0:  0.. 122971 | 122971 :  73900032..  73965568 |  65536`.
fn start_of(file: &str, system: &Path) -> u64 {
    let dump = Command::new("dump.erofs").arg(format!("--path={file}")).arg("-e").arg(system).output();
    let dump = dump.expect("dump.erofs runs");
    let text = String::from_utf8_lossy(&dump.stdout);
    let first = text.lines().find_map(|line| line.trim_start().strip_prefix("0:"));
    let start = first.and_then(|line| line.split_once(':')?.1.split_once("..")?.0.trim().parse().ok());
    start.unwrap_or_else(|| panic!("no extent of {file}: {text}{}", String::from_utf8_lossy(&dump.stderr)))
}

/// Copies the disk image and flips a bit of this byte of the system image.
fn damaged(setting: &Setting, byte: u64) -> PathBuf {
    let path = setting.file("damaged.img");
    let disk = copied(&setting.disk().unwrap(), &path);
    let at = system(&disk) + byte;
    let mut found = [0];
    disk.read_exact_at(&mut found, at).unwrap();
    disk.write_all_at(&[found[0] ^ 0x10], at).unwrap();
    path
}

/// A boot that the guest ended by itself.
struct Stopped {
    stages: Vec<String>,
    console: String,
}

async fn boot_that_stops(options: &Options) -> Stopped {
    cost("boots");
    let mut stages = Vec::new();
    let booted = Node::boot(options, |event| {
        println!("{event}");
        stages.push(event.to_string());
    });
    let Err(error) = booted.await else { panic!("the node started") };
    assert!(matches!(error, BootError::Ended { .. }), "the guest did not end: {}", chain(&error));
    // The error has only the last lines.
    let console = fs::read(options.logs.join("console.log")).unwrap();
    Stopped { stages, console: String::from_utf8_lossy(&console).into_owned() }
}

fn expect(console: &str, wanted: &str) {
    assert!(console.contains(wanted), "{wanted:?} is not in {console}");
}

fn copied(from: &Path, to: &Path) -> File {
    let mut from = File::open(from).unwrap();
    let to = File::options().read(true).write(true).create_new(true).open(to).unwrap();
    to.set_len(from.metadata().unwrap().len()).unwrap();
    let (mut buffer, mut at) = (vec![0; 64 << 10], 0);
    // Most of the image is zeros. A comparison of slices is fast; a loop over the bytes takes seconds without
    // optimization.
    let zeros = vec![0_u8; buffer.len()];
    loop {
        let length = from.read(&mut buffer).unwrap();
        if length == 0 {
            return to;
        }
        if buffer[..length] != zeros[..length] {
            to.write_all_at(&buffer[..length], at).unwrap();
        }
        at += length as u64;
    }
}

fn system(disk: &File) -> u64 {
    let mut head = vec![0; gpt::Table::length(SECTOR)];
    disk.read_exact_at(&mut head, 0).unwrap();
    let table = gpt::Table::parse(&head, SECTOR).unwrap();
    let system = table.partitions().find(|partition| partition.name == "SYSTEM-A").unwrap();
    system.first * u64::from(SECTOR)
}
