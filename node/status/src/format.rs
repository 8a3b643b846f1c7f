//! Short formats with about two digits; `units` has exact ones.

use std::time::Duration;

use time::OffsetDateTime;
use units::Bytes;

/// Formats like `12.3 GiB`.
pub(crate) fn size(bytes: Bytes) -> String {
    const UNITS: [(&str, u64); 5] =
        [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let bytes = bytes.get();
    let Some((name, unit)) = UNITS.iter().find(|(_, unit)| bytes >= *unit) else { return format!("{bytes} B") };
    let (whole, tenths) = (bytes / unit, u128::from(bytes % unit) * 10 / u128::from(*unit));
    if tenths == 0 { format!("{whole} {name}") } else { format!("{whole}.{tenths} {name}") }
}

/// Formats the two largest units: `3 d 4 h`, `17 s`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        (1..=99, ..) => format!("{days} d {hours} h"),
        _ => format!("{days} d"),
    }
}

/// Formats like `2026-03-01 12:00:05 UTC`; `None` if the time is out of range.
pub(crate) fn moment(unix_seconds: i64) -> Option<String> {
    let at = OffsetDateTime::from_unix_timestamp(unix_seconds).ok()?;
    Some(format!("{} {:02}:{:02}:{:02} UTC", at.date(), at.hour(), at.minute(), at.second()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal_at_most() {
        let shown = [0, 1023, 1024, 1536, (1 << 30) - 1, 5 << 30, u64::MAX].map(|bytes| size(Bytes::new(bytes)));
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "1.5 KiB", "1023.9 MiB", "5 GiB", "16383.9 PiB"]);
    }

    #[test]
    fn durations_have_their_two_largest_units() {
        let shown = [0, 59, 61, 7_260, 90_000, 86_400 * 400].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(shown, ["0 s", "59 s", "1 min 1 s", "2 h 1 min", "1 d 1 h", "400 d"]);
        assert_eq!(duration(Duration::MAX), format!("{} d", u64::MAX / 86_400));
    }

    #[test]
    fn times_are_formatted_in_utc() {
        assert_eq!(moment(1_772_366_405).as_deref(), Some("2026-03-01 12:00:05 UTC"));
        assert_eq!(moment(i64::MAX), None);
    }
}
