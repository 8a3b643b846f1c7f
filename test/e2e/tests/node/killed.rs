//! Killed programs of the node: pods continue to run, and the restarted program does the work that was requested
//! meanwhile. Also the statistics of the restarted kubelet.

use crate::device;
use crate::snapshot::KEPT;
use crate::volumes::{DEVICE, DIRECTORY, MIB};
use e2e::{Case, Claim, Failure, OnNode, PATIENCE, Part, Pod, Seen, Server, Stopped, Volume, eventually};
use futures::future::join_all;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod as PodObject;
use programs::User;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use workload::{Record, Space};

/// Space for the file system's own blocks (directories, extent lists), which are also charged to the volume.
const METADATA: u64 = 256 << 10;
/// signal(7), x86.
const SIGKILL: i32 = 9;
/// Name of a pod and of its claim, which are created and deleted while programs are down.
const LATER: &str = "later";
const SIZE: u64 = 16 * MIB;

/// Cases with a pod that has the claims `data`, `device` and [`KEPT`].
pub async fn cases(part: &Part, pod: Server) -> Result<(), Stopped> {
    let case = &part.case;
    let before = part.must_show("a_pod_runs_before_anything_is_killed", Before::of(case, pod)).await?;
    part.alone().await;
    let later = part.must_show("volumes_stay_when_kubelet_is_killed", before.outlives_kubelet(case)).await?;
    part.must_show("volumes_stay_when_containerd_is_killed", before.outlives_containerd(case, later)).await?;
    let all = before.outlives_the_control_plane(case);
    part.must_show("the_control_plane_is_started_again_when_it_is_killed", all).await?;
    part.shows("kubelet_has_statistics_of_the_volumes", before.has_statistics(case)).await;
    part.shows("nothing_came_and_nothing_was_lost", before.is_unchanged(case)).await;
    Ok(())
}

/// A pod that runs all the time, and its volumes on the node.
struct Before {
    pod: Server,
    volumes: [(String, OnNode); 2],
    /// Space of the volume of [`KEPT`], which is full.
    full: Space,
}

impl Before {
    async fn of(case: &Case, pod: Server) -> Result<Self, Failure> {
        pod.write(device::PATH, "before").await?;
        // Fill the volume now: the kubelet updates statistics about once a minute and at its start.
        let path = format!("/{KEPT}");
        assert_eq!(pod.fill(&path, true).await?.errno, "ENOSPC");
        let full = pod.inspect(&path).await?.space;
        let (data, device) = tokio::try_join!(case.volume_name("data"), case.volume_name("device"))?;
        let volumes = tokio::try_join!(case.on_the_node(&data), case.on_the_node(&device))?;
        Ok(Self { pod, volumes: [(data, volumes.0), (device, volumes.1)], full })
    }

    /// A pod and a claim that are created while the kubelet is down become ready after its restart. Returns the pod.
    async fn outlives_kubelet(&self, case: &Case) -> Result<Server, Failure> {
        const KUBELET: &str = "kubelet";
        let first = self.kill(case, KUBELET).await?;
        case.claim(&Claim::new(LATER, SIZE)).await?;
        let later = Pod::server(LATER).with(Volume::claim("data")).with(Volume::device("device"));
        case.start(&later.with(Volume::claim(LATER))).await?;
        self.goes_on().await?;

        let later = case.find(LATER).await?;
        assert_eq!(later.read("/data/note").await?, "meanwhile");
        self.has_the_same_device(&later).await?;
        assert_ne!(case.signal(KUBELET, 0).await?, first, "it was started again");
        no_place_has_two_mounts(case).await?;
        Ok(later)
    }

    /// A pod and a claim that are deleted while containerd is down are removed after its restart, because the kubelet
    /// stops pods through containerd. The part `neighbours` later starts new pods.
    async fn outlives_containerd(&self, case: &Case, later: Server) -> Result<(), Failure> {
        const CONTAINERD: &str = "containerd";
        let volume = case.volume_name(LATER).await?;
        let first = self.kill(case, CONTAINERD).await?;
        // The claim exists as long as the pod uses it.
        case.delete_claim(LATER).await?;
        tokio::try_join!(later.remove(), self.goes_on())?;
        case.volume_is_gone(&volume, None).await?;
        assert_ne!(case.signal(CONTAINERD, 0).await?, first, "it was started again");
        no_place_has_two_mounts(case).await
    }

    /// Kills a program. Returns its former process ID.
    async fn kill(&self, case: &Case, program: &str) -> Result<Vec<i32>, Failure> {
        self.pod.write("/data/note", "before").await?;
        let first = case.signal(program, SIGKILL).await?;
        assert_eq!(first.len(), 1, "{first:?}");
        Ok(first)
    }

    async fn goes_on(&self) -> Result<(), Failure> {
        assert_eq!(self.pod.read("/data/note").await?, "before");
        self.pod.write("/data/note", "meanwhile").await
    }

    async fn has_the_same_device(&self, later: &Server) -> Result<(), Failure> {
        assert_eq!(later.read(device::PATH).await?, "before");
        let (one, other) = tokio::try_join!(self.pod.device(device::PATH), later.device(device::PATH))?;
        assert_eq!(one.number, other.number);
        Ok(())
    }

    /// Kills all programs of the control plane at once, and the programs that provide Services and names on the node.
    /// Pods need none of these programs. The part `neighbours` later starts new pods with new claims.
    async fn outlives_the_control_plane(&self, case: &Case) -> Result<(), Failure> {
        self.pod.write("/data/note", "before").await?;
        let mut running = Vec::new();
        for program in User::ALL.map(User::program) {
            running.push((program, case.signal(program, 0).await?));
        }
        // The responses may come too late. The API server forwards the signals and needs etcd, so these two programs
        // get their signals last.
        let (last, first): (Vec<_>, Vec<_>) =
            User::ALL.into_iter().partition(|user| matches!(user, User::Etcd | User::ApiServer));
        for users in [first, last] {
            _ = join_all(users.into_iter().map(|user| case.signal(user.program(), SIGKILL))).await;
        }
        // The restarts need CPU time, so the test waits before it looks at processes through these programs.
        case.all_services_are_ready().await?;
        for (program, before) in running {
            eventually(PATIENCE, &format!("another {program}"), async || {
                let now = case.signal(program, 0).await?;
                if now == before {
                    // The first signal did not reach the program.
                    _ = case.signal(program, SIGKILL).await;
                }
                Ok(if now == before { Seen::NotYet(format!("{now:?}")) } else { Seen::Done(()) })
            })
            .await?;
        }
        case.all_services_are_ready().await?;
        let own = self.pod.resolve("kubernetes.default", Record::A).await?;
        assert_eq!((own.code.as_str(), own.answers.len()), ("NOERROR", 1), "{own:?}");
        // The pod has run all the time: no component restarts it.
        assert_eq!(self.pod.read("/data/note").await?, "before");
        tokio::try_join!(scheduler_works(case), controllers_work(case))?;
        no_place_has_two_mounts(case).await
    }

    async fn has_statistics(&self, case: &Case) -> Result<(), Failure> {
        let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or_else(|| panic!("{name} is missing: {of}"));
        let Space { size, inodes, inodes_free, .. } = self.full;
        assert_eq!((size, inodes), (DIRECTORY[1], DIRECTORY[1] / 2048));
        let files = case.volume_statistics(self.pod.name(), KEPT).await?;
        assert_eq!((number(&files, "capacityBytes"), number(&files, "inodes")), (size, inodes), "{files}");
        let (used, available) = (number(&files, "usedBytes"), number(&files, "availableBytes"));
        assert!((size - METADATA..=size).contains(&used), "{files}");
        assert_eq!(used + available, size, "{files}");
        let (inodes_used, free) = (number(&files, "inodesUsed"), number(&files, "inodesFree"));
        assert_eq!((inodes_used, free), (inodes - inodes_free, inodes_free), "{files}");
        // The volume's root, the note, and the file that fills the volume.
        assert!(inodes_used > 2, "{files}");
        let device = case.volume_statistics(self.pod.name(), "device").await?;
        assert_eq!(number(&device, "capacityBytes"), DEVICE[1], "{device}");
        Ok(())
    }

    async fn is_unchanged(&self, case: &Case) -> Result<(), Failure> {
        for (volume, before) in &self.volumes {
            assert_eq!(case.on_the_node(volume).await?, *before);
        }
        assert_eq!(self.pod.read(device::PATH).await?, "before");
        Ok(())
    }
}

/// Verifies the scheduler without the start of a pod.
async fn scheduler_works(case: &Case) -> Result<(), Failure> {
    const NOWHERE: &str = "nowhere";
    let spec = Pod::server(NOWHERE).on(NOWHERE).spec();
    case.create::<PodObject>(json!({"metadata": {"name": NOWHERE}, "spec": spec})).await?;
    eventually(PATIENCE, "the scheduler to find no node for a pod", async || {
        let pod = case.api::<PodObject>().get(NOWHERE).await.map_err(Failure::api("read a pod"))?;
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let is_seen = conditions.iter().any(|one| one.type_ == "PodScheduled" && one.status == "False");
        Ok(if is_seen { Seen::Done(()) } else { Seen::NotYet(format!("{conditions:?}")) })
    })
    .await
}

async fn controllers_work(case: &Case) -> Result<(), Failure> {
    const EMPTY: &str = "empty";
    let labels = json!({"pod": EMPTY});
    let template = json!({"metadata": {"labels": labels}, "spec": Pod::server(EMPTY).restarting().spec()});
    let spec = json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": template});
    case.create::<Deployment>(json!({"metadata": {"name": EMPTY}, "spec": spec})).await?;
    eventually(PATIENCE, "a controller to see a Deployment", async || {
        let found = case.api::<Deployment>().get(EMPTY).await.map_err(Failure::api("read a Deployment"))?;
        let status = found.status.unwrap_or_default();
        Ok(if status.observed_generation.is_some() { Seen::Done(()) } else { Seen::NotYet(format!("{status:?}")) })
    })
    .await
}

pub async fn no_place_has_two_mounts(case: &Case) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for mount in case.look_at_the_node().await?.mounts {
        assert!(seen.insert(mount.point.clone()), "two mounts at {}", mount.point);
    }
    Ok(())
}
