//! A filesystem volume in a pod.

use crate::volumes::{DIRECTORY, INSIDE, MIB, SMALL, SUB_PATH};
use e2e::{Case, Failure, Pod, Server, capacity_of, is_ours};
use workload::Executed;

pub const NOTE: &str = "/data/note";
/// User and group of the pod that is not root.
pub const USER: u32 = 1000;
pub const GROUP: u32 = 2000;
/// A tenant writes this text everywhere, and the next tenant searches for it.
pub const MARK: &str = "the first tenant's secret";

/// Space for the file system's own blocks (directories, extent lists), which are also charged to the volume.
const METADATA: u64 = 256 << 10;

pub async fn sub_path(pod: &Server) -> Result<(), Failure> {
    pod.write(format!("{INSIDE}/note"), "hello").await?;
    assert_eq!(pod.inspect(INSIDE).await?.space.size, DIRECTORY[0], "the limit is that of the volume");
    assert_eq!(pod.read(format!("/data/{SUB_PATH}/note")).await?, "hello");
    Ok(())
}

/// The mount of the volume does not have `noexec`, so that containers can execute programs on it.
pub async fn executes(pod: &Server) -> Result<(), Failure> {
    assert_eq!(pod.execute(Pod::PATH).await?, Executed { status: Some(0), errno: None });
    Ok(())
}

pub async fn ends(case: &Case, pod: &Server) -> Result<(), Failure> {
    let size = DIRECTORY[0];
    // The volume has its size like in the output of df.
    let fill = pod.fill(Pod::PATH, false).await?;
    assert_eq!((fill.before.size, fill.before.inodes), (size, size / 2048));
    assert_eq!(fill.errno, "ENOSPC");
    // The note in the sub path also uses space.
    assert!((size - METADATA..=size).contains(&fill.written), "{} of {size} bytes could be written", fill.written);
    assert!(fill.full.free < METADATA, "{} bytes are free in a full volume", fill.full.free);

    let volume = case.volume_of("data").await?;
    assert_eq!(capacity_of(&volume), Some(size));
    assert!(is_ours(&volume), "{volume:?}");
    Ok(())
}

pub async fn grows(case: &Case, pod: &Server) -> Result<(), Failure> {
    let size = DIRECTORY[1];
    case.resize("data", size).await?;
    case.expanded("data", size).await?;
    assert_eq!(capacity_of(&case.volume_of("data").await?), Some(size));
    let space = pod.inspect(Pod::PATH).await?.space;
    assert_eq!((space.size, space.inodes), (size, size / 2048));
    assert_eq!(pod.read(format!("{INSIDE}/note")).await?, "hello");
    Ok(())
}

pub async fn ends_at_its_inodes(pod: &Server) -> Result<(), Failure> {
    let fill = pod.fill_inodes("/small", false).await?;
    assert_eq!(fill.before.inodes, SMALL / 2048);
    // The root directory of the volume uses one inode.
    assert_eq!(fill.created, SMALL / 2048 - 1);
    assert_eq!(fill.errno, "ENOSPC");
    assert_eq!(fill.full.inodes_free, 0);
    Ok(())
}

pub async fn volume_each(case: &Case, pod: &Server) -> Result<(), Failure> {
    let (data, small) = tokio::try_join!(case.volume_name("data"), case.volume_name("small"))?;
    assert_ne!(data, small);
    let (data, small) = tokio::try_join!(pod.inspect("/data"), pod.inspect("/small"))?;
    assert!(DIRECTORY.contains(&data.space.size) && small.space.size == SMALL, "{data:?} {small:?}");
    Ok(())
}

/// Set-user-ID programs and device nodes of tenants have no effect at the node's mount.
pub async fn is_inert(case: &Case) -> Result<(), Failure> {
    let found = case.on_the_node(&case.volume_name("data").await?).await?;
    assert_eq!(found.mounts.len(), 1, "{found:?}");
    for flag in ["rw", "nosuid", "nodev"] {
        assert!(found.mounts[0].flags.iter().any(|one| one == flag), "{flag} is missing: {found:?}");
    }
    Ok(())
}

pub async fn reads(writer: &Server, reader: &Server) -> Result<(), Failure> {
    assert_eq!(reader.read(NOTE).await?, "from first");
    assert_eq!(reader.read(crate::device::PATH).await?, "from first");
    // Both pods read the whole file, regardless of their caches.
    let (written, read) = tokio::try_join!(writer.checksum(NOTE), reader.checksum(NOTE))?;
    assert_eq!(written, read);
    Ok(())
}

pub async fn read_only(reader: &Server) -> Result<(), Failure> {
    assert_eq!(reader.read(NOTE).await?, "from first");
    assert_eq!(reader.try_write("/data/other").await?.as_deref(), Some("EROFS"));
    assert_eq!(reader.try_write(NOTE).await?.as_deref(), Some("EROFS"));
    assert!(reader.inspect(Pod::PATH).await?.flags.contains(&"ro".to_owned()));
    Ok(())
}

pub async fn by_group(tenant: &Server) -> Result<(), Failure> {
    let root = tenant.inspect(Pod::PATH).await?;
    assert_eq!((root.uid, root.gid), (0, GROUP));
    assert_eq!(tenant.try_write("/data/tenant").await?, None);
    // The directory's set-group-ID bit gives its group to new files.
    let file = tenant.inspect("/data/tenant").await?;
    assert_eq!((file.uid, file.gid), (USER, GROUP));
    Ok(())
}

/// Fills the volume to its end, so that the next tenant could find old data. Before that, changes the file of the
/// snapshots.
pub async fn paint(pod: &Server) -> Result<(), Failure> {
    pod.write(NOTE, "after the snapshot").await?;
    let painted = pod.paint(Pod::PATH, MARK).await?;
    assert!(painted.written > DIRECTORY[1] - METADATA && painted.errno == "ENOSPC", "{painted:?}");
    assert!(pod.scan(Pod::PATH, MARK).await?.found > 0, "a mark that is there is found");
    Ok(())
}

pub async fn is_empty(pod: &Server) -> Result<(), Failure> {
    let scan = pod.scan(Pod::PATH, MARK).await?;
    assert!(scan.bytes > DIRECTORY[1] - MIB, "the whole volume was read: {scan:?}");
    assert_eq!((scan.found, scan.data), (0, 0));
    Ok(())
}
