//! A run of a cluster that is kept.

use crate::contexts::{self, Contexts, Current};
use crate::error::LaunchError;
use crate::kubeconfig_error::KubeconfigError;
use crate::name::ClusterName;
use crate::output::Output;
use crate::place::{Lock, Place, create_private};
use crate::record::{Phase, ProcessId, Record};
use launch::{Cluster, ClusterOptions, Data, Nodes};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem;
use std::net::{Ipv4Addr, TcpListener};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

/// State of the run. This process holds the lock of the cluster's directory.
pub(crate) struct KeptCluster {
    place: Place,
    record: Record,
    /// Files that get a context in this run.
    kubeconfigs: BTreeSet<PathBuf>,
    /// The file whose current context changes.
    kubeconfig: Option<PathBuf>,
    /// `None` in the background, where standard input holds the lock.
    _lock: Option<Lock>,
}

impl KeptCluster {
    /// Removes files of an earlier run, and checks the files that get a context: `kubeconfig`, and those of earlier
    /// runs. The launcher reports an unusable file of an earlier run, and keeps its path in the record for later runs
    /// and the deletion.
    pub(crate) fn begin(
        place: Place,
        lock: Option<Lock>,
        kubeconfig: Option<PathBuf>,
        output: &Output,
    ) -> Result<Self, LaunchError> {
        let run = place.run();
        let removed = match fs::remove_dir_all(&run) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        let step = format!("create {}", run.display());
        removed.and_then(|()| create_private(&run)).map_err(LaunchError::prepare(step))?;
        let mut record = Record::read(&place.record());
        record.phase = Phase::Starting;
        record.process = Some(ProcessId::own().map_err(LaunchError::prepare("find the start time of this process"))?);
        record.kubeconfigs.extend(kubeconfig.clone());
        let kubeconfigs = record.kubeconfigs.clone();
        let mut kept = Self { place, record, kubeconfigs, kubeconfig, _lock: lock };
        kept.each_kubeconfig(|path, contexts, _| contexts::check(path, contexts), |text| output.print_error(text))?;
        // Write the record before adding contexts, so that `delete` also removes the contexts of a killed launcher.
        kept.write()?;
        Ok(kept)
    }

    /// Sets options that the command line leaves open: the disks and logs of the directory, and the port and the number
    /// of nodes of the last start.
    pub(crate) fn complete(&self, options: &mut ClusterOptions, nodes: Option<Nodes>) {
        let control_plane = &mut options.control_plane;
        control_plane.data = Data::File(self.place.data());
        control_plane.logs.clone_from(&self.place.directory);
        if control_plane.port.is_none() {
            let forwards = &control_plane.forwards;
            let is_free = |port: &NonZeroU16| {
                !forwards.iter().any(|forward| forward.host == port.get())
                    && TcpListener::bind((Ipv4Addr::LOCALHOST, port.get())).is_ok()
            };
            control_plane.port = self.record.port.filter(is_free);
        }
        if let (None, Some(last)) = (nodes, self.record.nodes.and_then(Nodes::new)) {
            options.nodes = last;
        }
    }

    /// Adds the contexts, and records the port and the number of nodes for the next start.
    pub(crate) fn booted(
        &mut self,
        cluster: &Cluster,
        nodes: Nodes,
        print_error: impl Fn(&str),
    ) -> Result<(), LaunchError> {
        let node = cluster.control_plane();
        self.record.port = NonZeroU16::new(node.api_port());
        self.record.nodes = Some(nodes.get());
        self.add_contexts(node.kubeconfig(), print_error)?;
        self.write()
    }

    fn add_contexts(&mut self, node: &Path, print_error: impl Fn(&str)) -> Result<(), LaunchError> {
        self.each_kubeconfig(|path, contexts, current| contexts::add(path, contexts, node, current), print_error)
    }

    /// Calls `step` for each file that gets a context. Reports and skips files of earlier starts for which the step
    /// fails.
    fn each_kubeconfig(
        &mut self,
        step: impl Fn(&Path, &Contexts<'_>, Current) -> Result<(), KubeconfigError>,
        print_error: impl Fn(&str),
    ) -> Result<(), LaunchError> {
        for path in mem::take(&mut self.kubeconfigs) {
            let current = if self.kubeconfig.as_ref() == Some(&path) { Current::Added } else { Current::Unchanged };
            let taken = step(&path, &self.contexts(), current);
            match taken {
                Ok(()) => _ = self.kubeconfigs.insert(path),
                Err(error) if current == Current::Added => return Err(error.into()),
                Err(error) => print_error(&format!(
                    "warning: a file of an earlier start does not get the context {}: {}",
                    self.place.name,
                    causes::lines(&error)
                )),
            }
        }
        Ok(())
    }

    /// Records that the cluster can be used, after the directions were printed.
    pub(crate) fn ready(&mut self) -> Result<(), LaunchError> {
        self.record.phase = Phase::Ready;
        self.write()
    }

    pub(crate) fn stopping(&mut self) {
        self.record.phase = Phase::Stopping;
        // Ignore errors: only the output of `status` would differ.
        _ = self.write();
    }

    /// Sets the state after all nodes have shut down in order.
    pub(crate) fn down(&mut self) {
        self.record.phase = Phase::Stopped;
    }

    /// Removes the files of this run, and records its end.
    pub(crate) fn end(mut self, result: &Result<(), LaunchError>) -> Result<(), LaunchError> {
        _ = fs::remove_dir_all(self.place.run());
        self.record.phase = match result {
            Ok(()) | Err(LaunchError::Interrupted) => Phase::Stopped,
            // The nodes continue after a failed demonstration, so they were shut down in order.
            Err(LaunchError::Demo(_)) if self.record.phase == Phase::Stopped => Phase::Stopped,
            // With this phase, `status` shows the cluster as killed after this process has ended.
            Err(LaunchError::PowerCut) => Phase::Stopping,
            Err(_) => Phase::Failed,
        };
        self.write()
    }

    pub(crate) fn name(&self) -> &ClusterName {
        &self.place.name
    }

    /// Files that have a context of this run.
    pub(crate) fn kubeconfigs(&self) -> &BTreeSet<PathBuf> {
        &self.kubeconfigs
    }

    /// The file in which the context of this run is the current one.
    pub(crate) fn current(&self) -> Option<&Path> {
        self.kubeconfig.as_deref()
    }

    fn contexts(&self) -> Contexts<'_> {
        Contexts { name: &self.place.name, directory: &self.place.directory }
    }

    fn write(&self) -> Result<(), LaunchError> {
        let path = self.place.record();
        self.record.write(&path).map_err(LaunchError::prepare(format!("write {}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::DemoError;
    use launch::{Forward, Image, Options};

    fn completed(kept: &KeptCluster, forwards: Vec<Forward>) -> ClusterOptions {
        let [kernel, initramfs, system, command_line] = [const { PathBuf::new() }; 4];
        let image = Image { kernel, initramfs, system, command_line };
        let mut options = ClusterOptions::new(Options::new(image, &kept.place.run()), Nodes::ONE);
        options.control_plane.forwards = forwards;
        kept.complete(&mut options, None);
        options
    }

    /// Regression test: the start failed because of a forwarded port, which the API server had used before.
    #[test]
    fn the_last_port_is_used_again_unless_it_is_forwarded() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place { name: ClusterName::default(), directory: directory.path().join("granary") };
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let record = Record { port: NonZeroU16::new(free), nodes: Some(2), ..Record::default() };
        let kept = KeptCluster { place, record, kubeconfigs: BTreeSet::new(), kubeconfig: None, _lock: None };
        let options = completed(&kept, Vec::new());
        assert_eq!((options.control_plane.port, options.nodes.get()), (NonZeroU16::new(free), 2));
        assert_eq!(options.control_plane.data, Data::File(kept.place.data()));
        let options = completed(&kept, vec![Forward { host: free, guest: 30080 }]);
        assert_eq!(options.control_plane.port, None);
    }

    /// Regression test: `status` showed a cluster whose power was cut as stopped, and `stop` succeeded.
    #[test]
    fn a_cluster_is_stopped_only_if_it_has_shut_down() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place { name: ClusterName::default(), directory: directory.path().join("granary") };
        for (result, phase) in [
            (Ok(()), Phase::Stopped),
            (Err(LaunchError::Interrupted), Phase::Stopped),
            (Err(LaunchError::PowerCut), Phase::Stopping),
            (Err(LaunchError::OutputClosed), Phase::Failed),
        ] {
            KeptCluster::begin(place.clone(), None, None, &Output::new()).unwrap().end(&result).unwrap();
            assert_eq!(Record::read(&place.record()).phase, phase);
        }
        // Regression test: `stop` reported an error after a failed demonstration.
        let failed = Err(LaunchError::Demo(Box::new(DemoError::new("no account"))));
        for (is_down, phase) in [(true, Phase::Stopped), (false, Phase::Failed)] {
            let mut kept = KeptCluster::begin(place.clone(), None, None, &Output::new()).unwrap();
            if is_down {
                kept.down();
            }
            kept.end(&failed).unwrap();
            assert_eq!(Record::read(&place.record()).phase, phase);
        }
    }

    /// Regression test: the cluster could not start again with any kubeconfig.
    #[test]
    fn an_unusable_kubeconfig_of_earlier_starts_is_only_reported() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place { name: ClusterName::default(), directory: directory.path().join("clusters/granary") };
        let [gone, other] = ["gone", "other"].map(|name| directory.path().join(name));
        create_private(&place.directory).unwrap();
        std::os::unix::fs::symlink("not-mounted", &gone).unwrap();
        let record = Record { kubeconfigs: BTreeSet::from([gone.clone()]), ..Record::default() };
        record.write(&place.record()).unwrap();
        let output = Output::new();
        let begin = |kubeconfig| KeptCluster::begin(place.clone(), None, kubeconfig, &output);
        assert_eq!(begin(None).unwrap().kubeconfigs(), &BTreeSet::new());
        assert_eq!(begin(Some(other.clone())).unwrap().kubeconfigs(), &BTreeSet::from([other.clone()]));
        assert_eq!(Record::read(&place.record()).kubeconfigs, BTreeSet::from([gone.clone(), other]));
        assert!(matches!(begin(Some(gone)).err(), Some(LaunchError::Kubeconfig(_))));
    }

    /// Regression test: the launcher shut down nodes that had booted.
    #[test]
    fn a_kubeconfig_of_earlier_starts_may_become_unusable_during_the_boot() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place { name: ClusterName::default(), directory: directory.path().join("clusters/granary") };
        let [earlier, other, node] = ["earlier", "other", "node"].map(|name| directory.path().join(name));
        fs::write(&node, "clusters: [{name: a, cluster: {}}]").unwrap();
        for kubeconfig in [&earlier, &other] {
            let begun = KeptCluster::begin(place.clone(), None, Some(kubeconfig.clone()), &Output::new());
            let mut kept = begun.unwrap();
            fs::write(&earlier, "{").unwrap();
            // The launcher fails if the file of the command line is unusable.
            assert_eq!(kept.add_contexts(&node, |_| ()).is_ok(), kubeconfig == &other);
            assert!(!kept.kubeconfigs().contains(&earlier));
            fs::remove_file(&earlier).unwrap();
        }
        assert!(other.exists());
        assert_eq!(Record::read(&place.record()).kubeconfigs, BTreeSet::from([earlier, other]));
    }
}
