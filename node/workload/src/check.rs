//! Checks and their command lines.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Option that keeps the files of [`Check::Fill`] and [`Check::FillInodes`].
const KEEP: &str = "--keep";

/// A check. Paths are paths in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// `inspect PATH`: size, inodes and mount flags of the file system at the path, owner and mode of the path.
    Inspect { path: PathBuf },
    /// `fill PATH [--keep]`: writes a file in the directory until the first error.
    Fill { path: PathBuf, keep: bool },
    /// `fill-inodes PATH [--keep]`: creates empty files in the directory until the first error.
    FillInodes { path: PathBuf, keep: bool },
    /// `write PATH TEXT`: writes a file, in a directory that it creates if it is missing, or the beginning of a device,
    /// and makes it durable.
    Write { path: PathBuf, text: String },
    /// `read PATH`: reads a file or device up to the first zero byte, at most [`Check::READ_LIMIT`] bytes.
    Read { path: PathBuf },
    /// `try-write PATH`: whether the container can create and write a file, or write the first block of a device.
    TryWrite { path: PathBuf },
    /// `paint PATH TEXT`: repeats the text on a whole device or in a file in a directory until the first error, and
    /// makes it durable.
    Paint { path: PathBuf, text: String },
    /// `scan PATH TEXT`: searches a whole device, or all files and the free space of a directory, for the text.
    Scan { path: PathBuf, text: String },
    /// `checksum PATH`: SHA-256 of a whole file or device.
    Checksum { path: PathBuf },
    /// `execute PATH`: copies this program into the directory and runs the copy.
    Execute { path: PathBuf },
    /// `device PATH`: size and properties of a block device.
    Device { path: PathBuf },
    /// `direct PATH`: writes the first block of a device with direct I/O, and reads it back with direct I/O.
    Direct { path: PathBuf },
    /// `demo PATH TEXT`: reads the note of an earlier run, writes a new one, and fills the volume until the first
    /// error. The note is a file in a directory, or at the beginning of a device.
    Demo { path: PathBuf, text: String },
    /// `volumes PATH`: names and projects below a directory of the node, two levels deep, all projects of its file system, loop
    /// devices, and mounts of volumes. Needs `CAP_SYS_ADMIN` and the process IDs of the node.
    Volumes { path: PathBuf },
    /// `signal PROGRAM NUMBER`: sends a signal to a program that PID 1 of the node started, or to PID 1 (`init`).
    /// Signal 0 only searches for the program. Needs the process IDs of the node.
    Signal { program: String, number: i32 },
    /// `settings KEY…`: kernel settings (sysctl) in the namespaces of the node, named as in sysctl.d(5); `*` stands for
    /// each network interface. Needs `CAP_SYS_ADMIN`, `CAP_SYS_PTRACE` and the process IDs of the node.
    Settings { keys: Vec<String> },
    /// `listeners`: TCP and UDP sockets in the container's network namespace that wait for clients.
    Listeners,
    /// `unshare`: whether a thread may create a user namespace. A seccomp filter such as containerd's default returns
    /// EPERM. Without a filter the error is EINVAL, because the program has several threads.
    Unshare,
    /// `fetch ADDRESS TARGET`: the response of an HTTP server to `GET TARGET`.
    Fetch { address: SocketAddr, target: String },
    /// `exchange ADDRESS TEXT`: sends the text to a server of any protocol, and reads the response up to the end of the
    /// connection.
    Exchange { address: SocketAddr, text: String },
    /// `resolve NAME A|SRV`: queries the container's name server for the name, with its search path.
    Resolve { name: String, record: Record },
    /// `webhook PORT DIRECTORY`: runs an admission webhook until SIGTERM. The webhook denies all requests, and its
    /// message contains the name of this pod; see [`crate::webhook`]. The directory contains `tls.crt` and `tls.key`.
    Webhook { port: u16, path: PathBuf },
    /// `serve PORT [FILE]`: runs checks that are requested over HTTP, until SIGTERM, and then writes
    /// [`FAREWELL`](crate::serve::FAREWELL) to the file; see [`crate::serve`].
    Serve { port: u16, farewell: Option<PathBuf> },
    /// `end`: ends the program of [`Check::Serve`] after the response, as SIGTERM does.
    End,
}

/// Types of DNS records, with their numbers: RFC 1035, 3.2.2, and RFC 2782.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    A = 1,
    Srv = 33,
}

const RECORDS: [(&str, Record); 2] = [("A", Record::A), ("SRV", Record::Srv)];

impl Check {
    /// Maximum length of the text of [`Check::Read`]. The termination message in a pod's status has at most 4 KiB.
    pub const READ_LIMIT: u64 = 2048;

    /// Command lines of all checks, for usage errors.
    pub(crate) const FORMS: &str = "inspect PATH, fill PATH [--keep], fill-inodes PATH [--keep], write PATH TEXT, \
         read PATH, try-write PATH, paint PATH TEXT, scan PATH TEXT, checksum PATH, execute PATH, device PATH, \
         direct PATH, demo PATH TEXT, volumes PATH, signal PROGRAM NUMBER, settings KEY…, listeners, unshare, \
         fetch ADDRESS TARGET, exchange ADDRESS TEXT, resolve NAME A|SRV, webhook PORT DIRECTORY, serve PORT [FILE], end";

    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let check = match *words {
            ["inspect", path] => Self::Inspect { path: path.into() },
            ["fill", path] => Self::Fill { path: path.into(), keep: false },
            ["fill", path, KEEP] => Self::Fill { path: path.into(), keep: true },
            ["fill-inodes", path] => Self::FillInodes { path: path.into(), keep: false },
            ["fill-inodes", path, KEEP] => Self::FillInodes { path: path.into(), keep: true },
            ["write", path, text] => Self::Write { path: path.into(), text: text.to_owned() },
            ["read", path] => Self::Read { path: path.into() },
            ["try-write", path] => Self::TryWrite { path: path.into() },
            ["paint", path, text] => Self::Paint { path: path.into(), text: text.to_owned() },
            ["scan", path, text] => Self::Scan { path: path.into(), text: text.to_owned() },
            ["checksum", path] => Self::Checksum { path: path.into() },
            ["execute", path] => Self::Execute { path: path.into() },
            ["device", path] => Self::Device { path: path.into() },
            ["direct", path] => Self::Direct { path: path.into() },
            ["demo", path, text] => Self::Demo { path: path.into(), text: text.to_owned() },
            ["volumes", path] => Self::Volumes { path: path.into() },
            ["signal", program, number] => Self::Signal { program: program.to_owned(), number: number.parse().ok()? },
            ["settings", _, ..] => Self::Settings { keys: words.iter().skip(1).map(|&word| word.to_owned()).collect() },
            ["listeners"] => Self::Listeners,
            ["unshare"] => Self::Unshare,
            ["fetch", address, target] => Self::Fetch { address: address.parse().ok()?, target: target.to_owned() },
            ["exchange", address, text] => Self::Exchange { address: address.parse().ok()?, text: text.to_owned() },
            ["resolve", name, record] => {
                let (_, record) = RECORDS.into_iter().find(|(word, _)| *word == record)?;
                Self::Resolve { name: name.to_owned(), record }
            }
            ["webhook", port, path] => Self::Webhook { port: port.parse().ok()?, path: path.into() },
            ["serve", port] => Self::Serve { port: port.parse().ok()?, farewell: None },
            ["serve", port, path] => Self::Serve { port: port.parse().ok()?, farewell: Some(path.into()) },
            ["end"] => Self::End,
            _ => return None,
        };
        Some(check)
    }

    pub(crate) fn words(&self) -> Vec<String> {
        let path_of = |path: &PathBuf| path.to_string_lossy().into_owned();
        let path_and_keep = |path: &PathBuf, keep: bool| -> Vec<String> {
            std::iter::once(path_of(path)).chain(keep.then(|| KEEP.to_owned())).collect()
        };
        let (word, rest): (_, Vec<String>) = match self {
            Self::Inspect { path } => ("inspect", vec![path_of(path)]),
            Self::Fill { path, keep } => ("fill", path_and_keep(path, *keep)),
            Self::FillInodes { path, keep } => ("fill-inodes", path_and_keep(path, *keep)),
            Self::Write { path, text } => ("write", vec![path_of(path), text.clone()]),
            Self::Read { path } => ("read", vec![path_of(path)]),
            Self::TryWrite { path } => ("try-write", vec![path_of(path)]),
            Self::Paint { path, text } => ("paint", vec![path_of(path), text.clone()]),
            Self::Scan { path, text } => ("scan", vec![path_of(path), text.clone()]),
            Self::Checksum { path } => ("checksum", vec![path_of(path)]),
            Self::Execute { path } => ("execute", vec![path_of(path)]),
            Self::Device { path } => ("device", vec![path_of(path)]),
            Self::Direct { path } => ("direct", vec![path_of(path)]),
            Self::Demo { path, text } => ("demo", vec![path_of(path), text.clone()]),
            Self::Volumes { path } => ("volumes", vec![path_of(path)]),
            Self::Signal { program, number } => ("signal", vec![program.clone(), number.to_string()]),
            Self::Settings { keys } => ("settings", keys.clone()),
            Self::Listeners => ("listeners", Vec::new()),
            Self::Unshare => ("unshare", Vec::new()),
            Self::Fetch { address, target } => ("fetch", vec![address.to_string(), target.clone()]),
            Self::Exchange { address, text } => ("exchange", vec![address.to_string(), text.clone()]),
            Self::Resolve { name, record } => {
                let word = RECORDS.iter().find(|(_, known)| known == record).map_or("", |(word, _)| *word);
                ("resolve", vec![name.clone(), word.to_owned()])
            }
            Self::Webhook { port, path } => ("webhook", vec![port.to_string(), path_of(path)]),
            Self::Serve { port, farewell } => {
                ("serve", std::iter::once(port.to_string()).chain(farewell.as_ref().map(path_of)).collect())
            }
            Self::End => ("end", Vec::new()),
        };
        std::iter::once(word.to_owned()).chain(rest).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    pub(crate) fn any_check() -> impl Strategy<Value = Check> {
        let path = || "/[a-z]{1,8}".prop_map(PathBuf::from);
        let text = || "[ -~]{0,12}|\\PC{0,4}";
        prop_oneof![
            path().prop_map(|path| Check::Inspect { path }),
            (path(), any::<bool>()).prop_map(|(path, keep)| Check::Fill { path, keep }),
            (path(), any::<bool>()).prop_map(|(path, keep)| Check::FillInodes { path, keep }),
            (path(), text()).prop_map(|(path, text)| Check::Write { path, text }),
            path().prop_map(|path| Check::Read { path }),
            path().prop_map(|path| Check::TryWrite { path }),
            (path(), text()).prop_map(|(path, text)| Check::Paint { path, text }),
            (path(), text()).prop_map(|(path, text)| Check::Scan { path, text }),
            path().prop_map(|path| Check::Checksum { path }),
            path().prop_map(|path| Check::Execute { path }),
            path().prop_map(|path| Check::Device { path }),
            path().prop_map(|path| Check::Direct { path }),
            (path(), text()).prop_map(|(path, text)| Check::Demo { path, text }),
            path().prop_map(|path| Check::Volumes { path }),
            ("[a-z-]{1,9}", any::<i32>()).prop_map(|(program, number)| Check::Signal { program, number }),
            prop::collection::vec("[a-z0-9./*]{1,12}", 1..4).prop_map(|keys| Check::Settings { keys }),
            Just(Check::Listeners),
            Just(Check::Unshare),
            (any::<IpAddr>(), any::<u16>(), text())
                .prop_map(|(host, port, target)| Check::Fetch { address: SocketAddr::new(host, port), target }),
            (any::<IpAddr>(), any::<u16>(), text())
                .prop_map(|(host, port, text)| Check::Exchange { address: SocketAddr::new(host, port), text }),
            ("[a-z.]{1,9}", prop::sample::select(vec![Record::A, Record::Srv]))
                .prop_map(|(name, record)| Check::Resolve { name, record }),
            (any::<u16>(), path()).prop_map(|(port, path)| Check::Webhook { port, path }),
            (any::<u16>(), prop::option::of(path())).prop_map(|(port, farewell)| Check::Serve { port, farewell }),
            Just(Check::End),
        ]
    }

    #[test]
    fn usage_has_all_words() {
        for word in [
            "try-write",
            "fill-inodes",
            "signal",
            "settings",
            "listeners",
            "unshare",
            "fetch",
            "exchange",
            "resolve",
            "webhook",
            "serve",
            "end",
        ] {
            assert!(Check::FORMS.split(", ").any(|form| form.starts_with(word)), "{word}");
        }
    }
}
