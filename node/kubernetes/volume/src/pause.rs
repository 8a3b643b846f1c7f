//! Parameters of classes of snapshots and of groups, for contents and for CSI's Controller service. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::DEFAULT_PAUSE;

/// Class parameter: how long the pods of volumes may be stopped.
pub const MAX_PAUSE: &str = "maxPause";

/// The longest pause that a class may allow. Probes of pods fail, and clients give up, long before.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PauseError {
    #[error("has the parameter {name}, and this driver supports {MAX_PAUSE} only; create the class again without it")]
    Unknown { name: String },
    #[error(
        "has the parameter {MAX_PAUSE} with {value:?}, which is not a duration such as 2s or 500ms, from 1ms to 1m; create \
         the class again"
    )]
    Value { value: String },
}

pub fn max_pause(parameters: &BTreeMap<String, String>) -> Result<Duration, PauseError> {
    if let Some(name) = parameters.keys().find(|name| *name != MAX_PAUSE) {
        return Err(PauseError::Unknown { name: name.clone() });
    }
    let Some(value) = parameters.get(MAX_PAUSE) else { return Ok(DEFAULT_PAUSE) };
    let pause = duration(value).filter(|pause| (Duration::from_millis(1)..=LONGEST_PAUSE).contains(pause));
    pause.ok_or_else(|| PauseError::Value { value: value.clone() })
}

/// A duration as Go's `time.ParseDuration` reads it, rounded down to nanoseconds: numbers with units, `1m1.5s`.
fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 7] =
        [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let number = rest.find(|symbol: char| symbol != '.' && !symbol.is_ascii_digit())?;
        let (value, behind) = rest.split_at(number);
        let unit = behind.find(|symbol: char| symbol == '.' || symbol.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        seconds += value.parse::<f64>().ok()? * factor;
        rest = behind;
    }
    if text.is_empty() { None } else { Duration::try_from_secs_f64(seconds).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_is_read_and_every_other_parameter_is_rejected() {
        let of = |parameters: &[(&str, &str)]| {
            let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            max_pause(&parameters.collect())
        };
        assert_eq!(of(&[]), Ok(DEFAULT_PAUSE));
        for name in ["maxpause", "thin", "csi.storage.k8s.io/snapshotter-secret-name"] {
            let unknown = PauseError::Unknown { name: name.to_owned() };
            assert_eq!(of(&[(name, "2s"), (MAX_PAUSE, "2s")]), Err(unknown));
        }
        for (value, milliseconds) in [("500ms", 500), ("2s", 2000), ("1.5s", 1500), ("1s250ms", 1250), ("1m", 60_000)] {
            assert_eq!(of(&[(MAX_PAUSE, value)]), Ok(Duration::from_millis(milliseconds)), "{value}");
        }
        for value in
            ["", "2", "s", "-2s", "+2s", "2 s", "2sec", "0s", "61s", "1e3s", "1..2s", "99999999999999999999h", "10us"]
        {
            assert_eq!(of(&[(MAX_PAUSE, value)]), Err(PauseError::Value { value: value.to_owned() }), "{value}");
        }
    }
}
