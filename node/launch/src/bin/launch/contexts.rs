//! Contexts of clusters in the user's kubeconfig files.
//!
//! Unmanaged entries pass through as untyped values: a type would omit fields with `null` and change their order.

use crate::kubeconfig_error::{Cause, KubeconfigError};
use crate::locks::{LOCK_LIMIT, lock, turn};
use crate::name::ClusterName;
use serde_json::{Map, Value, json};
use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Name of the extension that marks entries of the launcher.
const EXTENSION: &str = "dev.granary.launch";
/// Field of a kubeconfig. A file without it has no current context.
const CURRENT: &str = "current-context";
/// Lists of a kubeconfig, with the field of their entries.
const LISTS: [(&str, &str); 3] = [("clusters", "cluster"), ("users", "user"), ("contexts", "context")];

/// Name of the context, user and cluster entries of a cluster, with the directory of the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contexts<'a> {
    pub(crate) name: &'a ClusterName,
    /// Distinguishes clusters with the same name.
    pub(crate) directory: &'a Path,
}

/// Choice of the current context of a changed kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Current {
    /// The added context becomes the current one, on request of the user.
    Added,
    /// The current context stays.
    Unchanged,
}

/// Checks that the contexts can be added, and that the new file and the lock can be created in the directory. Leaves no
/// file behind.
pub(crate) fn check(path: &Path, contexts: &Contexts<'_>) -> Result<(), KubeconfigError> {
    let checked = || -> Result<(), Cause> {
        let named = path;
        // The record of the cluster is JSON, so the path must be UTF-8.
        named.to_str().ok_or(Cause::Encoding)?;
        let path = target(named)?;
        // A dangling link also exists: no directory can be created in its place.
        let existing = path.ancestors().skip(1).find(|directory| directory.symlink_metadata().is_ok());
        let is_parent = existing == path.parent();
        if let Some(directory) = existing.and_then(|directory| clusters(directory, contexts)) {
            return Err(Cause::Clusters { directory });
        }
        let _turn = existing.filter(|_| is_parent).map(|directory| turn(directory, LOCK_LIMIT)).transpose()?;
        let _locks = is_parent.then(|| lock(named, &path, LOCK_LIMIT)).transpose()?;
        merge(parse(&read(&path)?)?, contexts, &json!({}))?;
        replacement(&path, existing.ok_or(io::ErrorKind::NotFound).map_err(io::Error::from)?).map(drop)
    };
    checked().map_err(|source| KubeconfigError { path: path.to_owned(), source })
}

/// Adds the first cluster and user of a node's kubeconfig.
pub(crate) fn add(path: &Path, contexts: &Contexts<'_>, node: &Path, current: Current) -> Result<(), KubeconfigError> {
    let change = |file: Value| -> Result<Value, Cause> {
        let former = file.get(CURRENT).cloned();
        let mut file = merge(file, contexts, &parse(&fs::read_to_string(node)?)?)?;
        if current == Current::Unchanged {
            let root = object(&mut file)?;
            match former {
                Some(former) => root.insert(CURRENT.to_owned(), former),
                None => root.remove(CURRENT),
            };
        }
        Ok(file)
    };
    edit(path, change).map(drop).map_err(|source| KubeconfigError { path: path.to_owned(), source })
}

/// Removes the entries of this cluster; `false` if the file has none or is missing.
pub(crate) fn remove(path: &Path, contexts: &Contexts<'_>) -> Result<bool, KubeconfigError> {
    // Do not create a missing directory.
    if path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(false);
    }
    edit(path, |file| without(file, contexts)).map_err(|source| KubeconfigError { path: path.to_owned(), source })
}

/// Replaces the file if the change has an effect. Locks exclude other launchers and kubectl.
fn edit(named: &Path, change: impl FnOnce(Value) -> Result<Value, Cause>) -> Result<bool, Cause> {
    let path = &target(named)?;
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput).map_err(io::Error::from)?;
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let _turn = turn(directory, LOCK_LIMIT)?;
    let locks = lock(named, path, LOCK_LIMIT);
    let old = parse(&read(path)?)?;
    let new = change(old.clone())?;
    if new == old {
        // Ignore a failed lock if nothing changes: the directory may be read-only.
        return Ok(false);
    }
    let _locks = locks?;
    let text = written(&new)?;
    let mut file = replacement(path, directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(true)
}

/// The directory of all clusters, if `directory` is below it. Launchers lock the directories there, and remove them.
fn clusters(directory: &Path, contexts: &Contexts<'_>) -> Option<PathBuf> {
    let clusters = contexts.directory.parent()?.canonicalize().ok()?;
    directory.canonicalize().is_ok_and(|directory| directory.starts_with(&clusters)).then_some(clusters)
}

/// Creates a new file with the owner of the existing file at `path`. Only the owner can read the file, because it
/// contains a private key.
fn replacement(path: &Path, directory: &Path) -> Result<NamedTempFile, Cause> {
    let file = NamedTempFile::with_prefix_in(".kubeconfig.", directory)?;
    let old = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(file),
        old => old?,
    };
    if file.as_file().metadata()?.uid() != old.uid() {
        let kept = fchown(file.as_file(), Some(old.uid()), Some(old.gid()));
        kept.map_err(|source| Cause::Owner { user: old.uid(), source })?;
    }
    Ok(file)
}

/// Resolves links, which a rename must not replace. Rejects devices, and links to missing files, which may be on a disk
/// that is not mounted.
fn target(path: &Path) -> Result<PathBuf, Cause> {
    match fs::canonicalize(path) {
        Ok(target) if target.is_file() => Ok(target),
        Ok(_) => Err(Cause::Kind),
        Err(error) if path.is_symlink() => Err(Cause::Link(error)),
        Err(_) => Ok(path.to_owned()),
    }
}

/// Content of a kubeconfig; empty if the file is missing.
fn read(path: &Path) -> Result<String, io::Error> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}

/// YAML text of a kubeconfig, with long strings such as certificates on one line.
fn written(file: &Value) -> Result<String, Cause> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(file, options).map_err(|error| Cause::Write(Box::new(error)))
}

fn parse(text: &str) -> Result<Value, Cause> {
    if text.lines().all(|line| line.trim().is_empty() || line.starts_with('#')) {
        return Ok(Value::Null);
    }
    // A snippet of the lines around an error may contain tokens and keys.
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| Cause::Read(Box::new(error)))
}

/// Replaces the entries of this cluster by those of a node's kubeconfig.
fn merge(file: Value, contexts: &Contexts<'_>, node: &Value) -> Result<Value, Cause> {
    let former = former_context(&file, contexts);
    let mut file = without(file, contexts)?;
    let root = object(&mut file)?;
    for (list, _) in LISTS {
        if entries(root, list)?.iter().any(|entry| has_name(entry, contexts.name)) {
            return Err(Cause::Other { list, name: contexts.name.clone() });
        }
    }
    let name = contexts.name.to_string();
    let mark = json!([{"name": EXTENSION, "extension": {"directory": contexts.directory.to_string_lossy()}}]);
    for (list, field) in LISTS {
        let mut value = match field {
            "context" => {
                let mut context = former.clone();
                context.extend(["cluster", "user"].map(|field| (field.to_owned(), Value::from(name.as_str()))));
                Value::Object(context)
            }
            _ => node.pointer(&format!("/{list}/0/{field}")).cloned().unwrap_or_default(),
        };
        if list == "clusters" {
            object(&mut value)?.insert("extensions".to_owned(), mark.clone());
        }
        entries(root, list)?.push(json!({"name": name, field: value}));
    }
    root.entry("apiVersion").or_insert_with(|| "v1".into());
    root.entry("kind").or_insert_with(|| "Config".into());
    root.insert(CURRENT.to_owned(), name.into());
    Ok(file)
}

/// Removes the entries of this cluster. Its entry in `clusters` has the mark of the launcher.
fn without(mut file: Value, contexts: &Contexts<'_>) -> Result<Value, Cause> {
    let original = file.clone();
    let root = object(&mut file)?;
    if !entries(root, "clusters")?.iter().any(|entry| has_mark(entry, contexts)) {
        return Ok(original);
    }
    for (list, _) in LISTS {
        entries(root, list)?.retain(|entry| !has_name(entry, contexts.name));
    }
    if root.get(CURRENT).and_then(Value::as_str) == Some(contexts.name.as_str()) {
        root.remove(CURRENT);
    }
    Ok(file)
}

/// The context of this cluster, including fields that the user has set, such as the namespace.
fn former_context(file: &Value, contexts: &Contexts<'_>) -> Map<String, Value> {
    let list = |name: &'static str| file.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if !list("clusters").iter().any(|entry| has_mark(entry, contexts)) {
        return Map::new();
    }
    let context = list("contexts").iter().find(|entry| has_name(entry, contexts.name));
    context.and_then(|entry| entry.get("context")?.as_object().cloned()).unwrap_or_default()
}

fn has_mark(entry: &Value, contexts: &Contexts<'_>) -> bool {
    has_name(entry, contexts.name) && directory(entry) == Some(&*contexts.directory.to_string_lossy())
}

fn has_name(entry: &Value, name: &ClusterName) -> bool {
    entry.get("name").and_then(Value::as_str) == Some(name.as_str())
}

/// The directory in the mark of a cluster's entry.
fn directory(entry: &Value) -> Option<&str> {
    let extensions = entry.pointer("/cluster/extensions")?.as_array()?;
    let mark = extensions.iter().find(|extension| extension.get("name").and_then(Value::as_str) == Some(EXTENSION))?;
    mark.pointer("/extension/directory")?.as_str()
}

fn object(file: &mut Value) -> Result<&mut Map<String, Value>, Cause> {
    if file.is_null() {
        *file = json!({});
    }
    file.as_object_mut().ok_or(Cause::Field { field: "the document", wanted: "a mapping" })
}

fn entries<'a>(root: &'a mut Map<String, Value>, list: &'static str) -> Result<&'a mut Vec<Value>, Cause> {
    let value = root.entry(list).or_insert_with(|| json!([]));
    if value.is_null() {
        *value = json!([]);
    }
    value.as_array_mut().ok_or(Cause::Field { field: list, wanted: "a list" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;
    use kube::config::Kubeconfig;
    use proptest::prelude::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    use std::sync::LazyLock;
    use std::thread::sleep;
    use std::time::Duration;
    use tempfile::TempDir;

    /// A kubeconfig with fields that the types of `kube` do not have, and with scalars whose quotes decide their type.
    const USER: &str = r##"# a comment
apiVersion: v1
kind: Config
current-context: work
clusters:
- name: work
  cluster: {server: "https://example.com", proxy-url: http://proxy, disable-compression: true, later-field: [1, 2]}
users:
- name: work
  user:
    token: "0123"
    password: "yes"
    username: "1e3"
    exec: {apiVersion: client.authentication.k8s.io/v1, command: tool, args: ["a: b", "", "null", "~", "#"], interactiveMode: Never}
contexts:
- name: work
  context: {cluster: work, user: work, namespace: "true"}
preferences: {colors: true}
"##;

    fn node(port: u16) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "granary", "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority-data": "Q0E="}}],
            "users": [{"name": "admin", "user": {"client-certificate-data": "Q0E=", "client-key-data": "S0VZ"}}],
            "contexts": [{"name": "granary", "context": {"cluster": "granary", "user": "admin"}}],
            "current-context": "granary",
        })
    }

    fn name(text: &str) -> ClusterName {
        text.parse().unwrap()
    }

    fn value(text: &str) -> Value {
        parse(text).unwrap()
    }

    /// The cluster `a`.
    fn a() -> Contexts<'static> {
        static NAME: LazyLock<ClusterName> = LazyLock::new(|| name("a"));
        Contexts { name: &NAME, directory: Path::new("/state/a") }
    }

    /// A directory, the path of a kubeconfig in it, and the kubeconfig of a node.
    fn files() -> (TempDir, PathBuf, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (file, node_file) = (directory.path().join("config"), directory.path().join("node"));
        fs::write(&node_file, node(1).to_string()).unwrap();
        (directory, file, node_file)
    }

    #[test]
    fn a_context_is_added_replaced_and_removed() {
        let (a, b) = (a(), name("b"));
        let b = Contexts { name: &b, directory: Path::new("/state/b") };
        let mut file = value(USER);
        for (contexts, port) in [(&a, 1), (&b, 2), (&a, 3)] {
            file = merge(file, contexts, &node(port)).unwrap();
        }
        // The types of kube can read the text.
        let read = Kubeconfig::from_yaml(&written(&file).unwrap()).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("a"));
        let servers: Vec<_> = read
            .clusters
            .iter()
            .map(|named| (named.name.as_str(), named.cluster.as_ref().unwrap().server.as_deref().unwrap()))
            .collect();
        assert_eq!(
            servers,
            [("work", "https://example.com"), ("b", "https://127.0.0.1:2"), ("a", "https://127.0.0.1:3")]
        );
        let context = read.contexts.iter().find(|named| named.name == "a").unwrap().context.clone().unwrap();
        assert_eq!((context.cluster.as_str(), context.user.as_deref()), ("a", Some("a")));
        assert_eq!((read.auth_infos.len(), read.contexts.len()), (3, 3));

        for contexts in [&a, &b, &b] {
            file = without(value(&written(&file).unwrap()), contexts).unwrap();
        }
        let mut expected = value(USER);
        expected.as_object_mut().unwrap().remove(CURRENT);
        assert_eq!(file, expected);
    }

    /// Regression test: after another start, kubectl used the namespace `default`, which has none of the user's
    /// objects.
    #[test]
    fn a_context_keeps_the_namespace_of_the_user() {
        let a = a();
        let mut file = merge(value(USER), &a, &node(1)).unwrap();
        file["contexts"][1]["context"]["namespace"] = "tutorial".into();
        let file = merge(file, &a, &node(2)).unwrap();
        let context = json!({"cluster": "a", "user": "a", "namespace": "tutorial"});
        assert_eq!(file["contexts"][1], json!({"name": "a", "context": context}));
        assert_eq!(file["clusters"][1]["cluster"]["server"], "https://127.0.0.1:2");
    }

    #[test]
    fn entries_of_others_are_never_replaced() {
        let (work, a) = (name("work"), a());
        let work = Contexts { name: &work, directory: Path::new("/state/work") };
        assert_eq!(
            merge(value(USER), &work, &node(1)).unwrap_err().to_string(),
            "clusters has an entry work of another cluster; rename that entry, or choose another --name"
        );
        assert_eq!(without(value(USER), &work).unwrap(), value(USER));
        // A user or a context without a marked cluster belongs to the user, too.
        let users = value("users: [{name: a, user: {token: x}}]");
        assert!(matches!(merge(users, &a, &node(1)), Err(Cause::Other { list: "users", .. })));
        // A cluster with the same name has another state directory.
        let file = merge(Value::Null, &a, &node(1)).unwrap();
        let second = Contexts { directory: Path::new("/elsewhere/a"), ..a };
        assert!(matches!(merge(file, &second, &node(2)), Err(Cause::Other { .. })));
    }

    #[test]
    fn invalid_kubeconfigs_are_rejected() {
        let a = a();
        for (text, wanted) in [
            ("[1]", "the document is not a mapping"),
            ("text", "the document is not a mapping"),
            ("clusters: 1", "clusters is not a list"),
            ("clusters: []\nusers: {}", "users is not a list"),
        ] {
            let error = merge(value(text), &a, &node(1)).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{text}: {error}");
        }
        for text in ["{", "[1", "a: 1\n---\nb: 2", "users: [{name: a, user: {token: s3cret}}"] {
            let error = parse(text).unwrap_err();
            assert!(matches!(error, Cause::Read(_)), "{text}");
            assert!(!causes::lines(&error).to_string().contains("s3cret"), "{error:?}");
        }
        // kubectl writes these files.
        for text in ["", "# nothing\n", "clusters: null\ncontexts: null\nusers: null\n", "{}"] {
            merge(value(text), &a, &node(1)).unwrap();
        }
    }

    #[test]
    fn the_file_is_replaced_through_links_with_mode_600() {
        let ((directory, _, node_file), a) = (files(), a());
        let (link, target) = (directory.path().join(".kube/config"), directory.path().join("dotfiles/config"));
        fs::create_dir(directory.path().join("dotfiles")).unwrap();
        // `check` creates no file or directory that remains.
        check(&link, &a).unwrap();
        assert!(!link.exists());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        add(&link, &a, &node_file, Current::Added).unwrap();
        assert_eq!(link.metadata().unwrap().permissions().mode() & 0o777, 0o600);

        fs::write(&target, USER).unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).unwrap();
        fs::remove_file(&link).unwrap();
        symlink("../dotfiles/config", &link).unwrap();
        assert!(!remove(&link, &a).unwrap());
        assert_eq!(fs::read_to_string(&target).unwrap(), USER);
        add(&link, &a, &node_file, Current::Added).unwrap();
        assert!(link.is_symlink());
        assert_eq!(target.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(remove(&link, &a).unwrap());
        assert_eq!(fs::read_dir(directory.path().join("dotfiles")).unwrap().count(), 1);

        fs::write(&target, "{").unwrap();
        for error in [check(&link, &a).unwrap_err(), add(&link, &a, &node_file, Current::Added).unwrap_err()] {
            assert!(error.to_string().ends_with("config"), "{error}");
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "{");
    }

    /// Regression test: with sudo, the kubeconfig of a user belonged to root, and kubectl could not read the file.
    #[test]
    fn the_owner_of_the_replaced_file_is_kept() {
        let ((_directory, file, node_file), a) = (files(), a());
        fs::write(&file, USER).unwrap();
        // Only root can change the owner. For other users, the file keeps the owner of the test process.
        _ = chown(&file, Some(1), Some(1));
        let shown = || file.metadata().map(|found| (found.uid(), found.gid())).unwrap();
        let before = shown();
        check(&file, &a).unwrap();
        add(&file, &a, &node_file, Current::Added).unwrap();
        assert_eq!(shown(), before);
        assert!(remove(&file, &a).unwrap());
        assert_eq!(shown(), before);
    }

    /// Regression test: another start without --kubeconfig changed the current context.
    #[test]
    fn the_current_context_changes_on_request_only() {
        let ((_directory, file, node_file), a) = (files(), a());
        fs::write(&file, USER).unwrap();
        for (current, shown) in
            [(Current::Unchanged, "work"), (Current::Added, "a"), (Current::Unchanged, "a"), (Current::Added, "a")]
        {
            add(&file, &a, &node_file, current).unwrap();
            assert_eq!(parse(&read(&file).unwrap()).unwrap()["current-context"], shown, "{current:?}");
        }
    }

    /// Regression test: the launcher wrote an empty current context.
    #[test]
    fn a_file_without_a_current_context_keeps_none() {
        let ((_directory, file, node_file), a) = (files(), a());
        let shown = || parse(&read(&file).unwrap()).unwrap().get(CURRENT).cloned();
        for (text, kept) in [("contexts: []\n", None), ("current-context: ''\n", Some(Value::from("")))] {
            fs::write(&file, text).unwrap();
            add(&file, &a, &node_file, Current::Unchanged).unwrap();
            assert_eq!(shown(), kept, "{text}");
        }
        add(&file, &a, &node_file, Current::Added).unwrap();
        assert!(remove(&file, &a).unwrap());
        assert_eq!(shown(), None);
    }

    /// Regression test: one of two changes at the same time was lost.
    #[test]
    fn a_change_waits_for_the_lock_of_kubectl() {
        let ((directory, file, node_file), a) = (files(), a());
        let held = directory.path().join("config.lock");
        fs::write(&held, "").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sleep(Duration::from_millis(200));
                fs::write(&file, USER).unwrap();
                fs::remove_file(&held).unwrap();
            });
            add(&file, &a, &node_file, Current::Added).unwrap();
        });
        let names: Vec<_> =
            Kubeconfig::read_from(&file).unwrap().contexts.into_iter().map(|named| named.name).collect();
        assert_eq!(names, ["work", "a"]);
        assert!(!held.exists());
    }

    /// Regression test: the launcher booted all nodes first. Then it waited for its own lock without end, or found the
    /// entries of the run's kubeconfig, which `export KUBECONFIG=…` in its output names.
    #[test]
    fn a_file_below_the_directory_of_the_clusters_is_rejected() {
        let root = tempfile::tempdir().unwrap();
        let (clusters, a) = (root.path().join("granary"), name("a"));
        let place = Place { name: a.clone(), directory: clusters.join("a") };
        let a = Contexts { name: &a, directory: &place.directory };
        let _lock = place.lock().unwrap();
        for file in ["a/config", "a/run/kubeconfig", "b/run/kubeconfig", "config"] {
            let error = check(&clusters.join(file), &a).unwrap_err();
            assert!(matches!(error.source, Cause::Clusters { .. }), "{file}: {error:?}");
            let (text, directory) = (error.source.to_string(), clusters.canonicalize().unwrap());
            assert!(text.starts_with(&format!("the file is below {}, ", directory.display())), "{text}");
            assert!(text.ends_with("; name a file outside of it with --kubeconfig=FILE"), "{text}");
        }
        check(&root.path().join("config"), &a).unwrap();
        assert!(matches!(turn(&place.directory, Duration::ZERO), Err(Cause::Directory { .. })));
    }

    /// Regression test: the launcher booted all nodes first, and then shut them down again.
    #[test]
    fn a_directory_that_takes_no_file_is_found_before_the_start() {
        let a = a();
        // Files cannot be created in procfs, not even by root.
        for path in ["/proc/self/config", "/proc/self/.kube/config"] {
            let error = check(Path::new(path), &a).unwrap_err();
            assert!(matches!(error.source, Cause::File(_)), "{error:?}");
        }
    }

    /// Regression test: the launcher booted all nodes first, and then shut them down again.
    #[test]
    fn a_directory_that_is_a_dangling_link_is_found_before_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let (link, a) = (directory.path().join(".kube"), a());
        symlink("not-mounted", &link).unwrap();
        let error = check(&link.join("config"), &a).unwrap_err();
        assert!(matches!(error.source, Cause::File(_)), "{error:?}");
    }

    /// Regression test: `delete` created the directory of a kubeconfig that the user had removed, or whose disk was not
    /// mounted.
    #[test]
    fn nothing_is_created_to_remove_a_context() {
        let (directory, a) = (tempfile::tempdir().unwrap(), a());
        assert!(!remove(&directory.path().join("removed/config"), &a).unwrap());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    /// Regression test: a file replaced the link, and kubectl no longer used the user's kubeconfig.
    #[test]
    fn a_link_that_leads_to_no_file_is_kept() {
        let ((_directory, link, node_file), a) = (files(), a());
        symlink("not-mounted/config", &link).unwrap();
        for error in [check(&link, &a).unwrap_err(), add(&link, &a, &node_file, Current::Added).unwrap_err()] {
            assert!(matches!(error.source, Cause::Link(_)), "{error:?}");
        }
        assert!(link.is_symlink());
    }

    /// Regression test: the launcher reported only that it could not write the record of the cluster.
    #[test]
    fn a_path_that_the_record_cannot_have_is_rejected() {
        let (directory, a) = (tempfile::tempdir().unwrap(), a());
        let error = check(&directory.path().join(OsStr::from_bytes(b"\xff")), &a).unwrap_err();
        assert!(matches!(error.source, Cause::Encoding), "{error:?}");
    }

    /// Regression test: with `KUBECONFIG=/dev/null` and the rights of root, a file replaced the device.
    #[test]
    fn devices_and_directories_are_rejected() {
        let ((directory, _, node_file), a) = (files(), a());
        for found in [
            check(Path::new("/dev/null"), &a),
            check(directory.path(), &a),
            add(directory.path(), &a, &node_file, Current::Added),
        ] {
            assert!(matches!(found, Err(KubeconfigError { source: Cause::Kind, .. })), "{found:?}");
        }
    }

    proptest! {
        /// A YAML 1.1 reader finds the same types, and no string contains a line break.
        #[test]
        fn strings_are_read_as_they_were_written(text: String, key in "[a-z]{1,8}") {
            let value = json!({"users": [{"name": text, "user": {key: text}}], "list": [text, [text], {}, []]});
            prop_assert_eq!(&parse(&written(&value).unwrap()).unwrap(), &value);
        }
    }
}
