//! A node with a full disk.

use crate::directory::MARK;
use crate::status;
use crate::volumes::MIB;
use e2e::{Case, Claim, Class, Failure, Offer, PATIENCE, Part, Pod, Seen, Server, Stopped, Volume};
use e2e::{capacity_of, eventually};

const BLOCK: u64 = 4096;
/// Sizes of the first claims: of the filesystem volume, and of each device.
const FILES: u64 = 16 * MIB;
const DEVICE: u64 = 128 * MIB;
/// Space for blocks of the file system itself, in a volume with the rest of the disk.
const METADATA: u64 = MIB;
const DEVICES: [&str; 2] = ["thin", "thick"];

/// One tenant fills its volume with empty files, a directory of the node with data, and its devices. Another tenant
/// fills the rest of the disk. The next tenant then gets the whole disk, and finds no old data.
pub async fn run(part: Part) -> Result<(), Stopped> {
    let case = &part.case;
    let before = part.must_show("all_space_of_a_disk_is_reserved", Full::reserve(case)).await?;
    let Full { bad, tenant, .. } = &before;
    tokio::join!(
        part.shows("a_tenant_may_use_up_its_inodes", files(bad)),
        part.shows("a_tenant_may_fill_the_nodes_directories", scratch(bad)),
    );
    tokio::join!(
        part.shows("a_volume_has_all_of_its_size", before.rest(tenant)),
        part.shows("devices_have_all_of_their_sizes", all_of(bad)),
    );
    let offered = part.must_show("the_node_goes_on_with_a_full_disk", before.end(case)).await?;
    part.shows("the_next_tenant_of_the_whole_disk_finds_nothing", next(case, offered)).await;
    Ok(())
}

struct Full {
    bad: Server,
    tenant: Server,
    /// Published capacity before the claims, and size of the last claim.
    offered: Offer,
    rest: u64,
}

impl Full {
    async fn reserve(case: &Case) -> Result<Self, Failure> {
        let thin = Class { name: "thin", parameters: [("blockAllocation", "thin")].into() };
        let thin = case.make_class(&thin).await?;
        let offered = offered_without_volumes(case).await?;
        // The published capacity has no volume mode, so a class for devices has the same capacity.
        offered_when(case, &thin, |now| now == offered).await?;
        case.claim(&Claim::new("files", FILES)).await?;
        case.claim(&Claim::block("thin", DEVICE).of(&thin)).await?;
        case.claim(&Claim::block("thick", DEVICE)).await?;
        let bad = Pod::server("bad").with(Volume::claim("files")).with(Volume::empty_directory("scratch"));
        case.start(&DEVICES.iter().fold(bad, |pod, name| pod.with(Volume::device(name)))).await?;
        // The claims are bound before the pod starts.
        case.own_project("files", FILES).await?;
        // If one of the volumes did not count, the free space would be larger.
        let most = offered.free - (FILES + 2 * DEVICE);
        let left = offered_when(case, "local", |now| now.free <= most).await?;
        offered_when(case, &thin, |now| now == left).await?;
        // The inodes of a volume, one per 2 KiB, use the same space: a quarter of the volume's size.
        let rest = left.free / 5 * 4 / BLOCK * BLOCK;
        case.claim(&Claim::new("rest", rest)).await?;
        let tenant = Pod::server("tenant").with(Volume::claim("rest"));
        let (bad, tenant) = tokio::try_join!(case.find("bad"), case.open(&tenant))?;
        let size = capacity_of(&case.volume_of("rest").await?).unwrap_or_default();
        assert!(size >= rest, "{size} of {rest}");
        Ok(Self { bad, tenant, offered, rest: size })
    }

    async fn rest(&self, tenant: &Server) -> Result<(), Failure> {
        let painted = tenant.paint("/rest", MARK).await?;
        let size = self.rest;
        assert!(painted.written > size - METADATA && painted.errno == "ENOSPC", "{painted:?} of {size}");
        Ok(())
    }

    /// After the kubelet has freed some space of the scratch directory, pods start again, although the devices and the
    /// rest fill the disk. Returns the published capacity after all deletions, which must equal the first one.
    async fn end(self, case: &Case) -> Result<Offer, Failure> {
        let Self { bad, tenant, offered, .. } = self;
        bad.remove().await?;
        let late = Pod::server("late");
        let ((), late) = tokio::try_join!(delete(case, &["files"]), case.open(&late))?;
        let rest = async {
            tenant.remove().await?;
            delete(case, &["rest"]).await
        };
        tokio::try_join!(late.remove(), delete(case, &DEVICES), rest)?;
        offered_when(case, "local", |now| now == offered).await
    }
}

async fn files(bad: &Server) -> Result<(), Failure> {
    let files = bad.fill_inodes("/files", true).await?;
    assert_eq!((files.errno.as_str(), files.full.inodes_free), ("ENOSPC", 0));
    Ok(())
}

async fn scratch(bad: &Server) -> Result<(), Failure> {
    let scratch = bad.fill("/scratch", true).await?;
    assert!(scratch.errno == "ENOSPC" && scratch.written > MIB, "{scratch:?}");
    Ok(())
}

async fn all_of(devices: &Server) -> Result<(), Failure> {
    let [thin, thick] = DEVICES.map(|name| devices.paint(format!("/dev/{name}"), MARK));
    let (thin, thick) = tokio::try_join!(thin, thick)?;
    for (name, painted) in DEVICES.into_iter().zip([thin, thick]) {
        assert_eq!((painted.written, painted.errno.as_str()), (DEVICE, "ENOSPC"), "{name}");
    }
    Ok(())
}

async fn next(case: &Case, offered: Offer) -> Result<(), Failure> {
    let half = offered.free / 25 * 8 / MIB * MIB;
    case.claim(&Claim::new("next", half)).await?;
    case.claim(&Claim::block("device", half)).await?;
    let next = case.open(&Pod::server("next").with(Volume::claim("next")).with(Volume::device("device"))).await?;
    let (files, device) = tokio::try_join!(next.scan("/next", MARK), next.scan("/dev/device", MARK))?;
    for (path, scan) in [("/next", files), ("/dev/device", device)] {
        assert!(scan.bytes > half - METADATA, "the whole volume was read: {scan:?}");
        assert_eq!((scan.data, scan.found), (0, 0), "{path}");
    }
    Ok(())
}

/// Capacity of a node without volumes. Earlier parts had volumes, and the node publishes the capacity with a delay.
async fn offered_without_volumes(case: &Case) -> Result<Offer, Failure> {
    eventually(PATIENCE, "the capacity of a node without volumes", async || {
        let facts = status::facts(case).await?;
        let disk = &facts["storage"]["disk"];
        let [volumes, free] = ["promised", "free"].map(|number| disk[number].as_u64());
        let found = case.capacity("local").await?.filter(|now| volumes == Some(0) && free == Some(now.free));
        Ok(found.map_or_else(|| Seen::NotYet(disk.to_string()), Seen::Done))
    })
    .await
}

/// Waits until the published capacity of a class is as wanted. The node publishes a change with a delay.
async fn offered_when(case: &Case, class: &str, wanted: impl Fn(Offer) -> bool) -> Result<Offer, Failure> {
    eventually(PATIENCE, &format!("another capacity for class {class}"), async || {
        let found = case.capacity(class).await?;
        Ok(found.filter(|now| wanted(*now)).map_or_else(|| Seen::NotYet(format!("{found:?}")), Seen::Done))
    })
    .await
}

/// Deletes claims without a pod, and waits for the removal of their volumes.
async fn delete(case: &Case, claims: &[&str]) -> Result<(), Failure> {
    let mut volumes = Vec::new();
    for claim in claims {
        volumes.push(case.volume_name(claim).await?);
        case.delete_claim(claim).await?;
    }
    for volume in volumes {
        case.volume_is_gone(&volume, None).await?;
    }
    Ok(())
}
