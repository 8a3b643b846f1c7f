//! The command line.

use crate::selection::Suite;
use clap::Parser;
use launch::{Image, Nodes};
use std::env;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Runs Kubernetes' end-to-end tests against a cluster.
#[derive(Debug, Parser)]
#[command(name = "conformance")]
pub(crate) struct Arguments {
    /// The suite to run.
    #[arg(long, value_enum, default_value = "conformance")]
    pub(crate) suite: Suite,
    /// Runs only tests of the suite whose names match this regular expression, in Go's syntax.
    #[arg(long, value_name = "REGEX")]
    pub(crate) focus: Option<String>,
    /// Number of nodes of the cluster. Some tests of group snapshots pass on a single node only.
    #[arg(long, default_value = "2")]
    pub(crate) nodes: Nodes,
    /// Number of tests that run at once, at most 8. Tests with `[Serial]` in their names run alone, after the others.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) processes: u8,
    /// Directory for the results, the logs and the consoles of the nodes. A further run with the same directory repeats
    /// only the tests that have not passed or been skipped in it: name a new one after a change of the node image. The
    /// default is a new directory in the temporary directory.
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Prints the names of the tests, one in a line, without running them and without booting a node.
    #[arg(long)]
    pub(crate) dry_run: bool,
    // The build passes all hidden arguments.
    #[arg(long, hide = true)]
    pub(crate) e2e: PathBuf,
    #[arg(long, hide = true)]
    pub(crate) kubectl: PathBuf,
    #[arg(long, hide = true)]
    pub(crate) driver: PathBuf,
    /// Images of all suites.
    #[arg(long, hide = true)]
    archive: Vec<Archive>,
    /// Additional images of all suites but `external-storage`.
    #[arg(long, hide = true)]
    conformance_archive: Vec<Archive>,
    /// Program of a registry with the images `pulled`.
    #[arg(long, hide = true)]
    pub(crate) registry: PathBuf,
    #[arg(long, hide = true)]
    pub(crate) pulled: Vec<Archive>,
    #[command(flatten)]
    pub(crate) image: Image,
}

/// Archive with one image, `NAME:TAG=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Archive {
    pub(crate) image: String,
    pub(crate) file: PathBuf,
}

impl FromStr for Archive {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (image, file) = text.split_once('=').ok_or("use NAME:TAG=FILE")?;
        Ok(Self { image: image.to_owned(), file: file.into() })
    }
}

impl Arguments {
    /// Output directory, relative to the user's working directory, because `bazel run` starts programs in another one.
    pub(crate) fn output(&self) -> Option<PathBuf> {
        let directory = env::var_os("BUILD_WORKING_DIRECTORY").unwrap_or_default();
        self.output.as_ref().map(|output| Path::new(&directory).join(output))
    }

    pub(crate) fn all_archives(&self) -> impl Iterator<Item = &Archive> {
        self.archive.iter().chain(&self.conformance_archive)
    }

    /// Archives of the suite's images. Other images are left out, because in emulation a node needs half a minute to
    /// import an image.
    pub(crate) fn archives(&self) -> impl Iterator<Item = &Archive> {
        let count = match self.suite {
            Suite::Conformance | Suite::Services => usize::MAX,
            Suite::ExternalStorage => self.archive.len(),
        };
        self.all_archives().take(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_name_of_its_image() {
        let archive: Archive = "registry.invalid:5000/busybox:1=a/b.tar".parse().unwrap();
        assert_eq!(archive, Archive { image: "registry.invalid:5000/busybox:1".into(), file: "a/b.tar".into() });
        assert!("a/b.tar".parse::<Archive>().is_err());
    }

    fn try_parsed(last: &[&str]) -> Result<Arguments, clap::Error> {
        let files = ["e2e", "kubectl", "driver", "registry", "kernel", "initramfs", "system", "cmdline"];
        let files = files.map(|name| format!("--{name}=file"));
        let all = ["conformance"].into_iter().chain(files.iter().map(String::as_str)).chain(last.iter().copied());
        Arguments::try_parse_from(all)
    }

    fn parsed(last: &[&str]) -> Arguments {
        try_parsed(last).unwrap()
    }

    #[test]
    fn the_default_is_the_conformance_suite() {
        let arguments = parsed(&[]);
        assert_eq!((arguments.suite, arguments.focus, arguments.nodes.get()), (Suite::Conformance, None, 2));
        let arguments = parsed(&["--suite=external-storage", "--focus=data", "--nodes=1"]);
        assert_eq!(arguments.nodes, Nodes::ONE);
        assert_eq!((arguments.suite, arguments.focus.as_deref()), (Suite::ExternalStorage, Some("data")));
    }

    #[test]
    fn one_to_eight_tests_run_at_once() {
        assert_eq!(parsed(&[]).processes, 1);
        assert_eq!(parsed(&["--processes=8"]).processes, 8);
        assert!(try_parsed(&["--processes=0"]).is_err());
        assert!(try_parsed(&["--processes=9"]).is_err());
    }

    #[test]
    fn nodes_import_the_images_of_their_suite() {
        let archives = ["--archive=agnhost:2=a", "--conformance-archive=nonroot:1=n"];
        let images = |suite: &[&str]| {
            let arguments = parsed(&[&archives[..], suite].concat());
            arguments.archives().map(|archive| archive.image.clone()).collect::<Vec<_>>()
        };
        assert_eq!(images(&[]), ["agnhost:2", "nonroot:1"]);
        assert_eq!(images(&["--suite=services"]), ["agnhost:2", "nonroot:1"]);
        assert_eq!(images(&["--suite=external-storage"]), ["agnhost:2"]);
    }
}
