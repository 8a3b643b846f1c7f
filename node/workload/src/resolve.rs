//! DNS queries, with the settings of the container (resolv.conf(5)) or to a given server.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use crate::CheckError;
use crate::check::Record;
use crate::finding::Resolved;

/// Time limit of a query. CoreDNS waits less for the node's name servers.
const LIMIT: Duration = Duration::from_secs(10);

const PORT: u16 = 53;
/// Maximum length of a UDP response without EDNS: a server truncates longer responses, RFC 1035, 4.2.1.
const LONGEST: usize = 512;
const HEADER: usize = 12;
/// Names of the response codes in the header: RFC 1035, 4.1.1.
const CODES: [&str; 6] = ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"];

struct Settings {
    server: Ipv4Addr,
    search: Vec<String>,
    /// Names with fewer dots are looked up in the search path first (`ndots`).
    dots: usize,
}

/// Looks the name up in the search path. Returns the response for the first name that exists, otherwise for the last
/// name.
pub(crate) fn look_up(name: &str, record: Record) -> Result<Resolved, CheckError> {
    let path = Path::new("/etc/resolv.conf");
    let text = fs::read_to_string(path).map_err(CheckError::of("read", path))?;
    let settings = Settings::parse(&text).ok_or(ErrorKind::NotFound);
    let settings = settings.map_err(CheckError::of("find a name server in", path))?;
    let mut last = Err(ErrorKind::InvalidInput.into());
    for candidate in settings.candidates(name) {
        last = ask(settings.server, &candidate, record);
        if !last.as_ref().is_ok_and(|found| found.code == "NXDOMAIN") {
            break;
        }
    }
    last.map_err(CheckError::of("look up", Path::new(name)))
}

impl Settings {
    fn parse(text: &str) -> Option<Self> {
        let words = || text.lines().map(|line| line.split_ascii_whitespace());
        let of = |key: &'static str| words().filter(move |line| line.clone().next() == Some(key));
        Some(Self {
            server: of("nameserver").find_map(|mut line| line.nth(1)?.parse().ok())?,
            search: of("search").flat_map(|line| line.skip(1)).map(str::to_owned).collect(),
            dots: of("options").flatten().find_map(|word| word.strip_prefix("ndots:")?.parse().ok()).unwrap_or(1),
        })
    }

    fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(absolute) = name.strip_suffix('.') {
            return vec![absolute.to_owned()];
        }
        let mut names: Vec<String> = self.search.iter().map(|domain| format!("{name}.{domain}")).collect();
        let at = if name.matches('.').count() < self.dots { names.len() } else { 0 };
        names.insert(at, name.to_owned());
        names
    }
}

/// Queries a server by UDP, or by TCP if the response is too long for a datagram. The name is absolute, without a dot
/// at its end.
pub fn ask(server: Ipv4Addr, name: &str, record: Record) -> io::Result<Resolved> {
    let query = query(name, record);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // With a connected socket, the kernel drops datagrams from other addresses.
    socket.connect((server, PORT))?;
    socket.set_read_timeout(Some(LIMIT))?;
    socket.send(&query)?;
    let mut bytes = [0; LONGEST];
    let length = socket.recv(&mut bytes)?;
    match parse(&bytes[..length], name, record) {
        Some(found) if found.truncated => by_tcp(server, &query, name, record),
        found => found.ok_or_else(|| ErrorKind::InvalidData.into()),
    }
}

/// Queries the server by TCP. The length of a message precedes it: RFC 1035, 4.2.2.
fn by_tcp(server: Ipv4Addr, query: &[u8], name: &str, record: Record) -> io::Result<Resolved> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((server, PORT)), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let length = u16::try_from(query.len()).map_err(|_| ErrorKind::InvalidInput)?;
    stream.write_all(&[&length.to_be_bytes()[..], query].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer)?;
    let found = parse(&answer, name, record).ok_or(ErrorKind::InvalidData)?;
    Ok(Resolved { truncated: true, ..found })
}

/// A query with one question of class IN and recursion. The ID is 0: the socket has a random port, and sends one query.
fn query(name: &str, record: Record) -> Vec<u8> {
    let mut bytes = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        let label = &label.as_bytes()[..label.len().min(63)];
        bytes.push(u8::try_from(label.len()).unwrap_or_default());
        bytes.extend_from_slice(label);
    }
    bytes.push(0);
    bytes.extend_from_slice(&(record as u16).to_be_bytes());
    bytes.extend_from_slice(&1_u16.to_be_bytes());
    bytes
}

/// Parses a response. `None` if the message is not a response. Skips records of other types, such as aliases.
fn parse(message: &[u8], name: &str, record: Record) -> Option<Resolved> {
    let number = |at: usize| Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]));
    let (flags, questions, answers) = (number(2)?, number(4)?, number(6)?);
    let code = CODES.get(usize::from(flags & 0xf))?;
    let mut at = HEADER;
    for _ in 0..questions {
        at = label_path(message, at)?.1 + 4;
    }
    let mut found = Vec::new();
    for _ in 0..answers {
        let start = label_path(message, at)?.1;
        let (kind, length) = (number(start)?, usize::from(number(start + 8)?));
        let data = start + 10;
        if kind == record as u16 {
            found.push(match record {
                Record::A => {
                    let bytes: [u8; 4] = message.get(data..data + 4)?.try_into().ok()?;
                    Ipv4Addr::from(bytes).to_string()
                }
                Record::Srv => format!("{} {}", number(data + 4)?, label_path(message, data + 6)?.0),
            });
        }
        at = data + length;
    }
    found.sort();
    Some(Resolved { name: name.to_owned(), code: (*code).to_owned(), answers: found, truncated: flags & 0x200 != 0 })
}

/// The name at an offset, and the offset behind it. Compression pointers lead backward (RFC 1035, 4.1.4), so the loop
/// ends.
fn label_path(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let (mut labels, mut end, mut least) = (Vec::new(), None, at);
    loop {
        match *message.get(at)? {
            0 => return Some((labels.join("."), end.unwrap_or(at + 1))),
            length @ 1..64 => {
                let next = at + 1 + usize::from(length);
                labels.push(String::from_utf8_lossy(message.get(at + 1..next)?).into_owned());
                at = next;
            }
            length @ 192.. => {
                end = end.or(Some(at + 2));
                let to = usize::from(u16::from_be_bytes([length & 0x3f, *message.get(at + 1)?]));
                if to >= least {
                    return None;
                }
                (at, least) = (to, to);
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings() -> Settings {
        Settings::parse(
            "search ns.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\nnameserver 192.0.2.1\noptions ndots:5\n",
        )
        .unwrap()
    }

    #[test]
    fn short_names_are_searched_first() {
        let settings = settings();
        assert_eq!(settings.server, Ipv4Addr::new(10, 96, 0, 10));
        assert_eq!(settings.candidates("a"), ["a.ns.svc.cluster.local", "a.svc.cluster.local", "a"]);
        assert_eq!(settings.candidates("a."), ["a"]);
        let long = "1.2.3.4.5.6";
        assert_eq!(settings.candidates(long)[0], long);
        assert!(Settings::parse("search a\n").is_none());
    }

    /// A response that repeats the question. Names of records point to the name of the question.
    fn answer(flags: [u8; 2], records: &[&[u8]]) -> Vec<u8> {
        let mut bytes = query("a.example", Record::A);
        bytes[2..4].copy_from_slice(&flags);
        bytes[7] = u8::try_from(records.len()).unwrap();
        records.iter().for_each(|record| bytes.extend_from_slice(record));
        bytes
    }

    const ALIAS: &[u8] = &[0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 5, 0, 2, 0xc0, 14];
    const ADDRESS: &[u8] = &[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 192, 0, 2, 7];
    const SERVICE: &[u8] = &[0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 5, 0, 10, 0, 0, 0, 100, 0x1f, 0x90, 1, b'b', 0xc0, 14];

    #[test]
    fn addresses_and_ports_are_read_past_aliases() {
        let message = answer([0x81, 0x80], &[ALIAS, ADDRESS, SERVICE]);
        let found = parse(&message, "a.example", Record::A).unwrap();
        assert_eq!((found.code.as_str(), found.truncated), ("NOERROR", false));
        assert_eq!(found.answers, ["192.0.2.7"]);
        assert_eq!(parse(&message, "a.example", Record::Srv).unwrap().answers, ["8080 b.example"]);
    }

    #[test]
    fn codes_and_truncation_are_read() {
        let missing = parse(&answer([0x81, 0x83], &[]), "a.example", Record::A).unwrap();
        assert_eq!((missing.code.as_str(), missing.answers.len()), ("NXDOMAIN", 0));
        assert!(parse(&answer([0x83, 0x80], &[]), "a.example", Record::A).unwrap().truncated);
    }

    proptest! {
        #[test]
        fn any_message_is_accepted(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            parse(&bytes, "a", Record::Srv);
            parse(&answer([0x81, 0x80], &[&bytes]), "a", Record::A);
        }
    }
}
