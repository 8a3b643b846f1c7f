//! Commands and paths for the user of the nodes.

use cluster::STATUS_PORT;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Directions<'a> {
    pub(crate) nodes: &'a [(String, PathBuf)],
    pub(crate) kubeconfig: &'a Path,
    pub(crate) api: u16,
    pub(crate) logs: Logs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logs {
    Kept,
    Removed,
}

impl Directions<'_> {
    pub(crate) fn text(&self) -> String {
        let Self { nodes, kubeconfig, api, logs } = self;
        let kubectl = format!("./bazelw run //:kubectl -- --kubeconfig={}", kubeconfig.display());
        let kept = match logs {
            Logs::Kept => "",
            Logs::Removed => " (removed afterwards; --keep-logs=DIR keeps it)",
        };
        let mut text = format!("kubeconfig  {}\nkubectl     {kubectl} get pods -A\n", kubeconfig.display());
        for (node, console) in *nodes {
            if nodes.len() > 1 {
                text.push_str(&format!("\n{node}\n"));
            }
            let pages = format!("/api/v1/nodes/{node}:{STATUS_PORT}/proxy");
            text.push_str(&format!(
                "metrics     https://127.0.0.1:{api}{pages}/metrics\n\
                 \x20           {kubectl} get --raw {pages}/metrics\n\
                 status      {kubectl} get --raw '{pages}/statusz?format=json'\n\
                 logs        {}{kept}\n",
                console.display(),
            ));
        }
        text.push_str(match nodes.len() {
            1 => "\nThe node runs. Ctrl-C shuts it down.",
            _ => "\nThe nodes run. Ctrl-C shuts them down.",
        });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(nodes: &[&str], logs: Logs) -> String {
        let console = |name: &&str| ((*name).to_owned(), format!("/tmp/granary-a/{name}.log").into());
        let nodes: Vec<_> = nodes.iter().map(console).collect();
        Directions { nodes: &nodes, kubeconfig: Path::new("/tmp/granary-a/kubeconfig"), api: 40123, logs }.text()
    }

    #[test]
    fn the_text_has_this_format() {
        assert_eq!(
            text(&["granary"], Logs::Removed),
            "\
kubeconfig  /tmp/granary-a/kubeconfig
kubectl     ./bazelw run //:kubectl -- --kubeconfig=/tmp/granary-a/kubeconfig get pods -A
metrics     https://127.0.0.1:40123/api/v1/nodes/granary:7839/proxy/metrics
            ./bazelw run //:kubectl -- --kubeconfig=/tmp/granary-a/kubeconfig get --raw /api/v1/nodes/granary:7839/proxy/metrics
status      ./bazelw run //:kubectl -- --kubeconfig=/tmp/granary-a/kubeconfig get --raw '/api/v1/nodes/granary:7839/proxy/statusz?format=json'
logs        /tmp/granary-a/granary.log (removed afterwards; --keep-logs=DIR keeps it)

The node runs. Ctrl-C shuts it down."
        );
        assert!(!text(&["granary"], Logs::Kept).contains("removed afterwards"));
    }

    #[test]
    fn each_node_of_a_cluster_has_its_section() {
        let text = text(&["granary", "granary-1"], Logs::Kept);
        assert!(
            text.contains("\n\ngranary-1\nmetrics     https://127.0.0.1:40123/api/v1/nodes/granary-1:7839/"),
            "{text}"
        );
        assert!(text.contains("\nlogs        /tmp/granary-a/granary-1.log\n\nThe nodes run."), "{text}");
    }
}
