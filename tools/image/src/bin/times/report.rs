//! Report tables in Markdown.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::events::{Cost, Run};
use crate::profile::{FETCH, Step};

/// Minimum duration of a fetch that is listed by name.
const SHORT: Duration = Duration::from_secs(1);

/// Number of build actions that are listed by name.
const LONGEST: usize = 15;

fn table<const N: usize>(heads: [&str; N], rows: Vec<[String; N]>) -> String {
    let rule = std::array::from_fn(|i| if i == 0 { "---" } else { "---:" }.to_owned());
    let rows = [heads.map(str::to_owned), rule].into_iter().chain(rows);
    rows.map(|cells| format!("| {} |\n", cells.join(" | "))).collect()
}

fn seconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64())
}

/// Steps that run once per cache, and the fetches of this build.
pub(crate) fn setup(run: &Run, steps: &[Step]) -> String {
    let mut rows = Vec::new();
    for (name, key) in [("build root", "GRANARY_ROOT_SECONDS"), ("crate generator", "GRANARY_GENERATOR_SECONDS")] {
        if let Some(time) = run.metadata.get(key).filter(|time| !time.is_empty()) {
            rows.push([format!("{name}, once for each cache"), time.clone()]);
        }
    }
    let mut fetches: Vec<&Step> = steps.iter().filter(|step| step.kind == FETCH).collect();
    fetches.sort_by_key(|step| std::cmp::Reverse(step.time));
    let (long, short): (Vec<_>, Vec<_>) = fetches.into_iter().partition(|step| step.time >= SHORT);
    rows.extend(long.iter().map(|step| [step.subject.clone(), seconds(step.time)]));
    rows.push([format!("{} other fetches", short.len()), seconds(short.iter().map(|step| step.time).sum())]);
    table(["setup", "s"], rows)
}

/// Build actions by mnemonic, and the longest ones.
pub(crate) fn build(run: &Run, steps: &[Step]) -> String {
    let mut actions: Vec<&Step> = steps.iter().filter(|step| step.kind != FETCH).collect();
    actions.sort_by_key(|step| std::cmp::Reverse(step.time));
    let sum: Duration = actions.iter().map(|step| step.time).sum();
    let row = |name: String, count: usize, time: Duration, cpu: Duration| {
        let share = 100.0 * time.as_secs_f64() / sum.as_secs_f64().max(f64::EPSILON);
        let cpu = if run.cpu.is_empty() { String::new() } else { seconds(cpu) };
        [name, count.to_string(), seconds(time), format!("{share:.1} %"), cpu]
    };
    let mut kinds: BTreeMap<&str, (usize, Duration)> = BTreeMap::new();
    for step in &actions {
        let (count, time) = kinds.entry(&step.kind).or_default();
        *count += 1;
        *time += step.time;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
    let mut rows = Vec::new();
    let (mut other, mut count_of_other, mut time_of_other, mut cpu_of_other) = (0, 0, Duration::ZERO, Duration::ZERO);
    for (kind, (count, time)) in kinds {
        let cpu = run.cpu.get(kind).copied().unwrap_or_default();
        if time >= SHORT {
            rows.push(row(kind.to_owned(), count, time, cpu));
        } else {
            other += 1;
            count_of_other += count;
            time_of_other += time;
            cpu_of_other += cpu;
        }
    }
    rows.push(row(format!("{other} others"), count_of_other, time_of_other, cpu_of_other));
    let cpu = run.cpu.iter().filter(|(kind, _)| *kind != "TestRunner").map(|(_, time)| *time).sum();
    rows.push(row("sum".to_owned(), actions.len(), sum, cpu));
    let longest = actions.iter().take(LONGEST).filter(|step| step.time >= SHORT);
    let longest = longest.map(|step| [step.subject.clone(), seconds(step.time), step.kind.clone()]).collect();
    table(["build", "actions", "s", "share", "CPU s"], rows) + "\n" + &table(["longest actions", "s", "kind"], longest)
}

/// Tests, sorted by duration.
pub(crate) fn tests(run: &Run) -> String {
    let row = |name: &str, time, result: String, cost: Cost| {
        let [boots, restores, pods] = [cost.boots, cost.restores, cost.pods].map(|count| count.to_string());
        [name.to_owned(), seconds(time), result, boots, restores, pods]
    };
    let mut tests: Vec<_> = run.tests.iter().collect();
    tests.sort_by_key(|(_, test)| std::cmp::Reverse(test.time));
    let mut rows = Vec::new();
    let (mut others, mut cached_others, mut time_of_others) = (0, 0, Duration::ZERO);
    let (mut cached, mut time, mut cost) = (0, Duration::ZERO, Cost::default());
    for (label, test) in tests {
        time += test.time;
        cost += test.cost;
        cached += u32::from(test.is_cached);
        if test.time >= SHORT || test.cost != Cost::default() || test.status != "passed" {
            let result = test.status.clone() + if test.is_cached { ", cached" } else { "" };
            rows.push(row(label, test.time, result, test.cost));
        } else {
            others += 1;
            cached_others += u32::from(test.is_cached);
            time_of_others += test.time;
        }
    }
    let result = format!("{cached_others} cached");
    rows.push(row(&format!("{others} others"), time_of_others, result, Cost::default()));
    rows.push(row(&format!("sum of {}", run.tests.len()), time, format!("{cached} cached"), cost));
    table(["test", "s", "result", "boots", "restores", "pods"], rows)
}
