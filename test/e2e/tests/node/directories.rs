//! What a user sees of volumes with a file system.

use e2e::{Case, Claim, DRIVER, Failure, Pod, Seen, Suite, VolumeMode, eventually, is_ours, promised};
use e2e::{PATIENCE, Volume};
use workload::{Check, Executed, Finding, Text};

const MIB: u64 = 1 << 20;
/// The file system's own blocks (directories, lists of extents) are charged to the volume, too.
const METADATA: u64 = 256 << 10;

/// Adds the cases.
pub fn cases(suite: Suite) -> Suite {
    suite
        .case("kubelet_has_statistics_of_the_volume", kubelet_has_statistics_of_the_volume)
        .case("a_volume_ends_at_its_promised_size", a_volume_ends_at_its_promised_size)
        .case("a_volume_ends_at_its_inode_limit", a_volume_ends_at_its_inode_limit)
        .case("what_one_pod_wrote_the_next_one_reads", what_one_pod_wrote_the_next_one_reads)
        .case("a_program_on_a_volume_can_be_executed", a_program_on_a_volume_can_be_executed)
        .case("a_read_only_volume_can_be_read_and_not_written", a_read_only_volume_can_be_read_and_not_written)
        .case("a_sub_path_is_a_directory_of_the_volume", a_sub_path_is_a_directory_of_the_volume)
        .case("a_pod_that_is_not_root_writes_by_its_group", a_pod_that_is_not_root_writes_by_its_group)
        .case("a_volume_is_inert_on_the_node", a_volume_is_inert_on_the_node)
        .case("two_claims_at_once_get_a_volume_each", two_claims_at_once_get_a_volume_each)
        .case("nothing_is_left_of_a_deleted_claim", nothing_is_left_of_a_deleted_claim)
        .case("a_tenants_data_is_not_found_by_the_next", a_tenants_data_is_not_found_by_the_next)
        .case("the_clusters_default_class_is_the_nodes", the_clusters_default_class_is_the_nodes)
}

async fn the_clusters_default_class_is_the_nodes(case: Case) -> Result<(), Failure> {
    let class = case.class("local").await?;
    assert_eq!(class.provisioner, DRIVER);
    assert_eq!(class.volume_binding_mode.as_deref(), Some("WaitForFirstConsumer"));
    assert_eq!(class.allow_volume_expansion, Some(true));
    let annotations = class.metadata.annotations.unwrap_or_default();
    assert_eq!(annotations.get("storageclass.kubernetes.io/is-default-class").map(String::as_str), Some("true"));
    Ok(())
}

async fn a_volume_ends_at_its_promised_size(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 64 * MIB)).await?;
    let pod = case.open(&Pod::server("filler").with(Volume::claim("data"))).await?;
    // As df shows it.
    let fill = pod.fill(Pod::PATH, false).await?;
    assert_eq!(fill.before.size, 64 * MIB);
    assert_eq!(fill.before.inodes, 64 * MIB / 2048);
    assert_eq!(fill.errno, "ENOSPC");
    let most = 64 * MIB - METADATA..=64 * MIB;
    assert!(most.contains(&fill.written), "{} of {} bytes could be written", fill.written, 64 * MIB);
    assert!(fill.full.free < METADATA, "{} bytes are free in a full volume", fill.full.free);

    let volume = case.volume_of("data").await?;
    assert_eq!(promised(&volume), Some(64 * MIB));
    assert!(is_ours(&volume), "{volume:?}");
    Ok(())
}

async fn a_volume_ends_at_its_inode_limit(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", MIB)).await?;
    let pod = case.open(&Pod::server("filler").with(Volume::claim("data"))).await?;
    let fill = pod.fill_inodes(Pod::PATH, false).await?;
    assert_eq!(fill.before.inodes, MIB / 2048);
    // The volume's root is one of them.
    assert_eq!(fill.created, MIB / 2048 - 1);
    assert_eq!(fill.errno, "ENOSPC");
    assert_eq!(fill.full.inodes_free, 0);
    Ok(())
}

/// With pods that end by themselves.
async fn what_one_pod_wrote_the_next_one_reads(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    let (path, text) = ("/data/note".into(), "hello".to_owned());
    case.run(&Pod::new("writer", "data", Check::Write { path, text: text.clone() })).await?;
    let read = case.run(&Pod::new("reader", "data", Check::Read { path: "/data/note".into() })).await?;
    assert_eq!(read, Finding::Read(Text { text }));
    Ok(())
}

/// The node's mount forbids it, the container's does not.
async fn a_program_on_a_volume_can_be_executed(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 64 * MIB)).await?;
    let pod = case.open(&Pod::server("runner").with(Volume::claim("data"))).await?;
    let executed: Executed = pod.ask(&Check::Execute { path: Pod::PATH.into() }).await?;
    assert_eq!(executed, Executed { status: Some(0), errno: None });
    Ok(())
}

async fn a_read_only_volume_can_be_read_and_not_written(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    let writer = case.open(&Pod::server("writer").with(Volume::claim("data"))).await?;
    writer.write("/data/note", "hello").await?;

    // Beside the writer: each target has its own flags.
    let reader = case.open(&Pod::server("reader").with(Volume::claim("data").read_only())).await?;
    assert_eq!(reader.read("/data/note").await?, "hello");
    assert_eq!(reader.try_write("/data/other").await?.as_deref(), Some("EROFS"));
    assert_eq!(reader.try_write("/data/note").await?.as_deref(), Some("EROFS"));
    assert!(reader.inspect(Pod::PATH).await?.flags.contains(&"ro".to_owned()));

    assert_eq!(writer.try_write("/data/other").await?, None);
    Ok(())
}

async fn a_sub_path_is_a_directory_of_the_volume(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    let below = case.open(&Pod::server("below").with(Volume::claim("data").sub_path("deep/inside"))).await?;
    below.write("/data/note", "hello").await?;
    let inside = below.inspect(Pod::PATH).await?;
    assert_eq!(inside.space.size, 16 * MIB, "the limit is that of the volume");

    let whole = case.open(&Pod::server("whole").with(Volume::claim("data"))).await?;
    assert_eq!(whole.read("/data/deep/inside/note").await?, "hello");
    Ok(())
}

async fn a_pod_that_is_not_root_writes_by_its_group(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    let pod = case.open(&Pod::server("tenant").with(Volume::claim("data")).user(1000, 2000)).await?;
    let root = pod.inspect(Pod::PATH).await?;
    assert_eq!((root.uid, root.gid), (0, 2000));
    assert_eq!(pod.try_write("/data/note").await?, None);
    // Files get the group of the directory, by its set-group-ID bit.
    let note = pod.inspect("/data/note").await?;
    assert_eq!((note.uid, note.gid), (1000, 2000));
    Ok(())
}

/// Set-user-ID programs and device nodes of tenants do nothing where they are mounted on the node.
async fn a_volume_is_inert_on_the_node(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    let _pod = case.open(&Pod::server("tenant").with(Volume::claim("data"))).await?;
    let volume = case.volume_name("data").await?;
    let found = case.on_the_node(&volume).await?;
    assert_eq!(found.mounts.len(), 1, "{found:?}");
    for flag in ["rw", "nosuid", "nodev", "noexec"] {
        assert!(found.mounts[0].flags.iter().any(|one| one == flag), "{flag} is missing: {found:?}");
    }
    Ok(())
}

async fn two_claims_at_once_get_a_volume_each(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("one", 16 * MIB)).await?;
    case.claim(&Claim::new("two", 32 * MIB)).await?;
    let pod = case.open(&Pod::server("filler").with(Volume::claim("one")).with(Volume::claim("two"))).await?;
    let (one, two) = tokio::try_join!(pod.fill("/one", false), pod.fill("/two", false))?;
    assert_eq!((one.before.size, two.before.size), (16 * MIB, 32 * MIB));
    assert_eq!((one.errno.as_str(), two.errno.as_str()), ("ENOSPC", "ENOSPC"));
    let (one, two) = tokio::try_join!(case.volume_name("one"), case.volume_name("two"))?;
    assert_ne!(one, two);
    Ok(())
}

async fn nothing_is_left_of_a_deleted_claim(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    let pod = case.open(&Pod::server("writer").with(Volume::claim("data"))).await?;
    pod.write("/data/note", "secret").await?;
    let volume = case.volume_name("data").await?;
    let limits = case.on_the_node(&volume).await?.project.unwrap_or_else(|| panic!("volume {volume} has no limits"));
    assert_eq!((limits.bytes, limits.inodes), (Some(16 * MIB), Some(16 * MIB / 2048)));

    pod.remove().await?;
    case.delete_claim("data").await?;
    case.volume_is_gone(&volume, Some(limits.id)).await
}

async fn a_tenants_data_is_not_found_by_the_next(case: Case) -> Result<(), Failure> {
    const MARK: &str = "the first tenant's secret";
    let claim = Claim::new("data", 16 * MIB);
    case.claim(&claim).await?;
    let pod = case.open(&Pod::server("first").with(Volume::claim("data"))).await?;
    let painted = pod.paint(Pod::PATH, MARK).await?;
    assert!(painted.written > 16 * MIB - METADATA, "{painted:?}");
    assert!(pod.scan(Pod::PATH, MARK).await?.found > 0, "a mark that is there is found");
    let volume = case.volume_name("data").await?;
    pod.remove().await?;
    case.delete_claim("data").await?;
    case.volume_is_gone(&volume, None).await?;
    eventually(PATIENCE, "the claim's end", async || {
        let found = case.api::<k8s_openapi::api::core::v1::PersistentVolumeClaim>().get_opt("data").await;
        Ok(if matches!(found, Ok(None)) { Seen::Done(()) } else { Seen::NotYet(format!("{found:?}")) })
    })
    .await?;

    case.claim(&claim).await?;
    let pod = case.open(&Pod::server("second").with(Volume::claim("data"))).await?;
    let scan = pod.scan(Pod::PATH, MARK).await?;
    assert!(scan.bytes > 16 * MIB - METADATA, "the whole volume was read: {scan:?}");
    assert_eq!((scan.found, scan.data), (0, 0));
    Ok(())
}

async fn kubelet_has_statistics_of_the_volume(case: Case) -> Result<(), Failure> {
    for mode in VolumeMode::ALL {
        let name = if mode == VolumeMode::Block { "device" } else { "data" };
        case.claim(&Claim { mode, ..Claim::new(name, 16 * MIB) }).await?;
    }
    let pod = Pod::server("tenant").with(Volume::claim("data")).with(Volume::device("device"));
    let pod = case.open(&pod).await?;
    pod.fill(Pod::PATH, true).await?;
    let files = case.volume_statistics(pod.name(), "data").await?;
    assert_eq!((files["capacityBytes"].as_u64(), files["inodes"].as_u64()), (Some(16 * MIB), Some(8192)), "{files}");
    for number in ["usedBytes", "availableBytes", "inodesUsed", "inodesFree"] {
        assert!(files[number].is_u64(), "{number} is missing: {files}");
    }
    let device = case.volume_statistics(pod.name(), "device").await?;
    assert_eq!(device["capacityBytes"].as_u64(), Some(16 * MIB), "{device}");
    Ok(())
}
