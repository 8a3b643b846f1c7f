//! Text of the kernel that other programs can influence: messages of `/dev/kmsg` and names in `/proc/PID/stat`. Also
//! tables of sizes.

use std::fmt::Write;

use kernel::text::{Message, Stat, size};

/// A parsed value, formatted like the kernel does, must be parsed as the same value.
pub fn check(input: &[u8]) {
    if let Some(message) = Message::parse(input) {
        assert_eq!(Message::parse(written(&message).as_bytes()), Some(message));
    }
    let text = String::from_utf8_lossy(input);
    if let Some(stat) = Stat::parse(&text) {
        let Stat { name, state, parent, start } = stat;
        let again = format!("1 ({name}) {state} {parent} {}{start} 0\n", "0 ".repeat(17));
        assert_eq!(Stat::parse(&again), Some(stat));
    }
    if let Some(found) = size(&text, "MemTotal:") {
        assert!(text.contains("MemTotal:"));
        assert_eq!(size(&format!("MemTotal:  {} kB\n", found.get() / 1024), "MemTotal:"), Some(found));
    }
}

fn written(message: &Message) -> String {
    let Message { severity, facility, sequence, since_boot, text, fields } = message;
    let priority = facility * 8 + u32::from(*severity);
    let mut record = format!("{priority},{sequence},{},-;{}\n", since_boot.as_micros(), escaped(text));
    for (name, value) in fields {
        writeln!(record, " {}={}", escaped(name), escaped(value)).expect("memory");
    }
    record
}

/// Escapes more characters than the kernel does: `=` would end the name of a field.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        match byte {
            b' '..=b'<' | b'>'..=b'[' | b']'..=b'~' => escaped.push(char::from(byte)),
            other => write!(escaped, "\\x{other:02x}").expect("memory"),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_what_their_names_say() {
        for (name, seed) in crate::seeds("kernel_text") {
            check(&seed);
            let text = String::from_utf8_lossy(&seed);
            match name.as_str() {
                "fields" => assert!(Message::parse(&seed).is_some_and(|message| message.fields.len() == 2)),
                "escaped" => assert!(Message::parse(&seed).is_some_and(|message| message.text.contains('\\'))),
                "stat" => assert_eq!(Stat::parse(&text).map(|stat| stat.name), Some("a) Z (b)")),
                "meminfo" => assert!(size(&text, "MemTotal:").is_some()),
                _ => {} // The fuzzer has found this seed.
            }
        }
    }
}
