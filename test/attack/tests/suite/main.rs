//! Runs every attack of the list in real pods on the booted node; every attack must fail. One pod runs under Pod
//! Security `restricted`. The other pod runs as root without seccomp and with capabilities such as `CAP_SYS_ADMIN`. The
//! test deletes the claims of the first pod while it runs; the second pod is the next tenant.

mod bomb;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use attack::{ATTACKS, DONE, TENANT, without_signature};
use e2e::{Case, Claim, Failure, OnNode, PATIENCE, Part, Pod, Seen, Stopped, Suite, Volume, cost, eventually};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{self as core, ConfigMap, Event, Namespace, PersistentVolumeClaim};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use workload::Executed;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
/// Name of the program in the pods and in their ConfigMap.
const PROGRAM: &str = "attack";
/// Name of the kernel module in the pods and in their ConfigMap.
const MODULE: &str = "module.ko";
/// Capabilities of the root pod in addition to containerd's default ones.
const CAPABILITIES: [&str; 4] = ["SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_RAWIO"];
/// Number of turns of half a second: longer than the suite takes, but limited.
const TURNS: &str = "7200";
/// Number of turns of a tenant after the other tenant has written its mark.
const WATCHED: u32 = 3;

fn main() -> ExitCode {
    Suite::new("attack").part("pods", pods).part("mapped", mapped).run()
}

async fn pods(part: Part) -> Result<(), Stopped> {
    let case = &part.case;
    part.shows("a_pod_with_the_nodes_root_directory_is_rejected", host_path(case)).await;
    part.must_show("the_program_fits_a_config_map", publish_program(case)).await?;

    part.must_show("a_restricted_pod_is_accepted", start(case, &RESTRICTED)).await?;
    part.shows("the_node_stays_ready_during_a_fork_bomb", bomb::is_survived(case, RESTRICTED.files)).await;
    let first = part.must_show("a_restricted_pod_runs_the_attacks", finish(case, &RESTRICTED)).await?;
    first.results(&part).await;
    part.shows("a_denied_call_is_an_event_on_the_pod", is_reported(case, &RESTRICTED)).await;
    part.must_show("a_published_volume_is_not_deleted", first.loses_its_claims(case)).await?;

    part.must_show("a_root_pod_is_accepted", start(case, &ROOT)).await?;
    let second = part.must_show("a_root_pod_runs_the_attacks", finish(case, &ROOT)).await?;
    second.results(&part).await;
    part.shows("denials_are_counted_by_kind", are_counted(case)).await;
    part.shows("no_tenant_sees_or_changes_the_others_device", are_apart(case, &first, &second)).await;
    part.shows("other_volumes_are_deleted_while_a_deleted_one_is_in_use", second.ends_beside(case, &first)).await;
    part.shows("a_deleted_volume_goes_with_its_pod", first.ends(case)).await;
    part.shows("the_node_is_ready_after_the_attacks", is_ready(case)).await;
    Ok(())
}

/// Needs a namespace of its own, because the part `pods` sets the Pod Security level of its namespace. Runs beside that
/// part, which often waits, for example for the next heartbeat of the kubelet.
async fn mapped(part: Part) -> Result<(), Stopped> {
    part.shows("a_pod_with_a_user_namespace_uses_a_volume", user_namespace(&part.case)).await;
    Ok(())
}

struct Kind {
    name: &'static str,
    /// Value of `pod-security.kubernetes.io/enforce` of the namespace.
    level: &'static str,
    user: usize,
    files: &'static str,
    device: &'static str,
    mark: &'static str,
    foreign: &'static str,
}

const RESTRICTED: Kind = Kind {
    name: "restricted",
    level: "restricted",
    user: TENANT as usize,
    files: "restricted-files",
    device: "restricted-device",
    mark: "bytes of the restricted tenant",
    foreign: ROOT.mark,
};

const ROOT: Kind = Kind {
    name: "root",
    level: "privileged",
    user: 0,
    files: "root-files",
    device: "root-device",
    mark: "bytes of the root tenant",
    foreign: "bytes of the restricted tenant",
};

impl Kind {
    fn pod(&self) -> Result<core::Pod, Failure> {
        let Self { name, user, files, device, mark, foreign, .. } = self;
        let pod = Pod::server(*name).with(Volume::claim(files)).with(Volume::device(device));
        let mut spec = pod.spec();
        // The program does not handle SIGTERM.
        spec["terminationGracePeriodSeconds"] = 1.into();
        let container = &mut spec["containers"][0];
        container["command"] = json!([format!("/{PROGRAM}/{PROGRAM}")]);
        let module = format!("/{PROGRAM}/{MODULE}");
        let arguments = [format!("/{files}"), SIZE.to_string(), format!("/dev/{device}"), "/".to_owned(), module];
        let marks = [mark, foreign, &TURNS].map(|&word| word.to_owned());
        container["args"] = arguments.into_iter().chain(marks).collect();
        container["securityContext"] = if *user == 0 {
            json!({"capabilities": {"add": CAPABILITIES}, "seccompProfile": {"type": "Unconfined"}})
        } else {
            json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
        };
        append(&mut container["volumeMounts"], json!({"name": PROGRAM, "mountPath": format!("/{PROGRAM}")}));
        append(&mut spec["volumes"], json!({"name": PROGRAM, "configMap": {"name": PROGRAM, "defaultMode": 0o755}}));
        spec["securityContext"] = if *user == 0 {
            json!({})
        } else {
            json!({
                "runAsUser": user, "runAsGroup": user, "fsGroup": user, "runAsNonRoot": true,
                "seccompProfile": {"type": "RuntimeDefault"},
            })
        };
        Ok(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?)
    }
}

fn append(list: &mut Value, element: Value) {
    list.as_array_mut().expect("a list of the pod").push(element);
}

/// A pod that has run the attacks and now takes turns as a tenant.
struct Attacker {
    kind: &'static Kind,
    /// PVs of the directory and of the device.
    volumes: [String; 2],
    device: OnNode,
    results: BTreeMap<String, String>,
}

/// No namespace has a Pod Security label yet, so the node's default applies.
async fn host_path(case: &Case) -> Result<(), Failure> {
    let mut pod = Pod::server("host-path").spec();
    pod["volumes"] = json!([{"name": "root", "hostPath": {"path": "/"}}]);
    let pod = serde_json::from_value(json!({"metadata": {"name": "host-path"}, "spec": pod}))?;
    let rejected = rejection(case, &pod).await?;
    assert!(rejected.contains("violates PodSecurity \"baseline") && rejected.contains("hostPath"), "{rejected}");
    Ok(())
}

async fn rejection(case: &Case, pod: &core::Pod) -> Result<String, Failure> {
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    match case.api::<core::Pod>().create(&parameters, pod).await {
        Err(kube::Error::Api(status)) if [403, 422].contains(&status.code) => Ok(status.message),
        Err(error) => Err(Failure::api("try to create a pod")(error)),
        Ok(_) => Ok("accepted".to_owned()),
    }
}

async fn publish_program(case: &Case) -> Result<(), Failure> {
    let path = env::var_os("GRANARY_ATTACK").expect("GRANARY_ATTACK is the path of the program");
    let program = fs::read(path).expect("the program can be read");
    let modules = env::var_os("GRANARY_MODULES").expect("GRANARY_MODULES is the directory of the module");
    let name = attack::MODULE.to_str().expect("the name is ASCII");
    let module = fs::read(PathBuf::from(modules).join(format!("{name}.ko"))).expect("the module can be read");
    let module = without_signature(&module).expect("Debian signs its modules").to_vec();
    let files = [(PROGRAM, program), (MODULE, module)].map(|(name, file)| (name.to_owned(), ByteString(file)));
    let files = BTreeMap::from(files);
    let object = ConfigMap { binary_data: Some(files), ..ConfigMap::default() };
    let mut object = serde_json::to_value(object)?;
    object["metadata"] = json!({"name": PROGRAM});
    case.create::<ConfigMap>(object).await.map(drop)
}

async fn start(case: &Case, kind: &Kind) -> Result<(), Failure> {
    let pod = kind.pod()?;
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": kind.level}}});
    let namespaces = case.cluster::<Namespace>();
    let labelled = namespaces.patch(case.namespace(), &PatchParams::default(), &Patch::Merge(label)).await;
    labelled.map_err(Failure::api("label the namespace"))?;
    // The API server applies the label with a delay.
    eventually(PATIENCE, &format!("Pod Security {} in the namespace", kind.level), async || {
        let [own, root] = [rejection(case, &pod).await?, rejection(case, &ROOT.pod()?).await?];
        let restricts = root.contains("violates PodSecurity \"restricted");
        let is_right = own == "accepted" && (restricts || kind.level == ROOT.level);
        Ok(if is_right { Seen::Done(()) } else { Seen::NotYet(format!("own pod: {own}; root pod: {root}")) })
    })
    .await?;
    case.claim(&Claim::new(kind.files, SIZE)).await?;
    case.claim(&Claim::block(kind.device, SIZE)).await?;
    case.create::<core::Pod>(serde_json::to_value(&pod)?).await?;
    cost("pods");
    Ok(())
}

async fn finish(case: &Case, kind: &'static Kind) -> Result<Attacker, Failure> {
    let log = eventually(PATIENCE, &format!("the end of all attacks of pod {}", kind.name), async || {
        let log = log(case, kind).await?;
        Ok(if log.lines().any(|line| line == DONE) { Seen::Done(log) } else { Seen::NotYet(log) })
    })
    .await?;
    let attacks = log.lines().take_while(|line| *line != DONE);
    let results = attacks.filter_map(|line| line.split_once(": ")).map(|(name, result)| (name.into(), result.into()));
    let results = results.collect();
    let volumes = [case.volume_name(kind.files).await?, case.volume_name(kind.device).await?];
    let device = case.on_the_node(&volumes[1]).await?;
    Ok(Attacker { kind, volumes, device, results })
}

async fn log(case: &Case, kind: &Kind) -> Result<String, Failure> {
    case.get(&format!("/api/v1/namespaces/{}/pods/{}/log", case.namespace(), kind.name)).await
}

/// Number of turns that the pod has taken. No turn may have found bytes of the other tenant.
async fn turns(case: &Case, kind: &Kind) -> Result<u32, Failure> {
    let log = log(case, kind).await?;
    let turns: Vec<&str> = log.lines().filter(|line| line.starts_with("turn ")).collect();
    let foreign: Vec<_> = turns.iter().filter(|turn| !turn.contains(": no foreign bytes")).collect();
    assert!(foreign.is_empty(), "pod {}: {foreign:?}", kind.name);
    Ok(u32::try_from(turns.len()).unwrap_or(u32::MAX))
}

async fn goes_on(case: &Case, kind: &Kind) -> Result<(), Failure> {
    let before = turns(case, kind).await?;
    eventually(PATIENCE, &format!("{WATCHED} more turns of pod {}", kind.name), async || {
        let now = turns(case, kind).await?;
        Ok(if now >= before + WATCHED { Seen::Done(()) } else { Seen::NotYet(format!("{before}, now {now}")) })
    })
    .await
}

impl Attacker {
    async fn results(&self, part: &Part) {
        let Self { kind, results, .. } = self;
        for attack in ATTACKS.iter().filter(|attack| attack.by.includes(kind.user)) {
            let shown = async {
                let result = results.get(attack.name).map_or("not run", String::as_str);
                assert!(attack.protected.is(result), "{result}, expected {}", attack.protected);
                Ok(())
            };
            part.shows(&format!("{}_{}", kind.name, attack.name), shown).await;
        }
    }

    /// Deletes the claims and their finalizers, as a tenant can. The volumes stay in use, and an event on each PV
    /// reports this.
    async fn loses_its_claims(&self, case: &Case) -> Result<(), Failure> {
        for claim in [self.kind.files, self.kind.device] {
            case.delete_claim(claim).await?;
            let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            let claims = case.api::<PersistentVolumeClaim>();
            let patched = claims.patch(claim, &PatchParams::default(), &none).await;
            patched.map_err(Failure::api(format!("remove the finalizers of claim {claim}")))?;
        }
        for volume in &self.volumes {
            deletion_fails(case, volume).await?;
            let found = case.on_the_node(volume).await?;
            assert!(!found.entries.is_empty() && !found.mounts.is_empty(), "{found:?}");
        }
        assert_eq!(case.on_the_node(&self.volumes[1]).await?, self.device);
        goes_on(case, self.kind).await
    }

    /// Deletes the pod and its claims. The first pod continues to create files in a deleted volume.
    async fn ends_beside(&self, case: &Case, first: &Self) -> Result<(), Failure> {
        case.remove(self.kind.name).await?;
        for claim in [self.kind.files, self.kind.device] {
            case.delete_claim(claim).await?;
        }
        for volume in &self.volumes {
            case.volume_is_gone(volume, None).await?;
        }
        goes_on(case, first.kind).await?;
        let log = log(case, first.kind).await?;
        let last = log.lines().rfind(|line| line.starts_with("turn ")).unwrap_or_default();
        assert!(last.ends_with(" files"), "the first pod creates files no longer: {last}");
        Ok(())
    }

    async fn ends(&self, case: &Case) -> Result<(), Failure> {
        case.remove(self.kind.name).await?;
        for volume in &self.volumes {
            case.volume_is_gone(volume, None).await?;
        }
        Ok(())
    }
}

/// Waits for the event with the reason of the failure.
async fn deletion_fails(case: &Case, volume: &str) -> Result<(), Failure> {
    eventually(PATIENCE, &format!("an event VolumeFailedDelete of volume {volume}"), async || {
        let texts = case.events_in("default", volume).await?;
        let has_come = texts.iter().any(|text| text.starts_with("VolumeFailedDelete: "));
        Ok(if has_come { Seen::Done(()) } else { Seen::NotYet(texts.join("; ")) })
    })
    .await
}

async fn is_reported(case: &Case, kind: &Kind) -> Result<(), Failure> {
    let about = ListParams::default().fields(&format!("involvedObject.kind=Pod,involvedObject.name={}", kind.name));
    let event = eventually(PATIENCE, &format!("an event VolumeCallDenied of pod {}", kind.name), async || {
        let events = case.api::<Event>().list(&about).await.map_err(Failure::api("list events"))?.items;
        let reasons: Vec<_> = events.iter().map(|event| event.reason.clone().unwrap_or_default()).collect();
        let found = events.into_iter().find(|event| event.reason.as_deref() == Some("VolumeCallDenied"));
        Ok(found.map_or(Seen::NotYet(reasons.join(", ")), Seen::Done))
    })
    .await?;
    let pod = case.api::<core::Pod>().get(kind.name).await.map_err(Failure::api("read the pod"))?;
    assert_eq!(event.involved_object.uid, pod.metadata.uid, "{event:?}");
    let container = &pod.spec.unwrap_or_default().containers[0].name;
    let text = event.message.unwrap_or_default();
    assert!(text.starts_with(&format!("container {container} was denied ")), "{text}");
    Ok(())
}

async fn are_apart(case: &Case, first: &Attacker, second: &Attacker) -> Result<(), Failure> {
    let numbers = [&first.device, &second.device].map(|device| device.loops.clone());
    assert!(numbers.iter().all(|loops| loops.len() == 1), "{numbers:?}");
    assert_ne!(numbers[0], numbers[1]);
    tokio::try_join!(goes_on(case, first.kind), goes_on(case, second.kind))?;
    assert_eq!(case.on_the_node(&first.volumes[1]).await?, first.device, "the device is still the first volume's");
    Ok(())
}

/// The node counted denied changes of projects and loop devices by both pods, and of quotas by the root pod.
async fn are_counted(case: &Case) -> Result<(), Failure> {
    let metrics = case.get("/api/v1/nodes/granary:7839/proxy/metrics").await?;
    for operation in ["project", "quota", "loop"] {
        let name = format!("granary_denied_total{{operation=\"{operation}\"}} ");
        let count = metrics.lines().find_map(|line| line.strip_prefix(name.as_str())?.parse::<u64>().ok());
        assert!(count.is_some_and(|count| count > 0), "{name}: {count:?}");
    }
    Ok(())
}

/// In a pod with a user namespace, no user is root of the node, and the kubelet maps the user IDs of volume mounts.
async fn user_namespace(case: &Case) -> Result<(), Failure> {
    const NAME: &str = "mapped";
    // The root pod attacks files of the user `TENANT`, which are to be those of the restricted pod.
    const USER: u32 = TENANT + 1;
    const GROUP: u32 = 2000;
    let mut block = Pod::server(NAME).with(Volume::device(NAME)).spec();
    block["hostUsers"] = false.into();
    let block = serde_json::from_value(json!({"metadata": {"name": NAME}, "spec": block}))?;
    let rejected = rejection(case, &block).await?;
    assert!(rejected.contains("volumeDevices: Forbidden: when `hostUsers` is false"), "{rejected}");

    case.claim(&Claim::new(NAME, SIZE)).await?;
    let mut spec = Pod::server(NAME).with(Volume::claim(NAME)).user(USER, GROUP).spec();
    spec["hostUsers"] = false.into();
    spec["automountServiceAccountToken"] = true.into();
    case.create::<core::Pod>(json!({"metadata": {"name": NAME}, "spec": spec})).await?;
    cost("pods");
    let pod = case.find(NAME).await?;
    let map = pod.read("/proc/self/uid_map").await?;
    let fields: Vec<&str> = map.split_whitespace().collect();
    assert!(matches!(fields[..], ["0", outside, "65536"] if outside != "0"), "no user namespace: {map}");
    // Both files are below the kubelet's directory, which only root of the node can search.
    assert!(!pod.read("/var/run/secrets/kubernetes.io/serviceaccount/token").await?.is_empty());
    assert!(pod.read("/etc/hosts").await?.contains(NAME), "the file of the pod");
    let (directory, note) = (format!("/{NAME}"), format!("/{NAME}/note"));
    assert_eq!(pod.inspect(&directory).await?.gid, GROUP);
    pod.write(&note, "written in a user namespace").await?;
    assert_eq!(pod.read(&note).await?, "written in a user namespace");
    let file = pod.inspect(&note).await?;
    assert_eq!((file.uid, file.gid), (USER, GROUP));
    assert_eq!(pod.execute(&directory).await?, Executed { status: Some(0), errno: None });
    let volume = case.volume_name(NAME).await?;
    pod.remove().await?;
    case.delete_claim(NAME).await?;
    case.volume_is_gone(&volume, None).await
}

async fn is_ready(case: &Case) -> Result<(), Failure> {
    case.all_services_are_ready().await?;
    let node = case.cluster::<core::Node>().get("granary").await.map_err(Failure::api("read the node"))?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    assert_eq!(ready.map(|condition| condition.status.as_str()), Some("True"), "{conditions:?}");
    Ok(())
}
