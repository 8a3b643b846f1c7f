//! The log of the node: records of the node's program, of the programs that it runs, and of the kernel. Crate `nodelog`
//! implements the stream; this module selects the records of each sink.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::{panic, thread};

use nix::fcntl::OFlag;
use nodelog::{Origin, Record, Sink, SourceLimit, StartError, Stream};
use status::{Recent, Severity};
use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::disk_health::DiskHealth;

/// Starts the log on the console and in memory, with the last warnings and the failed requests of the data disk. A
/// second call changes nothing.
///
/// Lowest levels: `info` for the node's program, `warn` for libraries, `info` for the programs that the node runs
/// (etcd, kubelet, …). The console and the last warnings have records of these programs from the level `programs` on.
pub fn start(programs: Level) -> Result<(Stream, Recent, DiskHealth), StartError> {
    let filter = Targets::new()
        .with_default(Level::INFO)
        .with_target("kube", LevelFilter::WARN)
        .with_target("kube_runtime", LevelFilter::WARN)
        .with_target("hyper", LevelFilter::WARN)
        .with_target("h2", LevelFilter::WARN)
        .with_target("program", programs.max(Level::INFO))
        .with_target("tower", LevelFilter::WARN)
        .with_target("rustls", LevelFilter::WARN);
    let recent = Recent::default();
    let warnings = Warnings { recent: recent.clone(), programs };
    let disk_health = DiskHealth::default();
    let stream = Stream::start(vec![Box::new(warnings), Box::new(disk_health.clone())], SourceLimit::default())?;
    stream.show(programs, consoles())?;
    if tracing_subscriber::registry().with(stream.layer()).with(filter).try_init().is_ok() {
        log_panics(stream.clone());
    }
    Ok((stream, recent, disk_health))
}

/// `/dev/console`, and the other consoles to which the kernel writes. A console that cannot be opened shows only the
/// kernel's messages.
fn consoles() -> Vec<Box<dyn Write + Send>> {
    let mut all: Vec<Box<dyn Write + Send>> = vec![Box::new(io::stdout())];
    let active = fs::read_to_string("/sys/class/tty/console/active").unwrap_or_default();
    for name in kernel::text::other_consoles(&active) {
        // The console must not become the controlling terminal of PID 1.
        let opened =
            File::options().write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(Path::new("/dev").join(name));
        all.extend(opened.map(|console| -> Box<dyn Write + Send> { Box::new(console) }));
    }
    all
}

/// Logs panics as records: standard error is the console, and a task that panics while a terminal has stopped output
/// would never end.
fn log_panics(stream: Stream) {
    panic::set_hook(Box::new(move |panicked| {
        let thread = thread::current();
        let text = panicked.payload_as_str().unwrap_or("without a message");
        let message = format!("thread '{}' panicked: {text}", thread.name().unwrap_or("<unnamed>"));
        let at = panicked.location().map(|location| ("at".into(), location.to_string()));
        let record = Record::now(Level::ERROR, Origin::Module(module_path!().into()), message);
        stream.log(Record { fields: at.into_iter().collect(), ..record });
    }));
}

struct Warnings {
    recent: Recent,
    programs: Level,
}

impl Warnings {
    fn severity(&self, record: &Record) -> Option<Severity> {
        let from = match record.origin {
            Origin::Module(_) => Level::WARN,
            Origin::Program(_) => self.programs,
            // The kernel's warnings are about the hardware and firmware. Its errors are about the current state.
            Origin::Kernel => Level::ERROR,
            // Any process with write access to /dev/kmsg can write such records.
            Origin::Kmsg => return None,
        };
        match record.level {
            level if level > from => None,
            Level::ERROR => Some(Severity::Error),
            Level::WARN => Some(Severity::Warning),
            _ => None,
        }
    }
}

impl Sink for Warnings {
    fn take(&self, record: &Record) {
        if let Some(severity) = self.severity(record) {
            self.recent.keep(severity, record.origin.name(), &record.text());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_page_has_warnings_and_what_the_console_shows() {
        let warnings = Warnings { recent: Recent::default(), programs: Level::ERROR };
        let program = Origin::Program("kubelet".to_owned());
        for (level, origin, message) in [
            (Level::INFO, Origin::Module("csi".into()), "volume published"),
            (Level::WARN, Origin::Module("csi".into()), "not yet"),
            (Level::WARN, program.clone(), "deprecated"),
            (Level::ERROR, program, "no disk"),
            (Level::WARN, Origin::Kernel, "no such device"),
            (Level::ERROR, Origin::Kernel, "I/O error"),
            (Level::ERROR, Origin::Kmsg, "I/O error, really"),
        ] {
            warnings.take(&Record::now(level, origin, message));
        }
        let found = warnings.recent.warnings();
        let found: Vec<_> = found.iter().map(|found| (&*found.source, &*found.text)).collect();
        assert_eq!(found, [("kernel", "I/O error"), ("kubelet", "no disk"), ("csi", "not yet")]);
    }

    #[test]
    fn a_panic_is_in_the_log_with_thread_text_and_place() {
        let recent = Recent::default();
        let warnings = Warnings { recent: recent.clone(), programs: Level::ERROR };
        let stream = Stream::start(vec![Box::new(warnings)], SourceLimit::default()).unwrap();
        let usual = panic::take_hook();
        log_panics(stream);
        let ended =
            thread::Builder::new().name("power-button".into()).spawn(|| panic!("no {}", "button")).unwrap().join();
        panic::set_hook(usual);
        assert!(ended.is_err());
        let found = recent.warnings();
        let found = found.iter().find(|found| found.text.contains("power-button")).unwrap();
        assert_eq!(found.source, "node_core::log");
        let place = found.text.strip_prefix("thread 'power-button' panicked: no button at=").unwrap();
        assert!(place.trim_matches('"').starts_with(file!()), "{place}");
    }
}
