//! The one log of the node: lines on the console, with the time since the kernel started.

use std::fmt;

use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use status::Recent;

use crate::host::uptime_ms;

struct Uptime;

impl FormatTime for Uptime {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        let ms = uptime_ms();
        write!(w, "{:4}.{:03}", ms / 1000, ms % 1000)
    }
}

/// Starts it, and keeps the last warnings. A second call changes nothing, and keeps none.
///
/// We speak from `info` on, libraries from `warn` on, the node's programs (etcd, kubelet, …) from `programs`
/// on: a serial console is slow, and they have much to say.
pub fn start(programs: Level) -> Recent {
    let filter = Targets::new()
        .with_default(Level::INFO)
        .with_target("kube", LevelFilter::WARN)
        .with_target("kube_runtime", LevelFilter::WARN)
        .with_target("hyper", LevelFilter::WARN)
        .with_target("h2", LevelFilter::WARN)
        .with_target("program", programs)
        .with_target("tower", LevelFilter::WARN)
        .with_target("rustls", LevelFilter::WARN);
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_timer(Uptime).with_target(false);
    let recent = Recent::default();
    let _ = tracing_subscriber::registry().with(lines).with(recent.clone()).with(filter).try_init();
    recent
}
