//! What a user sees of volumes.

use e2e::{AccessMode, Case, Claim, Failure, PATIENCE, Pod, Seen, Suite, eventually};
use k8s_openapi::api::core::v1::PersistentVolume;
use std::process::ExitCode;
use workload::{Check, Executed, Fill, FillInodes, Finding, Text};

const MIB: u64 = 1 << 20;
/// The file system's own blocks (directories, lists of extents) are charged to the volume, too.
const METADATA: u64 = 256 << 10;
const DRIVER: &str = "local.granary.dev";

fn main() -> ExitCode {
    Suite::new("volumes")
        .case("the_clusters_default_class_is_the_nodes", the_clusters_default_class_is_the_nodes)
        .case("a_volume_ends_at_its_promised_size", a_volume_ends_at_its_promised_size)
        .case("a_volume_ends_at_its_inode_limit", a_volume_ends_at_its_inode_limit)
        .case("what_one_pod_wrote_the_next_one_reads", what_one_pod_wrote_the_next_one_reads)
        .case("a_program_on_a_volume_can_be_executed", a_program_on_a_volume_can_be_executed)
        .case("two_claims_at_once_get_a_volume_each", two_claims_at_once_get_a_volume_each)
        .case("nothing_is_left_of_a_deleted_claim", nothing_is_left_of_a_deleted_claim)
        .case("a_claim_for_readers_on_many_nodes_is_refused", a_claim_for_readers_on_many_nodes_is_refused)
        .case("a_claim_with_a_data_source_is_refused", a_claim_with_a_data_source_is_refused)
        .run()
}

async fn the_clusters_default_class_is_the_nodes(case: Case) -> Result<(), Failure> {
    let class = case.class("local").await?;
    assert_eq!(class.provisioner, DRIVER);
    assert_eq!(class.volume_binding_mode.as_deref(), Some("WaitForFirstConsumer"));
    let annotations = class.metadata.annotations.unwrap_or_default();
    assert_eq!(annotations.get("storageclass.kubernetes.io/is-default-class").map(String::as_str), Some("true"));
    Ok(())
}

async fn a_volume_ends_at_its_promised_size(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 64 * MIB)).await?;
    let fill = fill(&case, "filler", "data").await?;
    assert_eq!(fill.before.size, 64 * MIB);
    assert_eq!(fill.before.inodes, 64 * MIB / 2048);
    assert_eq!(fill.errno, "ENOSPC");
    let promised = 64 * MIB - METADATA..=64 * MIB;
    assert!(promised.contains(&fill.written), "{} of {} bytes could be written", fill.written, 64 * MIB);
    assert!(fill.full.free < METADATA, "{} bytes are free in a full volume", fill.full.free);

    let volume = case.volume_of("data").await?;
    assert_eq!(capacity(&volume), "64Mi");
    let source = volume.spec.and_then(|spec| spec.csi).map(|csi| csi.driver);
    assert_eq!(source.as_deref(), Some(DRIVER));
    Ok(())
}

async fn a_volume_ends_at_its_inode_limit(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", MIB)).await?;
    let check = Check::FillInodes { path: Pod::PATH.into() };
    let Finding::FillInodes(FillInodes { before, created, errno, full }) =
        case.run(&Pod::new("filler", "data", check)).await?
    else {
        panic!("another check was made");
    };
    assert_eq!(before.inodes, MIB / 2048);
    // The volume's root is one of them.
    assert_eq!(created, MIB / 2048 - 1);
    assert_eq!(errno, "ENOSPC");
    assert_eq!(full.inodes_free, 0);
    Ok(())
}

async fn what_one_pod_wrote_the_next_one_reads(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    let (path, text) = ("/data/note".into(), "hello".to_owned());
    case.run(&Pod::new("writer", "data", Check::Write { path, text: text.clone() })).await?;
    let read = case.run(&Pod::new("reader", "data", Check::Read { path: "/data/note".into() })).await?;
    assert_eq!(read, Finding::Read(Text { text }));
    Ok(())
}

async fn a_program_on_a_volume_can_be_executed(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 64 * MIB)).await?;
    let executed = case.run(&Pod::new("runner", "data", Check::Execute { path: Pod::PATH.into() })).await?;
    assert_eq!(executed, Finding::Execute(Executed { status: Some(0), errno: None }));
    Ok(())
}

async fn two_claims_at_once_get_a_volume_each(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("one", 16 * MIB)).await?;
    case.claim(&Claim::new("two", 32 * MIB)).await?;
    let (one, two) = tokio::try_join!(fill(&case, "fills-one", "one"), fill(&case, "fills-two", "two"))?;
    assert_eq!((one.before.size, two.before.size), (16 * MIB, 32 * MIB));
    assert_eq!((one.errno.as_str(), two.errno.as_str()), ("ENOSPC", "ENOSPC"));
    let (one, two) = tokio::try_join!(case.volume_of("one"), case.volume_of("two"))?;
    assert_ne!(one.metadata.name, two.metadata.name);
    Ok(())
}

async fn nothing_is_left_of_a_deleted_claim(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("data", 16 * MIB)).await?;
    let write = Check::Write { path: "/data/note".into(), text: "secret".to_owned() };
    case.run(&Pod::new("writer", "data", write)).await?;
    let volume = case.volume_of("data").await?.metadata.name.unwrap_or_default();

    let before = case.look_at_the_node().await?;
    let directory = before.entries.iter().find(|entry| entry.path.ends_with(&volume) && entry.project.is_some());
    let project = directory.and_then(|entry| entry.project);
    let limits = before.projects.iter().find(|known| Some(known.id) == project);
    let limit = limits.and_then(|known| known.bytes);
    assert_eq!(limit, Some(16 * MIB), "volume {volume} has no limit on the node: {before:?}");

    case.delete_claim("data").await?;
    eventually(PATIENCE, "the removal of the volume's object", async || {
        let found = case.find_volume(&volume).await?;
        let phase = found.map(|volume| volume.status.and_then(|status| status.phase));
        Ok(phase.map_or(Seen::Done(()), |phase| Seen::NotYet(format!("it is {phase:?}"))))
    })
    .await?;
    eventually(PATIENCE, "the removal of directory, record, limit and project", async || {
        let after = case.look_at_the_node().await?;
        let named = after.entries.iter().any(|entry| entry.path.contains(&volume));
        let limited = after.projects.iter().any(|known| Some(known.id) == project);
        Ok(if named || limited { Seen::NotYet(format!("{after:?}")) } else { Seen::Done(()) })
    })
    .await
}

async fn a_claim_for_readers_on_many_nodes_is_refused(case: Case) -> Result<(), Failure> {
    let claim = Claim { access: AccessMode::ReadOnlyMany, ..Claim::new("data", 16 * MIB) };
    let message = refused(&case, &claim).await?;
    assert!(message.contains("spec.accessModes") && message.contains("ReadOnlyMany"), "{message}");
    Ok(())
}

async fn a_claim_with_a_data_source_is_refused(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::new("source", 16 * MIB)).await?;
    let claim = Claim { source: Some("source"), ..Claim::new("data", 16 * MIB) };
    let message = refused(&case, &claim).await?;
    assert!(message.contains("spec.dataSource"), "{message}");
    Ok(())
}

/// Makes a claim with a pod, and returns why it gets no volume; nothing was made for it then.
async fn refused(case: &Case, claim: &Claim) -> Result<String, Failure> {
    case.claim(claim).await?;
    case.start(&Pod::new("user", claim.name, Check::Inspect { path: Pod::PATH.into() })).await?;
    let message = case.event(claim.name, "ProvisioningFailed").await?;
    let waiting = case.read_claim(claim.name).await?;
    let phase = waiting.status.and_then(|status| status.phase);
    assert_eq!(phase.as_deref(), Some("Pending"));
    let volume = format!("pvc-{}", waiting.metadata.uid.unwrap_or_default());
    assert!(case.find_volume(&volume).await?.is_none());
    let node = case.look_at_the_node().await?;
    assert!(!node.entries.iter().any(|entry| entry.path.contains(&volume)), "{node:?}");
    Ok(message)
}

async fn fill(case: &Case, pod: &str, claim: &'static str) -> Result<Fill, Failure> {
    match case.run(&Pod::new(pod, claim, Check::Fill { path: Pod::PATH.into(), keep: false })).await? {
        Finding::Fill(fill) => Ok(fill),
        other => panic!("another check was made: {other:?}"),
    }
}

fn capacity(volume: &PersistentVolume) -> String {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    capacity.and_then(|sizes| sizes.get("storage")).map(|size| size.0.clone()).unwrap_or_default()
}
