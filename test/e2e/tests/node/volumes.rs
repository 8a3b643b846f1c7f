//! The life of two claims, one per mode: their first pod, pods in parallel to it, and the next tenant, whose pod
//! outlives killed programs.

use crate::{
    confinement, device, directory, dns, kernel, killed, limits, network, ports, privileges, snapshot, status,
};
use e2e::{Case, Claim, Failure, PATIENCE, Part, Pod, Seen, Server, Stopped, Volume, eventually};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

pub const MIB: u64 = 1 << 20;
pub const DIRECTORY: [u64; 2] = [32 * MIB, 48 * MIB];
/// Sizes of the device's claim, before and after its expansion. The first one is rounded up to the blocks of the data
/// disk.
pub const DEVICE: [u64; 2] = [16 * MIB + 1, 32 * MIB];
pub const SMALL: u64 = MIB;
/// Path at which the first pod has a subdirectory of the claim `data`.
pub const INSIDE: &str = "/inside";
pub const SUB_PATH: &str = "deep/inside";

const CLAIMS: [&str; 3] = ["data", "device", "small"];

pub async fn run(part: Part) -> Result<(), Stopped> {
    let case = &part.case;
    let first = part.must_show("a_new_pod_runs_and_its_new_claims_have_projects_of_their_own", first(case)).await?;
    tokio::join!(
        on_the_directory(&part, &first),
        on_the_device(&part, &first),
        part.shows("a_volume_ends_at_its_inode_limit", directory::ends_at_its_inodes(&first)),
        part.shows("claims_of_one_pod_have_a_volume_each", directory::volume_each(case, &first)),
        part.shows("a_volume_is_inert_on_the_node", directory::is_inert(case)),
        part.shows("what_is_to_be_kept_free_is_not_offered", status::kept_free(case)),
        part.shows("the_node_has_every_metric_that_is_described", status::every_metric(case)),
        part.shows("an_administrator_reads_the_log", status::log(case)),
        part.shows("the_control_plane_has_its_own_range_and_identity", status::own_range_and_identity(case)),
        part.shows("the_default_filter_of_system_calls_is_on", confinement::filter(case, &first)),
        part.shows("the_kernel_has_its_settings_and_is_locked_down", kernel::is_protected(case)),
        part.shows("the_kernel_has_the_modules_of_the_configuration", kernel::has_its_modules(case)),
        part.shows("each_program_has_a_user_of_its_own_and_the_least_rights", privileges::are_least(case)),
        part.shows("the_open_ports_are_those_of_the_security_page", ports::are_described(case)),
    );

    let beside = part.must_show("pods_use_a_volume_at_once", Beside::start(case, &first)).await?;
    let Beside { reader, tenant } = &beside;
    tokio::join!(
        part.shows("what_one_pod_wrote_another_one_reads", directory::reads(&first, tenant)),
        part.shows("a_read_only_volume_can_be_read_and_not_written", directory::read_only(reader)),
        part.shows("a_read_only_device_can_be_read_and_not_written", device::read_only(reader)),
        part.shows("pods_share_one_loop_device", device::shared(case, [&first, tenant], reader)),
        part.shows("a_pod_that_is_not_root_writes_by_its_group", directory::by_group(tenant)),
        part.shows("a_pod_that_is_not_root_has_its_device", device::of_a_user(tenant)),
        part.shows("the_status_page_shows_the_volume", status::page(case)),
        network::cases(&part, &first, tenant),
        dns::cases(&part, &first, tenant, [reader, tenant]),
    );
    part.must_show("a_pod_that_is_not_the_first_one_writes_last", write(tenant)).await?;
    // The pods leave while the snapshots are taken. Both cases mostly wait.
    let (left, taken) = tokio::join!(
        part.must_show("a_volume_goes_on_when_other_pods_leave", beside.leave(case, &first)),
        part.must_show("snapshots_alone_and_in_a_group_become_ready", snapshot::take(case)),
    );
    left.and(taken)?;

    tokio::join!(
        part.shows("a_volume_that_grew_ends_at_its_new_size", directory::paint(&first)),
        part.shows("a_device_that_grew_ends_at_its_new_size", device::paint(&first)),
        part.shows("a_class_limits_the_io_of_a_running_pod", limits::apply_to_a_running_pod(case, &first)),
    );
    part.must_show("nothing_is_left_of_deleted_claims", delete(case, first)).await?;
    let next = part.must_show("claims_of_the_same_names_get_new_volumes", next(case)).await?;
    tokio::join!(
        part.shows("a_tenants_data_is_not_found_by_the_next", directory::is_empty(&next)),
        part.shows("a_tenants_data_is_not_found_on_the_next_device", device::is_empty(&next)),
        part.shows("snapshots_are_restored_after_the_end_of_their_volumes", snapshot::is_restored(case, &next)),
    );
    killed::cases(&part, next).await
}

async fn first(case: &Case) -> Result<Server, Failure> {
    case.claim(&Claim::new("data", DIRECTORY[0])).await?;
    case.claim(&Claim::block("device", DEVICE[0])).await?;
    case.claim(&Claim::new("small", SMALL)).await?;
    let pod = Pod::server("first").with(Volume::claim("data")).with(Volume::device("device"));
    let below = Volume::claim("data").sub_path(SUB_PATH).at(INSIDE);
    let pod = case.open(&pod.with(below).with(Volume::claim("small"))).await?;
    tokio::try_join!(case.own_project("data", DIRECTORY[0]), case.own_project("small", SMALL))?;
    Ok(pod)
}

async fn on_the_directory(part: &Part, first: &Server) {
    part.shows("a_sub_path_is_a_directory_of_the_volume", directory::sub_path(first)).await;
    part.shows("a_volume_ends_at_its_size", directory::ends(&part.case, first)).await;
    // This case comes after the one that fills the volume, because XFS frees the space of a removed file in the
    // background.
    part.shows("a_program_on_a_volume_can_be_executed", directory::executes(first)).await;
    part.shows("a_directory_grows_under_its_pod", directory::grows(&part.case, first)).await;
}

async fn on_the_device(part: &Part, first: &Server) {
    part.shows("a_device_ends_at_its_size", device::ends(&part.case, first)).await;
    part.shows("a_device_grows_under_its_pod", device::grows(&part.case, first)).await;
}

/// Pods in parallel to the first one, with the same claims.
struct Beside {
    reader: Server,
    tenant: Server,
}

impl Beside {
    async fn start(case: &Case, first: &Server) -> Result<Self, Failure> {
        tokio::try_join!(first.write(directory::NOTE, "from first"), first.write(device::PATH, "from first"))?;
        let tenant = Pod::server("tenant").with(Volume::claim("data")).with(Volume::device("device"));
        let tenant = dns::of_its_own(tenant.user(directory::USER, directory::GROUP));
        let reader = Pod::server("reader").with(Volume::claim("data").read_only());
        let reader = dns::as_the_node(reader.with(Volume::device("device").read_only()));
        let (reader, tenant) = tokio::try_join!(case.open(&reader), case.open(&tenant))?;
        Ok(Self { reader, tenant })
    }

    /// Removes the pods. Their mounts and loop devices are removed, and those of the first pod stay.
    async fn leave(self, case: &Case, first: &Server) -> Result<(), Failure> {
        let Self { reader, tenant } = self;
        tokio::try_join!(reader.remove(), tenant.remove())?;
        let (data, device) = tokio::try_join!(case.volume_name("data"), case.volume_name("device"))?;
        eventually(PATIENCE, "one mount of the directory, and one loop device", async || {
            let (data, device) = tokio::try_join!(case.on_the_node(&data), case.on_the_node(&device))?;
            let is_alone = (data.mounts.len(), device.loops.len()) == (1, 1);
            Ok(if is_alone { Seen::Done(()) } else { Seen::NotYet(format!("{data:?} {device:?}")) })
        })
        .await?;
        assert_eq!(first.read(directory::NOTE).await?, snapshot::TEXT);
        assert_eq!(first.read(device::PATH).await?, snapshot::TEXT);
        assert_eq!(first.direct(device::PATH).await?, None);
        Ok(())
    }
}

async fn write(tenant: &Server) -> Result<(), Failure> {
    // The kubelet has changed the group of the note to the group of the tenant.
    tokio::try_join!(tenant.write(directory::NOTE, snapshot::TEXT), tenant.write(device::PATH, snapshot::TEXT))?;
    Ok(())
}

async fn delete(case: &Case, pod: Server) -> Result<(), Failure> {
    let mut volumes = Vec::new();
    for claim in CLAIMS {
        let volume = case.volume_name(claim).await?;
        let project = case.on_the_node(&volume).await?.project;
        volumes.push((volume, project.map(|project| project.id)));
    }
    assert!(volumes[0].1.is_some(), "{volumes:?}");
    pod.remove().await?;
    snapshot::roll_back(case).await?;
    for claim in CLAIMS {
        case.delete_claim(claim).await?;
    }
    for (volume, project) in volumes {
        case.volume_is_gone(&volume, project).await?;
    }
    eventually(PATIENCE, "the claims' end", async || {
        let claims = case.api::<PersistentVolumeClaim>();
        for claim in CLAIMS {
            if claims.get_opt(claim).await.map_err(Failure::api("look for a claim"))?.is_some() {
                return Ok(Seen::NotYet(format!("{claim} is there")));
            }
        }
        Ok(Seen::Done(()))
    })
    .await
}

async fn next(case: &Case) -> Result<Server, Failure> {
    case.claim(&Claim::new("data", DIRECTORY[1])).await?;
    case.claim(&Claim::block("device", DEVICE[1])).await?;
    for claim in snapshot::claims() {
        case.claim(&claim).await?;
    }
    let next = Pod::server("next").with(Volume::claim("data")).with(Volume::device("device"));
    let next = next.with(Volume::device(snapshot::RESTORED)).with(Volume::claim(snapshot::KEPT));
    case.open(&next).await
}
