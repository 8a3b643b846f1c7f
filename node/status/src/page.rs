//! The HTML page.

use std::time::Duration;

use supervisor::State;
use units::Bytes;

use crate::format::{duration, moment, size};
use crate::html::Html;
use crate::model::{ALMOST_FULL, Clock, Condition, Disk, Mode, Page, Service, Storage, Volume, not_ready};
use crate::{Mesh, Peer, Severity, Warning};

/// Certificates with less remaining time are highlighted: the node should have renewed them.
const EXPIRES_SOON: i64 = 25 * 86_400;

/// Title and class of a column.
type Column = (&'static str, &'static str);

const LEFT: &str = "";
const NUMBER: &str = "number";

const SERVICE: [Column; 5] =
    [("Service", LEFT), ("State", LEFT), ("For", LEFT), ("Restarts", NUMBER), ("Last failure", LEFT)];

const VOLUME: [Column; 8] = [
    ("Claim", LEFT),
    ("Volume", LEFT),
    ("Mode", LEFT),
    ("Used", NUMBER),
    ("Limit", NUMBER),
    ("Full", LEFT),
    ("Files", NUMBER),
    ("Condition", LEFT),
];

const PEER: [Column; 7] = [
    ("Node", LEFT),
    ("Endpoint", LEFT),
    ("Pods", LEFT),
    ("Key", LEFT),
    ("Last handshake", LEFT),
    ("Received", NUMBER),
    ("Sent", NUMBER),
];

const WARNING: [Column; 5] = [("Ago", LEFT), ("Times", NUMBER), ("Kind", LEFT), ("Who", LEFT), ("What", LEFT)];

const CERTIFICATE: [Column; 3] = [("Name", LEFT), ("Expires", LEFT), ("Left", LEFT)];

/// Maximum indentation of services.
const DEEPEST: usize = 4;

impl Page {
    /// Renders the page as an HTML document. All data is escaped.
    pub fn html(&self) -> String {
        let mut html = Html::document();
        html.element("html", &[("lang", "en")], |html| {
            html.element("head", &[], |html| {
                html.void("meta", &[("charset", "utf-8")]);
                html.void("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
                html.line("title", &[], &format!("{} · node status", self.node));
                html.style(include_str!("style.css"));
            });
            html.element("body", &[], |html| {
                html.element("header", &[], |html| self.heading(html));
                html.element("main", &[], |html| {
                    section(html, Section::Services, |html| services(html, &self.services));
                    match &self.storage {
                        Some(storage) => storage.show(html),
                        None => section(html, Section::Storage, |html| {
                            html.line("p", &[("class", "bad")], "The data disk could not be read; see the warnings.");
                        }),
                    }
                    if let Some(mesh) = &self.mesh {
                        section(html, Section::Mesh, |html| mesh.show(html));
                    }
                    section(html, Section::Warnings, |html| warnings(html, &self.warnings));
                    section(html, Section::Certificates, |html| self.certificates(html));
                    section(html, Section::Node, |html| self.facts(html));
                });
                html.element("footer", &[], |html| {
                    html.text("The same as ");
                    html.line("a", &[("href", "statusz.json")], "JSON");
                    html.text(", more as ");
                    html.line("a", &[("href", "metrics")], "metrics");
                    html.text(".");
                });
            });
        });
        html.into_string()
    }

    fn heading(&self, html: &mut Html) {
        html.line("h1", &[], &self.node);
        let waiting: Vec<&str> = not_ready(&self.services).map(|service| &*service.path).collect();
        if waiting.is_empty() {
            html.line("p", &[("class", "verdict good")], "Ready: every service does its work");
        } else {
            html.line("p", &[("class", "verdict bad")], &format!("Not ready: {}", waiting.join(", ")));
        }
        let now = moment(i64::try_from(self.now.as_secs()).unwrap_or(i64::MAX)).unwrap_or_default();
        html.line("p", &[("class", "soft")], &format!("{now} · up {}", duration(self.uptime)));
        html.element("nav", &[("aria-label", "Sections")], |html| {
            for section in Section::ALL {
                let count = match (section, &self.storage) {
                    (Section::Services, _) => Some(self.services.len()),
                    (Section::Volumes, None) => continue,
                    (Section::Volumes, Some(storage)) => Some(storage.volumes.len().saturating_add(storage.more)),
                    (Section::Mesh, _) => match &self.mesh {
                        None => continue,
                        Some(mesh) => mesh.peers.as_ref().map(|peers| peers.len().saturating_add(mesh.more)),
                    },
                    (Section::Warnings, _) => Some(self.warnings.len()),
                    (Section::Storage | Section::Certificates | Section::Node, _) => None,
                };
                html.element("a", &[("href", &format!("#{}", section.id()))], |html| {
                    html.text(section.title());
                    if let Some(count) = count {
                        html.text(&format!(" ({count})"));
                    }
                });
                html.text("\n");
            }
        });
    }

    fn certificates(&self, html: &mut Html) {
        if self.certificates.is_empty() {
            html.line("p", &[("class", "soft")], "Not looked at yet.");
            return;
        }
        table(html, Section::Certificates, &CERTIFICATE, |html| {
            for certificate in &self.certificates {
                let now = i64::try_from(self.now.as_secs()).unwrap_or(i64::MAX);
                let left = certificate.expires.saturating_sub(now);
                html.element("tr", &[], |html| {
                    html.line("th", &[("scope", "row")], &certificate.name);
                    html.line("td", &[], &moment(certificate.expires).unwrap_or_default());
                    match u64::try_from(left) {
                        Err(_) => html.line("td", &[("class", "bad")], "expired"),
                        Ok(seconds) => {
                            let class = if left < EXPIRES_SOON { "wait" } else { LEFT };
                            html.line("td", &[("class", class)], &duration(Duration::from_secs(seconds)));
                        }
                    }
                });
            }
        });
    }

    fn facts(&self, html: &mut Html) {
        let versions = &self.versions;
        html.element("dl", &[], |html| {
            html.line("dt", &[], "Clock");
            let (class, text) = clock(&self.clock);
            html.line("dd", &[("class", class)], &text);
            fact(html, "Granary", &versions.granary);
            let age = versions.kernel.age.map(|age| format!(", {} old", duration(age))).unwrap_or_default();
            fact(html, "Kernel", &format!("{} ({}){age}", versions.kernel.release, versions.kernel.version));
            let unknown = "not known before the node was Ready";
            fact(html, "Kubernetes", versions.kubernetes.as_deref().unwrap_or(unknown));
            fact(html, "Container runtime", versions.container_runtime.as_deref().unwrap_or(unknown));
        });
    }
}

impl Storage {
    fn show(&self, html: &mut Html) {
        section(html, Section::Storage, |html| {
            self.disk.show(html);
            for orphans in &self.orphans {
                let text = format!("Orphans of kind {}: {}. The log names each.", orphans.kind, orphans.found);
                html.line("p", &[("class", "bad")], &text);
            }
        });
        section(html, Section::Volumes, |html| self.volumes(html));
    }

    fn volumes(&self, html: &mut Html) {
        if self.volumes.is_empty() && self.closed.is_empty() {
            html.line("p", &[("class", "soft")], "None yet.");
        }
        if !self.volumes.is_empty() {
            table(html, Section::Volumes, &VOLUME, |html| {
                for volume in &self.volumes {
                    html.element("tr", &[], |html| volume.show(html));
                }
            });
        }
        if self.more > 0 {
            html.line("p", &[("class", "soft")], &format!("And {} more, which the metrics tell of.", self.more));
        }
        for closed in &self.closed {
            html.line("p", &[("class", "bad")], &format!("{} is kept and closed: {}", closed.id, closed.reason));
        }
    }
}

impl Disk {
    fn show(&self, html: &mut Html) {
        let Self { size: whole, reserve, promisable, promised, free } = *self;
        // High allocation is normal, so the meter has no warning colour.
        meter(html, "wide", [promised, promisable], None, "promised to volumes");
        let text = format!(
            "{} of {} promised to volumes, {} free. The disk has {}, of which {} are kept for images, logs, emptyDirs and etcd.",
            size(promised),
            size(promisable),
            size(free),
            size(whole),
            size(reserve)
        );
        html.line("p", &[], &text);
    }
}

impl Volume {
    fn show(&self, html: &mut Html) {
        html.line("th", &[("scope", "row")], &format!("{}/{}", self.namespace, self.claim));
        html.element("td", &[], |html| html.line("code", &[], &self.id));
        html.line("td", &[], self.mode.as_str());
        html.line("td", &[("class", NUMBER), ("title", &self.used.to_string())], &size(self.used));
        html.line("td", &[("class", NUMBER), ("title", &self.limit.to_string())], &size(self.limit));
        let almost_full = (self.mode == Mode::Filesystem).then_some(ALMOST_FULL);
        html.element("td", &[], |html| meter(html, "", [self.used, self.limit], almost_full, "of its limit used"));
        let files = self.inodes.map(|inodes| format!("{} of {}", inodes.used, inodes.limit)).unwrap_or_default();
        html.line("td", &[("class", NUMBER)], &files);
        let class = match self.condition {
            Condition::Fine => "good",
            Condition::Staged | Condition::Retired => "wait",
            Condition::AlmostFull => "bad",
        };
        html.line("td", &[("class", class)], self.condition.as_str());
    }
}

impl Mesh {
    fn show(&self, html: &mut Html) {
        match self.peers.as_deref() {
            None => html.line("p", &[("class", "bad")], "The peers could not be read; see the warnings."),
            Some([]) => html.line("p", &[("class", "soft")], "No other node yet."),
            Some(peers) => table(html, Section::Mesh, &PEER, |html| {
                for peer in peers {
                    html.element("tr", &[], |html| peer.show(html));
                }
            }),
        }
        if self.more > 0 {
            html.line("p", &[("class", "soft")], &format!("And {} more, which the metrics tell of.", self.more));
        }
    }
}

impl Peer {
    fn show(&self, html: &mut Html) {
        html.line("th", &[("scope", "row")], self.node.as_deref().unwrap_or("not known yet"));
        html.line("td", &[("class", "name")], self.endpoint.as_deref().unwrap_or("none"));
        html.line("td", &[("class", "name")], &self.pods.join(", "));
        html.element("td", &[], |html| html.line("code", &[("title", &self.key)], &self.short_key()));
        let (class, text) = match self.handshake.map(duration) {
            None => ("text wait", "never: nothing was sent yet, or nothing came back".to_owned()),
            Some(ago) if self.has_keys() => ("text", format!("{ago} ago")),
            Some(ago) => ("text wait", format!("{ago} ago: nothing was sent since, or nothing came back")),
        };
        html.line("td", &[("class", class)], &text);
        for bytes in [self.received, self.sent] {
            html.line("td", &[("class", NUMBER), ("title", &bytes.to_string())], &size(bytes));
        }
    }
}

fn services(html: &mut Html, services: &[Service]) {
    table(html, Section::Services, &SERVICE, |html| {
        for service in services {
            let class = format!("depth-{}", service.depth.min(DEEPEST));
            html.element("tr", &[("class", &class)], |html| {
                html.line("th", &[("scope", "row"), ("title", &service.path)], &service.name);
                let class = match service.state {
                    State::Healthy | State::Done => "good",
                    State::Starting | State::Stopping => "wait",
                    State::Failed | State::Stopped => "bad",
                };
                html.line("td", &[("class", class)], service.state.as_str());
                html.line("td", &[], &duration(service.since));
                html.line("td", &[("class", NUMBER)], &service.restarts.to_string());
                html.line("td", &[("class", "text")], service.last_failure.as_deref().unwrap_or_default());
            });
        }
    });
}

fn warnings(html: &mut Html, warnings: &[Warning]) {
    if warnings.is_empty() {
        html.line("p", &[("class", "soft")], "None.");
        return;
    }
    table(html, Section::Warnings, &WARNING, |html| {
        for warning in warnings {
            html.element("tr", &[], |html| {
                html.line("td", &[], &duration(warning.ago));
                html.line("td", &[("class", NUMBER)], &warning.count.to_string());
                let class = match warning.severity {
                    Severity::Warning => "wait",
                    Severity::Error => "bad",
                };
                html.line("td", &[("class", class)], warning.severity.as_str());
                html.line("td", &[("class", "name")], &warning.source);
                html.line("td", &[("class", "text")], &warning.text);
            });
        }
    });
}

/// Class and text of the clock's state.
fn clock(clock: &Clock) -> (&'static str, String) {
    match clock {
        Clock::Synchronized { server, offset_us, ago } => {
            let milliseconds = offset_us.unsigned_abs() / 1000;
            let direction = if *offset_us < 0 { "ahead of" } else { "behind" };
            ("good", format!("{milliseconds} ms {direction} {server}, asked {} ago; it is corrected", duration(*ago)))
        }
        Clock::Unsynchronized { server, reason, ago } => {
            let since = ago.map_or("yet".to_owned(), |ago| format!("for {}", duration(ago)));
            ("wait", format!("not compared with {server} {since}: {reason}"))
        }
        Clock::Alone => ("soft", "the machine's own: no server is asked".to_owned()),
    }
}

/// Sections of the page in order.
#[derive(Clone, Copy)]
enum Section {
    Services,
    Storage,
    Volumes,
    Mesh,
    Warnings,
    Certificates,
    Node,
}

impl Section {
    const ALL: [Self; 7] =
        [Self::Services, Self::Storage, Self::Volumes, Self::Mesh, Self::Warnings, Self::Certificates, Self::Node];

    /// ID of the element, used in links; must not change.
    const fn id(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Storage => "storage",
            Self::Volumes => "volumes",
            Self::Mesh => "mesh",
            Self::Warnings => "warnings",
            Self::Certificates => "certificates",
            Self::Node => "node",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Services => "Services",
            Self::Storage => "Storage",
            Self::Volumes => "Volumes",
            Self::Mesh => "Mesh",
            Self::Warnings => "Recent warnings",
            Self::Certificates => "Certificates",
            Self::Node => "Clock and versions",
        }
    }

    /// ID of the heading, which labels the section and its table for screen readers.
    fn heading(self) -> String {
        format!("{}-title", self.id())
    }
}

fn section(html: &mut Html, section: Section, inside: impl FnOnce(&mut Html)) {
    let heading = section.heading();
    html.element("section", &[("id", section.id()), ("aria-labelledby", &heading)], |html| {
        html.line("h2", &[("id", &heading)], section.title());
        inside(html);
    });
}

fn table(html: &mut Html, section: Section, columns: &[Column], rows: impl FnOnce(&mut Html)) {
    html.element("div", &[("class", "table")], |html| {
        html.element("table", &[("aria-labelledby", &section.heading())], |html| {
            html.element("thead", &[], |html| {
                html.element("tr", &[], |html| {
                    for &(title, class) in columns {
                        html.line("th", &[("scope", "col"), ("class", class)], title);
                    }
                });
            });
            html.element("tbody", &[], rows);
        });
    });
}

/// A meter of `used` and `limit` with text, highlighted from `high` percent on.
fn meter(html: &mut Html, class: &str, [used, limit]: [Bytes; 2], high: Option<u64>, what: &str) {
    let (used, limit) = (used.get(), limit.get());
    // Without a range, browsers assume 0 to 1.
    let percent = (u128::from(used) * 100).checked_div(u128::from(limit)).unwrap_or(0).min(100).to_string();
    let text = format!("{percent} % {what}");
    let mut attributes = vec![("class", class), ("min", "0"), ("max", "100"), ("value", &*percent), ("title", &*text)];
    // If `optimum` is below `low`, values above `high` are the worst part.
    let high = high.map(|high| (high - 1).to_string());
    if let Some(high) = &high {
        attributes.extend([("low", &**high), ("high", &**high), ("optimum", "0")]);
    }
    html.line("meter", &attributes, &text);
}

fn fact(html: &mut Html, name: &'static str, text: &str) {
    html.line("dt", &[], name);
    html.line("dd", &[], text);
}

#[cfg(test)]
mod tests;
