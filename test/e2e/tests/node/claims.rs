//! A claim's life: who may use it, what is refused, how it grows, what is left when it goes.

use ::eventually::chain;
use e2e::{AccessMode, Case, Claim, Class, Failure, PATIENCE, Pod, Seen, Suite, Volume, VolumeMode};
use e2e::{eventually, promised};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod as PodObject};
use kube::api::DeleteParams;
use serde_json::json;

const MIB: u64 = 1 << 20;
/// The file system's own blocks (directories, lists of extents) are charged to the volume, too.
const METADATA: u64 = 256 << 10;
/// More than the data disk has.
const TOO_MUCH: u64 = 1 << 40;

/// Adds the cases.
pub fn cases(suite: Suite) -> Suite {
    suite
        .case("two_pods_use_one_claim_and_one_leaves", two_pods_use_one_claim_and_one_leaves)
        .case("a_claim_for_one_pod_keeps_the_second_waiting", a_claim_for_one_pod_keeps_the_second_waiting)
        .case("a_directory_grows_under_its_pod", a_directory_grows_under_its_pod)
        .case("a_device_grows_under_its_pod", a_device_grows_under_its_pod)
        .case("volumes_grow_while_nobody_uses_them", volumes_grow_while_nobody_uses_them)
        .case("an_impossible_expansion_is_told_and_can_be_taken_back", an_impossible_expansion_is_told)
        .case("a_retained_volume_keeps_its_data_for_a_later_claim", a_retained_volume_keeps_its_data)
        .case("a_stateful_set_has_two_claims_for_each_pod", a_stateful_set_has_two_claims_for_each_pod)
        .case("an_ephemeral_volume_goes_with_its_pod", an_ephemeral_volume_goes_with_its_pod)
        .case("a_class_sets_how_many_files_a_volume_holds", a_class_sets_how_many_files_a_volume_holds)
        .case("a_claim_for_many_nodes_is_refused", a_claim_for_many_nodes_is_refused)
        .case("a_claim_with_a_data_source_is_refused", a_claim_with_a_data_source_is_refused)
        .case("a_class_with_wrong_parameters_is_refused", a_class_with_wrong_parameters_is_refused)
        .case("a_class_with_mount_options_is_refused", a_class_with_mount_options_is_refused)
        .case("a_claim_of_no_size_is_refused", a_claim_of_no_size_is_refused)
        .case("a_claim_of_a_missing_class_says_so", a_claim_of_a_missing_class_says_so)
}

async fn two_pods_use_one_claim_and_one_leaves(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    let one = case.open(&Pod::server("one").with(Volume::claim("data"))).await?;
    let two = case.open(&Pod::server("two").with(Volume::claim("data"))).await?;
    one.write("/data/note", "from one").await?;
    one.remove().await?;
    assert_eq!(two.read("/data/note").await?, "from one");
    two.write("/data/note", "from two").await?;
    let found = case.on_the_node(&case.volume_name("data").await?).await?;
    assert_eq!(found.mounts.len(), 1, "{found:?}");
    Ok(())
}

async fn a_claim_for_one_pod_keeps_the_second_waiting(case: Case) -> Result<(), Failure> {
    case.claim(&Claim { access: AccessMode::ReadWriteOncePod, ..Claim::new("data", 16 * MIB) }).await?;
    let one = case.open(&Pod::server("one").with(Volume::claim("data"))).await?;
    one.write("/data/note", "from one").await?;
    case.start(&Pod::server("two").with(Volume::claim("data"))).await?;
    case.unschedulable("two", "ReadWriteOncePod").await?;
    one.remove().await?;
    assert_eq!(case.find("two").await?.read("/data/note").await?, "from one");
    Ok(())
}

async fn a_directory_grows_under_its_pod(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    let pod = case.open(&Pod::server("tenant").with(Volume::claim("data"))).await?;
    pod.write("/data/note", "hello").await?;
    case.resize("data", 64 * MIB).await?;
    case.expanded("data", 64 * MIB).await?;
    assert_eq!(promised(&case.volume_of("data").await?), Some(64 * MIB));
    let fill = pod.fill(Pod::PATH, false).await?;
    assert_eq!((fill.before.size, fill.before.inodes), (64 * MIB, 64 * MIB / 2048));
    assert!(fill.written > 64 * MIB - METADATA, "{fill:?}");
    assert_eq!(pod.read("/data/note").await?, "hello");
    Ok(())
}

async fn a_device_grows_under_its_pod(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::block("data", 16 * MIB)).await?;
    let pod = case.open(&Pod::server("tenant").with(Volume::device("data"))).await?;
    pod.write(Pod::DEVICE, "hello").await?;
    case.resize("data", 64 * MIB).await?;
    case.expanded("data", 64 * MIB).await?;
    assert_eq!(promised(&case.volume_of("data").await?), Some(64 * MIB));
    let device = pod.device(Pod::DEVICE).await?;
    assert_eq!((device.size, device.direct), (64 * MIB, Some(true)));
    assert_eq!(pod.read(Pod::DEVICE).await?, "hello");
    let painted = pod.paint(Pod::DEVICE, "all of it").await?;
    assert_eq!((painted.written, painted.errno.as_str()), (64 * MIB, "ENOSPC"));
    Ok(())
}

async fn volumes_grow_while_nobody_uses_them(case: Case) -> Result<(), Failure> {
    let pod = Pod::server("tenant").with(Volume::claim("data")).with(Volume::device("device"));
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    case.claim(&Claim::block("device", 16 * MIB)).await?;
    let running = case.open(&pod).await?;
    running.write("/data/note", "hello").await?;
    running.write("/dev/device", "hello").await?;
    running.remove().await?;
    for claim in ["data", "device"] {
        case.resize(claim, 32 * MIB).await?;
    }
    for claim in ["data", "device"] {
        case.expanded(claim, 32 * MIB).await?;
    }
    let running = case.open(&pod).await?;
    assert_eq!(running.inspect(Pod::PATH).await?.space.size, 32 * MIB);
    assert_eq!(running.device("/dev/device").await?.size, 32 * MIB);
    assert_eq!(
        (running.read("/data/note").await?, running.read("/dev/device").await?),
        ("hello".into(), "hello".into())
    );
    Ok(())
}

async fn an_impossible_expansion_is_told(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    case.claim(&Claim::block("device", 16 * MIB)).await?;
    let pod = Pod::server("tenant").with(Volume::claim("data")).with(Volume::device("device"));
    let pod = case.open(&pod).await?;
    for claim in ["data", "device"] {
        case.resize(claim, TOO_MUCH).await?;
        case.claim_status(claim, "reported as infeasible", |status| {
            let statuses = status.allocated_resource_statuses.as_ref();
            statuses.and_then(|all| all.get("storage")).is_some_and(|status| status == "ControllerResizeInfeasible")
        })
        .await?;
        case.event_with(claim, "VolumeResizeFailed", "to promise").await?;
        // As it was, and it works.
        let capacity = case.read_claim(claim).await?.status.and_then(|status| status.capacity);
        assert_eq!(capacity.and_then(|sizes| sizes.get("storage").map(|size| size.0.clone())).as_deref(), Some("16Mi"));
    }
    assert_eq!(pod.inspect(Pod::PATH).await?.space.size, 16 * MIB);

    for claim in ["data", "device"] {
        case.resize(claim, 32 * MIB).await?;
        case.expanded(claim, 32 * MIB).await?;
    }
    assert_eq!(pod.inspect(Pod::PATH).await?.space.size, 32 * MIB);
    assert_eq!(pod.device("/dev/device").await?.size, 32 * MIB);
    Ok(())
}

async fn a_retained_volume_keeps_its_data(case: Case) -> Result<(), Failure> {
    let class = case.make_class(&Class { name: "retain", retain: true, ..Class::default() }).await?;
    case.claim(&Claim::new("first", 16 * MIB).of(&class)).await?;
    let pod = case.open(&Pod::server("first").with(Volume::claim("first"))).await?;
    pod.write("/first/note", "hello").await?;
    let volume = case.volume_name("first").await?;
    pod.remove().await?;
    case.delete_claim("first").await?;
    released(&case, &volume).await?;
    let kept = case.on_the_node(&volume).await?;
    assert!(kept.project.is_some_and(|project| project.bytes == Some(16 * MIB)), "{kept:?}");

    // The operator gives it to another claim.
    case.patch_volume(&volume, &json!({"spec": {"claimRef": null}})).await?;
    let mut spec = Claim::new("second", 16 * MIB).of(&class).spec();
    spec["volumeName"] = volume.clone().into();
    case.create::<PersistentVolumeClaim>(json!({"metadata": {"name": "second"}, "spec": spec})).await?;
    let pod = case.open(&Pod::server("second").with(Volume::claim("second"))).await?;
    assert_eq!(pod.read("/second/note").await?, "hello");
    pod.remove().await?;
    case.delete_claim("second").await?;
    released(&case, &volume).await?;

    // And erases it in the end.
    case.patch_volume(&volume, &json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}})).await?;
    case.volume_is_gone(&volume, kept.project.map(|project| project.id)).await
}

async fn released(case: &Case, volume: &str) -> Result<(), Failure> {
    eventually(PATIENCE, &format!("volume {volume} to be released"), async || {
        let found = case.find_volume(volume).await?;
        let phase = found.and_then(|volume| volume.status).and_then(|status| status.phase);
        Ok(if phase.as_deref() == Some("Released") { Seen::Done(()) } else { Seen::NotYet(format!("{phase:?}")) })
    })
    .await
}

async fn a_stateful_set_has_two_claims_for_each_pod(case: Case) -> Result<(), Failure> {
    let template = |claim: Claim| json!({"metadata": {"name": claim.name}, "spec": claim.spec()});
    let pod = Pod::server("set").with(Volume::claim("data")).with(Volume::device("device")).restarting();
    case.create::<StatefulSet>(json!({
        "metadata": {"name": "set"},
        "spec": {
            "serviceName": "set",
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "set"}},
            "template": {"metadata": {"labels": {"app": "set"}}, "spec": pod.spec()},
            "volumeClaimTemplates": [template(Claim::new("data", 16 * MIB)), template(Claim::block("device", 16 * MIB))],
        },
    }))
    .await?;
    for name in ["set-0", "set-1"] {
        let pod = case.find(name).await?;
        pod.write("/data/note", name).await?;
        pod.write("/dev/device", name).await?;
    }
    // A pod that is lost is made again, with what it had.
    let pods = case.api::<PodObject>();
    let uid = |pod: PodObject| pod.metadata.uid;
    let first = pods.get_opt("set-0").await.ok().flatten().and_then(uid);
    assert!(pods.delete("set-0", &DeleteParams::default()).await.is_ok());
    eventually(PATIENCE, "another pod set-0", async || {
        let now = pods.get_opt("set-0").await.ok().flatten().and_then(uid);
        Ok(if now.is_some() && now != first { Seen::Done(()) } else { Seen::NotYet(format!("{now:?}")) })
    })
    .await?;
    let pod = case.find("set-0").await?;
    assert_eq!(pod.read("/data/note").await?, "set-0");
    assert_eq!(pod.read("/dev/device").await?, "set-0");
    Ok(())
}

async fn an_ephemeral_volume_goes_with_its_pod(case: Case) -> Result<(), Failure> {
    let pod = case.open(&Pod::server("tenant").with(Volume::ephemeral(&Claim::new("scratch", 16 * MIB)))).await?;
    let fill = pod.fill("/scratch", true).await?;
    assert_eq!((fill.before.size, fill.errno.as_str()), (16 * MIB, "ENOSPC"));
    let volume = case.volume_name("tenant-scratch").await?;
    pod.remove().await?;
    case.volume_is_gone(&volume, None).await
}

async fn a_class_sets_how_many_files_a_volume_holds(case: Case) -> Result<(), Failure> {
    let many = Class { name: "files", parameters: [("bytesPerInode", "65536")].into(), ..Class::default() };
    let class = case.make_class(&many).await?;
    case.claim(&Claim::new("data", 16 * MIB).of(&class)).await?;
    let pod = case.open(&Pod::server("tenant").with(Volume::claim("data"))).await?;
    assert_eq!(pod.inspect(Pod::PATH).await?.space.inodes, 16 * MIB / 65536);
    Ok(())
}

async fn a_claim_for_many_nodes_is_refused(case: Case) -> Result<(), Failure> {
    for (name, access) in [("readers", AccessMode::ReadOnlyMany), ("writers", AccessMode::ReadWriteMany)] {
        let message = refused(&case, &Claim { access, ..Claim::new(name, 16 * MIB) }).await?;
        assert!(message.contains("spec.accessModes") && message.contains(access.as_str()), "{message}");
    }
    Ok(())
}

async fn a_claim_with_a_data_source_is_refused(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("source", 16 * MIB)).await?;
    let message = refused(&case, &Claim { source: Some("source"), ..Claim::new("data", 16 * MIB) }).await?;
    assert!(message.contains("spec.dataSource"), "{message}");
    Ok(())
}

async fn a_class_with_wrong_parameters_is_refused(case: Case) -> Result<(), Failure> {
    let wrong = [("unknown", "colour", "blue"), ("ratio", "bytesPerInode", "few"), ("image", "blockAllocation", "fat")];
    for (name, parameter, value) in wrong {
        let class = Class { name, parameters: [(parameter, value)].into(), ..Class::default() };
        let class = case.make_class(&class).await?;
        let mode = if name == "image" { VolumeMode::Block } else { VolumeMode::Filesystem };
        let message = refused(&case, &Claim { mode, ..Claim::new(name, 16 * MIB).of(&class) }).await?;
        assert!(message.contains(&class) && message.contains(parameter), "{message}");
    }
    Ok(())
}

async fn a_class_with_mount_options_is_refused(case: Case) -> Result<(), Failure> {
    let class = Class { name: "options", mount_options: vec!["noatime"], ..Class::default() };
    let class = case.make_class(&class).await?;
    let message = refused(&case, &Claim::new("data", 16 * MIB).of(&class)).await?;
    assert!(message.contains(&class) && message.contains("mountOptions"), "{message}");
    Ok(())
}

/// By the API server: the provisioner never sees such a claim.
async fn a_claim_of_no_size_is_refused(case: Case) -> Result<(), Failure> {
    let Err(refusal) = case.claim(&Claim::new("data", 0)).await else { panic!("a claim of no size was taken") };
    let text = chain(&refusal);
    assert!(text.contains("must be greater than zero"), "{text}");
    Ok(())
}

/// By the controller manager: the provisioner does not know that the claim is its own.
async fn a_claim_of_a_missing_class_says_so(case: Case) -> Result<(), Failure> {
    let class = case.unique("nowhere");
    case.claim(&Claim::new("data", 16 * MIB).of(&class)).await?;
    case.start(&Pod::server("tenant").with(Volume::claim("data"))).await?;
    let message = case.event("data", "ProvisioningFailed").await?;
    assert!(message.contains(&class) && message.contains("not found"), "{message}");
    Ok(())
}

/// Makes a claim with a pod, and returns why it gets no volume; nothing was made for it then.
async fn refused(case: &Case, claim: &Claim) -> Result<String, Failure> {
    case.claim(claim).await?;
    let volume = match claim.mode {
        VolumeMode::Filesystem => Volume::claim(claim.name),
        VolumeMode::Block => Volume::device(claim.name),
    };
    case.start(&Pod::server(claim.name).with(volume)).await?;
    let message = case.event(claim.name, "ProvisioningFailed").await?;
    let waiting = case.read_claim(claim.name).await?;
    let phase = waiting.status.and_then(|status| status.phase);
    assert_eq!(phase.as_deref(), Some("Pending"));
    let volume = format!("pvc-{}", waiting.metadata.uid.unwrap_or_default());
    assert!(case.find_volume(&volume).await?.is_none());
    let found = case.on_the_node(&volume).await?;
    assert!(found.entries.is_empty(), "{found:?}");
    Ok(message)
}
