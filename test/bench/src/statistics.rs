//! Medians, spreads, slopes.

use serde::Serialize;

/// Median and extremes of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// At most half of the runs are above the median, and at most half are below.
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub const ZERO: Self = Self { median: 0.0, min: 0.0, max: 0.0 };

    /// Spread of these counts, each divided by `calls`. `None` without a count.
    pub fn of(counts: impl IntoIterator<Item = u64>, calls: u32) -> Option<Self> {
        let mut counts: Vec<u64> = counts.into_iter().collect();
        counts.sort_unstable();
        let (&min, &max) = (counts.first()?, counts.last()?);
        let middle = counts.len() / 2;
        let median = if counts.len().is_multiple_of(2) {
            f64::midpoint(precise(counts[middle - 1]), precise(counts[middle]))
        } else {
            precise(counts[middle])
        };
        let each = |count: f64| count / f64::from(calls.max(1));
        Some(Self { median: each(median), min: each(precise(min)), max: each(precise(max)) })
    }

    pub fn is_constant(&self) -> bool {
        self.min.total_cmp(&self.max).is_eq()
    }
}

/// Cost of one more thing, computed from the costs with `few` and `many` things.
pub fn slope([few, many]: [u32; 2], [at_few, at_many]: [f64; 2]) -> f64 {
    if few == many { 0.0 } else { (at_many - at_few) / (f64::from(many) - f64::from(few)) }
}

/// Counts are far below 2^52, so the conversion is exact.
#[expect(clippy::cast_precision_loss, reason = "a region makes some thousand calls")]
fn precise(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_the_middle_of_two() {
        assert_eq!(Spread::of([4, 1, 2, 9], 1), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of([], 1), None);
    }

    #[test]
    fn what_several_calls_share_is_divided_among_them() {
        assert_eq!(Spread::of([8, 8, 8], 32), Some(Spread { median: 0.25, min: 0.25, max: 0.25 }));
    }

    proptest! {
        #[test]
        fn half_of_the_runs_are_on_each_side_of_the_median(counts in prop::collection::vec(0_u64..100_000, 1..50)) {
            let spread = Spread::of(counts.iter().copied(), 1).unwrap();
            let below = counts.iter().filter(|count| precise(**count) <= spread.median).count();
            let above = counts.iter().filter(|count| precise(**count) >= spread.median).count();
            prop_assert!(below * 2 >= counts.len() && above * 2 >= counts.len());
            prop_assert!(spread.min <= spread.median && spread.median <= spread.max);
        }

        #[test]
        fn the_slope_of_a_line_is_its_own(base in 0_u32..1000, each in 0_u32..1000, few in 0_u32..100, more in 1_u32..1000) {
            let at = |things: u32| f64::from(base) + f64::from(each) * f64::from(things);
            let found = slope([few, few + more], [at(few), at(few + more)]);
            prop_assert!((found - f64::from(each)).abs() < 1e-9);
        }

        #[test]
        fn a_slope_is_exactly_zero_where_nothing_changes(cost in 0_u32..1000, few: u32, many: u32) {
            let cost = f64::from(cost) / 32.0;
            prop_assert!(slope([few, many], [cost, cost]).abs().total_cmp(&0.0).is_eq());
        }
    }
}
