//! Selects the next image to remove. No I/O.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use fsquota::Quota;
use tokio::time::Instant;

/// The kubelet's defaults, `imageGCHighThresholdPercent` and `imageGCLowThresholdPercent`.
pub(crate) const HIGH: Fill = Fill(85);
pub(crate) const LOW: Fill = Fill(80);

/// Minimum age of an image. A container starts after its image was pulled; until then, no container uses the image. The
/// kubelet waits longer (`imageMinimumGCAge`, 2 minutes), but pulls an image again that is missing when the container
/// is created.
pub(crate) const LEAST_AGE: Duration = Duration::from_secs(60);

/// Usage of a part in percent of its block or inode limit, whichever is higher. 0 without limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fill(pub(crate) u64);

impl Fill {
    pub(crate) fn of(quota: &Quota) -> Self {
        Self(quota.used.percent_of(quota.limits).unwrap_or(0))
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

/// Digest of an image's configuration, which is containerd's image ID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ImageId(pub(crate) String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) id: ImageId,
    /// Name for the log.
    pub(crate) name: String,
    pub(crate) usage: Usage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    Pinned,
    /// A container uses the image. The container may have ended, and the kubelet restarts some.
    InUse,
    Unused,
}

/// Times of each image's first listing and last use. Only in memory, like the kubelet's.
#[derive(Debug, Default)]
pub(crate) struct History(BTreeMap<ImageId, Seen>);

/// Images with smaller values are removed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    used: Option<Instant>,
    first: Instant,
}

impl History {
    pub(crate) fn record(&mut self, images: &[Image], now: Instant) {
        self.0.retain(|id, _| images.iter().any(|image| image.id == *id));
        for image in images {
            let seen = self.0.entry(image.id.clone()).or_insert(Seen { used: None, first: now });
            if image.usage == Usage::InUse {
                seen.used = Some(now);
            }
        }
    }

    /// Records the attempt as a use, so that an image that cannot be removed does not block the removal of others.
    pub(crate) fn tried(&mut self, image: &Image, now: Instant) {
        if let Some(seen) = self.0.get_mut(&image.id) {
            seen.used = Some(now);
        }
    }

    fn of(&self, image: &Image, now: Instant) -> Seen {
        self.0.get(&image.id).copied().unwrap_or(Seen { used: None, first: now })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Ends when the usage reaches the high threshold.
    Idle,
    /// Ends when the usage falls to the low threshold.
    Removing,
    /// Like `Removing`, but no image can be removed.
    Exhausted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    Enough,
    Remove(&'a Image),
    /// All unused images are new.
    Wait,
    /// All images are pinned or in use.
    Exhausted,
}

/// Removes one image at a time, because only the quota shows the freed space: images share layers, and CRI has only
/// compressed sizes.
pub(crate) fn plan<'a>(fill: Fill, phase: Phase, images: &'a [Image], history: &History, now: Instant) -> Step<'a> {
    let is_enough = match phase {
        Phase::Idle => fill < HIGH,
        Phase::Removing | Phase::Exhausted => fill <= LOW,
    };
    if is_enough {
        return Step::Enough;
    }
    let unused = || images.iter().filter(|image| image.usage == Usage::Unused);
    let is_old = |image: &&Image| now.duration_since(history.of(image, now).first) >= LEAST_AGE;
    match unused().filter(is_old).min_by_key(|&image| (history.of(image, now), &image.id)) {
        Some(image) => Step::Remove(image),
        None if unused().next().is_some() => Step::Wait,
        None => Step::Exhausted,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn image(id: &str, usage: Usage) -> Image {
        Image { id: ImageId(id.to_owned()), name: id.to_owned(), usage }
    }

    fn removed<'a>(step: Step<'a>) -> Option<&'a str> {
        if let Step::Remove(image) = step { Some(&image.id.0) } else { None }
    }

    #[test]
    fn removal_begins_at_the_high_threshold_and_ends_at_the_low_one() {
        let (images, now) = ([image("a", Usage::Unused)], Instant::now());
        let mut history = History::default();
        history.record(&images, now);
        let at = |percent, phase| plan(Fill(percent), phase, &images, &history, now + LEAST_AGE);
        assert_eq!(at(84, Phase::Idle), Step::Enough);
        assert_eq!(removed(at(85, Phase::Idle)), Some("a"));
        assert_eq!(removed(at(81, Phase::Removing)), Some("a"));
        assert_eq!(at(80, Phase::Removing), Step::Enough);
        assert_eq!(at(80, Phase::Exhausted), Step::Enough);
    }

    #[test]
    fn the_image_that_was_unused_for_the_longest_time_is_first() {
        let start = Instant::now();
        let after = |minutes: u64| start + Duration::from_secs(60 * minutes);
        let mut history = History::default();
        let usages =
            |old, recent| [image("a", recent), image("b", old), image("c", Usage::Unused), image("d", Usage::Pinned)];
        history.record(&usages(Usage::InUse, Usage::InUse), after(0));
        history.record(&usages(Usage::Unused, Usage::InUse), after(1));
        let mut images = usages(Usage::Unused, Usage::Unused).to_vec();
        let mut order = Vec::new();
        loop {
            history.record(&images, after(2));
            let step = plan(Fill(99), Phase::Removing, &images, &history, after(2));
            let Some(id) = removed(step).map(str::to_owned) else {
                assert_eq!(step, Step::Exhausted);
                break;
            };
            images.retain(|image| image.id.0 != id);
            order.push(id);
        }
        assert_eq!(order, ["c", "b", "a"], "never used, used first, used last");
    }

    #[test]
    fn an_image_that_was_just_pulled_stays() {
        let (images, now) = ([image("a", Usage::Unused)], Instant::now());
        let mut history = History::default();
        history.record(&images, now);
        let just = now + LEAST_AGE - Duration::from_secs(1);
        history.record(&images, just);
        assert_eq!(plan(Fill(99), Phase::Idle, &images, &history, just), Step::Wait);
        // An image that was removed and pulled again is new.
        history.record(&[], just);
        history.record(&images, just);
        assert_eq!(plan(Fill(99), Phase::Idle, &images, &history, now + LEAST_AGE), Step::Wait);
    }

    proptest! {
        #[test]
        fn only_unused_images_above_the_low_threshold_are_removed(
            usages in prop::collection::vec(prop_oneof![Just(Usage::Pinned), Just(Usage::InUse), Just(Usage::Unused)], 0..8),
            percent in 0_u64..120,
            phase in prop_oneof![Just(Phase::Idle), Just(Phase::Removing), Just(Phase::Exhausted)],
            age in 0_u64..120,
        ) {
            let images: Vec<Image> = usages.iter().enumerate().map(|(at, &usage)| image(&at.to_string(), usage)).collect();
            let start = Instant::now();
            let mut history = History::default();
            history.record(&images, start);
            let now = start + Duration::from_secs(age);
            let unused = usages.iter().filter(|&&usage| usage == Usage::Unused).count();
            match plan(Fill(percent), phase, &images, &history, now) {
                Step::Enough => prop_assert!(Fill(percent) < HIGH),
                Step::Remove(image) => {
                    prop_assert_eq!(image.usage, Usage::Unused);
                    prop_assert!(Fill(percent) > LOW && age >= LEAST_AGE.as_secs());
                }
                Step::Wait => prop_assert!(unused > 0 && age < LEAST_AGE.as_secs()),
                Step::Exhausted => prop_assert_eq!(unused, 0),
            }
        }
    }
}
