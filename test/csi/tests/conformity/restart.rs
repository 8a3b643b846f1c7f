//! The plugin stores no state: the mounts define which volumes are published.

use std::fs::File;

use conformity::{Kind, hold_each_in_turn, hold_in_turn, read_only};
use futures::future::join_all;
use tonic::Code;

/// Specification: Concurrency, Timeouts; a plugin that restarts continues.
#[test]
fn published_volumes_survive_a_restart() {
    hold_in_turn(async |case| {
        let volumes: Vec<_> = (0..4).map(|number| case.volume(Kind::ALL[number % 2])).collect();
        let targets: Vec<_> = volumes.iter().map(|volume| case.target(volume, "pod")).collect();
        let both = || volumes.iter().zip(&targets);
        let publish_all = async || {
            let calls = both().map(|(volume, target)| case.publish(case.publishing(volume, target)));
            join_all(calls).await.into_iter().collect::<Result<Vec<_>, _>>().expect("publish");
        };
        publish_all().await;
        case.node().restart().await;
        for (volume, target) in both() {
            case.assert_published(volume, target, false);
            case.stats(case.asking(volume, target)).await.expect("stats");
            case.expand(case.expanding(volume, target, None)).await.expect("expand");
        }
        publish_all().await;
        both().for_each(|(volume, target)| case.assert_published(volume, target, false));
        join_all(both().map(|(volume, target)| case.withdraw(volume, target))).await;
    });
}

/// The plugin also reads second targets from the mounts.
#[test]
fn a_restart_keeps_the_rules_of_second_targets() {
    hold_each_in_turn(async |case, kind| {
        let volume = case.volume(kind);
        let (first, second) = (case.target(&volume, "first"), case.target(&volume, "second"));
        case.publish(case.publishing(&volume, &first)).await.expect("publish");
        case.node().restart().await;
        let single = proto::csi::volume_capability::access_mode::Mode::SingleNodeSingleWriter;
        let alone = conformity::with_mode(case.publishing(&volume, &second), single);
        assert_eq!(case.publish(alone).await, Err(Code::FailedPrecondition));
        let reads = read_only(case.publishing(&volume, &first));
        assert_eq!(case.publish(reads).await, Err(Code::AlreadyExists));
        case.publish(case.publishing(&volume, &second)).await.expect("pods may share it");
        case.withdraw(&volume, &first).await;
        case.assert_published(&volume, &second, false);
        case.withdraw(&volume, &second).await;
    });
}

/// A pod continues to use its device while the plugin is down.
#[test]
fn a_device_in_use_outlives_the_plugin() {
    hold_in_turn(async |case| {
        let (volume, target) = case.published(Kind::Block).await;
        let device = File::options().read(true).write(true).open(&target).expect("open");
        case.node().restart().await;
        let block = [3; 4096];
        std::os::unix::fs::FileExt::write_all_at(&device, &block, 4096).expect("write");
        device.sync_all().expect("sync");
        drop(device);
        case.withdraw(&volume, &target).await;
    });
}
