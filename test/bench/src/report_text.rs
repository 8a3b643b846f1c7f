//! The text of a [`Report`].

use std::fmt;

use crate::operation::{Expected, Subject};
use crate::report::{Count, Figure, Report};
use crate::sample::is_housekeeping;
use crate::table::{Table, number, spread, verdict};
use crate::timed;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = if self.runs == 1 { "one run".into() } else { format!("medians of {} interleaved runs", self.runs) };
        writeln!(
            f,
            "System calls and disk flushes of one call; {runs} (min–max where they differ), Linux {}",
            self.kernel
        )?;
        for subject in Subject::ALL {
            let of_subject = |figure: &&Figure| figure.subject == subject;
            writeln!(f, "\n{}", counts(subject, self.figures.iter().filter(of_subject)))?;
        }
        writeln!(f, "\n{}", disk_work(&self.figures))?;
        if !self.times.is_empty() {
            writeln!(f, "\n{}", timed::table(&self.times))?;
        }
        writeln!(f, "\n{}", names(&self.figures))?;
        verdict(f, "slopes and limits", self.violations.len())
    }
}

fn counts<'a>(subject: Subject, figures: impl Iterator<Item = &'a Figure>) -> Table {
    let [few, many] = subject.populations();
    let things = subject.things();
    let heads = [
        subject.to_string(),
        format!("{few} {things}"),
        format!("{many} {things}"),
        "slope".into(),
        "limit".into(),
        format!("flushes at {few}"),
        format!("at {many}"),
    ];
    let rows = figures.map(|figure| {
        let [few, many] = &figure.counts;
        vec![
            figure.operation.title().into(),
            spread(&few.syscalls),
            spread(&many.syscalls),
            number(figure.slope),
            limits(figure),
            spread(&few.flushes),
            spread(&many.flushes),
        ]
    });
    Table::new(heads.into(), rows.collect())
}

fn limits(figure: &Figure) -> String {
    let Expected { slope, at_most, flushes, .. } = figure.expected;
    let limits = [
        slope.map(|slope| format!("slope {slope}")),
        at_most.map(|limit| format!("≤ {limit}")),
        flushes.map(|limit| format!("≤ {limit} flushes")),
    ];
    let limits: Vec<_> = limits.into_iter().flatten().collect();
    if limits.is_empty() { "–".into() } else { limits.join(", ") }
}

/// Work of the disk for snapshots. The JSON form has the figures of all operations.
fn disk_work(figures: &[Figure]) -> Table {
    let [few, many] = Subject::Snapshot.populations();
    let heads = [
        "work of the disk".to_owned(),
        format!("writes at {few}"),
        format!("at {many}"),
        format!("KiB at {few}"),
        format!("at {many}"),
        format!("ms at {few}"),
        format!("at {many}"),
        "of which flushes".to_owned(),
        "limit".to_owned(),
    ];
    let rows = figures.iter().filter(|figure| figure.subject == Subject::Snapshot).map(|figure| {
        let [few, many] = &figure.counts;
        let counts = [&few.writes, &many.writes, &few.written_kib, &many.written_kib];
        let times = [&few.disk_ms, &many.disk_ms, &many.flush_ms];
        let limit = figure.expected.disk_ms.map_or_else(|| "–".to_owned(), |limit| format!("≤ {limit} ms"));
        let cells = counts.into_iter().chain(times).map(spread);
        std::iter::once(figure.operation.title().to_owned()).chain(cells).chain([limit]).collect()
    });
    Table::new(heads.into(), rows.collect())
}

fn names(figures: &[Figure]) -> Table {
    let rows = figures.iter().map(|figure| {
        let [few, many] = &figure.counts;
        let title = format!("{}: {}", figure.subject, figure.operation.title());
        // If the number of calls grows, the shorter list names the calls.
        let calls = figure.operation.calls();
        let names = list(if figure.slope > 0.0 { few } else { many }, calls);
        vec![title, if calls == 1 { names } else { format!("in {calls} calls: {names}") }]
    });
    Table::new(vec!["which calls".into(), String::new()], rows.collect())
}

fn list(count: &Count, calls: u32) -> String {
    let names = count.by_name.iter().filter(|(name, _)| !is_housekeeping(name));
    let names = names.map(|(name, each)| match number(each * f64::from(calls)).as_str() {
        "1" => name.clone(),
        times => format!("{times} {name}"),
    });
    names.collect::<Vec<_>>().join(", ")
}
