//! Parts of the node that end at the wrong moment.

use e2e::{Case, Claim, Failure, PATIENCE, Pod, Seen, Server, Suite, Volume, eventually};
use std::collections::BTreeSet;

use crate::status::all_services_are_ready;

const MIB: u64 = 1 << 20;
/// signal(7), x86.
const SIGKILL: i32 = 9;
const SIGUSR1: i32 = 10;
/// Claims of each pod of a burst, of both modes.
const CLAIMS: [&str; 4] = ["a", "b", "c", "d"];
/// And what brings its Services to the node.
const CONTROL_PLANE: [&str; 5] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"];

/// Adds the cases.
pub fn cases(suite: Suite) -> Suite {
    suite
        .alone("volumes_stay_when_kubelet_is_killed", |case| stays(case, "kubelet"))
        .alone("volumes_stay_when_containerd_is_killed", |case| stays(case, "containerd"))
        .alone("a_burst_is_finished_although_the_storage_tasks_end", a_burst_is_finished)
        .alone("the_control_plane_is_started_again_when_it_is_killed", the_control_plane_is_started_again)
}

/// Pods go on while the program is away, and what is asked for meanwhile is done when it is back.
async fn stays(case: Case, program: &'static str) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    case.claim(&Claim::block("device", 16 * MIB)).await?;
    let pod = |name: &str| Pod::server(name).with(Volume::claim("data")).with(Volume::device("device"));
    let one = case.open(&pod("one")).await?;
    one.write("/data/note", "before").await?;
    one.write("/dev/device", "before").await?;
    let volumes = [case.volume_name("data").await?, case.volume_name("device").await?];
    let mut before = Vec::new();
    for volume in &volumes {
        before.push(case.on_the_node(volume).await?);
    }

    let first = case.signal(program, SIGKILL).await?;
    assert_eq!(first.len(), 1, "{first:?}");
    // At once: while it is away.
    case.claim(&Claim::new("new", 16 * MIB)).await?;
    case.start(&pod("two").with(Volume::claim("new"))).await?;
    assert_eq!(one.read("/data/note").await?, "before");
    one.write("/data/note", "meanwhile").await?;

    let two = case.find("two").await?;
    assert_eq!(two.read("/data/note").await?, "meanwhile");
    assert_eq!(two.read("/dev/device").await?, "before");
    assert_eq!(one.device("/dev/device").await?.number, two.device("/dev/device").await?.number);
    assert_ne!(case.signal(program, 0).await?, first, "it was started again");
    no_place_has_two_mounts(&case).await?;

    two.remove().await?;
    for (volume, before) in volumes.iter().zip(before) {
        assert_eq!(case.on_the_node(volume).await?, before, "nothing came, and nothing was lost");
    }
    assert_eq!(one.read("/dev/device").await?, "before");
    Ok(())
}

/// One program after the other: who looks needs etcd and the API server. Pods need none of them.
async fn the_control_plane_is_started_again(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    let one = case.open(&Pod::server("one").with(Volume::claim("data"))).await?;
    one.write("/data/note", "before").await?;
    let mut running = Vec::new();
    for program in CONTROL_PLANE {
        running.push((program, case.signal(program, 0).await?));
    }
    for (program, before) in running {
        eventually(PATIENCE, &format!("another {program}"), async || {
            let now = case.signal(program, 0).await?;
            if now == before {
                // The API server cannot pass on that it was killed itself.
                _ = case.signal(program, SIGKILL).await;
            }
            Ok(if now == before { Seen::NotYet(format!("{now:?}")) } else { Seen::Done(()) })
        })
        .await?;
    }
    all_services_are_ready(&case).await?;
    // It has run all the time: nothing starts it again.
    assert_eq!(one.read("/data/note").await?, "before");
    case.claim(&Claim::new("new", 16 * MIB)).await?;
    let two = case.open(&Pod::server("two").with(Volume::claim("data")).with(Volume::claim("new"))).await?;
    assert_eq!(two.read("/data/note").await?, "before");
    no_place_has_two_mounts(&case).await
}

async fn no_place_has_two_mounts(case: &Case) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    for mount in case.look_at_the_node().await?.mounts {
        assert!(seen.insert(mount.point.clone()), "two mounts at {}", mount.point);
    }
    Ok(())
}

/// SIGUSR1 ends the tasks of the CSI plugin and of the provisioner wherever they are. They are started again.
async fn a_burst_is_finished(case: Case) -> Result<(), Failure> {
    let mut pods = Vec::new();
    for number in 0..3 {
        let mut pod = Pod::server(format!("burst-{number}"));
        for letter in CLAIMS {
            // Names live as long as the test.
            let name: &'static str = Box::leak(format!("{letter}{number}").into_boxed_str());
            let block = number % 2 == 0 && letter < "c";
            case.claim(&if block { Claim::block(name, 8 * MIB) } else { Claim::new(name, 8 * MIB) }).await?;
            pod = pod.with(if block { Volume::device(name) } else { Volume::claim(name) });
        }
        case.start(&pod).await?;
        pods.push(pod.name);
        assert_eq!(case.signal("init", SIGUSR1).await?, [1]);
    }
    case.signal("init", SIGUSR1).await?;
    let mut servers: Vec<Server> = Vec::new();
    for pod in &pods {
        servers.push(case.find(pod).await?);
    }
    no_place_has_two_mounts(&case).await?;
    for device in ["a0", "b0", "a2", "b2"] {
        let found = case.on_the_node(&case.volume_name(device).await?).await?;
        assert_eq!(found.loops.len(), 1, "{found:?}");
    }

    // And the same while they go.
    for (number, server) in servers.into_iter().enumerate() {
        server.write(format!("/d{number}/note"), "hello").await?;
        case.signal("init", SIGUSR1).await?;
        server.remove().await?;
    }
    let mut volumes = Vec::new();
    for number in 0..3 {
        for letter in CLAIMS {
            let name = format!("{letter}{number}");
            volumes.push(case.volume_name(&name).await?);
            case.delete_claim(&name).await?;
        }
        case.signal("init", SIGUSR1).await?;
    }
    for volume in volumes {
        case.volume_is_gone(&volume, None).await?;
    }
    Ok(())
}
