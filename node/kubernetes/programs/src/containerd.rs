//! containerd, and the images of the node image.

use std::collections::{BTreeMap, BTreeSet};
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
use crate::image_archive::{ArchivedImage, PINNED};
use crate::program::{Program, ProgramError, Service, Tail};
use crate::{Config, Paths, cni, image_archive, ready, registries};

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
/// even if the service restarts. containerd must be healthy. An archive whose images containerd has is not imported:
/// `ctr` passes no digests, so containerd would write and sync each blob again before it compares the digest. If
/// containerd's part of the disk is full, the service reports healthy and tries again later.
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
            if self.is_present(&archive, cx).await {
                info!(archive = %archive.display(), "image is present");
                self.done(archive);
                continue;
            }
            match import(&self.paths, &archive).complete(&self.paths, cx).await {
                _ if cx.is_cancelled() => return Ok(false),
                Ok(_) => {
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
            if self.is_present(path, cx).await {
                info!(archive = name, "image is present");
                self.done(path.clone());
                continue;
            }
            match import(&self.paths, path).complete(&self.paths, cx).await {
                _ if cx.is_cancelled() => return Ok(false),
                Ok(_) => info!(archive = name, "image imported"),
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

    /// Whether containerd has all images of the archive. After an error, the import follows, and reports the error.
    async fn is_present(&self, archive: &Path, cx: &Context) -> bool {
        let (path, root) = (archive.to_owned(), self.paths.containerd.clone());
        let read = spawn_blocking(move || -> io::Result<Vec<ArchivedImage>> {
            let images = image_archive::images(&path)?;
            // The first boot of a disk starts no program for an archive that it has to import.
            let is_stored = images.iter().all(|image| root.join(image.blob()).exists());
            Ok(if is_stored { images } else { Vec::new() })
        });
        let Ok(Ok(images)) = read.await else { return false };
        // A cancelled program ends without an error.
        !images.is_empty() && matches!(self.has(&images, cx).await, Ok(true)) && !cx.is_cancelled()
    }

    async fn has(&self, images: &[ArchivedImage], cx: &Context) -> Result<bool, ProgramError> {
        let configs: BTreeSet<String> = images.iter().filter_map(ArchivedImage::manifests).collect();
        let mut manifests = BTreeMap::new();
        for config in configs {
            let list = ctr(&self.paths, &["content", "list", "--quiet"], [config.clone()]);
            let listed = list.complete(&self.paths, cx).await?;
            if listed.lines().next().is_none() {
                return Ok(false);
            }
            manifests.insert(config, listed);
        }
        let (full, tags): (Vec<&ArchivedImage>, Vec<_>) = images.iter().partition(|image| image.has_full_name());
        for part in full.chunks(CHECKED).chain(tags.chunks(1)) {
            let mut filters = Vec::new();
            for image in part {
                let listed = image.manifests().and_then(|config| manifests.get(&config));
                filters.extend(image.filters(listed.into_iter().flat_map(Tail::lines)));
            }
            // Without a filter, `ctr` checks all images.
            if filters.is_empty() {
                return Ok(false);
            }
            let check = ctr(&self.paths, &["images", "check", "--quiet"], filters);
            let printed = check.complete(&self.paths, cx).await?;
            if !part.iter().all(|image| image.is_listed(printed.lines())) {
                return Ok(false);
            }
        }
        Ok(true)
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

/// Full names in one call of `ctr`. The node keeps the last lines of its output only.
const CHECKED: usize = 8;

fn ctr(paths: &Paths, command: &[&str], arguments: impl IntoIterator<Item = String>) -> Program {
    let socket = paths.containerd_socket().display().to_string();
    let global = ["--address", &socket, "--namespace", NAMESPACE];
    let words = global.into_iter().chain(command.iter().copied()).map(str::to_owned);
    Program { name: "ctr", arguments: words.chain(arguments).collect(), ..Program::default() }
}

fn import(paths: &Paths, archive: &Path) -> Program {
    let (label, value) = PINNED;
    let command = [
        "images",
        "import",
        "--local",
        // containerd syncs its metadata, but not the unpacked files. Without this option, a power cut leaves a snapshot
        // with empty files.
        "--sync-fs",
        // The node may be unable to pull the image again, so the garbage collection must not remove it.
        "--label",
    ];
    ctr(paths, &command, [format!("{label}={value}"), archive.display().to_string()])
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
    use crate::image_archive::tests::{APP, OTHER, write_docker, write_layout};
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
        importing(root, |archive| std::fs::write(archive, "").unwrap(), &format!("echo '{text}' >&2\nexit 1\n"))
    }

    /// The images service with one archive of the node image and the script `ctr`.
    fn importing(root: &Path, write: impl Fn(&Path), script: &str) -> Supervisor {
        let [programs, images] = ["bin", "images"].map(|name| root.join(name));
        for directory in [&programs, &images] {
            std::fs::create_dir(directory).unwrap();
        }
        write(&images.join("pause.tar"));
        let (script, ctr) = (format!("#!/bin/sh\n{script}"), programs.join("ctr"));
        // Another process writes the script: a concurrent fork of this process would keep the file open for writing,
        // and execve(2) would return ETXTBSY.
        let written = std::process::Command::new("/bin/sh")
            .args(["-c", r#"printf %s "$1" >"$2""#, "sh", &script])
            .arg(&ctr)
            .status();
        assert!(written.unwrap().success());
        std::fs::set_permissions(&ctr, Permissions::from_mode(0o755)).unwrap();
        let (ephemeral, containerd) = (root.join("ephemeral"), root.join("containerd"));
        let paths = Paths { programs, images, ephemeral, containerd, cgroups: None, ..Paths::default() };
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

    /// Writes the manifest of the image [`APP`] as containerd does.
    fn store_manifest(root: &Path) {
        let blobs = root.join("containerd/io.containerd.content.v1.content/blobs/sha256");
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::write(blobs.join("aa"), "{}").unwrap();
    }

    /// `ctr` that has the image [`APP`] and fails to import one.
    fn with_app() -> String {
        let (check, import) = (format!("echo {APP}"), "echo imported >&2; exit 1");
        format!("case \"$*\" in *' images check --quiet '*) {check};; *) {import};; esac\n")
    }

    /// Regression: each boot wrote and synced the blobs of all archives again.
    #[tokio::test]
    async fn an_archive_whose_images_containerd_has_is_not_imported() {
        let scratch = tempfile::tempdir().unwrap();
        store_manifest(scratch.path());
        let script = with_app();
        let tree = importing(scratch.path(), write_layout, &script);
        let done = async {
            while tree.status().state != State::Done {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), done).await.unwrap();
    }

    /// Regression: each boot imported archives of Docker without `index.json` again.
    #[tokio::test]
    async fn an_archive_of_docker_whose_image_containerd_has_is_not_imported() {
        let scratch = tempfile::tempdir().unwrap();
        let script = docker_script(&format!("echo {APP} && echo {OTHER}"));
        let tree = importing(scratch.path(), |archive| store_config(scratch.path(), archive), &script);
        let done = async {
            while tree.status().state != State::Done {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), done).await.unwrap();
    }

    #[tokio::test]
    async fn an_archive_of_docker_whose_image_is_incomplete_is_imported() {
        let scratch = tempfile::tempdir().unwrap();
        let write = |archive: &Path| store_config(scratch.path(), archive);
        let error = error_of(&importing(scratch.path(), write, &docker_script(":"))).await;
        assert!(error.contains("imported"), "{error}");
    }

    /// Without a manifest, `ctr images check` would have no filter, and print all images.
    #[tokio::test]
    async fn an_archive_of_docker_without_a_manifest_is_imported() {
        let scratch = tempfile::tempdir().unwrap();
        let write = |archive: &Path| store_config(scratch.path(), archive);
        let script = "case \"$*\" in *' content list '*) ;; *) echo imported >&2; exit 1;; esac\n";
        let error = error_of(&importing(scratch.path(), write, script)).await;
        assert!(error.contains("imported"), "{error}");
    }

    /// Writes an archive of Docker, and its configuration as containerd does.
    fn store_config(root: &Path, archive: &Path) {
        let config = root.join("containerd").join(write_docker(archive));
        std::fs::create_dir_all(config.parent().unwrap()).unwrap();
        std::fs::write(config, "{}").unwrap();
    }

    /// `ctr` that has a manifest with the configuration, runs `check` for it, and fails to import an image, or to run a
    /// command again: an image with two names needs two programs.
    fn docker_script(check: &str) -> String {
        let once = |name: &str| format!("[ ! -e \"$0.{name}\" ] && : >\"$0.{name}\"");
        let list = format!("*' content list --quiet '*) {} && echo sha256:bb", once("listed"));
        let check = format!("*' images check --quiet '*sha256:bb*) {} && {check}", once("checked"));
        format!("case \"$*\" in {list};; {check};; *) echo imported >&2; exit 1;; esac\n")
    }

    #[tokio::test]
    async fn an_archive_without_a_stored_manifest_is_imported_without_a_check() {
        let scratch = tempfile::tempdir().unwrap();
        let error = error_of(&importing(scratch.path(), write_layout, &with_app())).await;
        assert!(error.contains("imported"), "{error}");
    }

    #[tokio::test]
    async fn an_archive_whose_images_are_incomplete_is_imported() {
        let scratch = tempfile::tempdir().unwrap();
        store_manifest(scratch.path());
        let script = "case \"$*\" in *' check '*) ;; *) echo imported >&2; exit 1;; esac\n";
        let error = error_of(&importing(scratch.path(), write_layout, script)).await;
        assert!(error.contains("imported"), "{error}");
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
