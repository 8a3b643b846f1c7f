//! The log in a directory with a limit on a real disk, and the kernel log. Requires root and a scratch disk.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cluster::Rate;
use fsquota::{Allocator, Limits};
use ktest_support::{Disk, XfsDisk, cut};
use nix::fcntl::{FallocateFlags, fallocate};
use nodelog::{Bounds, Origin, Record, Sink, SourceLimit, Stream};
use prometheus::Registry;
use tracing::Level;
use units::{Bytes, Inodes};

const LIMIT: Duration = Duration::from_secs(60);

const ALL: SourceLimit =
    SourceLimit { rate: Rate { burst: u32::MAX, per_second: 1000 }, window: Duration::from_secs(10) };

#[derive(Clone, Default)]
struct FakeSink(Arc<Mutex<Vec<Record>>>);

impl Sink for FakeSink {
    fn take(&self, record: &Record) {
        self.0.lock().unwrap().push(record.clone());
    }
}

impl FakeSink {
    fn find(&self, wanted: impl Fn(&Record) -> bool) -> Option<Record> {
        self.0.lock().unwrap().iter().find(|record| wanted(record)).cloned()
    }

    fn wait(&self, what: &str, wanted: impl Fn(&Record) -> bool) -> Record {
        wait(what, || self.find(&wanted).ok_or_else(|| format!("{:?}", self.0.lock().unwrap().last())))
    }
}

fn wait<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        match look() {
            Ok(found) => return found,
            Err(last) => assert!(Instant::now() < end, "waited for {what}, last: {last}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

struct Log {
    stream: Stream,
    kept: FakeSink,
    registry: Registry,
}

impl Log {
    fn start() -> Self {
        let (kept, registry) = (FakeSink::default(), Registry::new());
        let stream = Stream::start(vec![Box::new(kept.clone())], ALL).unwrap();
        stream.metrics().register(&registry).unwrap();
        Self { stream, kept, registry }
    }

    fn counted(&self, name: &str) -> u64 {
        let families = self.registry.gather();
        let metrics = families.iter().filter(|family| family.name() == name).flat_map(|family| family.get_metric());
        metrics.map(|metric| metric.get_counter().get_value() as u64).sum()
    }

    fn written(&self) -> u64 {
        self.counted("granary_log_written_bytes_total")
    }

    fn dropped(&self) -> u64 {
        self.counted("granary_log_dropped_records_total")
    }

    /// A line of about 4 KiB.
    fn say(&self, number: usize) {
        let text = format!("n{number} {}", "\u{1}".repeat(650));
        self.stream.log(Record::now(Level::INFO, Origin::Program("kubelet".to_owned()), text));
    }
}

/// Total size of the files, and the numbers in their messages, oldest first.
fn written(directory: &Path) -> (u64, Vec<usize>) {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let text: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let number = |line: &str| -> Option<usize> {
        // If the disk was full, the last line may be incomplete.
        let record: serde_json::Value = serde_json::from_str(line).ok()?;
        record["message"].as_str().unwrap().split_once(' ')?.0.strip_prefix('n')?.parse().ok()
    };
    let numbers = text.iter().flat_map(|text| text.lines()).filter_map(number).collect();
    (text.iter().map(|text| text.len() as u64).sum(), numbers)
}

fn limited(disk: &XfsDisk, limit: Bytes) -> PathBuf {
    let directory = disk.path().join("node");
    fs::create_dir(&directory).unwrap();
    let ids = Allocator::open(File::open(disk.path()).unwrap()).unwrap();
    let limits = Limits { bytes: Some(limit), inodes: Some(Inodes::new(64)) };
    fsquota::set(File::open(&directory).unwrap(), limits, &ids).unwrap();
    directory
}

#[test]
fn the_log_stays_within_its_limit() {
    let disk = XfsDisk::with_project_quota();
    let limit = Bytes::MIB;
    let directory = limited(&disk, limit);
    let log = Log::start();
    log.stream.keep(&directory, Bounds::within(limit));
    let mut number = 0;
    // Writes three times the limit.
    while log.written() < 3 * limit.get() {
        let enough = log.written() + (128 << 10);
        for _ in 0..50 {
            log.say(number);
            number += 1;
        }
        wait("the disk takes them", || {
            Some(()).filter(|()| log.written() >= enough).ok_or(format!("{}", log.written()))
        });
    }
    assert!(log.stream.close(LIMIT));
    assert_eq!(log.kept.find(|record| record.level == Level::WARN), None);
    let (size, numbers) = written(&directory);
    assert!(size <= limit.get() && size > limit.get() / 2, "{size}");
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "a line in the middle is missing");
    assert_eq!(numbers.last(), Some(&(number - 1)));
}

#[test]
fn a_full_disk_drops_records_and_reports_them_later() {
    let disk = XfsDisk::with_project_quota();
    let limit = Bytes::MIB;
    let directory = limited(&disk, limit);
    let log = Log::start();
    log.stream.keep(&directory, Bounds::within(limit));
    log.say(0);
    wait("the first line", || match written(&directory).1 {
        numbers if numbers == [0] => Ok(()),
        numbers => Err(format!("{numbers:?}")),
    });
    // Another file uses the free space.
    let hog = directory.join("hog");
    let file = File::create(&hog).unwrap();
    let (mut taken, mut step) = (0, 256 << 10);
    while step >= 4096 {
        match fallocate(&file, FallocateFlags::empty(), taken, step) {
            Ok(()) => taken += step,
            Err(_) => step /= 2,
        }
    }
    let mut number = 1;
    while log.dropped() < 10 {
        log.say(number);
        number += 1;
        assert!(number < 10_000, "nothing was dropped");
    }
    log.kept.wait("the warning that it cannot be written", |record| record.message.contains("cannot write the log"));
    drop(file);
    fs::remove_file(&hog).unwrap();
    let report =
        log.kept.wait("how many are missing", |record| record.message.ends_with("are not in the log on the disk"));
    assert_eq!(report.message.split_once(' ').unwrap().0, log.dropped().to_string());
    log.say(number);
    assert!(log.stream.close(LIMIT));
    let (size, numbers) = written(&directory);
    assert!(size <= limit.get(), "{size}");
    assert_eq!(numbers.last(), Some(&number));
}

/// All tests share the kernel's buffer, so this is one test.
#[test]
fn kernel_messages_are_logged_and_losses_counted() {
    let Log { stream, kept, .. } = Log::start();
    stream.follow_kernel().unwrap();
    let mut kmsg = OpenOptions::new().write(true).open("/dev/kmsg").unwrap();
    // The message contains a secret and an escape sequence that clears a terminal.
    kmsg.write_all(b"<2>granary-test: token abcdef.0123456789abcdef \x1b[2J\n").unwrap();
    let found = kept.wait("the message", |record| record.message.contains("granary-test"));
    assert_eq!(found.message, "granary-test: token REDACTED \u{1b}[2J");
    assert_eq!((found.level, &found.origin), (Level::ERROR, &Origin::Kmsg));
    // The log contains earlier messages of the kernel.
    let first = kept.0.lock().unwrap()[0].clone();
    assert_eq!(first.origin, Origin::Kernel);
    assert!(first.uptime < found.uptime && first.at < found.at);
    stream.close(LIMIT);

    // Otherwise the kernel accepts only ten lines per five seconds from programs.
    fs::write("/proc/sys/kernel/printk_devkmsg", "on\n").unwrap();
    // Fills the buffer completely before the next reader starts.
    for number in 0..2000 {
        kmsg.write_all(format!("<6>{number} {}\n", "x".repeat(900)).as_bytes()).unwrap();
    }
    let late = Log::start();
    late.stream.follow_kernel().unwrap();
    let report = late.kept.wait("how many are lost", |record| record.message.contains("were overwritten"));
    assert_eq!((report.level, report.origin), (Level::WARN, Origin::Kernel));
    late.kept.wait("the last one", |record| record.message.starts_with("1999 "));
    assert!(late.dropped() > 1000, "{}", late.dropped());
    late.stream.close(LIMIT);
}

/// The kernel has no counter of failed requests for virtio and NVMe disks: its log is the only source.
#[test]
fn a_failed_request_names_its_disk() {
    let log = Log::start();
    log.stream.follow_kernel().unwrap();
    let disk = Disk::take();
    let mut device = OpenOptions::new().write(true).open(disk.path()).unwrap();
    device.write_all(&[0; 4096]).unwrap();
    let off = cut(disk.path());
    assert!(device.sync_all().is_err());
    drop(off);
    let name = disk.path().file_name().and_then(|name| name.to_str());
    log.kept.wait("the failed request", |record| {
        record.origin == Origin::Kernel && kernel::text::failed_disk(&record.message) == name
    });
}
