//! Sockets that wait for clients, as the kernel lists them in `/proc/net`, proc_net(5).

use crate::CheckError;
use crate::finding::{Listener, Listeners};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

const ROOT: &str = "/proc/net";

/// Tables with their protocol and the state of a waiting socket, include/net/tcp_states.h: `TCP_LISTEN`, or `TCP_CLOSE`
/// of a UDP socket that is not connected to one peer.
const TABLES: [(&str, &str, &str); 4] =
    [("tcp", "TCP", "0A"), ("tcp6", "TCP", "0A"), ("udp", "UDP", "07"), ("udp6", "UDP", "07")];

pub(crate) fn list() -> Result<Listeners, CheckError> {
    below(Path::new(ROOT))
}

fn below(root: &Path) -> Result<Listeners, CheckError> {
    let mut listeners = Vec::new();
    for (table, protocol, waiting) in TABLES {
        let path = root.join(table);
        let text = match fs::read_to_string(&path) {
            // The kernel has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            read => read.map_err(CheckError::of("read", &path))?,
        };
        for line in text.lines().skip(1) {
            let found = socket(line).ok_or_else(|| io::Error::other(format!("unknown line {line:?}")));
            let (address, port, state) = found.map_err(CheckError::of("parse", &path))?;
            if state == waiting {
                listeners.push(Listener { protocol: protocol.to_owned(), address, port });
            }
        }
    }
    Ok(Listeners { listeners })
}

/// Local address, local port and state in a line `NUMBER: LOCAL:PORT REMOTE:PORT STATE …`.
fn socket(line: &str) -> Option<(IpAddr, u16, &str)> {
    let mut fields = line.split_whitespace().skip(1);
    let (address, port) = fields.next()?.split_once(':')?;
    let state = fields.nth(1)?;
    Some((ip(address)?, u16::from_str_radix(port, 16).ok()?, state))
}

/// Parses an address. The kernel prints each four bytes as a number in the byte order of this machine. An IPv6 socket
/// can have an IPv4 address.
fn ip(digits: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for start in (0..digits.len()).step_by(8) {
        let word = u32::from_str_radix(digits.get(start..start + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    match <[u8; 4]>::try_from(&*bytes) {
        Ok(four) => Some(four.into()),
        Err(_) => <[u8; 16]>::try_from(&*bytes).ok().map(|all| IpAddr::from(all).to_canonical()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
    const REST: &str = "00000000:00000000 00:00000000 00000000     0        0 4242 1 0000000000000000 100 0 0 10 0\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn sockets_of_clients_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        for (table, lines) in [
            ("tcp", ["0100007F:094B 00000000:0000 0A", "0F02000A:280A 0202000A:D431 01"]),
            ("udp", ["00000000:0044 00000000:0000 07", "0F02000A:C001 352000C0:0035 01"]),
            (
                "tcp6",
                [
                    "00000000000000000000000000000000:192B 00000000000000000000000000000000:0000 0A",
                    "0000000000000000FFFF00000100007F:1F90 00000000000000000000000000000000:0000 0A",
                ],
            ),
        ] {
            let lines = lines.iter().enumerate().map(|(number, line)| format!("  {number:2}: {line} {REST}"));
            fs::write(root.path().join(table), std::iter::once(HEAD.to_owned()).chain(lines).collect::<String>())
                .unwrap();
        }
        let found = below(root.path()).unwrap().listeners;
        let found: Vec<_> = found.iter().map(|one| format!("{} {} {}", one.protocol, one.address, one.port)).collect();
        assert_eq!(found, ["TCP 127.0.0.1 2379", "TCP :: 6443", "TCP 127.0.0.1 8080", "UDP 0.0.0.0 68"]);
    }

    #[test]
    fn an_unknown_line_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("udp"), format!("{HEAD}   0: 0100007F 00000000:0000 07 {REST}")).unwrap();
        let error = below(root.path()).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot parse {}", root.path().join("udp").display()));
    }
}
