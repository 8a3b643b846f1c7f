//! containerd, and the images of the node image.

use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use supervisor::Context;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::cgroup::Cgroup;
use crate::headroom::NO_SPACE;
use crate::program::{Program, ProgramError, Service};
use crate::{Config, Paths, cni, ready, registries};

const NAMESPACE: &str = "k8s.io";

/// The cgroup of containerd's shims, relative to the root of the hierarchy.
const SHIMS: &str = "/shims";

pub fn service(config: &Config) -> Service {
    let socket = config.paths.containerd_socket();
    program(config).service(&config.paths, move || {
        let socket = socket.clone();
        async move { ready::socket(&socket).await }
    })
}

/// Delay between two attempts to import images for which the disk had no space.
const RETRY: Duration = Duration::from_mins(1);

/// An archive of images that the administrator added to the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Archive {
    /// Serial number of the disk, name of the partition, or path on the EFI system partition.
    pub name: String,
    /// Path of the device or file.
    pub path: PathBuf,
}

/// Imports the archives of the node image, then those of the administrator. Each archive is imported once in a boot,
/// even if the service restarts. containerd must be healthy. It has the content and the unpacked layers of earlier
/// boots, but `ctr` passes no digests: containerd writes each blob again before it compares the digest. If containerd's
/// part of the disk is full, the service reports healthy and tries again later.
pub fn images(config: &Config, given: Vec<Archive>) -> Service {
    let import = Arc::new(Import { paths: config.paths.clone(), given, imported: Mutex::default() });
    Box::new(move |cx| {
        let import = Arc::clone(&import);
        Box::pin(async move { import.run(cx).await })
    })
}

struct Import {
    paths: Paths,
    given: Vec<Archive>,
    imported: Mutex<BTreeSet<PathBuf>>,
}

impl Import {
    async fn run(&self, cx: Context) -> Result<(), ProgramError> {
        loop {
            let is_complete = self.pass(&cx).await?;
            if cx.is_cancelled() {
                return Ok(());
            }
            if is_complete {
                cx.done();
                return Ok(());
            }
            // An earlier boot has imported most images. The kubelet waits for this service, and only the kubelet
            // removes pods.
            cx.healthy();
            tokio::select! {
                () = cx.cancelled() => return Ok(()),
                () = sleep(RETRY) => {}
            }
        }
    }

    /// Returns `false` if an archive needs another attempt.
    async fn pass(&self, cx: &Context) -> Result<bool, ProgramError> {
        let mut is_complete = true;
        for archive in archives(&self.paths.images).await? {
            if self.is_done(&archive) {
                continue;
            }
            match import(&self.paths, &archive).complete(&self.paths, cx).await {
                _ if cx.is_cancelled() => return Ok(false),
                Ok(()) => {
                    info!(archive = %archive.display(), "image imported");
                    self.done(archive);
                }
                Err(error) if error.says(NO_SPACE) => {
                    is_complete = false;
                    let error: &dyn Error = &error;
                    error!(
                        archive = %archive.display(),
                        error,
                        "image not imported, containerd's part of the data disk is full, will retry; remove pods, or enlarge \
                         the disk"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        for Archive { name, path } in self.given.iter().filter(|archive| !self.is_done(&archive.path)) {
            match import(&self.paths, path).complete(&self.paths, cx).await {
                _ if cx.is_cancelled() => return Ok(false),
                Ok(()) => info!(archive = name, "image imported"),
                Err(error) if error.says(NO_SPACE) && !is_complete => {
                    let error: &dyn Error = &error;
                    warn!(archive = name, path = %path.display(), error, "archive of images not imported, will retry");
                    continue;
                }
                // Another attempt would fail in the same way, so the node starts without this archive.
                Err(error) => {
                    let error: &dyn Error = &error;
                    warn!(archive = name, path = %path.display(), error, "archive of images not imported");
                }
            }
            self.done(path.clone());
        }
        Ok(is_complete)
    }

    fn is_done(&self, archive: &Path) -> bool {
        self.imported.lock().unwrap_or_else(PoisonError::into_inner).contains(archive)
    }

    fn done(&self, archive: PathBuf) {
        self.imported.lock().unwrap_or_else(PoisonError::into_inner).insert(archive);
    }
}

async fn archives(directory: &Path) -> Result<BTreeSet<PathBuf>, ProgramError> {
    let path = directory.to_owned();
    let listed = spawn_blocking(move || -> io::Result<BTreeSet<PathBuf>> {
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "tar") {
                found.insert(path);
            }
        }
        Ok(found)
    });
    let listed = listed.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    listed.map_err(|source| ProgramError::Images { path: directory.to_owned(), source })
}

fn import(paths: &Paths, archive: &Path) -> Program {
    let arguments = [
        "--address".to_owned(),
        paths.containerd_socket().display().to_string(),
        "--namespace".to_owned(),
        NAMESPACE.to_owned(),
        "images".to_owned(),
        "import".to_owned(),
        "--local".to_owned(),
        // containerd syncs its metadata, but not the unpacked files. Without this option, a power cut leaves a snapshot
        // with empty files.
        "--sync-fs".to_owned(),
        // The node may be unable to pull the image again, so the garbage collection must not remove it.
        "--label".to_owned(),
        "io.cri-containerd.pinned=pinned".to_owned(),
        archive.display().to_string(),
    ];
    Program { name: "ctr", arguments: arguments.into(), ..Program::default() }
}

pub(crate) fn program(config: &Config) -> Program {
    let paths = &config.paths;
    let file = paths.generated("containerd.toml");
    let arguments = vec![format!("--config={}", file.display()), "--log-level=info".into()];
    let directories = vec![
        (paths.containerd.clone(), 0o711),
        (cni::configurations(config), 0o755),
        (registries::directory(paths), 0o700),
        (registries::cas(paths), 0o700),
    ];
    let files = vec![(file, toml(config, shim_cgroup(paths)))];
    let secrets =
        registries::files(paths, &config.settings.images).into_iter().map(|(path, text)| (path, text.into())).collect();
    let environment = vec![("SSL_CERT_DIR", registries::cas(paths))];
    Program { name: "containerd", arguments, directories, files, secrets, environment, ..Program::default() }
}

/// Creates the cgroup of the shims, which containerd requires. In containerd's own group, each pod's shim (10 MiB or
/// more) would count towards containerd's limit, and an OOM kill of containerd would end the shims and their pods.
/// `None` if the group cannot be created.
fn shim_cgroup(paths: &Paths) -> Option<&'static str> {
    Cgroup::ensure(paths.cgroups.as_deref()?, SHIMS.trim_start_matches('/'), None).map(|_| SHIMS)
}

/// Configuration of containerd 2.3, version 3. Omitted settings have their defaults.
fn toml(config: &Config, shims: Option<&str>) -> String {
    let paths = &config.paths;
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    format!(
        r#"version = 3
root = {root}
state = {state}
# Plugins that the node does not use: snapshotters and differs; plugins that write to /opt or to a collector; and one
# that lists all containers every 10 s to restart those with a label, which the kubelet does not set.
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.differ.v1.erofs",
  "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
  "io.containerd.monitor.container.v1.restart",
]

[grpc]
  address = {socket}

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  # containerd's transfer service cannot sync unpacked files.
  use_local_image_pull = true
  image_pull_with_sync_fs = true
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = {registries:?}
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "granary.invalid/pause:1"

[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  # The default is a call to the shim of each container every second. The kubelet takes CPU statistics from cAdvisor, which
  # reads them every 10 s.
  stats_collect_period = "10s"
  # Pods that are not root use block volumes.
  device_ownership_from_security_context = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = {runc}
        SystemdCgroup = false
        ShimCgroup = "{shims}"
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [{plugins}]
    conf_dir = {cni}
    # Without it, the start and the end of each pod run the plugin `loopback`.
    use_internal_loopback = true
"#,
        root = quoted(&paths.containerd),
        state = quoted(&paths.ephemeral.join("containerd")),
        socket = quoted(&paths.containerd_socket()),
        runc = quoted(&paths.programs.join("runc")),
        plugins = cni::programs(config).into_iter().map(quoted).collect::<Vec<_>>().join(", "),
        cni = quoted(&cni::configurations(config)),
        registries = registries::search_path(paths),
        shims = shims.unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use cluster::{Networking, ServiceProxy};
    use supervisor::{State, Supervisor};
    use tokio::time::timeout;

    use super::*;
    use crate::program::tests::{error_of, start_once};

    #[test]
    fn data_is_on_the_disk_and_state_is_not() {
        let text = toml(&Config::default(), Some(SHIMS));
        for line in [
            "root = \"/data/containerd\"",
            "state = \"/ephemeral/containerd\"",
            "  address = \"/ephemeral/containerd/containerd.sock\"",
            "        BinaryName = \"/usr/bin/runc\"",
            "    bin_dirs = [\"/usr/libexec/cni\"]",
            "    conf_dir = \"/ephemeral/cni/net.d\"",
            "    use_internal_loopback = true",
            "    config_path = \"/ephemeral/config/certs.d:/etc/containerd/certs.d\"",
            "  image_pull_with_sync_fs = true",
            "  device_ownership_from_security_context = true",
            "  stats_collect_period = \"10s\"",
            "  \"io.containerd.monitor.container.v1.restart\",",
            "        ShimCgroup = \"/shims\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}");
        }
    }

    #[test]
    fn a_plugin_of_the_administrator_is_found_where_its_chart_installs_it() {
        let mut config = Config::default();
        config.settings.networking = Networking::Plugin(ServiceProxy::Plugin);
        let text = toml(&config, None);
        for line in ["    bin_dirs = [\"/opt/cni/bin\", \"/usr/libexec/cni\"]", "    conf_dir = \"/etc/cni/net.d\""] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }

    #[tokio::test]
    async fn only_archives_are_imported_in_the_order_of_their_names() {
        let scratch = tempfile::tempdir().unwrap();
        for name in ["workload.tar", "pause.tar", "README"] {
            std::fs::write(scratch.path().join(name), "").unwrap();
        }
        let found: Vec<PathBuf> = archives(scratch.path()).await.unwrap().into_iter().collect();
        assert_eq!(found, [scratch.path().join("pause.tar"), scratch.path().join("workload.tar")]);
    }

    /// The images service with one archive of the node image and a `ctr` that fails with `text`.
    fn failing_import(root: &Path, text: &str) -> Supervisor {
        let [programs, images] = ["bin", "images"].map(|name| root.join(name));
        for directory in [&programs, &images] {
            std::fs::create_dir(directory).unwrap();
        }
        std::fs::write(images.join("pause.tar"), "").unwrap();
        let (script, ctr) = (format!("#!/bin/sh\necho '{text}' >&2\nexit 1\n"), programs.join("ctr"));
        // Another process writes the script: a concurrent fork of this process would keep the file open for writing,
        // and execve(2) would return ETXTBSY.
        let written = std::process::Command::new("/bin/sh")
            .args(["-c", r#"printf %s "$1" >"$2""#, "sh", &script])
            .arg(&ctr)
            .status();
        assert!(written.unwrap().success());
        std::fs::set_permissions(&ctr, Permissions::from_mode(0o755)).unwrap();
        let paths = Paths { programs, images, ephemeral: root.join("ephemeral"), cgroups: None, ..Paths::default() };
        start_once(super::images(&Config { paths, ..Config::default() }, Vec::new()))
    }

    /// Regression: the kubelet was not started, although only the kubelet removes pods.
    #[tokio::test]
    async fn a_full_disk_does_not_keep_the_node_from_starting() {
        let scratch = tempfile::tempdir().unwrap();
        let tree = failing_import(scratch.path(), "ctr: failed to copy: write data: no space left on device");
        timeout(Duration::from_secs(30), tree.handle().healthy()).await.unwrap().unwrap();
        assert_eq!(tree.status().state, State::Healthy, "it tries again");
    }

    #[tokio::test]
    async fn an_image_that_cannot_be_imported_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let tree = failing_import(scratch.path(), "ctr: unrecognized image format");
        let error = error_of(&tree).await;
        assert!(error.contains("unrecognized image format"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_directory_of_images_is_named() {
        let error = archives(Path::new("/nowhere")).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot list the images in /nowhere");
    }
}
