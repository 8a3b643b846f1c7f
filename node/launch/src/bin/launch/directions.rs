//! Commands and paths that the launcher prints for its user.

use crate::name::ClusterName;
use cluster::STATUS_PORT;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Directions<'a> {
    pub(crate) nodes: &'a [(String, PathBuf)],
    pub(crate) kubeconfig: &'a Path,
    pub(crate) api: u16,
    pub(crate) logs: Logs,
    pub(crate) kept: Option<KeptDirections<'a>>,
}

#[derive(Debug)]
pub(crate) struct KeptDirections<'a> {
    pub(crate) name: &'a ClusterName,
    /// Files with a context of this name.
    pub(crate) kubeconfigs: &'a BTreeSet<PathBuf>,
    /// The file in which this context is the current one.
    pub(crate) current: Option<&'a Path>,
    pub(crate) is_in_background: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logs {
    Kept,
    Removed,
}

impl Directions<'_> {
    pub(crate) fn text(&self) -> String {
        let Self { nodes, kubeconfig, api, logs, kept } = self;
        let kubectl = format!("./bazelw run //:kubectl -- --kubeconfig={}", quoted(kubeconfig));
        let removed = match logs {
            Logs::Kept => "",
            Logs::Removed => " (removed afterwards; --keep-logs=DIR keeps it)",
        };
        let mut text = format!("kubeconfig  {}\nkubectl     {kubectl} get pods -A\n", kubeconfig.display());
        if let Some(KeptDirections { name, kubeconfigs, current, .. }) = kept {
            for file in *kubeconfigs {
                text.push_str(&format!("context     {name} in {}\n", file.display()));
            }
            let file = current.unwrap_or(kubeconfig);
            text.push_str(&format!("shell       export KUBECONFIG={}\n", quoted(file)));
        }
        for (node, console) in *nodes {
            if nodes.len() > 1 {
                text.push_str(&format!("\n{node}\n"));
            }
            let pages = format!("/api/v1/nodes/{node}:{STATUS_PORT}/proxy");
            text.push_str(&format!(
                "metrics     https://127.0.0.1:{api}{pages}/metrics\n\
                 \x20           {kubectl} get --raw {pages}/metrics\n\
                 status      {kubectl} get --raw '{pages}/statusz?format=json'\n\
                 logs        {}{removed}\n",
                console.display(),
            ));
        }
        let (run, them) = if nodes.len() == 1 { ("The node runs", "it") } else { ("The nodes run", "them") };
        text.push_str(&match kept {
            Some(KeptDirections { name, is_in_background: true, .. }) => {
                format!("\n{run} in the background. `./bazelw run //:launch -- stop --name={name}` shuts {them} down.")
            }
            Some(_) | None => format!("\n{run}. Ctrl-C shuts {them} down."),
        });
        text
    }
}

/// A path as one word of a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%".contains(&byte);
    if text.bytes().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(nodes: &[&str], logs: Logs) -> String {
        let console = |name: &&str| ((*name).to_owned(), format!("/tmp/granary-a/{name}.log").into());
        let nodes: Vec<_> = nodes.iter().map(console).collect();
        let kubeconfig = Path::new("/tmp/granary-a/kubeconfig");
        Directions { nodes: &nodes, kubeconfig, api: 40123, logs, kept: None }.text()
    }

    #[test]
    fn a_kept_cluster_has_a_context_and_a_command_that_stops_it() {
        let name: ClusterName = "team-1".parse().unwrap();
        let text = |kubeconfigs: &[&str], current: Option<&str>, is_in_background| {
            let kubeconfigs = kubeconfigs.iter().map(PathBuf::from).collect();
            let current = current.map(Path::new);
            let kept = Some(KeptDirections { name: &name, kubeconfigs: &kubeconfigs, current, is_in_background });
            let nodes = [("granary".to_owned(), PathBuf::from("/state/console.log"))];
            let kubeconfig = Path::new("/state/run/kubeconfig");
            Directions { nodes: &nodes, kubeconfig, api: 40123, logs: Logs::Kept, kept }.text()
        };
        let plain = text(&[], None, true);
        assert!(plain.contains("\nshell       export KUBECONFIG=/state/run/kubeconfig\n"), "{plain}");
        let stop = "The node runs in the background. `./bazelw run //:launch -- stop --name=team-1` shuts it down.";
        assert!(plain.ends_with(stop), "{plain}");
        let merged = text(&["/home/a user's/config"], Some("/home/a user's/config"), false);
        assert!(merged.contains("\ncontext     team-1 in /home/a user's/config\n"), "{merged}");
        assert!(merged.contains(r"export KUBECONFIG='/home/a user'\''s/config'"), "{merged}");
        assert!(merged.ends_with("The node runs. Ctrl-C shuts it down."), "{merged}");
        // The context was added by an earlier start, so another context may be the current one.
        let earlier = text(&["/home/user/config"], None, true);
        assert!(earlier.contains("\ncontext     team-1 in /home/user/config\n"), "{earlier}");
        assert!(earlier.contains("\nshell       export KUBECONFIG=/state/run/kubeconfig\n"), "{earlier}");
    }

    /// Paths may contain spaces, from TMPDIR and XDG_STATE_HOME.
    #[test]
    fn paths_in_commands_are_one_word_of_a_shell() {
        let nodes = [("granary".to_owned(), PathBuf::from("/tmp/console.log"))];
        let kubeconfig = Path::new("/tmp/two words/kubeconfig");
        let text = Directions { nodes: &nodes, kubeconfig, api: 40123, logs: Logs::Removed, kept: None }.text();
        assert!(text.starts_with("kubeconfig  /tmp/two words/kubeconfig\n"), "{text}");
        assert_eq!(text.matches("--kubeconfig='/tmp/two words/kubeconfig' get ").count(), 3, "{text}");
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
