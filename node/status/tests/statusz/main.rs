//! The status page in a headless Chromium without JavaScript. The browser shows the page of the node's own server, and
//! reports the visible content.
//!
//! The test controls the browser by the Chrome DevTools protocol over two pipes, with a few requests in JSON. Crates
//! for the whole protocol have more code than this test, and need a web socket.
#![forbid(unsafe_code)]

mod browser;
mod colour;
mod connection;
mod look;
mod node;
mod picture;
#[path = "../../src/sample.rs"]
mod sample;
mod tab;

use std::path::Path;
use std::time::Duration;
use std::{env, fs};

// `sample` uses these types too.
use status::{
    Certificate, Clock, Closed, Condition, Disk, Inodes, Kernel, Life, Mesh, Mode, Orphans, Page, Peer, Service,
    Severity, Storage, Versions, Volume, Warning,
};
use supervisor::State;
use units::Bytes;

use crate::browser::{Browser, Files};
use crate::look::Look;
use crate::node::FakeServer;
use crate::picture::Picture;
use crate::sample::{certificate, disk, example, peer, service, volume, warning};
use crate::tab::{Landmark, Media, Screen, Tab};

const PAGE: &str = "/statusz";
const SCREENS: [Screen; 4] = [Screen::DESK, Screen::DESK.dark(), Screen::HAND, Screen::HAND.dark()];

/// Maximum length of a DNS label, such as a namespace.
const LABEL: usize = 63;
/// Maximum length of a claim's name.
const SUBDOMAIN: usize = 253;

/// Minimum contrast of ordinary text, Web Content Accessibility Guidelines 2.2, 1.4.3.
const LEAST_CONTRAST: f64 = 4.5;

/// Minimum font size in CSS pixels. An inch of paper has 96 of them: 9 pixels are 6.75 points, the size of footnotes.
fn smallest(media: Media) -> f64 {
    match media {
        Media::Screen => 12.0,
        Media::Print => 9.0,
    }
}

/// Five hundred volumes, two hundred peers, a hundred warnings, and names of maximum length.
fn full() -> Page {
    let mut page = example();
    page.node = long("node", LABEL);
    let name = long("service", LABEL);
    let parent = format!("granary.provisioner.{name}");
    page.services.push(service(&parent, State::Healthy, 0, None));
    let failure = long("failure", 1000);
    page.services.push(service(&format!("{parent}.inner"), State::Failed, 4_000_000, Some(&failure)));
    let volumes = (0..500).map(|number| {
        let mode = if number % 3 == 0 { Mode::Block } else { Mode::Filesystem };
        let claim = if number % 5 == 0 { long("claim", SUBDOMAIN) } else { format!("data-database-{number}") };
        let volume = volume(&claim, mode, Life::Announced, number << 24, 500 << 24);
        if number % 7 == 0 { Volume { namespace: long("namespace", LABEL), ..volume } } else { volume }
    });
    let closed = vec![Closed { id: long("volume", 128), reason: long("reason", 200) }];
    page.storage = Some(Storage::new(disk(96), volumes.collect(), closed, Vec::new()));
    let peers = (2..202).map(|number| {
        let peer = peer(number, Some(u64::from(number)));
        if number % 9 != 0 {
            return peer;
        }
        let (node, address) = (Some(long("node", SUBDOMAIN)), "2001:0db8:aaaa:bbbb:cccc:dddd:eeee:ffff");
        let endpoint = Some(format!("[{address}]:7838"));
        let pods = [&peer.pods[..], &[format!("{address}/128")]].concat();
        Peer { node, endpoint, pods, handshake: None, received: Bytes::new(u64::MAX), ..peer }
    });
    page.mesh = Some(Mesh::new(peers.collect()));
    let (server, reason) = (long("server", SUBDOMAIN), long("reason", 200));
    page.clock = Clock::Unsynchronized { server, reason, ago: Some(Duration::from_secs(9000)) };
    page.warnings =
        (0..100).map(|number| warning(Severity::Warning, &long("source", LABEL), &long("text", 500), number)).collect();
    page.certificates.push(certificate(&long("certificate", LABEL), 30));
    page
}

/// A name of this length without a line break opportunity.
fn long(name: &str, length: usize) -> String {
    name.chars().cycle().take(length).collect()
}

fn with_page<T>(page: Page, screen: Screen, test: impl FnOnce(&mut Tab<'_>, &FakeServer) -> T) -> T {
    let served = FakeServer::start(page).unwrap();
    let mut browser = Browser::start(&Files::from_target().unwrap()).unwrap();
    let mut tab = Tab::open(&mut browser).unwrap();
    tab.be(screen).unwrap();
    tab.visit(&served.url(PAGE)).unwrap();
    test(&mut tab, &served)
}

fn is_readable(look: &Look, screen: Screen) {
    assert!(look.overflow.is_empty(), "{screen:?}: too wide: {:#?}", look.overflow);
    assert!(look.texts.len() > 20, "{screen:?}: {:?}", look.texts);
    for text in &look.texts {
        let contrast = text.colour.contrast(text.background);
        assert!(contrast >= LEAST_CONTRAST, "{screen:?}: contrast {contrast:.2}: {text:?}");
        assert!(text.size >= smallest(screen.media), "{screen:?}: {text:?}");
    }
    for header in &look.headers {
        let is_seen = !header.text.trim().is_empty() && header.width > 10.0 && header.height > 10.0;
        assert!(is_seen, "{screen:?}: {header:?}");
    }
}

fn every_screen_shows(page: Page) {
    with_page(page, Screen::DESK, |tab, served| {
        for screen in SCREENS {
            tab.be(screen).unwrap();
            is_readable(&tab.look().unwrap(), screen);
        }
        let (requests, complaints) = tab.happened();
        assert_eq!(requests, [served.url(PAGE)], "the page asks for more than itself");
        assert_eq!(complaints, [""; 0], "the browser complains");
    });
}

/// Unreadable parts of a page: too wide, too pale, too small.
const UNREADABLE: &str = "(() => {
    const add = (style) => {
        const part = document.createElement('p');
        part.textContent = 'part';
        part.style = style;
        document.querySelector('main').append(part);
    };
    add('width: 2000px; color: black; background: white');
    add('color: rgb(150, 150, 150); background: white');
    add('font-size: 8.9px');
})()";

#[test]
fn unreadable_parts_are_found() {
    with_page(sample::fresh(), Screen::DESK, |tab, _| {
        tab.evaluate::<()>(UNREADABLE).unwrap();
        let look = tab.look().unwrap();
        assert_eq!(look.overflow.len(), 2, "{:?}", look.overflow);
        let contrasts = look.texts.iter().map(|text| text.colour.contrast(text.background));
        assert_eq!(contrasts.filter(|contrast| *contrast < LEAST_CONTRAST).count(), 1);
        for media in [Media::Screen, Media::Print] {
            assert_eq!(look.texts.iter().filter(|text| text.size < smallest(media)).count(), 1, "{media:?}");
        }
    });
}

#[test]
fn the_browser_runs_no_script_of_a_page() {
    with_page(sample::fresh(), Screen::DESK, |tab, _| {
        tab.visit("data:text/html,<title>none</title><script>document.title='run'</script>").unwrap();
        assert_eq!(tab.look().unwrap().title, "none");
    });
}

#[test]
fn a_node_with_a_bit_of_everything_is_readable_everywhere() {
    every_screen_shows(example());
}

#[test]
fn a_new_node_is_readable_everywhere() {
    every_screen_shows(sample::fresh());
}

#[test]
fn a_node_that_cannot_read_its_disk_is_readable_everywhere() {
    every_screen_shows(sample::unreadable());
}

#[test]
fn hundreds_of_volumes_and_long_names_are_readable() {
    every_screen_shows(full());
}

#[test]
fn the_page_has_landmarks_and_table_headers() {
    with_page(example(), Screen::DESK, |tab, _| {
        let look = tab.look().unwrap();
        assert_eq!((&*look.title, &*look.language, look.quirks), ("granary-1 · node status", "en", false));
        let landmarks = tab.landmarks().unwrap();
        let named = |role: &str| -> Vec<&str> {
            let of_role = landmarks.iter().filter(|landmark| landmark.role == role);
            of_role.map(|Landmark { name, .. }| &**name).collect()
        };
        for role in ["banner", "main", "contentinfo"] {
            assert_eq!(named(role).len(), 1, "{role}: {landmarks:?}");
        }
        assert_eq!(named("navigation"), ["Sections"]);
        let parts = ["Services", "Storage", "Volumes", "Mesh", "Recent warnings", "Certificates", "Clock and versions"];
        assert_eq!(named("region"), parts);
        assert_eq!(named("heading"), [&["granary-1"], &parts[..]].concat());
        assert_eq!(named("table"), ["Services", "Volumes", "Mesh", "Recent warnings", "Certificates"]);
        let headers = named("columnheader");
        assert_eq!(headers.len(), look.headers.len());
        assert!(headers.iter().all(|name| !name.is_empty()), "{headers:?}");
        assert!(named("rowheader").contains(&"shop/sessions"));
        let meters = named("meter");
        assert!(meters.contains(&"95 % of its limit used"), "{meters:?}");
    });
}

/// Focused element, and whether it has a visible outline.
const FOCUS: &str = "(() => {
    const focus = document.activeElement;
    const frame = getComputedStyle(focus);
    return [focus.textContent.trim(), frame.outlineStyle !== 'none' && parseFloat(frame.outlineWidth) >= 2];
})()";

#[test]
fn the_page_is_used_with_the_keyboard_alone() {
    with_page(full(), Screen::DESK, |tab, served| {
        let mut links = Vec::new();
        loop {
            tab.press("Tab").unwrap();
            let (link, is_framed): (String, bool) = tab.evaluate(FOCUS).unwrap();
            assert!(is_framed, "the keyboard focus at {link:?} is invisible");
            links.push(link);
            if links.last().is_some_and(|link| link.starts_with("Volumes")) {
                break;
            }
        }
        assert_eq!(links, ["Services (15)", "Storage", "Volumes (500)"]);
        tab.press("Enter").unwrap();
        let place = "[location.hash, Math.round(document.getElementById('volumes').getBoundingClientRect().top)]";
        assert_eq!(tab.evaluate::<(String, i32)>(place).unwrap(), ("#volumes".to_owned(), 0));

        // The focus continues at the target, not at the link.
        tab.press("Tab").unwrap();
        assert_eq!(tab.evaluate::<(String, bool)>(FOCUS).unwrap(), ("JSON".to_owned(), true));
        tab.happened();
        tab.press("Enter").unwrap();
        tab.arrives().unwrap();
        assert_eq!(tab.happened().0, [served.url("/statusz.json")]);
    });
}

/// Text of the topmost element at the upper edge of the window, when the middle of the volumes is visible.
const AT_THE_TOP: &str = "(() => {
    const rows = document.querySelectorAll('#volumes tbody tr');
    rows[rows.length / 2].scrollIntoView({block: 'center'});
    const {left} = document.querySelector('#volumes thead th').getBoundingClientRect();
    return document.elementFromPoint(left + 1, 5).textContent;
})()";

#[test]
fn the_heads_of_a_long_table_stay_in_sight() {
    with_page(full(), Screen::DESK, |tab, _| {
        assert_eq!(tab.evaluate::<String>(AT_THE_TOP).unwrap(), "Claim");
    });
}

/// Regression: a dark page was printed with light letters on white.
#[test]
fn the_page_can_be_printed() {
    with_page(full(), Screen::PAPER.dark(), |tab, _| {
        let look = tab.look().unwrap();
        is_readable(&look, Screen::PAPER.dark());
        let white = "rgb(255, 255, 255)".parse().unwrap();
        assert!(look.texts.iter().all(|text| text.background == white), "{:?}", look.texts);
    });
}

/// Pictures of all screens are among the test's outputs. `bazel run` of the test updates the picture of the
/// documentation.
#[test]
fn the_picture_of_the_documentation_is_of_this_page() {
    let html = example().html();
    with_page(example(), Screen::DESK, |tab, _| {
        let picture = tab.picture().unwrap();
        if let Some(outputs) = env::var_os("TEST_UNDECLARED_OUTPUTS_DIR") {
            for screen in SCREENS {
                tab.be(screen).unwrap();
                let name = format!("statusz-{}-{:?}.png", screen.width, screen.scheme);
                let picture = tab.picture().unwrap();
                fs::write(Path::new(&outputs).join(name.to_lowercase()), picture.bytes()).unwrap();
            }
        }
        if let Some(workspace) = env::var_os("BUILD_WORKSPACE_DIRECTORY") {
            fs::write(Path::new(&workspace).join("docs/statusz.png"), picture.of_page(&html).bytes()).unwrap();
            return;
        }
        let kept = Picture::new(fs::read(env::var_os("PICTURE").expect("PICTURE")).unwrap()).expect("a PNG");
        let renew = "the page has changed: write its picture with bazel run //node/status:statusz_test -- picture";
        assert_eq!(kept.size(), picture.size(), "{renew}");
        assert!(kept.is_of_page(&html), "{renew}");
    });
}
