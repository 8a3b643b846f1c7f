//! Conversion of kernel messages to records. No I/O.

use std::time::{Duration, SystemTime};

use kernel::text::Message;
use tracing::Level;

use crate::record::{Origin, Record};

/// Converts a message. `now` is the current time, `uptime` the time since boot.
pub(crate) fn record(message: Message, now: SystemTime, uptime: Duration) -> Record {
    let ago = uptime.saturating_sub(message.since_boot);
    Record {
        at: now.checked_sub(ago).unwrap_or(now),
        uptime: message.since_boot,
        level: level(message.severity),
        origin: if message.facility == 0 { Origin::Kernel } else { Origin::Kmsg },
        spans: Vec::new(),
        message: message.text,
        fields: message.fields.into_iter().map(|(name, value)| (name.into(), value)).collect(),
    }
}

/// Converts `KERN_EMERG` (0) to `KERN_DEBUG` (7), include/linux/kern_levels.h.
fn level(severity: u8) -> Level {
    match severity {
        0..=3 => Level::ERROR,
        4 => Level::WARN,
        5 | 6 => Level::INFO,
        _ => Level::DEBUG,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_programs_have_another_origin() {
        let origin = |text: &[u8]| {
            let message = Message::parse(text).unwrap();
            record(message, SystemTime::UNIX_EPOCH, Duration::ZERO).origin
        };
        assert_eq!(origin(b"3,1,2,-;x"), Origin::Kernel);
        assert_eq!(origin(b"11,1,2,-;x"), Origin::Kmsg);
    }

    #[test]
    fn the_time_of_the_message_is_used() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let message = Message::parse(b"4,1,2000000,-;x").unwrap();
        let record = record(message, now, Duration::from_secs(5));
        assert_eq!(record.at, SystemTime::UNIX_EPOCH + Duration::from_secs(997));
        assert_eq!((record.uptime, record.level), (Duration::from_secs(2), Level::WARN));
    }
}
