//! Which targets the plugin touches.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use conformity::{Case, Kind, Volume, hold, hold_each, with_mode};
use mount::Filesystem;
use nix::mount::MsFlags;
use proto::csi::volume_capability::access_mode::Mode;
use proto::csi::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use tonic::Code;

async fn publish(case: &Case<'_>, volume: &Volume, target_path: &str) -> Result<(), Code> {
    let message = case.publishing(volume, Path::new("/"));
    case.publish(NodePublishVolumeRequest { target_path: target_path.to_owned(), ..message }).await
}

async fn unpublish(case: &Case<'_>, volume: &Volume, target_path: &str) -> Result<(), Code> {
    let message = case.unpublishing(volume, Path::new("/"));
    case.unpublish(NodeUnpublishVolumeRequest { target_path: target_path.to_owned(), ..message }).await
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Specification: NodePublishVolumeRequest, `target_path` is an absolute path. The plugin changes only the kubelet's
/// directory.
#[test]
fn a_path_that_is_not_below_kubelets_directory_is_invalid() {
    hold(async |case| {
        let outside = case.node().kubelet().parent().expect("the disk").join("outside");
        let kubelet = text(case.node().kubelet());
        let above = format!("{kubelet}/../outside");
        let paths = [
            "some/path".to_owned(),
            "/".to_owned(),
            text(&outside),
            above,
            format!("{kubelet}/pods/../../outside"),
            kubelet.clone(),
            format!("{kubelet}/."),
            format!("{kubelet}2/mount"),
            format!("{kubelet}/pods/a\0b"),
            format!("{kubelet}/{}", "a".repeat(256)),
            format!("{kubelet}/{}mount", "a/".repeat(2048)),
        ];
        for &kind in case.kinds() {
            let volume = case.volume(kind);
            let existing = outside.with_file_name(volume.id.as_str());
            fs::create_dir(&existing).expect("a directory");
            for path in paths.iter().chain([&text(&existing)]) {
                assert_eq!(publish(case, &volume, path).await, Err(Code::InvalidArgument), "{path:?}");
                assert_eq!(unpublish(case, &volume, path).await, Err(Code::InvalidArgument), "{path:?}");
            }
            fs::remove_dir(existing).expect("it is there, and empty");
        }
        assert!(!outside.exists());
    });
}

/// Specification: NodePublishVolumeRequest; the caller creates the parent.
#[test]
fn a_missing_parent_is_not_created() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let parent = case.pod("pod").join("absent");
        for target in [parent.join("mount"), parent.join("a/b/c")] {
            let refused = case.publish(case.publishing(&volume, &target)).await;
            assert_eq!(refused, Err(Code::FailedPrecondition));
            case.unpublish(case.unpublishing(&volume, &target)).await.expect("nothing is there");
        }
        case.assert_absent(&parent);
    });
}

/// Specification: NodePublishVolumeRequest; at least 128 bytes, and preferably the limit of the system.
#[test]
fn a_path_may_be_as_long_as_the_systems() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let mut parent = case.pod("deep");
        while parent.as_os_str().len() < 3600 {
            parent.push("d".repeat(200));
        }
        fs::create_dir_all(&parent).expect("directories");
        let target = parent.join("t".repeat(200));
        assert!((3700..4096).contains(&target.as_os_str().len()));
        for _ in 0..2 {
            case.publish(case.publishing(&volume, &target)).await.expect("publish");
        }
        case.assert_published(&volume, &target, false);
        case.withdraw(&volume, &target).await;
    });
}

/// Different spellings of a path name the same target.
#[test]
fn spellings_of_one_path_are_one_target() {
    hold_each(async |case, kind| {
        let (volume, target) = case.published(kind).await;
        let (parent, name) = (text(target.parent().expect("a parent")), target.file_name().expect("a name"));
        let spelled = format!("{}//./{}/", parent.replacen("kubelet/", "kubelet//./", 1), name.display());
        publish(case, &volume, &spelled).await.expect("the same target");
        case.assert_published(&volume, &target, false);
        unpublish(case, &volume, &spelled).await.expect("unpublish");
        case.assert_absent(&target);
    });
}

/// A link may lead anywhere when the plugin follows it.
#[test]
fn a_link_is_followed_neither_on_the_way_nor_at_the_end() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let pod = case.pod("pod");
        let elsewhere = case.pod("elsewhere");
        let (way, end, nowhere) = (pod.join("way"), pod.join("end"), pod.join("nowhere"));
        symlink(&elsewhere, &way).expect("a link");
        symlink(&elsewhere, &end).expect("a link");
        symlink("/absent", &nowhere).expect("a link");

        let at = |path: &Path| text(path);
        assert_eq!(publish(case, &volume, &at(&way.join("mount"))).await, Err(Code::InvalidArgument));
        assert_eq!(unpublish(case, &volume, &at(&way.join("mount"))).await, Err(Code::InvalidArgument));
        for link in [&end, &nowhere] {
            assert_eq!(publish(case, &volume, &at(link)).await, Err(Code::FailedPrecondition));
            assert_eq!(unpublish(case, &volume, &at(link)).await, Err(Code::FailedPrecondition));
        }
        assert_eq!(fs::read_dir(&elsewhere).expect("read").count(), 0, "the target was not created");
        for link in [way, end, nowhere] {
            fs::remove_file(link).expect("it is still a link");
        }
    });
}

/// The plugin does not remove files of the kubelet or an operator.
#[test]
fn targets_of_the_wrong_kind_stay() {
    hold_each(async |case, kind| {
        let (volume, target) = case.place(kind);
        let inside = target.join("stray");
        match kind {
            Kind::Filesystem => fs::write(&target, "a file"),
            // The directory has a file, because an empty one may be left from a call.
            Kind::Block => fs::create_dir(&target).and_then(|()| fs::write(&inside, "in the way")),
        }
        .expect("an obstacle");
        assert_eq!(case.publish(case.publishing(&volume, &target)).await, Err(Code::FailedPrecondition));
        assert_eq!(case.unpublish(case.unpublishing(&volume, &target)).await, Err(Code::FailedPrecondition));
        match kind {
            Kind::Filesystem => {
                assert_eq!(fs::read(&target).expect("it is there"), b"a file");
                fs::remove_file(&target).expect("remove");
            }
            Kind::Block => {
                assert_eq!(fs::read(&inside).expect("it is there"), b"in the way");
                fs::remove_file(&inside).and_then(|()| fs::remove_dir(&target)).expect("remove");
            }
        }
        case.publish(case.publishing(&volume, &target)).await.expect("nothing is in the way");
        case.withdraw(&volume, &target).await;
    });
}

/// Files that a mount hides do not belong to the volume.
#[test]
fn files_below_the_mount_are_never_deleted() {
    hold(async |case| {
        let (volume, target) = case.place(Kind::Filesystem);
        let stray = target.join("stray");
        fs::create_dir(&target).and_then(|()| fs::write(&stray, "not the volume's")).expect("a file");
        case.publish(case.publishing(&volume, &target)).await.expect("publish");
        for _ in 0..2 {
            let refused = case.unpublish(case.unpublishing(&volume, &target)).await;
            assert_eq!(refused, Err(Code::FailedPrecondition));
            assert_eq!(fs::read(&stray).expect("it is there"), b"not the volume's");
        }
        fs::remove_file(&stray).expect("the operator does it");
        case.withdraw(&volume, &target).await;
    });
}

/// A file with content at the target of a device may be a user's data.
#[test]
fn a_file_with_content_is_never_deleted() {
    hold(async |case| {
        let (volume, target) = case.place(Kind::Block);
        fs::write(&target, "other data").expect("a file");
        assert_eq!(case.publish(case.publishing(&volume, &target)).await, Err(Code::FailedPrecondition));
        let refused = case.unpublish(case.unpublishing(&volume, &target)).await;
        assert_eq!(refused, Err(Code::FailedPrecondition));
        assert_eq!(fs::read(&target).expect("it is there"), b"other data");
        fs::remove_file(&target).expect("the operator does it");
        case.unpublish(case.unpublishing(&volume, &target)).await.expect("nothing is there");
    });
}

fn tmpfs(at: &Path) {
    let what = Filesystem { kind: "tmpfs", source: Path::new("tmpfs"), target: at, flags: MsFlags::empty(), data: "" };
    mount::filesystem(what).expect("mount");
}

#[test]
fn a_foreign_mount_stays() {
    hold(async |case| {
        let (volume, target) = case.place(Kind::Filesystem);
        fs::create_dir(&target).expect("a directory");
        tmpfs(&target);
        fs::write(target.join("file"), "foreign").expect("write");
        assert_eq!(case.publish(case.publishing(&volume, &target)).await, Err(Code::FailedPrecondition));
        assert_eq!(case.unpublish(case.unpublishing(&volume, &target)).await, Err(Code::FailedPrecondition));
        assert_eq!(fs::read(target.join("file")).expect("it is there"), b"foreign");
        mount::unmount(&target).expect("unmount");
        case.withdraw(&volume, &target).await;
    });
}

/// The kubelet unmounts targets itself when it removes an orphaned pod. The second target has a mode for one target.
#[test]
fn a_target_that_another_process_unmounted_does_not_count() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let (first, second) = (case.target(&volume, "first"), case.target(&volume, "second"));
        case.publish(case.publishing(&volume, &first)).await.expect("publish");
        mount::unmount(&first).expect("unmount");
        match kind {
            Kind::Filesystem => fs::remove_dir(&first),
            Kind::Block => fs::remove_file(&first),
        }
        .expect("remove");
        let alone = with_mode(case.publishing(&volume, &second), Mode::SingleNodeSingleWriter);
        case.publish(alone).await.expect("it has no other target");
        case.withdraw(&volume, &second).await;
    });
}

/// A pod's mount that propagates to the node, or a mount of an operator, hides the target. The volume is still mounted
/// there.
#[test]
fn a_hidden_target_counts() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let (way, second) = (case.pod("pod").join("way"), case.target(&volume, "second"));
        fs::create_dir(&way).expect("a directory");
        let first = way.join("mount");
        case.publish(case.publishing(&volume, &first)).await.expect("publish");
        let alone = with_mode(case.publishing(&volume, &second), Mode::SingleNodeSingleWriter);
        // `way` twice: a rejected call must not remove the target from the plugin's list.
        for hidden in [&way, &first, &way] {
            if hidden.is_dir() {
                tmpfs(hidden);
            } else {
                let bind = MsFlags::MS_BIND;
                nix::mount::mount(Some("/dev/null"), hidden, None::<&str>, bind, None::<&str>).expect("bind");
            }
            assert_eq!(case.publish(alone.clone()).await, Err(Code::FailedPrecondition), "{}", hidden.display());
            mount::unmount(hidden).expect("unmount");
            assert_eq!(case.publish(alone.clone()).await, Err(Code::FailedPrecondition), "{}", hidden.display());
        }
        case.assert_published(&volume, &first, false);
        case.withdraw(&volume, &first).await;
        fs::remove_dir(&way).expect("remove");
        case.publish(alone).await.expect("it has no other target");
        case.withdraw(&volume, &second).await;
    });
}

/// Mounts of the kubelet may be above a target, such as the tmpfs of a secret.
#[test]
fn mounts_above_the_target_are_followed() {
    hold_each(async |case, kind| {
        let volume = case.volume(kind);
        let way = case.pod("pod").join("way");
        fs::create_dir(&way).expect("a directory");
        tmpfs(&way);
        let target: PathBuf = way.join("mount");
        case.publish(case.publishing(&volume, &target)).await.expect("publish");
        case.assert_published(&volume, &target, false);
        case.withdraw(&volume, &target).await;
        mount::unmount(&way).expect("unmount");
        fs::remove_dir(&way).expect("remove");
    });
}
