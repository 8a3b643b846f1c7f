//! A record of `/dev/kmsg`, Documentation/ABI/testing/dev-kmsg of the kernel's sources. Pure.

use std::time::{Duration, SystemTime};

use tracing::Level;

use crate::record::{Field, Origin, Record};

/// What the kernel said, or somebody who wrote into its buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// 0 (emergency) to 7 (debug), as in syslog.
    pub severity: u8,
    /// 0 is the kernel itself, and nobody else can say so.
    pub facility: u32,
    /// Its number: one that is missing was overwritten before it was read.
    pub sequence: u64,
    /// When, by the kernel's clock.
    pub since_boot: Duration,
    /// What was said.
    pub text: String,
    /// What it is about: `SUBSYSTEM`, `DEVICE`.
    pub fields: Vec<Field>,
}

/// Reads `priority,sequence,microseconds,flags[,…];text`, then lines ` NAME=value`. `None` if it is something else.
pub fn parse(record: &[u8]) -> Option<Message> {
    let record = String::from_utf8_lossy(record);
    let (prefix, rest) = record.split_once(';')?;
    let mut numbers = prefix.split(',');
    let priority: u32 = numbers.next()?.parse().ok()?;
    let sequence = numbers.next()?.parse().ok()?;
    let micros = numbers.next()?.parse().ok()?;
    let mut lines = rest.lines();
    let text = unescape(lines.next().unwrap_or_default());
    let field = |line: &str| {
        let (name, value) = line.strip_prefix(' ')?.split_once('=')?;
        Some((unescape(name).into(), unescape(value)))
    };
    Some(Message {
        severity: (priority % 8) as u8,
        facility: priority / 8,
        sequence,
        since_boot: Duration::from_micros(micros),
        text,
        fields: lines.filter_map(field).collect(),
    })
}

impl Message {
    /// As a record. The clock tells `now`, which is `uptime` since the kernel started.
    pub(crate) fn record(self, now: SystemTime, uptime: Duration) -> Record {
        let ago = uptime.saturating_sub(self.since_boot);
        Record {
            at: now.checked_sub(ago).unwrap_or(now),
            uptime: self.since_boot,
            level: level(self.severity),
            origin: if self.facility == 0 { Origin::Kernel } else { Origin::Kmsg },
            spans: Vec::new(),
            message: self.text,
            fields: self.fields,
        }
    }
}

/// Of `KERN_EMERG` (0) to `KERN_DEBUG` (7), include/linux/kern_levels.h.
fn level(severity: u8) -> Level {
    match severity {
        0..=3 => Level::ERROR,
        4 => Level::WARN,
        5 | 6 => Level::INFO,
        _ => Level::DEBUG,
    }
}

/// What is not printable, and the backslash, is `\xNN` there: a byte.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend_from_slice(before.as_bytes());
        let digits = after.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.extend_from_slice(b"\\x");
                rest = after;
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As the kernel writes it, `record_print_text` and `msg_add_ext_text` in kernel/printk/printk.c.
    fn written(message: &Message) -> Vec<u8> {
        fn escaped(text: &str) -> String {
            text.bytes()
                .map(|byte| match byte {
                    b' '..=b'~' if byte != b'\\' => char::from(byte).to_string(),
                    _ => format!("\\x{byte:02x}"),
                })
                .collect()
        }
        let Message { severity, facility, sequence, since_boot, text, fields } = message;
        let priority = facility * 8 + u32::from(*severity);
        let mut record = format!("{priority},{sequence},{},-;{}\n", since_boot.as_micros(), escaped(text));
        for (name, value) in fields {
            record += &format!(" {name}={}\n", escaped(value));
        }
        record.into_bytes()
    }

    #[test]
    fn the_example_of_the_kernels_documentation_is_read() {
        let record = b"7,160,424069,-;pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n";
        let message = parse(record).unwrap();
        assert_eq!((message.severity, message.facility, message.sequence), (7, 0, 160));
        assert_eq!(message.since_boot, Duration::from_micros(424_069));
        assert_eq!(message.text, "pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)");
        let fields = [("SUBSYSTEM", "acpi"), ("DEVICE", "+acpi:PNP0A03:00")];
        assert_eq!(message.fields, fields.map(|(name, value)| (name.into(), value.to_owned())));
    }

    #[test]
    fn later_kernels_may_say_more_before_the_text() {
        assert_eq!(parse(b"6,1,2,c,caller=T1;x").unwrap().text, "x");
    }

    #[test]
    fn only_the_kernel_is_the_kernel() {
        let origin = |record: &[u8]| parse(record).unwrap().record(SystemTime::UNIX_EPOCH, Duration::ZERO).origin;
        assert_eq!(origin(b"3,1,2,-;x"), Origin::Kernel);
        assert_eq!(origin(b"11,1,2,-;x"), Origin::Kmsg);
    }

    #[test]
    fn the_time_is_that_of_the_message() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let record = parse(b"4,1,2000000,-;x").unwrap().record(now, Duration::from_secs(5));
        assert_eq!(record.at, SystemTime::UNIX_EPOCH + Duration::from_secs(997));
        assert_eq!((record.uptime, record.level), (Duration::from_secs(2), Level::WARN));
    }

    #[test]
    fn anything_else_is_none() {
        for record in ["", ";", "6,1,2", "6,1;x", "x,1,2,-;x", "6,-1,2,-;x", "6,1,2.5,-;x"] {
            assert_eq!(parse(record.as_bytes()), None, "{record}");
        }
    }

    proptest! {
        #[test]
        fn what_the_kernel_writes_is_read_back(
            severity in 0_u8..8, facility in 0_u32..24, sequence: u64, micros in 0_u64..1 << 50, text in "[^\n]{0,60}",
            fields in prop::collection::vec(("[A-Z]{1,9}", "[^\n]{0,20}"), 0..3),
        ) {
            let fields = fields.into_iter().map(|(name, value)| (name.into(), value)).collect();
            let since_boot = Duration::from_micros(micros);
            let message = Message { severity, facility, sequence, since_boot, text, fields };
            prop_assert_eq!(parse(&written(&message)), Some(message));
        }

        #[test]
        fn no_bytes_make_it_panic(record: Vec<u8>, text in "[0-9,;\\\\x a=\n]{0,40}") {
            let _ = parse(&record);
            let _ = parse(format!("6,1,2,-;{text}").as_bytes());
            let _ = parse(text.as_bytes());
        }
    }
}
