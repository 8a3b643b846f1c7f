//! Parameters of classes of snapshots and of groups, for contents and for CSI's Controller service. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{DEFAULT_PAUSE, Sharing};

/// Class parameter: how long the pods of volumes may be stopped.
pub const MAX_PAUSE: &str = "maxPause";

/// Class parameter: whether snapshots share the blocks of their volumes for as long as they exist.
pub const THIN: &str = "thin";

/// The longest pause that a class may allow. Probes of pods fail, and clients give up, long before.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotParameters {
    pub max_pause: Duration,
    pub sharing: Sharing,
}

impl Default for SnapshotParameters {
    fn default() -> Self {
        Self { max_pause: DEFAULT_PAUSE, sharing: Sharing::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotParameterError {
    #[error(
        "has the parameter {name}, and this driver supports {MAX_PAUSE} and {THIN} only; create the class again without it"
    )]
    Unknown { name: String },
    #[error(
        "has the parameter {MAX_PAUSE} with {value:?}, which is not a duration such as 2s or 500ms, from 1ms to 1m; create \
         the class again"
    )]
    Pause { value: String },
    #[error("has the parameter {THIN} with {value:?}, which is neither \"true\" nor \"false\"; create the class again")]
    Thin { value: String },
}

impl SnapshotParameters {
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, SnapshotParameterError> {
        let mut parsed = Self::default();
        for (name, value) in parameters {
            match name.as_str() {
                MAX_PAUSE => {
                    let pause = duration(value).filter(|pause| (SHORTEST_PAUSE..=LONGEST_PAUSE).contains(pause));
                    let invalid = || SnapshotParameterError::Pause { value: value.clone() };
                    parsed.max_pause = pause.ok_or_else(invalid)?;
                }
                THIN => {
                    parsed.sharing = match value.as_str() {
                        "true" => Sharing::Permanent,
                        "false" => Sharing::Temporary,
                        _ => return Err(SnapshotParameterError::Thin { value: value.clone() }),
                    };
                }
                _ => return Err(SnapshotParameterError::Unknown { name: name.clone() }),
            }
        }
        Ok(parsed)
    }
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
    use serde_json::Value;

    use super::*;

    fn of(parameters: &[(&str, &str)]) -> Result<SnapshotParameters, SnapshotParameterError> {
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        SnapshotParameters::parse(&parameters.collect())
    }

    #[test]
    fn the_pause_is_read_and_unknown_parameters_are_rejected() {
        let of_pause = |value| of(&[(MAX_PAUSE, value)]).map(|parsed| parsed.max_pause);
        assert_eq!(of(&[]).map(|parsed| parsed.max_pause), Ok(DEFAULT_PAUSE));
        for name in ["maxpause", "Thin", "csi.storage.k8s.io/snapshotter-secret-name"] {
            let unknown = SnapshotParameterError::Unknown { name: name.to_owned() };
            assert_eq!(of(&[(name, "2s"), (MAX_PAUSE, "2s")]), Err(unknown));
        }
        for (value, milliseconds) in [("500ms", 500), ("2s", 2000), ("1.5s", 1500), ("1s250ms", 1250), ("1m", 60_000)] {
            assert_eq!(of_pause(value), Ok(Duration::from_millis(milliseconds)), "{value}");
        }
        for value in
            ["", "2", "s", "-2s", "+2s", "2 s", "2sec", "0s", "61s", "1e3s", "1..2s", "99999999999999999999h", "10us"]
        {
            assert_eq!(of_pause(value), Err(SnapshotParameterError::Pause { value: value.to_owned() }), "{value}");
        }
    }

    #[test]
    fn the_chart_accepts_every_parameter() {
        const SCHEMA: &str = include_str!("../../standalone/chart/values.schema.json");
        let schema: Value = serde_json::from_str(SCHEMA).expect("JSON");
        let parameters = &schema["properties"]["snapshotClasses"]["items"]["properties"]["parameters"];
        assert_eq!(parameters["additionalProperties"], false, "the chart rejects others");
        let fields = parameters["properties"].as_object().expect("the parameters");
        assert_eq!(fields.keys().map(String::as_str).collect::<Vec<_>>(), [MAX_PAUSE, THIN]);
        let values = fields[THIN]["enum"].as_array().expect("the values").iter().filter_map(Value::as_str);
        let sharing: Vec<_> = values.map(|value| of(&[(THIN, value)]).map(|parsed| parsed.sharing)).collect();
        assert_eq!(sharing, [Ok(Sharing::Permanent), Ok(Sharing::Temporary)]);
    }

    #[test]
    fn thin_is_true_or_false() {
        for (value, sharing) in [("true", Sharing::Permanent), ("false", Sharing::Temporary)] {
            let max_pause = Duration::from_secs(1);
            assert_eq!(of(&[(THIN, value), (MAX_PAUSE, "1s")]), Ok(SnapshotParameters { max_pause, sharing }));
        }
        assert_eq!(of(&[]).map(|parsed| parsed.sharing), Ok(Sharing::Temporary));
        for value in ["", "True", "yes", "1"] {
            let error = of(&[(THIN, value)]).unwrap_err();
            assert_eq!(error, SnapshotParameterError::Thin { value: value.to_owned() });
            assert!(error.to_string().contains("create the class again"), "{error}");
        }
    }
}
