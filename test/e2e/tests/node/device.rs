//! A block volume in a pod.

use crate::directory::{MARK, USER};
use crate::volumes::{DEVICE, MIB};
use e2e::{Case, Failure, Server, capacity_of};

pub const PATH: &str = "/dev/device";

pub async fn ends(case: &Case, pod: &Server) -> Result<(), Failure> {
    let size = 16 * MIB + 4096;
    let device = pod.device(PATH).await?;
    assert_eq!((device.size, device.read_only, device.direct), (size, false, Some(true)));
    assert!([512, 4096].contains(&device.logical_block), "{device:?}");
    assert_eq!(pod.direct(PATH).await?, None);
    let painted = pod.paint(PATH, "all of it").await?;
    assert_eq!((painted.written, painted.errno.as_str()), (size, "ENOSPC"));
    assert_eq!(capacity_of(&case.volume_of("device").await?), Some(size));
    Ok(())
}

pub async fn grows(case: &Case, pod: &Server) -> Result<(), Failure> {
    let size = DEVICE[1];
    pod.write(PATH, "hello").await?;
    case.resize("device", size).await?;
    case.has_capacity("device", size).await?;
    // The kubelet synchronizes an unchanged pod only about once a minute.
    case.touch(pod.name()).await?;
    case.expanded("device", size).await?;
    assert_eq!(capacity_of(&case.volume_of("device").await?), Some(size));
    let device = pod.device(PATH).await?;
    assert_eq!((device.size, device.direct), (size, Some(true)));
    assert_eq!(pod.read(PATH).await?, "hello");
    Ok(())
}

pub async fn read_only(reader: &Server) -> Result<(), Failure> {
    let device = reader.device(PATH).await?;
    assert_eq!((device.size, device.read_only), (DEVICE[1], true));
    assert_eq!(reader.read(PATH).await?, "from first");
    assert_eq!(reader.try_write(PATH).await?.as_deref(), Some("EPERM"));
    Ok(())
}

/// Only the CSI plugin may create loop devices. A lock device of the kubelet would be a second loop device on top.
pub async fn shared(case: &Case, writers: [&Server; 2], reader: &Server) -> Result<(), Failure> {
    let found = case.on_the_node(&case.volume_name("device").await?).await?;
    assert_eq!(found.loops.len(), 2, "one for writing and one for reading: {found:?}");
    let [one, other] = writers;
    let (one, other) = tokio::try_join!(one.device(PATH), other.device(PATH))?;
    assert_eq!(one.number, other.number);
    assert_ne!(reader.device(PATH).await?.number, one.number);
    let stacked = case.look_at_the_node().await?.loops.into_iter().filter(|device| device.file.starts_with("/dev/"));
    assert_eq!(stacked.collect::<Vec<_>>(), []);
    Ok(())
}

pub async fn of_a_user(tenant: &Server) -> Result<(), Failure> {
    let device = tenant.device(PATH).await?;
    assert_eq!(device.uid, USER, "{device:?}");
    // Other pods read the device in parallel, so the test writes the same text again.
    tenant.write(PATH, "from first").await?;
    assert_eq!(tenant.read(PATH).await?, "from first");
    Ok(())
}

/// Fills the device to its end, so that the next tenant could find old data.
pub async fn paint(pod: &Server) -> Result<(), Failure> {
    let painted = pod.paint(PATH, MARK).await?;
    assert_eq!((painted.written, painted.errno.as_str()), (DEVICE[1], "ENOSPC"));
    assert!(pod.scan(PATH, MARK).await?.found > 0, "a mark that is there is found");
    Ok(())
}

pub async fn is_empty(pod: &Server) -> Result<(), Failure> {
    let scan = pod.scan(PATH, MARK).await?;
    assert_eq!((scan.bytes, scan.data, scan.found), (DEVICE[1], 0, 0));
    Ok(())
}
