//! A node with the plugin on its sockets, and sidecars as processes. No process of it outlives its case.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use csi::{Plugin, Provisioner, Settings};
use envtest::{Cluster, Failure, FakeVolumes, Identity, SnapshotApi, create, merge, reached, remove, until};
use futures::future::select_all;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use nix::unistd::Uid;
use prometheus::Registry;
use serde_json::{Value, json};
use supervisor::Supervisor;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use units::Bytes;
use volume::{DRIVER_NAME, TOPOLOGY_KEY, VolumeId};

use crate::fake::FakeHost;
use crate::kubelet::Kubelet;

const PAGE: &str = include_str!("../../../../../docs/operations/other-clusters.md");
const HEADING: &str = "\n## external-provisioner instead of the own provisioner\n";
/// The plugin's socket in the commands of the page.
const SOCKET: &str = "/var/lib/kubelet/plugins/local.granary.dev.sock";

/// Variable with the directory of the sidecars.
const SIDECARS: &str = "SIDECARS";

pub const PROVISIONER: &str = "csi-provisioner";
pub const RESIZER: &str = "csi-resizer";
pub const SNAPSHOTTER: &str = "csi-snapshotter";

const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

const DISK: Bytes = Bytes::new(100 << 30);

/// The objects of a case have the name of its node, and are in a namespace of this name.
pub struct Node {
    pub admin: Client,
    pub name: String,
    pub volumes: Arc<FakeVolumes>,
    pub host: FakeHost,
    pub kubelet: Kubelet,
    pub snapshots: SnapshotApi,
    _plugin: Supervisor,
    _directory: TempDir,
}

/// Running sidecars, which are killed on drop.
type Sidecars = Vec<(&'static str, Child)>;

/// Runs the steps of a case on a new node, beside these sidecars. Fails when a sidecar ends: its reason is in the output
/// of the test.
pub async fn beside(
    cluster: &Cluster,
    name: &str,
    provisioner: Provisioner,
    programs: &[&'static str],
    steps: impl AsyncFnOnce(&Node) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (node, mut sidecars) = Node::start(cluster, name, provisioner, programs).await?;
    let ends = sidecars.iter_mut().map(|(program, child)| Box::pin(async move { (*program, child.wait().await) }));
    tokio::select! {
        done = steps(&node) => done?,
        ((program, status), _, _) = select_all(ends) => return Err(format!("{program} has ended: {status:?}").into()),
    }
    drop(sidecars);
    node.end().await
}

impl Node {
    /// Starts the plugin, and then these sidecars.
    async fn start(
        cluster: &Cluster,
        name: &str,
        provisioner: Provisioner,
        programs: &[&'static str],
    ) -> Result<(Self, Sidecars), Failure> {
        let admin = cluster.admin();
        create(&Api::<Namespace>::all(admin.clone()), json!({"metadata": {"name": name}})).await?;
        // snapshot-controller finds the node of a volume by this label.
        let object = json!({"metadata": {"name": name, "labels": {TOPOLOGY_KEY: name}}});
        create(&Api::<k8s_openapi::api::core::v1::Node>::all(admin.clone()), object).await?;
        let class = json!({
            "metadata": {"name": name}, "provisioner": DRIVER_NAME, "volumeBindingMode": "WaitForFirstConsumer",
            "reclaimPolicy": "Delete", "allowVolumeExpansion": true,
        });
        create(&Api::<StorageClass>::all(admin.clone()), class).await?;
        let snapshots = SnapshotApi::install(cluster, name).await?;

        let directory = TempDir::with_prefix("csi-")?;
        let settings = Settings { peer: Uid::current(), ..Settings::new(directory.path(), name, "0") };
        let (volumes, host) = (Arc::new(FakeVolumes::with_size(DISK)), FakeHost::default());
        let plugin = Plugin::new(settings, host.clone(), &Registry::new())?;
        let plugin = Arc::new(plugin.with_controller(volumes.clone(), provisioner));
        let running = Supervisor::start("csi", supervisor::Settings::default(), move |cx| Arc::clone(&plugin).run(cx));
        running.handle().healthy().await?;
        let kubelet = Kubelet { directory: directory.path().to_owned() };

        let pod = pod(&admin, name).await?;
        let kubeconfig = cluster.credentials().kubeconfig(Identity::Admin);
        let start = |program: &'static str| -> Result<_, Failure> {
            let mut command = command(program, &kubelet.socket())?;
            command.arg(format!("--kubeconfig={}", kubeconfig.display()));
            command.env("NODE_NAME", name).env("NAMESPACE", name).env("POD_NAME", &pod);
            Ok((program, command.stdin(Stdio::null()).kill_on_drop(true).spawn()?))
        };
        let sidecars = programs.iter().copied().map(start).collect::<Result<_, _>>()?;
        let node = Self {
            admin,
            name: name.to_owned(),
            volumes,
            host,
            kubelet,
            snapshots,
            _plugin: running,
            _directory: directory,
        };
        Ok((node, sidecars))
    }

    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.admin.clone(), &self.name)
    }

    pub fn pvs(&self) -> Api<PersistentVolume> {
        Api::all(self.admin.clone())
    }

    /// Creates a claim with more fields of its spec, and selects this node for it.
    pub async fn claim(&self, name: &str, more: Value) -> Result<(), Failure> {
        create(&self.claims(), envtest::claim(json!({"name": name}), &self.name, more)).await?;
        let selected = json!({"metadata": {"annotations": {SELECTED_NODE: self.name}}});
        merge(&self.claims(), name, selected).await?;
        Ok(())
    }

    /// Creates a claim as [`Self::claim`], and waits until it is bound. Returns the ID of its volume, which is also the
    /// name of the PV.
    pub async fn volume(&self, name: &str, more: Value) -> Result<VolumeId, Failure> {
        self.claim(name, more).await?;
        let pv = envtest::bound(&self.claims(), name).await?;
        let uid = self.claims().get(name).await?.uid().unwrap_or_default();
        assert_eq!(pv, format!("pvc-{uid}"));
        Ok(pv.parse()?)
    }

    pub async fn pv(&self, id: &VolumeId) -> Result<Value, kube::Error> {
        self.pvs().get(id.as_str()).await.map(|pv| json!(pv))
    }

    pub async fn enlarge(&self, claim: &str, size: &str) -> Result<(), Failure> {
        merge(&self.claims(), claim, json!({"spec": {"resources": {"requests": {"storage": size}}}})).await?;
        Ok(())
    }

    /// Deletes a claim, and waits until its PV and its volume are deleted.
    pub async fn delete(&self, claim: &str, id: &VolumeId) -> Result<(), Failure> {
        remove(&self.claims(), claim).await?;
        let pvs = self.pvs();
        until(&format!("the end of {id}"), async || {
            let (found, record) = (pvs.get_opt(id.as_str()).await?.is_some(), self.volumes.record(id));
            Ok((found || record.is_some()).then(|| format!("PV: {found}, record: {record:?}")))
        })
        .await
    }

    /// Requires that the case has left no volume and no snapshot, and deletes its class and its namespace.
    async fn end(self) -> Result<(), Failure> {
        assert_eq!((self.volumes.live(), self.volumes.retired()), (Vec::new(), Vec::new()));
        remove(&Api::<StorageClass>::all(self.admin.clone()), &self.name).await?;
        remove(&Api::<Namespace>::all(self.admin.clone()), &self.name).await
    }
}

/// Name of the pod of a DaemonSet on the node. external-provisioner reads it and names the DaemonSet as the owner of
/// capacity objects.
async fn pod(admin: &Client, name: &str) -> Result<String, Failure> {
    let labels = json!({"app": "sidecars"});
    let spec = json!({
        "containers": [{"name": PROVISIONER, "image": "granary.invalid/none"}],
        "nodeSelector": {TOPOLOGY_KEY: name},
        // Without a kubelet, no node is ready.
        "tolerations": [{"operator": "Exists"}],
    });
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let daemon_set = json!({
        "metadata": {"name": "sidecars"}, "spec": {"selector": {"matchLabels": labels}, "template": template},
    });
    create(&Api::<DaemonSet>::namespaced(admin.clone(), name), daemon_set).await?;
    let (pods, all) = (Api::<Pod>::namespaced(admin.clone(), name), ListParams::default());
    let read = async || pods.list(&all).await.map(|found| found.iter().map(|pod| pod.name_any()).collect::<Vec<_>>());
    let found = reached("the pod of the sidecars", read, |found: &Vec<String>| !found.is_empty()).await?;
    Ok(found.into_iter().next().unwrap_or_default())
}

/// The command of the page that starts this program, with another socket.
fn command(program: &str, socket: &Path) -> Result<Command, Failure> {
    let (_, section) = PAGE.split_once(HEADING).expect("the heading");
    let (_, rest) = section.split_once("\n```\n").expect("the commands");
    let (commands, _) = rest.split_once("\n```\n").expect("their end");
    let words = commands.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found: Vec<_> = words.filter(|words| words[0] == program).collect();
    let [words] = &*found else { panic!("not one command of {program}: {commands}") };
    let arguments = words[1..].iter().map(|word| word.replace(SOCKET, &socket.display().to_string()));
    let directory = env::var_os(SIDECARS).ok_or("SIDECARS is not set; run the test by its Bazel target")?;
    let mut command = Command::new(std::path::absolute(PathBuf::from(directory).join(program))?);
    command.args(arguments);
    Ok(command)
}
