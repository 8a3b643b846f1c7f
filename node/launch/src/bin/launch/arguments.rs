//! The command line.

use crate::error::LaunchError;
use crate::name::ClusterName;
use clap::builder::PossibleValue;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches as _, Parser, ValueEnum};
use cluster::Overcommit;
use launch::{Boot, ClusterOptions, Data, Forward, Image, Nodes, Options};
use std::ffi::OsString;
use std::io;
use std::num::{NonZeroU8, NonZeroU16};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use units::Bytes;

/// Version of the program and of Kubernetes. Only Bazel passes the version of Kubernetes, which is in
/// third_party/kubernetes/go.mod.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let kubernetes = option_env!("KUBERNETES_VERSION").unwrap_or("of an unknown version");
    format!("{}, Kubernetes {kubernetes}", env!("CARGO_PKG_VERSION"))
});

const EXAMPLES: &str = "\
Examples, each after `./bazelw run //:launch --`:
  (no arguments)                               boots a node, shows claims in use, runs until Ctrl-C
  --nodes=3 --exit-after-demo                  the same with three nodes, without the wait
  start                                        boots the cluster `granary` in the background
  start --name=b --nodes=2 --data-size=20G     another cluster beside it
  start --name=b --kubeconfig                  adds the context `b` to your kubeconfig
  start --forward=8080:30080                   http://127.0.0.1:8080 leads to NodePort 30080
  status                                       lists the clusters
  stop --name=b                                shuts a cluster down; `start` boots it again with its data
  delete --name=b                              removes a cluster and its data";

/// Boots Granary nodes in QEMU, shows claims in use, and keeps the nodes running until Ctrl-C.
///
/// With several nodes, the others join the first one as workers, each node has a claim of each mode, and pods of
/// different nodes communicate through the mesh.
#[derive(Debug, Parser)]
#[command(name = "launch", display_name = "Granary", version = VERSION.as_str(), after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Command for a cluster that is kept. Without a command: boots nodes, shows claims in use, runs until Ctrl-C.
    #[arg(value_enum)]
    pub(crate) command: Option<Command>,
    /// Name of a cluster that is kept, with its own disks, ports and logs below ~/.local/state/granary; `granary` by
    /// default with a command. Without a name and a command, nothing is kept.
    #[arg(long, conflicts_with_all = ["data", "keep_logs"])]
    pub(crate) name: Option<ClusterName>,
    /// Adds a context with the name of the cluster to a kubeconfig, and makes it the current one: FILE, or the first
    /// file of KUBECONFIG, or ~/.kube/config. `delete` removes it.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    kubeconfig: Option<Option<PathBuf>>,
    /// Number of nodes, 1 to 8: the control plane (`granary`) and workers (`granary-1` and so on). One by default, or
    /// as many as a cluster that is kept has.
    #[arg(long, value_name = "COUNT")]
    pub(crate) nodes: Option<Nodes>,
    /// Memory of the control plane.
    #[arg(long, value_name = "SIZE", default_value = "2G")]
    memory: Bytes,
    /// Memory of each worker; 1 GiB by default.
    #[arg(long, value_name = "SIZE")]
    worker_memory: Option<Bytes>,
    /// CPUs of each node.
    #[arg(long, value_name = "COUNT", default_value = "2")]
    cpus: NonZeroU8,
    /// Port of 127.0.0.1 for the API server; a free one by default.
    #[arg(long)]
    port: Option<NonZeroU16>,
    /// Forwards a TCP port of 127.0.0.1 to a port of the control plane, such as a NodePort; repeatable.
    #[arg(long, value_name = "HOSTPORT:NODEPORT", value_parser = forward)]
    forward: Vec<Forward>,
    /// Keeps the data disk in this file, created with mode 0600 if it is missing. Workers use FILE.1, FILE.2 and so on.
    /// Start a cluster again with the same number of nodes.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Size of each data disk, a sparse file; 8 GiB by default, at least 1 GiB. A larger size enlarges an existing
    /// disk.
    #[arg(long, value_name = "SIZE")]
    data_size: Option<Bytes>,
    /// Configuration of the nodes, JSON (docs/configuration.md). Workers have its registries, CAs, modules and limits
    /// too.
    #[arg(long, value_name = "FILE", conflicts_with = "overcommit")]
    pub(crate) config: Option<PathBuf>,
    /// Allocatable size of volumes, as a multiple of the data disk; at least 1.0.
    #[arg(long, value_name = "FACTOR", default_value_t)]
    overcommit: Overcommit,
    /// Imports the images of this archive (OCI or Docker: `skopeo copy`, `docker save`) or of this directory (an OCI
    /// layout) before the demonstration. Can be repeated.
    #[arg(long = "image", value_name = "FILE")]
    images: Vec<PathBuf>,
    /// Boots the disk image through UEFI firmware instead of its kernel.
    #[arg(long)]
    firmware: bool,
    /// Keeps the logs of the consoles in this directory: console.log, granary-1.console.log and so on.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep_logs: Option<PathBuf>,
    /// Exits after the demonstration, with status 0 if it succeeded.
    #[arg(long)]
    pub(crate) exit_after_demo: bool,

    #[command(flatten)]
    image: Image,
    /// The image as a disk.
    #[arg(long, value_name = "FILE", hide = true)]
    disk: PathBuf,
    /// Marks the background process that `start` spawns.
    #[arg(long, hide = true, requires = "command")]
    pub(crate) detached: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Command {
    /// Boots a cluster in the background, and returns when its nodes are Ready.
    Start,
    /// Shuts the nodes of a cluster down, and waits until they are off.
    Stop,
    /// Lists the clusters with their states.
    Status,
    /// Stops a cluster, and removes its data disks and its contexts.
    Delete,
}

impl Command {
    /// Whether an option that the user has set, by the name of its field, has an effect.
    fn uses(self, option: &str) -> bool {
        match self {
            Self::Start => !matches!(option, "data" | "keep_logs" | "exit_after_demo"),
            Self::Stop | Self::Delete => option == "name",
            Self::Status => false,
        }
    }
}

impl Arguments {
    /// Parses a command line. Rejects options without an effect, and paths with a `~` that the shell did not expand.
    pub(crate) fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut parser = <Self as CommandFactory>::command();
        let options: Vec<clap::Id> = parser.get_arguments().map(clap::Arg::get_id).cloned().collect();
        let matches = parser.try_get_matches_from_mut(words)?;
        let arguments = Self::from_arg_matches(&matches)?;
        let internal = ["command", "kernel", "initramfs", "system", "command_line", "disk", "detached"];
        let given = options.iter().map(clap::Id::as_str).filter(|option| {
            !internal.contains(option) && matches.value_source(option) == Some(ValueSource::CommandLine)
        });
        for option in given {
            let problem = match arguments.command {
                Some(command) if !command.uses(option) => {
                    let command = command.to_possible_value();
                    format!("does not apply to `{}`", command.as_ref().map_or("", PossibleValue::get_name))
                }
                None if option == "kubeconfig" && arguments.name.is_none() => {
                    "needs --name=NAME or `start`, because the context has the name of the cluster".to_owned()
                }
                Some(_) | None => continue,
            };
            let option = option.replace('_', "-");
            return Err(parser.error(ErrorKind::ArgumentConflict, format!("--{option} {problem}")));
        }
        if let Some(rest) = arguments.paths().find_map(|path| path.strip_prefix("~").ok()) {
            let rest = rest.display();
            let problem = format!("a shell does not replace ~ in --OPTION=~/{rest}; write \"$HOME/{rest}\"");
            return Err(parser.error(ErrorKind::ValueValidation, problem));
        }
        Ok(arguments)
    }

    /// Paths that the user has set.
    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let files = [&self.data, &self.keep_logs, &self.config].into_iter().flatten();
        files.chain(self.kubeconfig.iter().flatten()).chain(&self.images)
    }

    /// Resolves the user's paths relative to `directory`. Paths of the image stay unchanged.
    pub(crate) fn relative_to(mut self, directory: &Path, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        self.data = self.data.map(|path| directory.join(path));
        self.keep_logs = self.keep_logs.map(|path| directory.join(path));
        self.config = self.config.map(|path| directory.join(path));
        self.images = self.images.into_iter().map(|path| directory.join(path)).collect();
        self.kubeconfig = self.kubeconfig.map(|file| {
            let of_environment = || {
                let files = variable("KUBECONFIG").unwrap_or_default();
                let first = std::env::split_paths(&files).find(|path| !path.as_os_str().is_empty());
                first.or_else(|| Some(Path::new(&variable("HOME")?).join(".kube/config")))
            };
            file.or_else(of_environment).map(|path| directory.join(path))
        });
        self
    }

    /// Path of the kubeconfig that gets a context.
    pub(crate) fn kubeconfig_file(&self) -> Result<Option<PathBuf>, LaunchError> {
        let missing = || io::Error::other("neither KUBECONFIG nor HOME is set; name a file with --kubeconfig=FILE");
        let find = |file: Option<PathBuf>| file.ok_or_else(missing);
        self.kubeconfig.clone().map(find).transpose().map_err(LaunchError::prepare("find the kubeconfig"))
    }

    pub(crate) fn options(&self, temporary: &Path) -> ClusterOptions {
        let mut options = Options::new(self.image.clone(), temporary);
        if self.firmware {
            options.boot = Boot::Firmware(self.disk.clone());
        }
        options.memory = self.memory;
        options.cpus = self.cpus;
        options.port = self.port;
        options.forwards.clone_from(&self.forward);
        options.data_size = self.data_size;
        options.overcommit = self.overcommit;
        options.images.clone_from(&self.images);
        if let Some(path) = &self.data {
            options.data = Data::File(path.clone());
        }
        if let Some(directory) = &self.keep_logs {
            options.logs.clone_from(directory);
        }
        let mut cluster = ClusterOptions::new(options, self.nodes.unwrap_or(Nodes::ONE));
        if let Some(memory) = self.worker_memory {
            cluster.worker_memory = memory;
        }
        cluster
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not HOSTPORT:NODEPORT; give two ports from 1 to 65535, as in 8080:30080")]
struct ForwardError {
    text: String,
}

fn forward(text: &str) -> Result<Forward, ForwardError> {
    let ports = text.split_once(':').and_then(|(host, node)| {
        let port = |text: &str| text.parse().map(NonZeroU16::get).ok();
        Some(Forward { host: port(host)?, guest: port(node)? })
    });
    ports.ok_or_else(|| ForwardError { text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: [&str; 6] = ["launch", "--kernel=k", "--initramfs=i", "--system=s", "--cmdline=c", "--disk=d"];

    fn parse(more: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::read(IMAGE.iter().chain(more).map(OsString::from))
    }

    fn control_plane(more: &[&str]) -> Options {
        parse(more).unwrap().options(Path::new("/")).control_plane
    }

    #[test]
    fn only_paths_of_the_user_are_resolved() {
        let arguments = parse(&[
            "--data",
            "disk.img",
            "--keep-logs",
            "/logs",
            "--config=a.json",
            "--image=a.tar",
            "--image=/b.tar",
        ]);
        let arguments = arguments.unwrap();
        let arguments = arguments.relative_to(Path::new("/home/user"), |_| None);
        assert_eq!(arguments.config, Some("/home/user/a.json".into()));
        let options = arguments.options(Path::new("/temporary")).control_plane;
        assert_eq!(options.data, Data::File("/home/user/disk.img".into()));
        assert_eq!(options.logs, Path::new("/logs"));
        assert_eq!(options.images, [Path::new("/home/user/a.tar"), Path::new("/b.tar")]);
        assert_eq!(options.state, Path::new("/temporary"));
        assert_eq!(options.image.kernel, Path::new("k"));
    }

    #[test]
    fn a_kubeconfig_is_named_or_that_of_the_environment() {
        let file = |option: &str, kubeconfig: &str| {
            let arguments = parse(&["start", option]).unwrap();
            let variable = |name: &str| {
                let value = if name == "HOME" { "/home/user" } else { kubeconfig };
                (!value.is_empty()).then(|| value.into())
            };
            arguments.relative_to(Path::new("/work"), variable).kubeconfig_file().unwrap().unwrap()
        };
        assert_eq!(file("--kubeconfig=a", "/b:/c"), Path::new("/work/a"));
        assert_eq!(file("--kubeconfig", ":b:/c"), Path::new("/work/b"));
        assert_eq!(file("--kubeconfig", ""), Path::new("/home/user/.kube/config"));
        assert_eq!(parse(&["start"]).unwrap().kubeconfig_file().unwrap(), None);
        let homeless = parse(&["start", "--kubeconfig"]).unwrap().relative_to(Path::new("/work"), |_| None);
        assert_eq!(homeless.kubeconfig_file().unwrap_err().to_string(), "cannot find the kubeconfig");
    }

    #[test]
    fn options_without_effect_are_rejected() {
        for accepted in [
            &["start", "--name=b", "--nodes=2", "--config=a", "--forward=8080:30080", "--kubeconfig=a", "--firmware"][..],
            &["--name=b", "start"],
            &["stop", "--name=b"],
            &["delete", "--name", "b"],
            &["status"],
            &["--name=b", "--kubeconfig", "--exit-after-demo"],
        ] {
            parse(accepted).unwrap();
        }
        for (rejected, shown) in [
            (&["stop", "--nodes=2"][..], "--nodes does not apply to `stop`"),
            (&["delete", "--kubeconfig"], "--kubeconfig does not apply to `delete`"),
            (&["status", "--name=b"], "--name does not apply to `status`"),
            (&["start", "--data=a"], "--data does not apply to `start`"),
            (&["start", "--keep-logs=a"], "--keep-logs does not apply to `start`"),
            (&["start", "--exit-after-demo"], "--exit-after-demo does not apply to `start`"),
            (&["--kubeconfig"], "needs --name=NAME or `start`"),
            (&["--name=b", "--data=a"], "cannot be used with"),
            (&["--name=../b"], "is not a name of a cluster"),
            (&["begin"], "begin"),
            (&["--detached"], "COMMAND"),
        ] {
            let error = parse(rejected).unwrap_err();
            assert!(error.to_string().contains(shown), "{rejected:?}: {error}");
            assert!(error.use_stderr());
        }
    }

    #[test]
    fn each_example_of_the_help_text_is_accepted() {
        for line in EXAMPLES.lines().skip(1) {
            let (words, _) = line.trim_start().split_once("  ").expect("an explanation after two spaces");
            let words: Vec<_> = words.split(' ').filter(|_| words != "(no arguments)").collect();
            assert_eq!(parse(&words).err().map(|error| error.to_string()), None, "{line}");
        }
    }

    /// Regression test: the launcher created a directory with the name `~`.
    #[test]
    fn a_tilde_that_the_shell_left_is_rejected() {
        for rejected in [
            &["--data=~/a"][..],
            &["--keep-logs=~/a"],
            &["--config=~/a"],
            &["--image=b", "--image=~/a"],
            &["start", "--kubeconfig=~/a"],
        ] {
            let error = parse(rejected).unwrap_err().to_string();
            assert!(error.contains("--OPTION=~/a; write \"$HOME/a\""), "{rejected:?}: {error}");
        }
        for accepted in ["./~/a", "a/~", "~a", "a~"] {
            parse(&["--data", accepted]).unwrap();
        }
    }

    #[test]
    fn firmware_boots_the_disk_image() {
        assert_eq!(control_plane(&[]).boot, Boot::Kernel);
        assert_eq!(control_plane(&["--firmware"]).boot, Boot::Firmware("d".into()));
    }

    #[test]
    fn the_default_is_one_node_without_overcommit() {
        let options = |more: &[&str]| parse(more).unwrap().options(Path::new("/"));
        assert_eq!((options(&[]).nodes, options(&[]).control_plane.overcommit), (Nodes::ONE, Overcommit::NONE));
        let three = options(&["--nodes=3", "--memory=1536M", "--worker-memory=768M", "--overcommit=2"]);
        assert_eq!((three.nodes.get(), three.worker_memory), (3, Bytes::new(768 << 20)));
        assert_eq!(three.control_plane.memory, Bytes::new(1536 << 20));
        assert_eq!(three.control_plane.overcommit, "2.0".parse::<Overcommit>().unwrap());
    }

    #[test]
    fn forwards_and_sizes_are_parsed() {
        let options = control_plane(&["--forward=8080:30080", "--forward", "8443:443", "--data-size=20G"]);
        assert_eq!(options.forwards, [Forward { host: 8080, guest: 30080 }, Forward { host: 8443, guest: 443 }]);
        assert_eq!(options.data_size, Some(Bytes::new(20 << 30)));
        assert_eq!(control_plane(&[]).data_size, None);
    }

    #[test]
    fn the_version_names_granary_and_kubernetes() {
        let shown = Arguments::read(["launch", "--version"].map(OsString::from)).unwrap_err();
        assert_eq!(shown.kind(), clap::error::ErrorKind::DisplayVersion);
        let text = shown.to_string();
        let (granary, kubernetes) = text.trim().split_once(", Kubernetes ").unwrap();
        assert!(granary.starts_with("Granary 0."), "{text}");
        assert!(kubernetes.starts_with("v1."), "{text}");
    }

    #[test]
    fn invalid_values_are_rejected() {
        for (option, value, shown) in [
            ("--nodes", "0", "choose one from 1 to 8"),
            ("--nodes", "9", "choose one from 1 to 8"),
            ("--nodes", "two", "choose one from 1 to 8"),
            ("--overcommit", "0.9", "--overcommit <FACTOR>"),
            ("--cpus", "0", "--cpus <COUNT>"),
            ("--port", "0", "--port <PORT>"),
            ("--forward", "8080", "is not HOSTPORT:NODEPORT"),
            ("--forward", "8080:0", "is not HOSTPORT:NODEPORT"),
            ("--forward", "65536:30080", "is not HOSTPORT:NODEPORT"),
            ("--forward", "127.0.0.1:8080:30080", "two ports from 1 to 65535"),
            ("--data-size", "8X", "\"X\" is not a unit"),
            ("--data-size", "big", "give a size like 512M"),
        ] {
            let error = parse(&[option, value]).unwrap_err().to_string();
            assert!(error.contains(option) && error.contains(shown), "{option} {value}: {error}");
        }
        assert!(parse(&["--overcommit", "2", "--config=a.json"]).is_err());
    }
}
