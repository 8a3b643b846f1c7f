//! The HTML page.

use std::time::Duration;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use supervisor::State;
use units::Bytes;

use crate::format::{duration, moment, size};
use crate::model::{ALMOST_FULL, Certificate, Clock, Condition, Disk, Mode, Page, Service, Storage, Volume, not_ready};
use crate::{Mesh, Peer, Severity, Versions, Warning};

/// Certificates with less remaining time are highlighted: the node should have renewed them.
const EXPIRES_SOON: i64 = 25 * 86_400;
const DEEPEST: usize = 4;
/// Class of numeric cells.
const NUMBER: &str = "number";

/// ID, used in links, and heading of a section. IDs must not change.
#[derive(Clone, Copy)]
struct Section(&'static str, &'static str);

const SERVICES: Section = Section("services", "Services");
const STORAGE: Section = Section("storage", "Storage");
const VOLUMES: Section = Section("volumes", "Volumes");
const MESH: Section = Section("mesh", "Mesh");
const WARNINGS: Section = Section("warnings", "Recent warnings");
const CERTIFICATES: Section = Section("certificates", "Certificates");
const NODE: Section = Section("node", "Clock and versions");

impl Page {
    /// Renders the page as an HTML document. All data is escaped.
    pub fn html(&self) -> String {
        let now = i64::try_from(self.now.as_secs()).unwrap_or(i64::MAX);
        let faults = html! {
            @for fault in &self.disk_faults { p class="bad" { "The data disk is faulty: " (fault) "." } }
        };
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.node) " · node status" }
                    style { (PreEscaped(include_str!("style.css"))) }
                }
                body {
                    header { (self.header(now)) }
                    main {
                        (section(SERVICES, services(&self.services)))
                        @if let Some(storage) = &self.storage {
                            (section(STORAGE, html! { (faults) (storage.html()) }))
                            (section(VOLUMES, storage.volumes()))
                        } @else {
                            @let unreadable = note("bad", "The data disk could not be read; see the warnings.");
                            (section(STORAGE, html! { (faults) (unreadable) }))
                        }
                        @if let Some(mesh) = &self.mesh { (section(MESH, mesh.html())) }
                        (section(WARNINGS, warnings(&self.warnings)))
                        (section(CERTIFICATES, certificates(&self.certificates, now)))
                        (section(NODE, facts(&self.clock, &self.versions)))
                    }
                    footer {
                        "The same data as " a href="statusz.json" { "JSON" } ", more as "
                        a href="metrics" { "metrics" } "."
                    }
                }
            }
        };
        page.into_string().chars().map(visible).collect()
    }

    fn header(&self, now: i64) -> Markup {
        let waiting: Vec<&str> = not_ready(&self.services).map(|service| &*service.path).collect();
        let volumes = self.storage.as_ref().map(|storage| storage.volumes.len().saturating_add(storage.more));
        let peers = |mesh: &Mesh| mesh.peers.as_ref().map(|peers| peers.len().saturating_add(mesh.more));
        let links = [
            Some((SERVICES, Some(self.services.len()))),
            Some((STORAGE, None)),
            volumes.map(|count| (VOLUMES, Some(count))),
            self.mesh.as_ref().map(|mesh| (MESH, peers(mesh))),
            Some((WARNINGS, Some(self.warnings.len()))),
            Some((CERTIFICATES, None)),
            Some((NODE, None)),
        ];
        html! {
            h1 { (self.node) }
            @if waiting.is_empty() {
                p class="verdict good" { "Ready: all services are up" }
            } @else {
                p class="verdict bad" { "Not ready: " (waiting.join(", ")) }
            }
            (note("soft", &format!("{} · up {}", moment(now).unwrap_or_default(), duration(self.uptime))))
            nav aria-label="Sections" {
                @for (Section(id, title), count) in links.into_iter().flatten() {
                    a href={ "#" (id) } { (title) @if let Some(count) = count { " (" (count) ")" } }
                    "\n"
                }
            }
        }
    }
}

impl Storage {
    fn html(&self) -> Markup {
        let Disk { size: whole, reserve, allocatable, allocated, free } = self.disk;
        html! {
            // High allocation is normal, so the meter has no warning colour.
            (meter("wide", [allocated, allocatable], None, "allocated to volumes"))
            p {
                (size(allocated)) " of " (size(allocatable)) " allocated to volumes, " (size(free)) " free. The disk has "
                (size(whole)) ", of which " (size(reserve)) " are reserved for images, logs, emptyDirs and etcd."
            }
            @for orphans in &self.orphans {
                p class="bad" { "Orphans of kind " (orphans.kind) ": " (orphans.found) ". The log lists them." }
            }
        }
    }

    fn volumes(&self) -> Markup {
        let columns = ["Claim", "Volume", "Mode", "Used", "Limit", "Full", "Files", "Condition"];
        html! {
            @if self.volumes.is_empty() && self.closed.is_empty() { (note("soft", "None yet.")) }
            @if !self.volumes.is_empty() {
                (table(VOLUMES, &columns, html! { @for volume in &self.volumes { tr { (volume.html()) } } }))
            }
            (more(self.more))
            @for closed in &self.closed {
                p class="bad" { (closed.id) " is kept, and pods cannot use it: " (closed.reason) }
            }
        }
    }
}

impl Volume {
    fn html(&self) -> Markup {
        let almost_full = (self.mode == Mode::Filesystem).then_some(ALMOST_FULL);
        let class = match self.condition {
            Condition::Fine => "good",
            Condition::Copying | Condition::Staged | Condition::NotReady | Condition::Retired => "wait",
            Condition::AlmostFull | Condition::LimitsChanged => "bad",
        };
        html! {
            th scope="row" { @if !self.namespace.is_empty() { (self.namespace) "/" } (self.claim) }
            td { code { (self.id) } }
            td { (self.mode.as_str()) }
            (bytes(self.used))
            (bytes(self.limit))
            td { (meter("", [self.used, self.limit], almost_full, "of its limit used")) }
            td class=(NUMBER) { @if let Some(inodes) = self.inodes { (inodes.used) " of " (inodes.limit) } }
            td class=(class) { (self.condition.as_str()) }
        }
    }
}

impl Mesh {
    fn html(&self) -> Markup {
        let columns = ["Node", "Endpoint", "Pods", "Key", "Last handshake", "Received", "Sent"];
        html! {
            @match self.peers.as_deref() {
                None => (note("bad", "The peers could not be read; see the warnings.")),
                Some([]) => (note("soft", "No other node yet.")),
                Some(peers) => (table(MESH, &columns, html! { @for peer in peers { tr { (peer.html()) } } })),
            }
            (more(self.more))
        }
    }
}

impl Peer {
    fn html(&self) -> Markup {
        let (class, handshake) = match self.handshake.map(duration) {
            None => ("text wait", "never: nothing was sent yet, or there was no answer".to_owned()),
            Some(ago) if self.has_keys() => ("text", format!("{ago} ago")),
            Some(ago) => ("text wait", format!("{ago} ago: nothing was sent since, or there was no answer")),
        };
        html! {
            th scope="row" { (self.node.as_deref().unwrap_or("unknown")) }
            td class="name" { (self.endpoint.as_deref().unwrap_or("none")) }
            td class="name" { (self.pods.join(", ")) }
            td { code title=(self.key) { (self.short_key()) } }
            td class=(class) { (handshake) }
            (bytes(self.received))
            (bytes(self.sent))
        }
    }
}

fn services(services: &[Service]) -> Markup {
    let state = |service: &Service| match (service.stalled, service.state) {
        (Some(time), _) => ("bad", "stalled", time),
        (None, state @ (State::Healthy | State::Done)) => ("good", state.as_str(), service.since),
        (None, state @ (State::Starting | State::Stopping)) => ("wait", state.as_str(), service.since),
        (None, state @ (State::Failed | State::Stopped)) => ("bad", state.as_str(), service.since),
    };
    let rows = html! {
        @for service in services {
            @let (class, state, time) = state(service);
            tr class={ "depth-" (service.depth.min(DEEPEST)) } {
                th scope="row" title=(service.path) { (service.name) }
                td class=(class) { (state) }
                td { (duration(time)) }
                td class=(NUMBER) { (service.restarts) }
                td class="text" { (service.last_failure.as_deref().unwrap_or_default()) }
            }
        }
    };
    table(SERVICES, &["Service", "State", "For", "Restarts", "Last failure"], rows)
}

fn warnings(warnings: &[Warning]) -> Markup {
    if warnings.is_empty() {
        return note("soft", "None.");
    }
    let class = |severity| match severity {
        Severity::Warning => "wait",
        Severity::Error => "bad",
    };
    let rows = html! {
        @for warning in warnings {
            tr {
                td { (duration(warning.ago)) }
                td class=(NUMBER) { (warning.count) }
                td class=(class(warning.severity)) { (warning.severity.as_str()) }
                td class="name" { (warning.source) }
                td class="text" { (warning.text) }
            }
        }
    };
    table(WARNINGS, &["Ago", "Times", "Level", "Source", "Message"], rows)
}

fn certificates(certificates: &[Certificate], now: i64) -> Markup {
    if certificates.is_empty() {
        return note("soft", "Not read yet.");
    }
    let rows = html! {
        @for certificate in certificates {
            @let left = certificate.expires.saturating_sub(now);
            tr {
                th scope="row" { (certificate.name) }
                td { (moment(certificate.expires).unwrap_or_default()) }
                @if let Ok(seconds) = u64::try_from(left) {
                    td class=(if left < EXPIRES_SOON { "wait" } else { "" }) { (duration(Duration::from_secs(seconds))) }
                } @else {
                    td class="bad" { "expired" }
                }
            }
        }
    };
    table(CERTIFICATES, &["Name", "Expires", "Left"], rows)
}

fn facts(clock: &Clock, versions: &Versions) -> Markup {
    let (class, time) = match clock {
        Clock::Synchronized { server, offset_us, ago } => {
            let milliseconds = offset_us.unsigned_abs() / 1000;
            let direction = if *offset_us < 0 { "ahead of" } else { "behind" };
            let ago = duration(*ago);
            (
                "good",
                format!("{milliseconds} ms {direction} {server} in the answer of {ago} ago; it is being corrected"),
            )
        }
        Clock::Unsynchronized { server, reason, ago } => {
            let since = ago.map_or("yet".to_owned(), |ago| format!("for {}", duration(ago)));
            ("wait", format!("not compared with {server} {since}: {reason}"))
        }
        Clock::Alone => ("soft", "not synchronized: no time server is configured".to_owned()),
    };
    let age = versions.kernel.age.map(|age| format!(", {} old", duration(age))).unwrap_or_default();
    let unknown = "unknown until the node is Ready";
    html! {
        dl {
            dt { "Clock" } dd class=(class) { (time) }
            dt { "Granary" } dd { (versions.granary) }
            dt { "Kernel" } dd { (versions.kernel.release) " (" (versions.kernel.version) ")" (age) }
            dt { "Kubernetes" } dd { (versions.kubernetes.as_deref().unwrap_or(unknown)) }
            dt { "Container runtime" } dd { (versions.container_runtime.as_deref().unwrap_or(unknown)) }
        }
    }
}

/// The heading labels the section and its table for screen readers.
fn section(Section(id, title): Section, content: Markup) -> Markup {
    let heading = format!("{id}-title");
    html! { section id=(id) aria-labelledby=(heading) { h2 id=(heading) { (title) } (content) } }
}

fn table(Section(id, _): Section, columns: &[&str], rows: Markup) -> Markup {
    let class = |column| match column {
        "Restarts" | "Used" | "Limit" | "Files" | "Received" | "Sent" | "Times" => NUMBER,
        _ => "",
    };
    html! {
        div class="table" {
            table aria-labelledby={ (id) "-title" } {
                thead { tr { @for &column in columns { th scope="col" class=(class(column)) { (column) } } } }
                tbody { (rows) }
            }
        }
    }
}

fn note(class: &str, text: &str) -> Markup {
    html! { p class=(class) { (text) } }
}

fn more(omitted: usize) -> Markup {
    html! { @if omitted > 0 { p class="soft" { "And " (omitted) " more; see the metrics." } } }
}

/// A cell with a short size, and the exact one as its title.
fn bytes(bytes: Bytes) -> Markup {
    html! { td class=(NUMBER) title=(bytes) { (size(bytes)) } }
}

/// A meter of `used` and `limit` with text, highlighted from `high` percent on.
fn meter(class: &str, [used, limit]: [Bytes; 2], high: Option<u64>, what: &str) -> Markup {
    let percent = (u128::from(used.get()) * 100).checked_div(u128::from(limit.get())).unwrap_or(0).min(100);
    let text = format!("{percent} % {what}");
    // Without a range, browsers assume 0 to 1. If `optimum` is below `low`, values above `high` are the worst part.
    let high = high.map(|high| high - 1);
    let optimum = high.map(|_| "0");
    html! {
        meter class=(class) min="0" max="100" value=(percent) title=(text) low=[high] high=[high] optimum=[optimum] { (text) }
    }
}

/// The character, or a replacement if HTML does not allow it or if it could change the order of other text.
const fn visible(c: char) -> char {
    match c {
        '\n' | '\t' => c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' => char::REPLACEMENT_CHARACTER,
        // Bidirectional controls, Unicode Standard Annex 9.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            char::REPLACEMENT_CHARACTER
        }
        '\u{fdd0}'..='\u{fdef}' => char::REPLACEMENT_CHARACTER,
        // The last two code points of each plane are not characters.
        c if c as u32 & 0xfffe == 0xfffe => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

#[cfg(test)]
mod element;
#[cfg(test)]
mod tests;
