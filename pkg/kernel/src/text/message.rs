//! Records of `/dev/kmsg`.

use std::time::Duration;

/// A record of `/dev/kmsg`: a message of the kernel, or of a program that wrote to `/dev/kmsg`.
///
/// `Documentation/ABI/testing/dev-kmsg` of the kernel's sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Severity, 0 (emergency) to 7 (debug), as in syslog(2).
    pub severity: u8,
    /// Facility. 0 is the kernel; the kernel does not let programs use it.
    pub facility: u32,
    /// Sequence number. A gap means that the kernel overwrote records before they were read.
    pub sequence: u64,
    /// Time since boot at which the record was written.
    pub since_boot: Duration,
    /// The message, unescaped.
    pub text: String,
    /// Names and values, such as `SUBSYSTEM` and `DEVICE`.
    pub fields: Vec<(String, String)>,
}

impl Message {
    /// Parses `priority,sequence,microseconds,flags[,…];text` and the lines ` NAME=value` that follow. `None` if the
    /// record has another format.
    ///
    /// ```
    /// use kernel::text::Message;
    ///
    /// let message = Message::parse(b"11,160,424069,-;ready\n DEVICE=b8:0\n").unwrap();
    /// assert_eq!((message.severity, message.facility), (3, 1));
    /// assert_eq!(message.text, "ready");
    /// ```
    pub fn parse(record: &[u8]) -> Option<Self> {
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
            Some((unescape(name), unescape(value)))
        };
        Some(Self {
            severity: (priority % 8) as u8,
            facility: priority / 8,
            sequence,
            since_boot: Duration::from_micros(micros),
            text,
            fields: lines.filter_map(field).collect(),
        })
    }
}

/// The kernel escapes the backslash and non-printable bytes as `\xNN`.
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

    /// Formats a record like `record_print_text` and `msg_add_ext_text` in kernel/printk/printk.c.
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
    fn the_example_in_the_kernel_documentation_is_parsed() {
        let record = b"7,160,424069,-;pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n";
        let message = Message::parse(record).unwrap();
        assert_eq!((message.severity, message.facility, message.sequence), (7, 0, 160));
        assert_eq!(message.since_boot, Duration::from_micros(424_069));
        assert_eq!(message.text, "pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)");
        let fields = [("SUBSYSTEM", "acpi"), ("DEVICE", "+acpi:PNP0A03:00")];
        assert_eq!(message.fields, fields.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn unknown_fields_before_the_text_are_ignored() {
        assert_eq!(Message::parse(b"6,1,2,c,caller=T1;x").unwrap().text, "x");
    }

    #[test]
    fn an_invalid_record_gives_none() {
        for record in ["", ";", "6,1,2", "6,1;x", "x,1,2,-;x", "6,-1,2,-;x", "6,1,2.5,-;x"] {
            assert_eq!(Message::parse(record.as_bytes()), None, "{record}");
        }
    }

    proptest! {
        #[test]
        fn parsing_reverses_the_kernels_formatting(
            severity in 0_u8..8, facility in 0_u32..24, sequence: u64, micros in 0_u64..1 << 50, text in "[^\n]{0,60}",
            fields in prop::collection::vec(("[A-Z]{1,9}", "[^\n]{0,20}"), 0..3),
        ) {
            let since_boot = Duration::from_micros(micros);
            let message = Message { severity, facility, sequence, since_boot, text, fields };
            prop_assert_eq!(Message::parse(&written(&message)), Some(message));
        }
    }
}
