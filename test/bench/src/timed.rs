//! [`TimeFigure`]: duration of a snapshot and of a clone of an image with many extents, compared with a copy of the
//! image.

use serde::{Deserialize, Serialize};

use crate::operation::Subject;
use crate::statistics::Spread;
use crate::table::{Table, number, spread};

/// A timed operation. No process traces it, because tracing would increase its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timed {
    /// `FICLONE` of the image: the part of both calls that grows with the number of extents. Pods that write to the
    /// volume wait for this call.
    CloneImage,
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
    /// Number of the run, starting at 1.
    pub run: u32,
    pub microseconds: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeFigure {
    pub timed: Timed,
    pub milliseconds: Spread,
    pub limit: Option<f64>,
    /// Ratio to the copy in the same run.
    pub to_copy: Spread,
}

/// Limit in milliseconds.
const AT_MOST: f64 = 10.0;

impl Timed {
    pub const ALL: [Self; 4] = [Self::CloneImage, Self::TakeSnapshot, Self::CloneVolume, Self::CopyImage];

    const fn title(self) -> &'static str {
        match self {
            Self::CloneImage => "clone of the image alone",
            Self::TakeSnapshot => "take_snapshot, first piece",
            Self::CloneVolume => "clone, first piece",
            Self::CopyImage => "(baseline: copy of the file)",
        }
    }

    const fn limit(self) -> Option<f64> {
        match self {
            Self::CloneImage => Some(AT_MOST),
            Self::TakeSnapshot | Self::CloneVolume | Self::CopyImage => None,
        }
    }
}

impl TimeFigure {
    pub(crate) fn all(samples: &[TimeSample]) -> Vec<Self> {
        Timed::ALL.into_iter().filter_map(|timed| Self::of(samples, timed)).collect()
    }

    fn of(samples: &[TimeSample], timed: Timed) -> Option<Self> {
        let of = |timed| samples.iter().filter(move |sample| sample.timed == timed);
        let to_copy = of(timed).filter_map(|sample| {
            let copy = of(Timed::CopyImage).find(|copy| copy.run == sample.run)?;
            Some(sample.microseconds * 1000 / copy.microseconds.max(1))
        });
        let milliseconds = Spread::of(of(timed).map(|sample| sample.microseconds), 1000)?;
        Some(Self { timed, milliseconds, limit: timed.limit(), to_copy: Spread::of(to_copy, 1000)? })
    }

    pub(crate) fn violation(&self) -> Option<String> {
        let (title, found, limit) = (self.timed.title(), self.milliseconds.median, self.limit?);
        (found > limit)
            .then(|| format!("{title} takes {found:.1} ms with {} extents, the limit is {limit} ms", extents()))
    }
}

/// Number of extents of the timed image.
const fn extents() -> u32 {
    let [_, many] = Subject::Snapshot.populations();
    many
}

pub(crate) fn table(figures: &[TimeFigure]) -> Table {
    let title = format!("image with {} extents", extents());
    let heads = [&*title, "milliseconds", "limit", "compared with the copy"].map(String::from);
    let rows = figures.iter().map(|figure| {
        let limit = figure.limit.map_or_else(|| "–".to_owned(), |limit| format!("≤ {}", number(limit)));
        vec![figure.timed.title().to_owned(), spread(&figure.milliseconds), limit, spread(&figure.to_copy)]
    });
    Table::new(heads.into(), rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(clone: u64) -> Vec<TimeSample> {
        let times = Timed::ALL.into_iter().zip([clone, 30_000, 40_000, 400_000]);
        (1..=3)
            .flat_map(|run| times.clone().map(move |of| (run, of)))
            .map(|(run, (timed, time))| TimeSample { timed, run, microseconds: time * u64::from(run) })
            .collect()
    }

    #[test]
    fn the_clone_of_the_image_has_a_limit_beside_a_copy() {
        let figures = TimeFigure::all(&samples(5000));
        assert_eq!(figures.iter().find_map(TimeFigure::violation), None);
        let words = table(&figures).to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("image with 1000 extents milliseconds limit compared with the copy"), "{words}");
        assert!(words.contains("clone of the image alone 10 (5–15) ≤ 10 0.012"), "{words}");
        assert!(words.contains("take_snapshot, first piece 60 (30–90) – 0.075"), "{words}");
        let missed: Vec<_> = TimeFigure::all(&samples(6000)).iter().filter_map(TimeFigure::violation).collect();
        assert_eq!(missed, ["clone of the image alone takes 12.0 ms with 1000 extents, the limit is 10 ms"]);
    }

    #[test]
    fn without_samples_it_is_empty() {
        assert!(TimeFigure::all(&[]).is_empty());
    }
}
