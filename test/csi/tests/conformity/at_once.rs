//! Several calls for one volume at a time: the kubelet sends them after a restart, when it has lost its state. Each
//! behavior is concurrent itself, and runs twice in a row.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use conformity::{hold_each_in_turn, with_mode};
use futures::future::{join, join_all};
use proto::csi::volume_capability::access_mode::Mode;
use tokio::task::yield_now;
use tonic::Code;

const TIMES: usize = 10;

/// Specification: Concurrency; a second call is served, or the caller retries.
fn assert_graceful(answers: &[Result<(), Code>]) {
    let graceful = |answer: &Result<(), Code>| matches!(answer, Ok(()) | Err(Code::Aborted));
    assert!(answers.iter().all(graceful) && answers.contains(&Ok(())), "{answers:?}");
}

/// Concurrent calls create one mount and one device.
#[test]
fn calls_for_one_target_make_one_mount() {
    hold_each_in_turn(async |case, kind| {
        let (volume, target) = case.place(kind);
        let publish = join_all((0..TIMES).map(|_| case.publish(case.publishing(&volume, &target)))).await;
        assert_graceful(&publish);
        case.assert_published(&volume, &target, false);
        let unpublish = join_all((0..TIMES).map(|_| case.unpublish(case.unpublishing(&volume, &target)))).await;
        assert_graceful(&unpublish);
        case.withdraw(&volume, &target).await;
    });
}

/// Pods of one claim that start together share its device.
#[test]
fn many_targets_of_one_volume_come_and_go_together() {
    hold_each_in_turn(async |case, kind| {
        let volume = case.volume(kind);
        let targets: Vec<_> = (0..TIMES).map(|pod| case.target(&volume, &format!("pod-{pod}"))).collect();
        let publish = targets.iter().map(|target| persist(|| case.publish(case.publishing(&volume, target))));
        join_all(publish).await;
        targets.iter().for_each(|target| case.assert_published(&volume, target, false));
        let unpublish = targets.iter().map(|target| persist(|| case.unpublish(case.unpublishing(&volume, target))));
        join_all(unpublish).await;
        targets.iter().for_each(|target| case.assert_absent(target));
    });
}

async fn persist<F: Future<Output = Result<(), Code>>>(call: impl Fn() -> F) {
    for _ in 0..TIMES {
        match call().await {
            Ok(()) => return,
            Err(code) => assert_eq!(code, Code::Aborted),
        }
    }
    panic!("{TIMES} calls were aborted");
}

/// Specification: NodePublishVolume, third column of the table. One of the calls succeeds.
#[test]
fn one_of_many_gets_the_only_target() {
    hold_each_in_turn(async |case, kind| {
        let volume = case.volume(kind);
        let targets: Vec<_> = (0..TIMES).map(|pod| case.target(&volume, &format!("pod-{pod}"))).collect();
        let publish = targets
            .iter()
            .map(|target| case.publish(with_mode(case.publishing(&volume, target), Mode::SingleNodeSingleWriter)));
        let answers = join_all(publish).await;
        let winners: Vec<_> = targets.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()).collect();
        let [(winner, _)] = winners[..] else { panic!("{answers:?}") };
        let refused = |answer: &&Result<(), Code>| matches!(answer, Err(Code::FailedPrecondition | Code::Aborted));
        assert_eq!(answers.iter().filter(refused).count(), TIMES - 1, "{answers:?}");
        case.assert_published(&volume, winner, false);
        case.withdraw(&volume, winner).await;
        targets.iter().for_each(|target| case.assert_absent(target));
    });
}

/// A pod is deleted while it starts. Afterwards the target is complete or missing.
#[test]
fn publish_and_unpublish_at_once_end_in_one_of_two_states() {
    hold_each_in_turn(async |case, kind| {
        let (volume, target) = case.place(kind);
        for _ in 0..3 {
            let publish = join_all((0..3).map(|_| case.publish(case.publishing(&volume, &target))));
            let unpublish = join_all((0..3).map(|_| case.unpublish(case.unpublishing(&volume, &target))));
            let (published, unpublished) = join(publish, unpublish).await;
            assert_graceful(&published);
            assert_graceful(&unpublished);
            if target.exists() {
                case.assert_published(&volume, &target, false);
            } else {
                case.assert_absent(&target);
            }
        }
        case.withdraw(&volume, &target).await;
    });
}

/// Statistics and expansions find the volume or return an error while it is published and unpublished.
#[test]
fn concurrent_stats_see_a_volume_or_none() {
    hold_each_in_turn(async |case, kind| {
        let (volume, target) = case.place(kind);
        let change = async {
            for _ in 0..3 {
                case.publish(case.publishing(&volume, &target)).await.expect("publish");
                case.withdraw(&volume, &target).await;
            }
        };
        let look = async {
            for _ in 0..6 {
                let seen = case.stats(case.asking(&volume, &target)).await.map(drop);
                assert!(matches!(seen, Ok(()) | Err(Code::NotFound | Code::Aborted)), "{seen:?}");
                let seen = case.expand(case.expanding(&volume, &target, None)).await.map(drop);
                assert!(matches!(seen, Ok(()) | Err(Code::NotFound | Code::Aborted)), "{seen:?}");
            }
        };
        join(change, look).await;
        case.assert_absent(&target);
    });
}

/// Specification: Timeouts; a call that the kubelet canceled continues or ends, and the next call completes it.
#[test]
fn the_next_call_completes_a_canceled_one() {
    hold_each_in_turn(async |case, kind| {
        let (volume, target) = case.place(kind);
        let publish = || case.publish(case.publishing(&volume, &target));
        let unpublish = || case.unpublish(case.unpublishing(&volume, &target));
        let mut whole = [Duration::MAX; 2];
        for _ in 0..3 {
            whole = [whole[0].min(taken(publish()).await), whole[1].min(taken(unpublish()).await)];
        }
        // Cancel at once, and after about a quarter, a half and three quarters of the call's duration.
        let mut given_up = [0; 2];
        for quarters in 0..4 {
            let [for_publish, for_unpublish] = whole.map(|whole| whole * quarters / 4);
            let published = is_given_up(for_publish, publish()).await;
            case.publish(case.publishing(&volume, &target)).await.expect("publish");
            case.assert_published(&volume, &target, false);
            let unpublished = is_given_up(for_unpublish, unpublish()).await;
            case.withdraw(&volume, &target).await;
            if quarters > 0 {
                given_up = [given_up[0] + usize::from(published), given_up[1] + usize::from(unpublished)];
            } else {
                assert!(published && unpublished, "no call is answered before it was sent");
            }
        }
        assert!(given_up.iter().all(|count| *count > 0), "{given_up:?} of 3 were given up on their way, of {whole:?}");
    });
}

/// Duration of a call that succeeds.
async fn taken(call: impl Future<Output = Result<(), Code>>) -> Duration {
    let start = Instant::now();
    call.await.expect("a call that is not canceled");
    start.elapsed()
}

/// Drops the call unless it completes within `patience`, and returns whether the call was dropped. Does not use the
/// runtime's timer, whose steps of a millisecond are longer than some calls.
async fn is_given_up(patience: Duration, call: impl Future<Output = Result<(), Code>>) -> bool {
    let mut call = pin!(call);
    let start = Instant::now();
    loop {
        match poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
            Poll::Ready(answer) => {
                answer.expect("a call that was in time");
                return false;
            }
            Poll::Pending if start.elapsed() >= patience => return true,
            Poll::Pending => yield_now().await,
        }
    }
}
