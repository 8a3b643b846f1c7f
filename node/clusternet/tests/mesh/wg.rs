//! State of an interface in the kernel, read with wg(8).

use std::process::Command;

use ktest_support::Namespace;

const WG: &str = "/usr/bin/wg";

/// Peers, sorted: key, endpoint, ranges.
pub fn peers(host: &Namespace, interface: &'static str) -> Vec<String> {
    let line = |fields: Vec<String>| {
        let mut ranges: Vec<&str> = fields[3].split(',').collect();
        ranges.sort_unstable();
        format!("{} {} {}", fields[0], fields[2], ranges.join(","))
    };
    let mut peers: Vec<String> = dump(host, interface).into_iter().map(line).collect();
    peers.sort();
    peers
}

/// Traffic of each peer: time of the last handshake in seconds, bytes received, bytes sent.
pub fn traffic(host: &Namespace, interface: &'static str) -> Vec<(String, [u64; 3])> {
    let number = |text: &String| text.parse().expect("a number");
    let peer = |fields: Vec<String>| (fields[0].clone(), [4, 5, 6].map(|field| number(&fields[field])));
    dump(host, interface).into_iter().map(peer).collect()
}

/// Interval of keepalives of each peer in seconds, or `off`.
pub fn keepalives(host: &Namespace, interface: &'static str) -> Vec<String> {
    dump(host, interface).into_iter().map(|mut fields| fields.swap_remove(7)).collect()
}

fn dump(host: &Namespace, interface: &'static str) -> Vec<Vec<String>> {
    let output = host.run(move || Command::new(WG).args(["show", interface, "dump"]).output().expect("wg runs"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    // The first line describes the interface.
    text.lines().skip(1).map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}
