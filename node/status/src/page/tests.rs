//! Page and JSON of the sample pages.

use proptest::prelude::*;
use serde_json::Value;

use super::element::{Element, hostile};
use super::*;
use crate::model::{Closed, Inodes, Life, Mode};
use crate::sample::{self, NOW, example, id, peer, volume};

fn shown(text: &str) -> String {
    text.chars().map(visible).collect()
}

/// Texts of the cells of a section's table, by row.
fn rows(document: &Element, section: &str) -> Vec<Vec<String>> {
    let body = document.by_id(section).named("tbody")[0];
    let cells = |row: &Element| row.children.iter().map(|cell| cell.text.trim().to_owned()).collect();
    body.children.iter().map(cells).collect()
}

#[test]
fn every_fact_is_on_the_page() {
    let page = example().html();
    let document = Element::read(&page);
    assert_eq!(document.named("h1")[0].text, "granary-1");
    let header = &document.named("header")[0].text;
    let waiting = "granary.kube-scheduler, granary.kubelet, granary.kube-proxy, granary.csi";
    assert!(header.contains(&format!("Not ready: {waiting}")), "{header}");
    assert!(header.contains("2026-03-01 12:00:05 UTC · up 1 d 2 h"), "{header}");

    let services = rows(&document, "services");
    assert_eq!(services.len(), 13);
    assert_eq!(services[1], ["status", "healthy", "1 d 2 h", "0", ""]);
    assert_eq!(services[9], ["kube-proxy", "failed", "42 s", "3", "kube-proxy is not ready; last output: nothing"]);

    let storage = &document.by_id("storage").text;
    assert!(storage.contains("32 GiB of 100 GiB allocated to volumes, 68 GiB free. The disk has 112 GiB"), "{storage}");
    assert!(storage.contains("Orphans of kind volume: 2."), "{storage}");
    let meter = document.by_id("storage").named("meter")[0];
    assert_eq!(meter.attribute("value"), Some("32"));

    assert_eq!(rows(&document, "warnings").len(), 2);
    assert_eq!(
        rows(&document, "warnings")[1],
        ["12 min 4 s", "12", "warning", "kube-proxy", "can't reach <the API server> & co"]
    );
    let certificates = rows(&document, "certificates");
    assert_eq!(certificates[0], ["apiserver", "2026-12-26 12:00:05 UTC", "300 d"]);
    assert_eq!(certificates[2][2], "expired");
    let node = &document.by_id("node").text;
    for fact in [
        "1 ms ahead of 10.0.2.2 in the answer of 1 min 5 s ago",
        "28 d 0 h old",
        "v1.36.3",
        "containerd://2.2.1",
        "0.1.0",
    ] {
        assert!(node.contains(fact), "{fact}: {node}");
    }
}

#[test]
fn an_unreachable_time_server_is_named() {
    let rendered = |ago| {
        let (server, reason) = ("10.0.2.2".to_owned(), "silence".to_owned());
        let page = Page { clock: Clock::Unsynchronized { server, reason, ago }, ..example() };
        (Element::read(&page.html()).by_id("node").text.clone(), page.json().unwrap())
    };
    let (text, json) = rendered(Some(Duration::from_secs(65)));
    assert!(text.contains("not compared with 10.0.2.2 for 1 min 5 s: silence"), "{text}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["clock"]["state"], &json["clock"]["seconds_ago"]), (&"unsynchronized".into(), &65.into()));
    let (text, _) = rendered(None);
    assert!(text.contains("not compared with 10.0.2.2 yet: silence"), "{text}");
}

#[test]
fn volumes_that_need_attention_come_first() {
    let volumes = rows(&Element::read(&example().html()), "volumes");
    let row = |claim: &str, mode: &str, sizes: [&str; 2], percent: u64, files: &str, condition: &str| {
        let [used, limit] = sizes.map(str::to_owned);
        let percent = format!("{percent} % of its limit used");
        vec![format!("shop/{claim}"), id(claim), mode.into(), used, limit, percent, files.into(), condition.into()]
    };
    assert_eq!(
        volumes,
        [
            row("sessions", "filesystem", ["245 MiB", "256 MiB"], 95, "3920 of 131072", "almost full"),
            row("yesterday", "filesystem", ["1 GiB", "2 GiB"], 50, "16384 of 1048576", "being removed"),
            row("uploads", "filesystem", ["0 B", "20 GiB"], 0, "0 of 10485760", "no PV yet"),
            row("carts", "filesystem", ["312 MiB", "1 GiB"], 30, "4992 of 524288", "fine"),
            row("orders-0", "block", ["4 GiB", "4 GiB"], 100, "", "fine"),
        ]
    );
}

/// Regression: the volume of a client of CSI had the name `/NAME`.
#[test]
fn a_volume_without_a_claim_has_only_its_name() {
    let mut page = example();
    page.storage.as_mut().expect("a disk").volumes[0].namespace.clear();
    let volumes = rows(&Element::read(&page.html()), "volumes");
    assert_eq!(volumes[0][..2], ["sessions".to_owned(), id("sessions")]);
}

#[test]
fn a_page_loads_and_runs_nothing() {
    let document = Element::read(&example().html());
    for element in document.all() {
        assert!(!matches!(&*element.name, "script" | "link" | "img" | "iframe" | "form" | "object"), "{element:?}");
        for (name, value) in &element.attributes {
            assert!(!name.starts_with("on") && name != "src" && name != "style", "{name}={value}");
            let leads_to_a_part = value.strip_prefix('#').is_some_and(|id| document.by_id(id).name == "section");
            assert!(name != "href" || leads_to_a_part || ["metrics", "statusz.json"].contains(&&**value), "{value}");
        }
    }
    let style = &document.named("style")[0].text;
    assert!(!style.contains("url(") && !style.contains("@import"), "{style}");
}

#[test]
fn every_section_has_a_link_and_every_table_a_label() {
    let document = Element::read(&example().html());
    let links: Vec<&str> = document.named("nav")[0].named("a").iter().map(|link| &*link.text).collect();
    let parts = [
        "Services (13)",
        "Storage",
        "Volumes (5)",
        "Mesh (3)",
        "Recent warnings (2)",
        "Certificates",
        "Clock and versions",
    ];
    assert_eq!(links, parts);
    for table in document.named("table") {
        let heading = document.by_id(table.attribute("aria-labelledby").expect("a name"));
        assert_eq!(heading.name, "h2");
    }
    for column in document.named("thead").iter().flat_map(|head| head.named("th")) {
        assert!(!column.text.trim().is_empty(), "{column:?}");
    }
}

#[test]
fn unreachable_peers_come_first_with_the_reason() {
    let peers = rows(&Element::read(&example().html()), "mesh");
    let row = |number: u8, handshake: &str, sizes: [&str; 2]| {
        let (endpoint, pods) = (format!("192.0.2.{number}:7838"), format!("10.244.{number}.0/24"));
        let [received, sent] = sizes.map(str::to_owned);
        let key = format!("{number:03}hi1TY…");
        vec![format!("granary-{number}"), endpoint, pods, key, handshake.to_owned(), received, sent]
    };
    let old = "1 h 6 min ago: nothing was sent since, or there was no answer";
    assert_eq!(
        peers,
        [
            row(3, old, ["11.7 GiB", "3.9 GiB"]),
            row(4, "never: nothing was sent yet, or there was no answer", ["0 B", "0 B"]),
            row(2, "1 min 12 s ago", ["144 MiB", "48 MiB"]),
        ]
    );
    let classes = |seconds| {
        let page = Page { mesh: Some(Mesh::new(vec![peer(2, seconds)])), ..example() };
        let document = Element::read(&page.html());
        let row = &document.by_id("mesh").named("tbody")[0].children[0];
        row.children[4].attribute("class").map(str::to_owned)
    };
    assert_eq!(
        [Some(180), Some(181), None].map(classes),
        ["text", "text wait", "text wait"].map(|class| Some(class.into()))
    );
}

#[test]
fn only_a_node_in_a_mesh_has_the_section() {
    let document = Element::read(&Page { mesh: None, ..example() }.html());
    assert!(document.named("section").iter().all(|section| section.attribute("id") != Some("mesh")));
    assert!(!document.named("nav")[0].text.contains("Mesh"));
    let alone = Element::read(&sample::fresh().html());
    assert_eq!(alone.by_id("mesh").named("p")[0].text, "No other node yet.");
}

/// Regression: the bar of a volume that is almost full was green.
#[test]
fn the_bar_of_an_almost_full_volume_is_highlighted() {
    let document = Element::read(&example().html());
    let high = |volume: &Element| volume.named("meter")[0].attribute("high").map(str::to_owned);
    let body = document.by_id("volumes").named("tbody")[0];
    let found: Vec<_> = body.children.iter().map(high).collect();
    // The last volume is a block volume, which is always full.
    assert_eq!(
        found,
        [Some("89".to_owned()), Some("89".to_owned()), Some("89".to_owned()), Some("89".to_owned()), None]
    );
}

#[test]
fn a_ready_node_is_reported_as_ready() {
    let mut page = example();
    page.services.retain(Service::is_ready);
    assert!(Element::read(&page.html()).named("header")[0].text.contains("Ready: all services are up"));
    let json: Value = serde_json::from_str(&page.json().unwrap()).unwrap();
    assert_eq!((&json["ready"], &json["not_ready"]), (&Value::Bool(true), &Value::Array(Vec::new())));
}

#[test]
fn a_stalled_service_is_shown_with_its_time_without_progress() {
    let mut page = example();
    page.services[11].stalled = Some(Duration::from_secs(400));
    let document = Element::read(&page.html());
    assert_eq!(rows(&document, "services")[11], ["volumes", "stalled", "6 min 40 s", "0", ""]);
    assert!(document.named("header")[0].text.contains("granary.kube-proxy, granary.provisioner.volumes, granary.csi"));
    let json: Value = serde_json::from_str(&page.json().unwrap()).unwrap();
    assert_eq!(
        (&json["services"][11]["stalled_seconds"], &json["services"][9]["stalled_seconds"]),
        (&400.into(), &Value::Null)
    );
}

#[test]
fn an_unreadable_disk_and_mesh_leave_the_other_sections() {
    let document = Element::read(&sample::unreadable().html());
    assert!(document.by_id("mesh").text.contains("The peers could not be read"));
    let storage = &document.by_id("storage").text;
    assert!(storage.contains("The data disk is faulty: XFS has shut the file system down."), "{storage}");
    assert!(storage.contains("The data disk could not be read"), "{storage}");
    assert!(!document.named("nav")[0].text.contains("Volumes"));
    assert_eq!(rows(&document, "services").len(), 13);
}

#[test]
fn the_size_of_the_page_is_limited() {
    let many = (0..3000).map(|number| volume(&format!("data-{number:04}"), Mode::Block, Life::Announced, 1, 1));
    let storage = Storage::new(Disk::default(), many.collect(), Vec::new(), Vec::new());
    assert_eq!((storage.volumes.len(), storage.more), (1000, 2000));
    let page = Page { storage: Some(storage), ..example() };
    assert!(Element::read(&page.html()).by_id("volumes").text.contains("And 2000 more"));

    let mesh = Mesh::new((0..3000).map(|number| Peer { key: number.to_string(), ..peer(2, Some(1)) }).collect());
    assert_eq!((mesh.peers.as_ref().map(Vec::len), mesh.more), (Some(1000), 2000));
    let page = Page { mesh: Some(mesh), ..example() };
    let document = Element::read(&page.html());
    assert!(document.by_id("mesh").text.contains("And 2000 more"));
    assert!(document.named("nav")[0].text.contains("Mesh (3000)"));
}

#[test]
fn the_json_contains_the_facts_with_units() {
    let json: Value = serde_json::from_str(&example().json().unwrap()).unwrap();
    for (pointer, expected) in [
        ("/ready", Value::from(false)),
        ("/not_ready/2", "granary.kube-proxy".into()),
        ("/node", "granary-1".into()),
        ("/unix_seconds", NOW.into()),
        ("/uptime_seconds", 93_784.into()),
        ("/versions/kernel/age_seconds", (28 * 86_400).into()),
        ("/services/9/state", "failed".into()),
        ("/services/9/seconds", 42.into()),
        ("/services/9/restarts", 3.into()),
        ("/storage/disk/promised", (32_u64 << 30).into()),
        ("/storage/volumes/0/condition", "almost_full".into()),
        ("/storage/volumes/0/limit", (256 << 20).into()),
        ("/storage/volumes/4/mode", "block".into()),
        ("/storage/volumes/4/inodes", Value::Null),
        ("/storage/closed/0/id", id("broken").into()),
        ("/storage/orphans/0/found", 2.into()),
        ("/mesh/peers/0/node", "granary-3".into()),
        ("/mesh/peers/0/handshake_seconds_ago", 4000.into()),
        ("/mesh/peers/1/handshake_seconds_ago", Value::Null),
        ("/mesh/peers/2/received", (144_u64 << 20).into()),
        ("/clock/state", "synchronized".into()),
        ("/clock/offset_us", (-1730).into()),
        ("/certificates/0/expires_unix_seconds", (NOW + 300 * 86_400).into()),
        ("/warnings/1/count", 12.into()),
        ("/warnings/1/seconds_ago", 724.into()),
    ] {
        assert_eq!(json.pointer(pointer), Some(&expected), "{pointer}");
    }
}

/// The page with these texts in all text fields.
fn with(texts: &[String; 8]) -> Page {
    let mut page = example();
    let [node, name, failure, id, claim, reason, source, text] = texts.clone();
    page.node = node.clone();
    page.versions.granary.clone_from(&name);
    page.versions.kernel.release.clone_from(&text);
    page.versions.kubernetes = Some(id.clone());
    page.clock = Clock::Unsynchronized { server: source.clone(), reason: reason.clone(), ago: None };
    let name_of_peer = name.clone();
    page.services[6].path = name.clone();
    page.services[6].name = name;
    page.services[6].last_failure = Some(failure);
    let storage = page.storage.as_mut().expect("a disk");
    storage.volumes[0].id.clone_from(&id);
    storage.volumes[0].claim = claim;
    storage.volumes[0].namespace = node;
    storage.closed[0] = Closed { id, reason: reason.clone() };
    storage.orphans[0].kind.clone_from(&reason);
    let peers = page.mesh.as_mut().and_then(|mesh| mesh.peers.as_mut()).expect("peers");
    (peers[0].node, peers[0].endpoint) = (Some(name_of_peer), Some(source.clone()));
    (peers[0].key, peers[0].pods) = (text.clone(), vec![reason.clone(); 2]);
    page.warnings[0].source.clone_from(&source);
    page.warnings[0].text = text;
    page.certificates[0].name = source;
    page
}

fn structure(document: &Element) -> Vec<(&str, Option<&str>)> {
    document.all().into_iter().map(|element| (&*element.name, element.attribute("class"))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn text_never_changes_the_structure_of_the_page(texts in prop::array::uniform8(hostile())) {
        let plain = with(&std::array::from_fn(|_| "text".to_owned())).html();
        let page = with(&texts).html();
        let (plain, page) = (Element::read(&plain), Element::read(&page));
        prop_assert_eq!(structure(&page), structure(&plain));
        let cells: Vec<&str> = page.all().into_iter().map(|element| &*element.text).collect();
        for text in [&texts[2], &texts[7]] {
            prop_assert!(cells.contains(&&*shown(text)), "{text:?}");
        }
        let titles: Vec<_> = page.all().into_iter().filter_map(|element| element.attribute("title")).collect();
        prop_assert!(titles.contains(&&*shown(&texts[1])), "{texts:?}");
    }

    #[test]
    fn any_facts_give_valid_json(texts in prop::array::uniform8(hostile())) {
        let json: Value = serde_json::from_str(&with(&texts).json().unwrap()).unwrap();
        prop_assert_eq!(&json["warnings"][0]["text"], &Value::from(&*texts[7]));
    }

    #[test]
    fn rendering_never_panics(used in any::<u64>(), limit in any::<u64>(), seconds in any::<u64>(), expires in any::<i64>()) {
        let (used, limit, inodes) = (Bytes::new(used), Bytes::new(limit), Some(Inodes { limit: used, used: limit }));
        let mut page = example();
        page.now = Duration::from_secs(seconds);
        page.uptime = page.now;
        page.certificates[0].expires = expires;
        let storage = page.storage.as_mut().expect("a disk");
        storage.disk = Disk { allocated: used, allocatable: limit, ..storage.disk };
        let condition = Condition::of(Life::Announced, Mode::Filesystem, [used, limit], inodes);
        storage.volumes[0] = Volume { used, limit, inodes, condition, ..storage.volumes[0].clone() };
        Element::read(&page.html());
    }
}

#[test]
fn a_filesystem_volume_is_almost_full_near_either_limit() {
    let condition = |life, mode, used: u64, inodes: u64| {
        let inodes = Some(Inodes { limit: 100, used: inodes });
        Condition::of(life, mode, [Bytes::new(used), Bytes::new(100)], inodes)
    };
    assert_eq!(condition(Life::Announced, Mode::Filesystem, 89, 89), Condition::Fine);
    assert_eq!(condition(Life::Announced, Mode::Filesystem, 90, 0), Condition::AlmostFull);
    assert_eq!(condition(Life::Announced, Mode::Filesystem, 0, 90), Condition::AlmostFull);
    assert_eq!(condition(Life::Announced, Mode::Block, 100, 0), Condition::Fine);
    assert_eq!(condition(Life::Retired, Mode::Filesystem, 100, 0), Condition::Retired);
    assert_eq!(condition(Life::Staged, Mode::Filesystem, 100, 0), Condition::Staged);
}

#[test]
fn only_control_characters_are_replaced() {
    assert_eq!(shown("a\u{202e}b\u{2066}c\0"), "a\u{fffd}b\u{fffd}c\u{fffd}");
    let ordinary: String = (' '..='~').chain("äöüß€日本\n\t".chars()).collect();
    assert_eq!(shown(&ordinary), ordinary);
}
