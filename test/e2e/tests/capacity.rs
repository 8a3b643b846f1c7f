//! What a full node does, on a small disk.

use e2e::{Case, Claim, Class, DRIVER, End, Failure, PATIENCE, Pod, Seen, Server, Suite, Volume};
use e2e::{eventually, promised};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use std::process::ExitCode;
use units::Bytes;

const MIB: u64 = 1 << 20;
const DISK: Bytes = Bytes::new(2 << 30);
/// What the scheduler says of a node without an object that offers enough.
const NO_SPACE: &str = "did not have enough free storage";

fn main() -> ExitCode {
    Suite::new("capacity")
        .options(|options| options.data_size = DISK)
        .end(End::Signal)
        .alone("what_the_node_offers_follows_what_it_has_promised", what_the_node_offers_follows)
        .alone("without_a_capacity_object_a_pod_waits_and_with_it_it_runs", without_a_capacity_object_a_pod_waits)
        .alone("a_claim_that_does_not_fit_goes_back_to_the_scheduler", a_claim_that_does_not_fit_goes_back)
        .alone("neighbours_take_nothing_from_a_promise", neighbours_take_nothing_from_a_promise)
        .run()
}

async fn what_the_node_offers_follows(case: Case) -> Result<(), Failure> {
    let driver = case.cluster::<CSIDriver>().get(DRIVER).await.ok().and_then(|driver| driver.spec.storage_capacity);
    assert_eq!(driver, Some(true));
    // For classes that users make, too.
    let class = case.make_class(&Class { name: "own", ..Class::default() }).await?;
    let before = offered(&case, &class).await?;
    assert!((DISK.get() / 4..DISK.get()).contains(&before), "{before}");
    case.claim(&Claim::new("data", 128 * MIB).of(&class)).await?;
    let pod = case.open(&Pod::server("tenant").with(Volume::claim("data"))).await?;
    // Another class with the same parameters is offered the same.
    for class in [class.as_str(), "local"] {
        offered_when(&case, class, |now| now + 128 * MIB <= before).await?;
    }
    end(&case, pod, &["data"]).await?;
    is_free_again(&case, before).await
}

/// An administrator's policy keeps the object away for a while.
async fn without_a_capacity_object_a_pod_waits(case: Case) -> Result<(), Failure> {
    let before = offered(&case, "local").await?;
    let class = case.unique("hidden");
    let name = case.unique("no-capacity");
    let policies: Api<ValidatingAdmissionPolicy> = case.cluster();
    let bindings: Api<ValidatingAdmissionPolicyBinding> = case.cluster();
    let policy = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["storage.k8s.io"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
                "resources": ["csistoragecapacities"],
            }]},
            "validations": [{"expression": format!("object.storageClassName != '{class}'")}],
        },
    }))?;
    let binding = serde_json::from_value(
        json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}),
    )?;
    policies.create(&PostParams::default(), &policy).await.map_err(Failure::api("create a policy"))?;
    bindings.create(&PostParams::default(), &binding).await.map_err(Failure::api("bind a policy"))?;
    let forbidden: CSIStorageCapacity =
        serde_json::from_value(json!({"metadata": {"generateName": "probe-"}, "storageClassName": class}))?;
    let objects: Api<CSIStorageCapacity> = case.api();
    eventually(PATIENCE, "the policy to work", async || {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        Ok(match objects.create(&dry, &forbidden).await {
            Err(kube::Error::Api(status)) if status.message.contains(&name) => Seen::Done(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await?;

    assert_eq!(case.make_class(&Class { name: "hidden", ..Class::default() }).await?, class);
    case.claim(&Claim::new("data", 16 * MIB).of(&class)).await?;
    case.start(&Pod::server("tenant").with(Volume::claim("data"))).await?;
    case.unschedulable("tenant", NO_SPACE).await?;
    assert_eq!(case.capacity(&class).await?, None);

    bindings.delete(&name, &DeleteParams::default()).await.map_err(Failure::api("unbind a policy"))?;
    policies.delete(&name, &DeleteParams::default()).await.map_err(Failure::api("delete a policy"))?;
    offered(&case, &class).await?;
    let pod = case.find("tenant").await?;
    assert_eq!(pod.inspect(Pod::PATH).await?.space.size, 16 * MIB);
    end(&case, pod, &["data"]).await?;
    is_free_again(&case, before).await
}

/// Two claims that fit one by one, but not both: the scheduler chooses the node for both at once.
async fn a_claim_that_does_not_fit_goes_back(case: Case) -> Result<(), Failure> {
    let before = offered(&case, "local").await?;
    let size = before / 5 * 3 / MIB * MIB;
    let names = ["one", "two"];
    for name in names {
        case.claim(&Claim::new(name, size)).await?;
    }
    let [one, two] = names.map(|name| Pod::server(name).with(Volume::claim(name)));
    tokio::try_join!(case.start(&one), case.start(&two))?;
    let (first, second) = eventually(PATIENCE, "one of the claims to be bound", async || {
        for (name, other) in [("one", "two"), ("two", "one")] {
            let phase = case.read_claim(name).await?.status.and_then(|status| status.phase);
            if phase.as_deref() == Some("Bound") {
                return Ok(Seen::Done((name, other)));
            }
        }
        Ok(Seen::NotYet("none is".to_owned()))
    })
    .await?;
    let message = case.event(second, "ProvisioningFailed").await?;
    assert!(message.contains("to promise"), "{message}");
    case.unschedulable(second, NO_SPACE).await?;
    let annotations = case.read_claim(second).await?.metadata.annotations.unwrap_or_default();
    assert_eq!(annotations.get("volume.kubernetes.io/selected-node"), None);

    // Room is all that it waits for.
    case.find(first).await?.remove().await?;
    case.delete_claim(first).await?;
    let pod = case.find(second).await?;
    assert_eq!(pod.inspect(format!("/{second}")).await?.space.size, size);
    end(&case, pod, &[second]).await?;
    is_free_again(&case, before).await
}

/// One tenant fills its volume with empty files and a directory of the node with data; the other writes every
/// promise of the disk to its end. Then the next tenant gets all of the disk, and finds nothing.
async fn neighbours_take_nothing_from_a_promise(case: Case) -> Result<(), Failure> {
    const MARK: &str = "the first tenant's secret";
    let thin = Class { name: "thin", parameters: [("blockAllocation", "thin")].into(), ..Class::default() };
    let thin = case.make_class(&thin).await?;
    let before = offered(&case, "local").await?;
    case.claim(&Claim::new("files", 16 * MIB)).await?;
    let bad = Pod::server("bad").with(Volume::claim("files")).with(Volume::empty_directory("scratch"));
    let bad = case.open(&bad).await?;
    case.claim(&Claim::block("thin", 128 * MIB).of(&thin)).await?;
    case.claim(&Claim::block("thick", 128 * MIB)).await?;
    let devices = Pod::server("devices").with(Volume::device("thin")).with(Volume::device("thick"));
    let devices = case.open(&devices).await?;
    // Offered is what a volume with the most inodes can have; devices, which have none, take less from that than their
    // size. With one of them missing it would be more.
    let most = before - (16 + 128 + 128) * MIB / 4 * 3;
    let rest = offered_when(&case, "local", |now| now <= most).await?;
    case.claim(&Claim::new("rest", rest)).await?;
    let tenant = case.open(&Pod::server("tenant").with(Volume::claim("rest"))).await?;
    let size = promised(&case.volume_of("rest").await?).unwrap_or_default();
    assert!(size >= rest, "{size} of {rest}");

    let files = bad.fill_inodes("/files", true).await?;
    assert_eq!((files.errno.as_str(), files.full.inodes_free), ("ENOSPC", 0));
    let scratch = bad.fill("/scratch", true).await?;
    assert_eq!(scratch.errno, "ENOSPC");

    // Blocks of the file system itself, in a volume of this size.
    let metadata = MIB;
    let painted = tenant.paint("/rest", MARK).await?;
    assert!(painted.written > size - metadata && painted.errno == "ENOSPC", "{painted:?} of {size}");
    for device in ["/dev/thin", "/dev/thick"] {
        let painted = devices.paint(device, MARK).await?;
        assert_eq!((painted.written, painted.errno.as_str()), (128 * MIB, "ENOSPC"), "{device}");
    }

    // kubelet needs some of what the directory took for itself; then the node goes on, with a full disk.
    end(&case, bad, &["files"]).await?;
    case.open(&Pod::server("late")).await?.remove().await?;
    end(&case, devices, &["thin", "thick"]).await?;
    end(&case, tenant, &["rest"]).await?;
    is_free_again(&case, before).await?;
    let half = before / 5 * 2 / MIB * MIB;
    case.claim(&Claim::new("next", half)).await?;
    case.claim(&Claim::block("device", half)).await?;
    let next = case.open(&Pod::server("next").with(Volume::claim("next")).with(Volume::device("device"))).await?;
    for path in ["/next", "/dev/device"] {
        let scan = next.scan(path, MARK).await?;
        assert!(scan.bytes > half - metadata, "the whole volume was read: {scan:?}");
        assert_eq!((scan.data, scan.found), (0, 0), "{path}");
    }
    Ok(())
}

/// What the node offers to claims of a class, once it does.
async fn offered(case: &Case, class: &str) -> Result<u64, Failure> {
    offered_when(case, class, |_| true).await
}

/// What the node offers, once it is as wanted: the objects are written some time after a change.
async fn offered_when(case: &Case, class: &str, wanted: impl Fn(u64) -> bool) -> Result<u64, Failure> {
    eventually(PATIENCE, &format!("another capacity for class {class}"), async || {
        let found = case.capacity(class).await?;
        Ok(found.filter(|now| wanted(*now)).map_or_else(|| Seen::NotYet(format!("{found:?}")), Seen::Done))
    })
    .await
}

/// Waits until the node offers again what it did before: the next case looks at what is free.
async fn is_free_again(case: &Case, before: u64) -> Result<(), Failure> {
    offered_when(case, "local", |now| now >= before).await.map(|_| ())
}

/// Deletes a pod and its claims, and waits until nothing is left of them.
async fn end(case: &Case, pod: Server, claims: &[&str]) -> Result<(), Failure> {
    pod.remove().await?;
    for claim in claims {
        let volume = case.volume_name(claim).await?;
        case.delete_claim(claim).await?;
        case.volume_is_gone(&volume, None).await?;
    }
    Ok(())
}
