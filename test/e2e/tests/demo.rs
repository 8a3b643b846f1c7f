//! Output of the launcher during a whole run, to a pipe and on a terminal.

use e2e::cost;
use e2e::launcher::{Kind, Launched, directory};
use qemu::free_port;
use std::env;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Console line of a kernel that powers off, after the node has unmounted its disk.
const OFF: &str = "reboot: Power down";
/// Size of a new data disk, in bytes.
const NEW_SIZE: u64 = 8 << 30;

/// Console line of a node that imports an archive of images.
const IMPORTED: &str = "image imported";
/// Name of the image in the archive of both runs, which has the format of Docker.
const IMAGE: &str = "example.invalid/from-a-file:1";

const NODE_PORT: u16 = 30443;
const LIMIT: Duration = Duration::from_secs(120);
/// Pause after a failed request, because kubectl uses a CPU that the nodes need.
const STEP: Duration = Duration::from_millis(500);
const SERVICE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: api, namespace: demo}
spec:
  type: NodePort
  ports: [{name: https, port: 443, targetPort: 6443, nodePort: 30443}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: api-1, namespace: demo, labels: {kubernetes.io/service-name: api}}
addressType: IPv4
ports: [{name: https, port: 6443, protocol: TCP}]
endpoints: [{addresses: [10.0.2.15], conditions: {ready: true}}]
"#;

/// Beginning of the printed kubectl commands.
const KUBECTL: &str = "./bazelw run //:kubectl -- ";

/// Line about a claim below the table.
struct Note<'a> {
    before: &'a str,
    /// Text of the new note, in quotes.
    kept: &'a str,
}

#[test]
fn a_second_run_still_has_the_data_of_the_first() {
    let directory = directory();
    let file = directory.path().join("data.img");
    let data = format!("--data={}", file.display());

    let archive = env::var("GRANARY_ARCHIVE").expect("the test is run by its Bazel target");
    let archive = format!("--image={archive}");
    let first = first_run(&data, &archive);
    is_sparse(&file);

    let port = free_port().unwrap();
    let chosen = format!("--port={port}");
    let forwarded = free_port().unwrap();
    let forward = format!("--forward={forwarded}:{NODE_PORT}");
    let mut launched = Launched::start_whole(Kind::Terminal, &[&data, &archive, "--nodes=2", &chosen, &forward]);
    counted(2, 2);
    launched.wait_for("The nodes run. Ctrl-C shuts them down.");
    let text = launched.text().to_owned();
    for stage in ["granary    the node is Ready", "granary-1  the node is Ready"] {
        assert!(text.contains(stage), "no {stage:?} in {text}");
    }
    for (claim, kept) in ["demo/notes", "demo/disk"].into_iter().zip(&first) {
        assert_eq!(row(&text, claim)[1], "granary");
        assert_eq!(row(&text, claim)[3], kept.volume);
        let note = note(&text, claim);
        assert_eq!(note.before, format!("{claim} had the note of an earlier run, {}.", kept.note));
        assert_ne!(note.kept, kept.note);
    }
    for (claim, mode) in [("demo/notes-1", "Filesystem"), ("demo/disk-1", "Block")] {
        assert_eq!(row(&text, claim)[1..3], ["granary-1", mode]);
        assert_eq!(note(&text, claim).before, format!("{claim} was new and empty."));
    }
    for both in
        [["granary → granary-1: 10.244.", " reached 10.244."], ["granary-1 → granary: 10.244.", " reached 10.244."]]
    {
        let line =
            text.lines().find(|line| line.starts_with(both[0])).unwrap_or_else(|| panic!("no {both:?} in {text}"));
        assert!(line.contains(both[1]), "{line}");
    }
    is_sparse(&file.with_added_extension("1"));
    let kubectl = Kubectl::new();
    // kube-proxy programs the port with a delay, during which the printed commands run.
    create_the_service(&kubectl, &text);
    the_directions_lead_to_the_cluster(&kubectl, &text, port);
    the_forwarded_port_leads_to_a_node_port(&kubectl, &text, forwarded);
    the_pods_are_complete(&kubectl, &text);

    launched.type_ctrl_c();
    launched.wait_for("Shutting the nodes down, the workers first.");
    let ended = launched.end();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text);
    for console in [ended.console(), ended.worker_console()] {
        assert!(console.contains(OFF), "{console}");
    }
    assert!(!ended.console().contains(IMPORTED), "the first run has imported all archives: {}", ended.console());
}

struct FirstClaim {
    volume: String,
    note: String,
}

fn first_run(data: &str, archive: &str) -> [FirstClaim; 2] {
    let mut launched = Launched::start_whole(Kind::Pipe, &[data, archive, "--exit-after-demo"]);
    counted(1, 1);
    launched.wait_for("s  the node is Ready\n");
    let ended = launched.end();
    let text = &ended.text;
    assert_eq!(ended.status.code(), Some(0), "{text}");
    for step in ["claims demo/notes and demo/disk exist", "pod demo/writer has filled demo/notes"] {
        assert!(text.contains(step), "no {step:?} in {text}");
    }
    for line in [OFF, IMPORTED] {
        assert!(ended.console().contains(line), "{}", ended.console());
    }
    assert!(text.ends_with("Shutting the node down. Ctrl-C cuts its power.\nThe node is down.\n"), "{text}");
    assert!(!text.contains("kubeconfig  "), "{text}");

    let (notes, disk) = (row(text, "demo/notes"), row(text, "demo/disk"));
    assert_eq!((notes[1], notes[3], notes[5]), ("Filesystem", "64 MiB", "refused: ENOSPC"), "{text}");
    assert_eq!((disk[1], disk[3], disk[4], disk[5]), ("Block", "32 MiB", "32 MiB", "refused: ENOSPC"), "{text}");
    [("demo/notes", notes), ("demo/disk", disk)].map(|(claim, row)| {
        assert!(row[2].starts_with("pvc-"), "{row:?}");
        let Note { before, kept } = note(text, claim);
        assert_eq!(before, format!("{claim} was new and empty."));
        assert!(kept.starts_with("\"written at 2"), "{kept}");
        FirstClaim { volume: row[2].to_owned(), note: kept.to_owned() }
    })
}

/// Counts the guests and pods that the launcher starts.
fn counted(boots: u32, pods: u32) {
    (0..boots).for_each(|_| cost("boots"));
    (0..pods).for_each(|_| cost("pods"));
}

fn the_directions_lead_to_the_cluster(kubectl: &Kubectl, text: &str, port: u16) {
    let after = |title: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(title));
        found.unwrap_or_else(|| panic!("no {title:?} in {text}"))
    };
    let kubeconfig = after("kubeconfig  ");
    assert_eq!(after("kubectl     "), format!("{KUBECTL}--kubeconfig={kubeconfig} get pods -A"), "{text}");
    let kubeconfig = Path::new(kubeconfig);
    assert_eq!(kubeconfig.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // The first run has imported the image.
    let images =
        kubectl.run(&format!("--kubeconfig={} get node granary -o jsonpath={{.status.images}}", kubeconfig.display()));
    assert!(images.contains(IMAGE), "no {IMAGE} in {images}");
    let (server, _) = after("metrics     ").split_once("/api/").unwrap();
    assert_eq!(server, format!("https://127.0.0.1:{port}"));
    assert!(fs::read_to_string(kubeconfig).unwrap().contains(&format!("\"{server}\"")), "{server}");
    for log in text.lines().filter_map(|line| line.strip_prefix("logs        ")) {
        assert!(Path::new(log).is_file(), "{log}");
    }
    let lines: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(KUBECTL)?.1)).collect();
    let shown = ["writer-1", "\ngranary_", "\"node\": \"granary\"", "\ngranary_", "\"node\": \"granary-1\""];
    assert_eq!(lines.len(), shown.len(), "{text}");
    for (line, shown) in lines.into_iter().zip(shown) {
        let output = kubectl.run(line);
        assert!(output.contains(shown), "no {shown:?} of {line} in {output}");
    }
}

fn the_pods_are_complete(kubectl: &Kubectl, text: &str) {
    let kubeconfig = text.lines().find_map(|line| line.strip_prefix("kubeconfig  ")).unwrap();
    let condition = "jsonpath={.status.phase}=Succeeded";
    kubectl.run(&format!("--kubeconfig={kubeconfig} wait --for={condition} -n demo pod/writer pod/writer-1"));
    let messages = "jsonpath='{.items[*].status.containerStatuses[0].state.terminated.message}'";
    let messages = kubectl.run(&format!("--kubeconfig={kubeconfig} get pods writer writer-1 -n demo -o {messages}"));
    assert_eq!(messages, r#"{"check":"serve"} {"check":"serve"}"#);
}

/// The Service forwards to the API server, whose certificate is valid for 127.0.0.1.
fn create_the_service(kubectl: &Kubectl, text: &str) {
    let kubeconfig = text.lines().find_map(|line| line.strip_prefix("kubeconfig  ")).unwrap();
    let place = directory();
    let manifest = place.path().join("service.yaml");
    fs::write(&manifest, SERVICE).unwrap();
    // Validation would make kubectl download the description of all kinds.
    kubectl.run(&format!("--kubeconfig={kubeconfig} create --validate=false -f {}", manifest.display()));
}

/// The request uses kubectl, because curl would be another dependency.
fn the_forwarded_port_leads_to_a_node_port(kubectl: &Kubectl, text: &str, port: u16) {
    let kubeconfig = text.lines().find_map(|line| line.strip_prefix("kubeconfig  ")).unwrap();
    let start = Instant::now();
    let request = format!("--kubeconfig={kubeconfig} --server=https://127.0.0.1:{port} get --raw /readyz");
    loop {
        match kubectl.attempt(&request) {
            Ok(answer) => return assert_eq!(answer, "ok"),
            Err(error) => assert!(start.elapsed() < LIMIT, "port {port} does not lead to the Service: {error}"),
        }
        thread::sleep(STEP);
    }
}

/// kubectl with a separate home directory for its discovery cache.
struct Kubectl {
    home: TempDir,
}

impl Kubectl {
    fn new() -> Self {
        Self { home: directory() }
    }

    /// Runs a printed command, given its arguments after [`KUBECTL`], and returns the output.
    fn run(&self, arguments: &str) -> String {
        self.attempt(arguments).unwrap_or_else(|error| panic!("{arguments}: {error}"))
    }

    fn attempt(&self, arguments: &str) -> Result<String, String> {
        let program = env::var_os("GRANARY_KUBECTL").expect("the test is run by its Bazel target");
        // The printed line is written for a shell.
        let command = format!("exec \"$0\" {arguments} --request-timeout=2m");
        let mut shell = Command::new("/bin/sh");
        let output = shell.arg("-c").arg(command).arg(program).env("HOME", self.home.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(format!("{}: {stderr}", output.status)),
        }
    }
}

/// Cells of a claim's row in the table. At least two spaces separate the columns.
fn row<'a>(text: &'a str, claim: &str) -> Vec<&'a str> {
    let cells = |line: &'a str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>();
    let found = text.lines().map(cells).find(|cells| cells.len() >= 7 && cells[0] == claim);
    found.unwrap_or_else(|| panic!("no row of {claim} in {text}"))
}

fn note<'a>(text: &'a str, claim: &str) -> Note<'a> {
    let mut notes = text.lines().filter_map(|line| line.strip_suffix('.')?.split_once(" It keeps the note "));
    let found = notes.find(|(before, _)| before.split(' ').next() == Some(claim));
    let (before, kept) = found.unwrap_or_else(|| panic!("no note of {claim} in {text}"));
    Note { before, kept }
}

fn is_sparse(file: &Path) {
    let metadata = file.metadata().unwrap();
    assert_eq!(metadata.len(), NEW_SIZE);
    // `st_blocks` counts units of 512 bytes, stat(2).
    assert!(metadata.blocks() * 512 < NEW_SIZE / 2, "{} blocks", metadata.blocks());
}
