//! What a user sees of block volumes.

use e2e::{Case, Claim, Class, Failure, Pod, Seen, Suite, Volume, eventually, promised};
use e2e::{OnNode, PATIENCE};

const MIB: u64 = 1 << 20;

/// Adds the cases.
pub fn cases(suite: Suite) -> Suite {
    suite
        .case("a_device_ends_at_its_promised_size", a_device_ends_at_its_promised_size)
        .case("a_read_only_device_can_be_read_and_not_written", a_read_only_device_can_be_read_and_not_written)
        .case("two_pods_share_one_loop_device", two_pods_share_one_loop_device)
        .case("what_one_pod_wrote_to_a_device_the_next_one_reads", what_one_pod_wrote_to_a_device_the_next_one_reads)
        .case("a_pod_that_is_not_root_has_its_device", a_pod_that_is_not_root_has_its_device)
        .case("a_tenants_data_is_not_found_on_the_next_device", a_tenants_data_is_not_found_on_the_next_device)
        .case("a_thin_volume_takes_what_is_written", a_thin_volume_takes_what_is_written)
}

async fn a_device_ends_at_its_promised_size(case: Case) -> Result<(), Failure> {
    // Rounded up to the blocks of the data disk.
    case.claim(&Claim::block("data", 32 * MIB + 1)).await?;
    let pod = case.open(&Pod::server("filler").with(Volume::device("data"))).await?;
    let size = 32 * MIB + 4096;
    let device = pod.device(Pod::DEVICE).await?;
    assert_eq!((device.size, device.read_only, device.direct), (size, false, Some(true)));
    assert!([512, 4096].contains(&device.logical_block), "{device:?}");
    assert_eq!(pod.direct(Pod::DEVICE).await?, None);
    let painted = pod.paint(Pod::DEVICE, "all of it").await?;
    assert_eq!((painted.written, painted.errno.as_str()), (size, "ENOSPC"));
    assert_eq!(promised(&case.volume_of("data").await?), Some(size));
    Ok(())
}

async fn a_read_only_device_can_be_read_and_not_written(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::block("data", 16 * MIB)).await?;
    let writer = case.open(&Pod::server("writer").with(Volume::device("data"))).await?;
    writer.write(Pod::DEVICE, "hello").await?;

    // Beside the writer, with a device of its own.
    let reader = case.open(&Pod::server("reader").with(Volume::device("data").read_only())).await?;
    let device = reader.device(Pod::DEVICE).await?;
    assert_eq!((device.size, device.read_only), (16 * MIB, true));
    assert_eq!(reader.read(Pod::DEVICE).await?, "hello");
    assert_eq!(reader.try_write(Pod::DEVICE).await?.as_deref(), Some("EPERM"));
    let volume = case.volume_name("data").await?;
    let found = case.on_the_node(&volume).await?;
    assert_eq!(found.loops.len(), 2, "one for writing and one for reading: {found:?}");

    reader.remove().await?;
    assert_eq!(writer.try_write(Pod::DEVICE).await?, None);
    let left = eventually(PATIENCE, "the end of the read-only device", async || {
        let found = case.on_the_node(&volume).await?;
        Ok(if found.loops.len() == 1 { Seen::Done(found) } else { Seen::NotYet(format!("{found:?}")) })
    });
    left.await.map(drop)
}

/// Nothing but the CSI plugin makes loop devices: kubelet's lock would be a second one on top.
async fn two_pods_share_one_loop_device(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::block("data", 16 * MIB)).await?;
    let one = case.open(&Pod::server("one").with(Volume::device("data"))).await?;
    let two = case.open(&Pod::server("two").with(Volume::device("data"))).await?;
    let volume = case.volume_name("data").await?;
    let found = case.on_the_node(&volume).await?;
    assert_eq!(found.loops.len(), 1, "{found:?}");
    assert_eq!(one.device(Pod::DEVICE).await?.number, two.device(Pod::DEVICE).await?.number);
    let stacked = case.look_at_the_node().await?.loops.into_iter().filter(|device| device.file.starts_with("/dev/"));
    assert_eq!(stacked.collect::<Vec<_>>(), []);

    one.write(Pod::DEVICE, "from one").await?;
    one.remove().await?;
    assert_eq!(two.read(Pod::DEVICE).await?, "from one");
    assert_eq!(two.direct(Pod::DEVICE).await?, None);
    assert_eq!(case.on_the_node(&volume).await?.loops, found.loops);

    two.remove().await?;
    eventually(PATIENCE, "the end of the loop device and of all mounts", async || {
        let found = case.on_the_node(&volume).await?;
        let free = found.loops.is_empty() && found.mounts.is_empty();
        Ok(if free { Seen::Done(()) } else { Seen::NotYet(format!("{found:?}")) })
    })
    .await
}

async fn what_one_pod_wrote_to_a_device_the_next_one_reads(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::block("data", 16 * MIB)).await?;
    let writer = case.open(&Pod::server("writer").with(Volume::device("data"))).await?;
    writer.paint(Pod::DEVICE, "a long text").await?;
    let written = writer.checksum(Pod::DEVICE).await?;
    writer.remove().await?;
    let reader = case.open(&Pod::server("reader").with(Volume::device("data"))).await?;
    assert_eq!(reader.checksum(Pod::DEVICE).await?, written);
    Ok(())
}

async fn a_pod_that_is_not_root_has_its_device(case: Case) -> Result<(), Failure> {
    case.claim(&Claim::block("data", 16 * MIB)).await?;
    let pod = case.open(&Pod::server("tenant").with(Volume::device("data")).user(1000, 2000)).await?;
    let device = pod.device(Pod::DEVICE).await?;
    assert_eq!(device.uid, 1000, "{device:?}");
    pod.write(Pod::DEVICE, "hello").await?;
    assert_eq!(pod.read(Pod::DEVICE).await?, "hello");
    Ok(())
}

async fn a_tenants_data_is_not_found_on_the_next_device(case: Case) -> Result<(), Failure> {
    const MARK: &str = "the first tenant's secret";
    case.claim(&Claim::block("first", 16 * MIB)).await?;
    let pod = case.open(&Pod::server("first").with(Volume::device("first"))).await?;
    pod.paint("/dev/first", MARK).await?;
    assert!(pod.scan("/dev/first", MARK).await?.found > 0, "a mark that is there is found");
    let volume = case.volume_name("first").await?;
    pod.remove().await?;
    case.delete_claim("first").await?;
    case.volume_is_gone(&volume, None).await?;

    case.claim(&Claim::block("second", 16 * MIB)).await?;
    let pod = case.open(&Pod::server("second").with(Volume::device("second"))).await?;
    let scan = pod.scan("/dev/second", MARK).await?;
    assert_eq!((scan.bytes, scan.data, scan.found), (16 * MIB, 0, 0));
    Ok(())
}

async fn a_thin_volume_takes_what_is_written(case: Case) -> Result<(), Failure> {
    let thin = Class { name: "thin", parameters: [("blockAllocation", "thin")].into(), ..Class::default() };
    let thin = case.make_class(&thin).await?;
    case.claim(&Claim::block("thin", 64 * MIB).of(&thin)).await?;
    case.claim(&Claim::block("thick", 64 * MIB)).await?;
    let pod = case.open(&Pod::server("tenant").with(Volume::device("thin")).with(Volume::device("thick"))).await?;
    assert_eq!(pod.device("/dev/thin").await?.size, 64 * MIB);
    pod.write("/dev/thin", "hello").await?;
    let image = |found: &OnNode| found.entries.iter().find_map(|entry| entry.image);
    let thin = image(&case.on_the_node(&case.volume_name("thin").await?).await?);
    let thick = image(&case.on_the_node(&case.volume_name("thick").await?).await?);
    let (Some(thin), Some(thick)) = (thin, thick) else { panic!("no images: {thin:?} {thick:?}") };
    assert_eq!((thin.size, thick.size), (64 * MIB, 64 * MIB));
    assert!(thin.allocated < MIB, "{thin:?}");
    assert!(thick.allocated >= 64 * MIB, "{thick:?}");
    Ok(())
}
