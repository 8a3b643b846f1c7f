//! What a person can do with the node.

use std::path::Path;

/// Where the node's status pages are: `node_core`'s `status::PORT`.
const STATUS_PORT: u16 = 7839;

/// A node that runs, as a person reaches it.
#[derive(Debug)]
pub(crate) struct Directions<'a> {
    pub(crate) node: &'a str,
    pub(crate) kubeconfig: &'a Path,
    /// Port of 127.0.0.1 that leads to the API server.
    pub(crate) api: u16,
    pub(crate) console: &'a Path,
    pub(crate) logs: Logs,
}

/// What becomes of the console's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logs {
    Kept,
    Removed,
}

impl Directions<'_> {
    pub(crate) fn text(&self) -> String {
        let Self { node, kubeconfig, api, console, logs } = self;
        let kubectl = format!("./bazelw run //:kubectl -- --kubeconfig={}", kubeconfig.display());
        let pages = format!("/api/v1/nodes/{node}:{STATUS_PORT}/proxy");
        let kept = match logs {
            Logs::Kept => "",
            Logs::Removed => " (gone afterwards; --keep-logs=DIR keeps it)",
        };
        format!(
            "kubeconfig  {}\n\
             kubectl     {kubectl} get pods -A\n\
             metrics     https://127.0.0.1:{api}{pages}/metrics\n\
             \x20           {kubectl} get --raw {pages}/metrics\n\
             status      {kubectl} get --raw '{pages}/statusz?format=json'\n\
             logs        {}{kept}\n\n\
             The node runs. Ctrl-C shuts it down.",
            kubeconfig.display(),
            console.display(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directions_have_this_shape() {
        let directions = Directions {
            node: "granary",
            kubeconfig: Path::new("/tmp/granary-a/kubeconfig"),
            api: 40123,
            console: Path::new("/tmp/granary-a/console.log"),
            logs: Logs::Removed,
        };
        assert_eq!(
            directions.text(),
            "\
kubeconfig  /tmp/granary-a/kubeconfig
kubectl     ./bazelw run //:kubectl -- --kubeconfig=/tmp/granary-a/kubeconfig get pods -A
metrics     https://127.0.0.1:40123/api/v1/nodes/granary:7839/proxy/metrics
            ./bazelw run //:kubectl -- --kubeconfig=/tmp/granary-a/kubeconfig get --raw /api/v1/nodes/granary:7839/proxy/metrics
status      ./bazelw run //:kubectl -- --kubeconfig=/tmp/granary-a/kubeconfig get --raw '/api/v1/nodes/granary:7839/proxy/statusz?format=json'
logs        /tmp/granary-a/console.log (gone afterwards; --keep-logs=DIR keeps it)

The node runs. Ctrl-C shuts it down."
        );
        assert!(!Directions { logs: Logs::Kept, ..directions }.text().contains("gone afterwards"));
    }
}
