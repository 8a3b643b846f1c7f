//! Stalled services. The deadline is 60 s, the longest back-off 300 s.

use std::future::ready;

use super::*;
use crate::Backoff;

const SECOND: Duration = Duration::from_secs(1);

/// A service, and the context through which the test reports its rounds.
async fn service() -> (Supervisor, Context) {
    let (sender, mut contexts) = tokio::sync::mpsc::channel::<Context>(1);
    let backoff = Backoff { most: 300 * SECOND, ..Backoff::default() };
    let settings = Settings { backoff, round_deadline: 60 * SECOND, ..Settings::default() };
    let tree = Supervisor::start("loop", settings, move |cx| {
        sender.try_send(cx.clone()).unwrap();
        steady(cx)
    });
    let cx = contexts.recv().await.unwrap();
    (tree, cx)
}

fn stalled(tree: &Supervisor) -> Option<u64> {
    tree.status().stalled.map(|time| time.as_secs())
}

async fn round(cx: &Context, seconds: u32, result: Result<(), Broken>) {
    let work = async {
        sleep(seconds * SECOND).await;
        result
    };
    let _ = cx.round(work, Result::is_ok).await;
}

#[tokio::test(start_paused = true)]
async fn a_round_past_its_deadline_is_a_stall_until_its_end() {
    let (tree, cx) = service().await;
    let result = round(&cx, 600, Ok(()));
    assert_eq!(stalled(&tree), None, "it has not begun");
    sleep(100 * SECOND).await;
    let observed = async {
        for (after, expected) in [(59, None), (1, Some(60)), (500, Some(560))] {
            sleep(after * SECOND).await;
            assert_eq!(stalled(&tree), expected);
        }
    };
    tokio::join!(result, observed);
    assert_eq!(stalled(&tree), None);
}

#[tokio::test(start_paused = true)]
async fn the_oldest_of_overlapping_rounds_counts() {
    let (tree, cx) = service().await;
    let (mut old, mut young) = (Box::pin(round(&cx, 1000, Ok(()))), Box::pin(round(&cx, 1000, Ok(()))));
    assert!(timeout(50 * SECOND, &mut old).await.is_err());
    assert!(timeout(20 * SECOND, &mut young).await.is_err());
    assert_eq!(stalled(&tree), Some(70));
    drop(old);
    assert_eq!(stalled(&tree), None, "the other one has run for 20 s");
    assert!(timeout(50 * SECOND, young).await.is_err());
    assert_eq!(stalled(&tree), None, "an aborted round does not run");
}

#[tokio::test(start_paused = true)]
async fn failures_over_the_deadline_are_a_stall_until_a_success() {
    let (tree, cx) = service().await;
    for expected in [None, None, Some(61), Some(91)] {
        round(&cx, 1, Err(BROKEN)).await;
        assert_eq!(stalled(&tree), expected);
        sleep(29 * SECOND).await;
    }
    // A round that never waited found no work, and does not end the stall.
    let _ = cx.round(ready(Ok::<(), Broken>(())), Result::is_ok).await;
    assert!(stalled(&tree).is_some());
    round(&cx, 1, Ok(())).await;
    assert_eq!(stalled(&tree), None);
    round(&cx, 1, Err(BROKEN)).await;
    assert_eq!(stalled(&tree), None, "failures before the success do not count");
}

#[tokio::test(start_paused = true)]
async fn a_failed_round_of_a_quiet_service_is_not_a_stall() {
    let (tree, cx) = service().await;
    // The round is slow, fails, and is not retried.
    round(&cx, 59, Err(BROKEN)).await;
    for _ in 0..100 {
        assert_eq!(stalled(&tree), None);
        sleep(10 * SECOND).await;
    }
    // The next work comes later than any retry.
    round(&cx, 1, Err(BROKEN)).await;
    assert_eq!(stalled(&tree), None);
}

#[tokio::test(start_paused = true)]
async fn a_stall_ends_when_nothing_is_tried_any_more() {
    let (tree, cx) = service().await;
    round(&cx, 40, Err(BROKEN)).await;
    // The longest back-off does not interrupt a series of failures.
    sleep(300 * SECOND).await;
    round(&cx, 40, Err(BROKEN)).await;
    sleep(360 * SECOND).await;
    assert_eq!(stalled(&tree), Some(740));
    sleep(SECOND).await;
    assert_eq!(stalled(&tree), None, "its work is gone");
}

#[tokio::test(start_paused = true)]
async fn reports_count_like_rounds() {
    let (tree, cx) = service().await;
    for expected in [None, None, Some(80)] {
        cx.report(false);
        assert_eq!(stalled(&tree), expected);
        sleep(40 * SECOND).await;
    }
    cx.report(true);
    assert_eq!(stalled(&tree), None);
}

#[tokio::test(start_paused = true)]
async fn a_success_clears_the_failures_of_its_own_effort() {
    let (tree, cx) = service().await;
    for expected in [None, None, Some(80)] {
        cx.report_of("nodes", false);
        cx.report_of("claims", true);
        assert_eq!(stalled(&tree), expected);
        sleep(40 * SECOND).await;
    }
    cx.report_of("nodes", true);
    assert_eq!(stalled(&tree), None);
}

#[tokio::test(start_paused = true)]
async fn a_stall_ends_when_no_failure_is_reported_for_the_deadline() {
    let (tree, cx) = service().await;
    for _ in 0..3 {
        cx.report(false);
        sleep(40 * SECOND).await;
    }
    assert_eq!(stalled(&tree), Some(120));
    sleep(21 * SECOND).await;
    assert_eq!(stalled(&tree), None);
}

#[tokio::test(start_paused = true)]
async fn reports_further_apart_than_the_deadline_are_not_one_stall() {
    let (tree, cx) = service().await;
    for pause in [59, 61, 59, 300] {
        cx.report(false);
        assert_eq!(stalled(&tree), None);
        sleep(pause * SECOND).await;
    }
    cx.report(false);
    assert_eq!(stalled(&tree), None);
}

/// Regression: a failed round joined reports that were further apart than the deadline into one stall.
#[tokio::test(start_paused = true)]
async fn a_failed_round_does_not_join_reports_that_are_apart() {
    let (tree, cx) = service().await;
    round(&cx, 1, Err(BROKEN)).await;
    for _ in 0..3 {
        cx.report(false);
        assert_eq!(stalled(&tree), None);
        sleep(61 * SECOND).await;
    }
    round(&cx, 1, Err(BROKEN)).await;
    assert_eq!(stalled(&tree), Some(185), "the rounds are one effort");
    cx.report(true);
    assert_eq!(stalled(&tree), Some(185), "a watch that works does not hide that the rounds fail");
    round(&cx, 1, Ok(())).await;
    assert_eq!(stalled(&tree), None, "progress of the service");
}

#[tokio::test(start_paused = true)]
async fn a_new_attempt_begins_without_rounds() {
    let (sender, mut contexts) = tokio::sync::mpsc::channel::<Context>(2);
    let tree = Supervisor::start("loop", Settings::default(), move |cx| {
        sender.try_send(cx.clone()).unwrap();
        async move { if cx.attempt() == 1 { Err(BROKEN) } else { steady(cx).await.map_err(|never| match never {}) } }
    });
    let old = contexts.recv().await.unwrap();
    let mut late = Box::pin(round(&old, 1000, Err(BROKEN)));
    assert!(timeout(10 * SECOND, &mut late).await.is_err());
    assert_eq!(contexts.recv().await.unwrap().attempt(), 2);
    assert!(timeout(500 * SECOND, &mut late).await.is_err());
    assert_eq!(stalled(&tree), None);
    assert!(timeout(500 * SECOND, round(&old, 1000, Err(BROKEN))).await.is_err());
    assert_eq!(stalled(&tree), None, "the context of an earlier attempt begins no round");
}
