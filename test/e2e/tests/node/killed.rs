//! Programs of the node that are killed: pods go on, and what is asked for meanwhile is done when the program is back.

use e2e::{Case, Claim, Failure, OnNode, PATIENCE, Part, Pod, Seen, Server, Stopped, Volume, eventually};
use futures::future::join_all;
use programs::User;
use std::collections::BTreeSet;
use workload::Record;

const MIB: u64 = 1 << 20;
/// signal(7), x86.
const SIGKILL: i32 = 9;

pub async fn run(part: Part) -> Result<(), Stopped> {
    let case = &part.case;
    let before = part.must_show("a_pod_runs_before_anything_is_killed", Before::start(case)).await?;
    part.alone().await;
    let kubelet = part.must_show("volumes_stay_when_kubelet_is_killed", before.stays(case, "kubelet")).await?;
    let containerd = part.must_show("volumes_stay_when_containerd_is_killed", before.stays(case, "containerd")).await?;
    let all = before.outlives_the_control_plane(case);
    let control_plane = part.must_show("the_control_plane_is_started_again_when_it_is_killed", all).await?;
    let later = [kubelet, containerd, control_plane];
    part.shows("nothing_came_and_nothing_was_lost", before.is_unchanged(case, later)).await;
    Ok(())
}

/// A pod that runs all the time, and what the node has of its volumes.
struct Before {
    pod: Server,
    volumes: [(String, OnNode); 2],
}

fn pod(name: &str) -> Pod {
    Pod::server(name).with(Volume::claim("data")).with(Volume::device("device"))
}

impl Before {
    async fn start(case: &Case) -> Result<Self, Failure> {
        case.claim(&Claim::new("data", 16 * MIB)).await?;
        case.claim(&Claim::block("device", 16 * MIB)).await?;
        let pod = case.open(&pod("before")).await?;
        pod.write("/dev/device", "before").await?;
        let (data, device) = tokio::try_join!(case.volume_name("data"), case.volume_name("device"))?;
        let volumes = tokio::try_join!(case.on_the_node(&data), case.on_the_node(&device))?;
        Ok(Self { pod, volumes: [(data, volumes.0), (device, volumes.1)] })
    }

    /// Kills a program, and asks at once for what needs it. Returns a pod that was started meanwhile.
    async fn stays(&self, case: &Case, program: &'static str) -> Result<Server, Failure> {
        self.pod.write("/data/note", "before").await?;
        let first = case.signal(program, SIGKILL).await?;
        assert_eq!(first.len(), 1, "{first:?}");
        let later = format!("after-{program}");
        case.claim(&Claim::new(program, 16 * MIB)).await?;
        case.start(&pod(&later).with(Volume::claim(program))).await?;
        assert_eq!(self.pod.read("/data/note").await?, "before");
        self.pod.write("/data/note", "meanwhile").await?;

        let later = case.find(&later).await?;
        assert_eq!(later.read("/data/note").await?, "meanwhile");
        self.has_the_same_device(&later).await?;
        assert_ne!(case.signal(program, 0).await?, first, "it was started again");
        no_place_has_two_mounts(case).await?;
        Ok(later)
    }

    async fn has_the_same_device(&self, later: &Server) -> Result<(), Failure> {
        assert_eq!(later.read("/dev/device").await?, "before");
        let (one, other) = tokio::try_join!(self.pod.device("/dev/device"), later.device("/dev/device"))?;
        assert_eq!(one.number, other.number);
        Ok(())
    }

    /// All of its programs at once, and those that bring its Services and their names to the node. Pods need none of them.
    async fn outlives_the_control_plane(&self, case: &Case) -> Result<Server, Failure> {
        self.pod.write("/data/note", "before").await?;
        let mut running = Vec::new();
        for program in User::ALL.map(User::program) {
            running.push((program, case.signal(program, 0).await?));
        }
        // The answers may come too late, and etcd may be away when the API server is to pass a signal on: it is the last to get one.
        let (last, first): (Vec<_>, Vec<_>) =
            User::ALL.into_iter().partition(|user| matches!(user, User::Etcd | User::ApiServer));
        for users in [first, last] {
            _ = join_all(users.into_iter().map(|user| case.signal(user.program(), SIGKILL))).await;
        }
        for (program, before) in running {
            eventually(PATIENCE, &format!("another {program}"), async || {
                let now = case.signal(program, 0).await?;
                if now == before {
                    // The signal did not come through.
                    _ = case.signal(program, SIGKILL).await;
                }
                Ok(if now == before { Seen::NotYet(format!("{now:?}")) } else { Seen::Done(()) })
            })
            .await?;
        }
        case.all_services_are_ready().await?;
        let own = self.pod.resolve("kubernetes.default", Record::A).await?;
        assert_eq!((own.code.as_str(), own.answers.len()), ("NOERROR", 1), "{own:?}");
        // It has run all the time: nothing starts it again.
        assert_eq!(self.pod.read("/data/note").await?, "before");
        case.claim(&Claim::new("new", 16 * MIB)).await?;
        let later = case.open(&pod("after-all").with(Volume::claim("new"))).await?;
        assert_eq!(later.read("/data/note").await?, "before");
        self.has_the_same_device(&later).await?;
        no_place_has_two_mounts(case).await?;
        Ok(later)
    }

    async fn is_unchanged(&self, case: &Case, later: [Server; 3]) -> Result<(), Failure> {
        let [one, two, three] = later;
        tokio::try_join!(one.remove(), two.remove(), three.remove())?;
        for (volume, before) in &self.volumes {
            assert_eq!(case.on_the_node(volume).await?, *before);
        }
        assert_eq!(self.pod.read("/dev/device").await?, "before");
        Ok(())
    }
}

pub async fn no_place_has_two_mounts(case: &Case) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for mount in case.look_at_the_node().await?.mounts {
        assert!(seen.insert(mount.point.clone()), "two mounts at {}", mount.point);
    }
    Ok(())
}
