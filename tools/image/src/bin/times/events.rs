//! Bazel's build events (one JSON object per line): tests, CPU time, and the metadata that `bazelw` adds.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use serde_json::Value;

#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) wall: Duration,
    pub(crate) cpu: BTreeMap<String, Duration>,
    /// Values of `--build_metadata`.
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) tests: BTreeMap<String, Test>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) time: Duration,
    pub(crate) status: String,
    pub(crate) is_cached: bool,
    pub(crate) cost: Cost,
}

/// Numbers of booted guests, of guests restored from a saved one, and of created pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) boots: u64,
    pub(crate) restores: u64,
    pub(crate) pods: u64,
}

impl Cost {
    /// Sum of the lines `granary-cost: boots=1 restores=0 pods=3` of a log. A missing count is 0.
    fn of_log(log: &str) -> Self {
        let mut cost = Self::default();
        let counts = log.lines().filter_map(|line| line.trim().strip_prefix("granary-cost:"));
        for (name, count) in counts.flat_map(str::split_whitespace).filter_map(|word| word.split_once('=')) {
            let count: u64 = count.parse().unwrap_or_default();
            match name {
                "boots" => cost.boots += count,
                "restores" => cost.restores += count,
                "pods" => cost.pods += count,
                _ => {}
            }
        }
        cost
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.boots += other.boots;
        self.restores += other.restores;
        self.pods += other.pods;
    }
}

/// Parses the events; `log` returns the content of a test log.
pub(crate) fn run(events: &str, log: impl Fn(&str) -> String) -> Result<Run, serde_json::Error> {
    let mut run = Run::default();
    for line in events.lines() {
        let event: Value = serde_json::from_str(line)?;
        let result = &event["testResult"];
        if let (Some(label), true) = (event["id"]["testResult"]["label"].as_str(), result.is_object()) {
            let test = run.tests.entry(label.to_owned()).or_default();
            test.time += duration(&result["testAttemptDuration"]);
            test.status = text(&result["status"]).to_lowercase();
            test.is_cached =
                [&result["cachedLocally"], &result["executionInfo"]["cachedRemotely"]].contains(&&true.into());
            for output in list(&result["testActionOutput"]).iter().filter(|output| output["name"] == "test.log") {
                test.cost += Cost::of_log(&log(text(&output["uri"]).trim_start_matches("file://")));
            }
        }
        for (key, value) in event["buildMetadata"]["metadata"].as_object().into_iter().flatten() {
            run.metadata.insert(key.clone(), text(value).to_owned());
        }
        let metrics = &event["buildMetrics"];
        for data in list(&metrics["actionSummary"]["actionData"]) {
            let cpu = duration(&data["userTime"]) + duration(&data["systemTime"]);
            run.cpu.insert(text(&data["mnemonic"]).to_owned(), cpu);
        }
        if let Ok(millis) = text(&metrics["timingMetrics"]["wallTimeInMs"]).parse() {
            run.wall = Duration::from_millis(millis);
        }
    }
    Ok(run)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Parses a duration in the JSON encoding of protocol buffers, such as `"1.5s"`.
fn duration(value: &Value) -> Duration {
    let seconds = text(value).strip_suffix('s').and_then(|seconds| seconds.parse().ok()).unwrap_or_default();
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
