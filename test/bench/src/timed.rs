//! [`TimeFigure`]: duration of a snapshot and of a clone of an image with few and with many extents, compared with a
//! copy of the image.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::operation::Subject;
use crate::statistics::{Spread, slope};
use crate::table::{Table, number, spread};

/// A timed operation. No process traces it, because tracing would increase its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timed {
    /// `FICLONE` of the image: the part of both calls that grows with the number of extents. Pods that write to the
    /// volume wait for this call.
    CloneImage,
    /// `FICLONE` of a file whose extents are the result of writes to blocks that another file shared.
    CloneFragmented,
    /// The whole call, with its record, a first piece and its syncs.
    TakeSnapshot,
    CloneVolume,
    /// Copy with `read` and `write`, including its sync.
    CopyImage,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeSample {
    pub timed: Timed,
    /// Number of extents of the image.
    pub extents: u32,
    /// Number of the run, starting at 1.
    pub run: u32,
    pub microseconds: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeFigure {
    pub timed: Timed,
    /// With few extents, and with many.
    pub milliseconds: [Spread; 2],
    /// Additional microseconds for each extent.
    pub slope: f64,
    /// Ratio to the copy in the same run, with many extents.
    pub to_copy: Spread,
}

impl Timed {
    pub const ALL: [Self; 5] =
        [Self::CloneImage, Self::CloneFragmented, Self::TakeSnapshot, Self::CloneVolume, Self::CopyImage];

    const fn title(self) -> &'static str {
        match self {
            Self::CloneImage => "clone of the image alone",
            Self::CloneFragmented => "clone of a file without holes",
            Self::TakeSnapshot => "take_snapshot, first piece",
            Self::CloneVolume => "clone, first piece",
            Self::CopyImage => "(baseline: copy of the file)",
        }
    }
}

impl TimeFigure {
    pub(crate) fn all(samples: &[TimeSample]) -> Vec<Self> {
        Timed::ALL.into_iter().filter_map(|timed| Self::of(samples, timed)).collect()
    }

    fn of(samples: &[TimeSample], timed: Timed) -> Option<Self> {
        let populations = Subject::Snapshot.populations();
        let [few, many] = populations;
        let of = |timed: Timed, extents: u32| {
            samples.iter().filter(move |sample| (sample.timed, sample.extents) == (timed, extents))
        };
        let spread = |extents| Spread::of(of(timed, extents).map(|sample| sample.microseconds), 1000);
        let milliseconds = [spread(few)?, spread(many)?];
        let to_copy = of(timed, many).filter_map(|sample| {
            let copy = of(Timed::CopyImage, many).find(|copy| copy.run == sample.run)?;
            Some(sample.microseconds * 1000 / copy.microseconds.max(1))
        });
        let slope = slope(populations, milliseconds.map(|spread| spread.median * 1000.0));
        Some(Self { timed, milliseconds, slope, to_copy: Spread::of(to_copy, 1000)? })
    }
}

/// Times on a file system of this machine. `Display` prints a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeReport {
    pub runs: u32,
    pub times: Vec<TimeFigure>,
}

impl TimeReport {
    pub fn new(samples: &[TimeSample]) -> Self {
        let runs = samples.iter().map(|sample| sample.run).max().unwrap_or_default();
        Self { runs, times: TimeFigure::all(samples) }
    }
}

impl fmt::Display for TimeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Snapshots and clones; medians of {} interleaved runs (min–max where they differ)\n", self.runs)?;
        writeln!(f, "{}", table(&self.times))
    }
}

pub(crate) fn table(figures: &[TimeFigure]) -> Table {
    let [few, many] = Subject::Snapshot.populations();
    let heads = [
        "milliseconds".to_owned(),
        format!("{few} extents"),
        format!("{many} extents"),
        "µs an extent".to_owned(),
        "compared with the copy".to_owned(),
    ];
    let rows = figures.iter().map(|figure| {
        let [few, many] = figure.milliseconds.map(|time| spread(&time));
        vec![figure.timed.title().to_owned(), few, many, number(figure.slope), spread(&figure.to_copy)]
    });
    Table::new(heads.into(), rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_both_populations_are_shown_beside_a_copy() {
        let [few, many] = Subject::Snapshot.populations();
        let sample = |run: u32, extents, (timed, time): (Timed, u64)| TimeSample {
            timed,
            extents,
            run,
            microseconds: time * u64::from(run),
        };
        let times = |times: [u64; 5]| Timed::ALL.into_iter().zip(times);
        let samples: Vec<_> = (1..=3)
            .flat_map(|run| {
                let at_few = times([5; 5]).map(move |time| sample(run, few, time));
                at_few.chain(times([5000, 6000, 30_000, 40_000, 400_000]).map(move |time| sample(run, many, time)))
            })
            .collect();
        let words = TimeReport::new(&samples).to_string();
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("medians of 3 interleaved runs"), "{words}");
        assert!(words.contains("milliseconds 1 extents 1000 extents µs an extent compared with the copy"), "{words}");
        assert!(words.contains("clone of the image alone 0.01 (0.005–0.015) 10 (5–15) 10 0.012"), "{words}");
        assert!(words.contains("clone of a file without holes 0.01 (0.005–0.015) 12 (6–18) 12.002 0.015"), "{words}");
        assert!(words.contains("take_snapshot, first piece 0.01 (0.005–0.015) 60 (30–90) 60.05 0.075"), "{words}");
    }

    #[test]
    fn without_samples_it_is_empty() {
        assert!(TimeFigure::all(&[]).is_empty());
    }
}
