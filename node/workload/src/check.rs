//! What the program can look at, and how it is asked for.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Leaves what was written by [`Check::Fill`] and [`Check::FillInodes`] behind.
const KEEP: &str = "--keep";

/// What to look at. Paths are those of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// `inspect PATH`: size, inodes and flags of the file system there, owner and mode of the path.
    Inspect {
        /// Any path.
        path: PathBuf,
    },
    /// `fill PATH [--keep]`: writes a file in the directory until the first error.
    Fill {
        /// A directory.
        path: PathBuf,
        /// Whether the file stays.
        keep: bool,
    },
    /// `fill-inodes PATH [--keep]`: makes empty files in the directory until the first error.
    FillInodes {
        /// A directory.
        path: PathBuf,
        /// Whether the files stay.
        keep: bool,
    },
    /// `write PATH TEXT`: makes a file durable, or the beginning of a device.
    Write {
        /// The file or device.
        path: PathBuf,
        /// Its new content.
        text: String,
    },
    /// `read PATH`: at most [`Check::READ_LIMIT`] bytes, to the first zero.
    Read {
        /// The file or device.
        path: PathBuf,
    },
    /// `try-write PATH`: whether a file can be made and written, or a device's first block.
    TryWrite {
        /// The file or device.
        path: PathBuf,
    },
    /// `paint PATH TEXT`: writes the text over and over, to a whole device or to a file in a directory, until
    /// the first error, and makes it durable.
    Paint {
        /// A device or a directory.
        path: PathBuf,
        /// What is written.
        text: String,
    },
    /// `scan PATH TEXT`: looks for the text on a whole device, or in a directory in all files and in all space
    /// that can still be had.
    Scan {
        /// A device or a directory.
        path: PathBuf,
        /// What is looked for.
        text: String,
    },
    /// `checksum PATH`: SHA-256 of a whole file or device.
    Checksum {
        /// The file or device.
        path: PathBuf,
    },
    /// `execute PATH`: copies this program into the directory and runs the copy.
    Execute {
        /// A directory.
        path: PathBuf,
    },
    /// `device PATH`: size and properties of a block device.
    Device {
        /// The device.
        path: PathBuf,
    },
    /// `direct PATH`: writes the first block past the page cache, and reads it back the same way.
    Direct {
        /// The device.
        path: PathBuf,
    },
    /// `demo PATH TEXT`: finds the note that an earlier run left, leaves a new one, and writes what else there is
    /// of the volume, to the first error. A directory then keeps only the note; it is at the beginning of a device.
    Demo {
        /// A directory or a device.
        path: PathBuf,
        /// The note.
        text: String,
    },
    /// `volumes PATH`: the node's side. Names and projects of what lies below a directory of the node, two levels
    /// deep, every project of its file system, loop devices, and where volumes are mounted. Needs `CAP_SYS_ADMIN`
    /// and the node's process IDs.
    Volumes {
        /// The node's directory of volumes.
        path: PathBuf,
    },
    /// `signal PROGRAM NUMBER`: sends a signal to a program that the node itself started, or to the node (`init`).
    /// Needs the node's process IDs.
    Signal {
        /// The program's name.
        program: String,
        /// The signal's number; 0 sends nothing, and finds the program.
        number: i32,
    },
    /// `settings KEY…`: settings of the kernel, as the node's own processes see them. Needs `CAP_SYS_ADMIN`, `CAP_SYS_PTRACE`
    /// and the node's process IDs.
    Settings {
        /// As sysctl.d(5) writes them: `net.ipv4.conf.*.rp_filter` is a setting of each network interface.
        keys: Vec<String>,
    },
    /// `unshare`: whether a thread may ask for a user namespace, which needs no right. A filter of system calls such as
    /// containerd's default one answers EPERM; without a filter it is EINVAL, since the program has several threads.
    Unshare,
    /// `fetch ADDRESS TARGET`: what a server answers to `GET TARGET`, by HTTP.
    Fetch {
        /// Where it listens.
        address: SocketAddr,
        /// Path and query.
        target: String,
    },
    /// `webhook PORT DIRECTORY`: refuses what an API server asks about by HTTPS, with this pod's name as the reason, until
    /// SIGTERM; see [`crate::webhook`].
    Webhook {
        /// Of all addresses of the container.
        port: u16,
        /// Has the certificate `tls.crt` and its key `tls.key`, as a Secret of the type `kubernetes.io/tls` has them.
        path: PathBuf,
    },
    /// `serve PORT [FILE]`: makes checks for whoever asks over HTTP, until SIGTERM; see [`crate::serve`].
    Serve {
        /// Of all addresses of the container.
        port: u16,
        /// Where [`FAREWELL`](crate::serve::FAREWELL) is written then.
        farewell: Option<PathBuf>,
    },
}

impl Check {
    /// Most that [`Check::Read`] returns, in bytes: a container's message in the pod's status holds 4 KiB.
    pub const READ_LIMIT: u64 = 2048;

    /// The forms that [`Check::parse`] takes, for who has to correct one.
    pub(crate) const FORMS: &str = "inspect PATH, fill PATH [--keep], fill-inodes PATH [--keep], write PATH TEXT, \
         read PATH, try-write PATH, paint PATH TEXT, scan PATH TEXT, checksum PATH, execute PATH, device PATH, \
         direct PATH, demo PATH TEXT, volumes PATH, signal PROGRAM NUMBER, settings KEY…, unshare, \
         fetch ADDRESS TARGET, webhook PORT DIRECTORY, serve PORT [FILE]";

    /// Reads its words; `None` if one is unknown, or one too many or too few.
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
            ["unshare"] => Self::Unshare,
            ["fetch", address, target] => Self::Fetch { address: address.parse().ok()?, target: target.to_owned() },
            ["webhook", port, path] => Self::Webhook { port: port.parse().ok()?, path: path.into() },
            ["serve", port] => Self::Serve { port: port.parse().ok()?, farewell: None },
            ["serve", port, path] => Self::Serve { port: port.parse().ok()?, farewell: Some(path.into()) },
            _ => return None,
        };
        Some(check)
    }

    /// The words that [`Check::parse`] reads back.
    pub(crate) fn words(&self) -> Vec<String> {
        let with_path = |word: &str, path: &PathBuf| vec![word.to_owned(), path.to_string_lossy().into_owned()];
        let with_text = |word: &str, path: &PathBuf, text: &str| {
            let mut words = with_path(word, path);
            words.push(text.to_owned());
            words
        };
        let with_keep = |word: &str, path: &PathBuf, keep: bool| {
            let mut words = with_path(word, path);
            words.extend(keep.then(|| KEEP.to_owned()));
            words
        };
        match self {
            Self::Inspect { path } => with_path("inspect", path),
            Self::Fill { path, keep } => with_keep("fill", path, *keep),
            Self::FillInodes { path, keep } => with_keep("fill-inodes", path, *keep),
            Self::Write { path, text } => with_text("write", path, text),
            Self::Read { path } => with_path("read", path),
            Self::TryWrite { path } => with_path("try-write", path),
            Self::Paint { path, text } => with_text("paint", path, text),
            Self::Scan { path, text } => with_text("scan", path, text),
            Self::Checksum { path } => with_path("checksum", path),
            Self::Execute { path } => with_path("execute", path),
            Self::Device { path } => with_path("device", path),
            Self::Direct { path } => with_path("direct", path),
            Self::Demo { path, text } => with_text("demo", path, text),
            Self::Volumes { path } => with_path("volumes", path),
            Self::Signal { program, number } => vec!["signal".to_owned(), program.clone(), number.to_string()],
            Self::Settings { keys } => std::iter::once("settings".to_owned()).chain(keys.iter().cloned()).collect(),
            Self::Unshare => vec!["unshare".to_owned()],
            Self::Fetch { address, target } => vec!["fetch".to_owned(), address.to_string(), target.clone()],
            Self::Webhook { port, path } => vec!["webhook".to_owned(), port.to_string(), path.display().to_string()],
            Self::Serve { port, farewell } => {
                let mut words = vec!["serve".to_owned(), port.to_string()];
                words.extend(farewell.as_ref().map(|path| path.display().to_string()));
                words
            }
        }
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
            Just(Check::Unshare),
            (any::<IpAddr>(), any::<u16>(), text())
                .prop_map(|(host, port, target)| Check::Fetch { address: SocketAddr::new(host, port), target }),
            (any::<u16>(), path()).prop_map(|(port, path)| Check::Webhook { port, path }),
            (any::<u16>(), prop::option::of(path())).prop_map(|(port, farewell)| Check::Serve { port, farewell }),
        ]
    }

    proptest! {
        #[test]
        fn words_read_back_as_the_check(check in any_check()) {
            let words = check.words();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            prop_assert_eq!(Check::parse(&words), Some(check));
        }
    }

    #[test]
    fn a_word_too_many_or_too_few_is_no_check() {
        assert_eq!(Check::parse(&["inspect", "/data", "now"]), None);
        assert_eq!(Check::parse(&["fill"]), None);
        assert_eq!(Check::parse(&["serve", "99999"]), None);
    }

    #[test]
    fn every_word_stands_in_the_forms() {
        for word in ["try-write", "fill-inodes", "signal", "settings", "unshare", "fetch", "webhook", "serve"] {
            assert!(Check::FORMS.split(", ").any(|form| form.starts_with(word)), "{word}");
        }
    }
}
