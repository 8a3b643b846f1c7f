//! Results of the tests so far. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::libtest::{Event, Status, Test};

#[derive(Debug, Default)]
pub(crate) struct Results {
    ended: Vec<Test>,
    running: BTreeMap<String, Instant>,
    earlier: BTreeMap<String, Duration>,
    found: BTreeSet<String>,
}

impl Results {
    pub(crate) fn ended(&self) -> &[Test] {
        &self.ended
    }

    pub(crate) fn failed(&self) -> usize {
        self.ended.iter().filter(|test| test.has_failed()).count()
    }

    pub(crate) fn summary(&self, time: Duration) -> String {
        let failed: Vec<&str> =
            self.ended.iter().filter(|test| test.has_failed()).map(|test| test.name.as_str()).collect();
        let ignored = self.ended.iter().filter(|test| matches!(test.status, Status::Ignored(_))).count();
        let passed = self.ended.len() - failed.len() - ignored;
        let time = time.as_secs_f64();
        let counts = format!("{passed} passed; {} failed; {ignored} ignored; in {time:.1} s", failed.len());
        if failed.is_empty() { counts } else { format!("failed: {}\n{counts}", failed.join(", ")) }
    }

    pub(crate) fn running(&self) -> Vec<String> {
        self.running.keys().cloned().collect()
    }

    pub(crate) fn remaining(&self) -> Vec<String> {
        let ended: BTreeSet<&str> = self.ended.iter().map(|test| test.name.as_str()).collect();
        self.found.iter().filter(|name| !ended.contains(name.as_str())).cloned().collect()
    }

    /// Records an event. Returns the test if it ended, with its time in all boots.
    pub(crate) fn record(&mut self, event: Event, now: Instant) -> Option<&Test> {
        match event {
            Event::Started(name) => {
                self.running.insert(name, now);
            }
            Event::Ended(mut test) => {
                self.running.remove(&test.name);
                test.time += self.earlier.remove(&test.name).unwrap_or_default();
                self.ended.push(test);
                return self.ended.last();
            }
            Event::Found(name) => {
                self.found.insert(name);
            }
            Event::Suite(_) | Event::Slow(_) | Event::Other => {}
        }
        None
    }

    /// Records a power cut by this test, which continues in the next boot. The other running tests begin again later.
    pub(crate) fn power_cut(&mut self, test: &str, now: Instant) {
        if let Some(start) = self.running.get(test) {
            *self.earlier.entry(test.to_owned()).or_default() += now.duration_since(*start);
        }
        self.running.clear();
    }

    /// Ends the results: tests that still run have failed, for the reason `why`.
    pub(crate) fn close(&mut self, why: &str, now: Instant) {
        for (name, start) in std::mem::take(&mut self.running) {
            let time = now.duration_since(start) + self.earlier.remove(&name).unwrap_or_default();
            self.ended.push(Test { name, status: Status::Failed(why.to_owned()), time });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::libtest::tests::test;

    const PASSED: Status = Status::Passed(String::new());

    fn started(name: &str) -> Event {
        Event::Started(name.into())
    }

    pub(crate) fn results(ended: &[(&str, Status)], running: &[&str]) -> Results {
        let mut results = Results::default();
        let now = Instant::now();
        for (name, status) in ended {
            results.record(started(name), now);
            results.record(Event::Ended(test(name, status.clone())), now);
        }
        for name in running {
            results.record(started(name), now);
        }
        results
    }

    #[test]
    fn a_test_that_started_and_did_not_end_runs() {
        let results = results(&[("a", PASSED)], &["b"]);
        assert_eq!(results.running(), ["b"]);
        assert_eq!(results.ended(), [test("a", PASSED)]);
    }

    #[test]
    fn the_summary_names_failed_tests() {
        let failed = Status::Failed("left: 1".into());
        let results = results(&[("a", PASSED), ("b", failed), ("c", Status::Ignored(String::new()))], &[]);
        assert_eq!(results.summary(Duration::from_millis(1234)), "failed: b\n1 passed; 1 failed; 1 ignored; in 1.2 s");
    }

    #[test]
    fn a_test_takes_the_time_of_all_its_boots() {
        let start = Instant::now();
        let mut results = Results::default();
        for boot in [0, 1] {
            let begin = start + Duration::from_secs(10 * boot);
            results.record(started("a"), begin);
            results.record(started("other"), begin);
            results.power_cut("a", begin + Duration::from_secs(2));
        }
        results.record(started("a"), start + Duration::from_secs(20));
        let ended = results.record(Event::Ended(test("a", PASSED)), start + Duration::from_secs(21)).unwrap();
        assert_eq!(ended.time, Duration::from_millis(4012));
        assert_eq!(results.running(), [""; 0]);
    }

    proptest! {
        /// After each power cut, the remaining tests are those that were listed and have not ended.
        #[test]
        fn after_power_cuts_nothing_is_lost_and_nothing_runs_twice(
            names in prop::collection::btree_set("[a-z]{1,3}", 0..9),
            cuts in prop::collection::vec((0_usize..9, 0_usize..3), 0..6),
        ) {
            let mut results = Results::default();
            let now = Instant::now();
            for name in &names {
                results.record(Event::Found(name.clone()), now);
            }
            for (ended, running) in cuts {
                let turn = results.remaining();
                for name in turn.iter().take(ended) {
                    results.record(started(name), now);
                    results.record(Event::Ended(test(name, PASSED)), now);
                }
                for name in turn.iter().skip(ended).take(running) {
                    results.record(started(name), now);
                }
                results.power_cut("none", now);
            }
            for name in results.remaining() {
                results.record(Event::Ended(test(&name, PASSED)), now);
            }
            let mut ended: Vec<_> = results.ended().iter().map(|test| test.name.clone()).collect();
            ended.sort_unstable();
            prop_assert_eq!(ended, names.into_iter().collect::<Vec<_>>());
        }
    }
}
