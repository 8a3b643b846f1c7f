//! Search for cycles of dependencies among the files of a crate. A file depends on the files of the paths in its code:
//! - The longest prefix that is a module determines the file: `crate::a::b::Item` leads to `src/a/b.rs`.
//! - An imported or re-exported name leads to its origin. If `src/lib.rs` contains `pub use a::Item`, `crate::Item`
//!   leads to `src/a.rs`. Only items that `src/lib.rs` itself defines lead to `src/lib.rs`.
//! - A parent does not depend on a descendant that it only declares or re-exports (`mod`, `pub use`). All other paths
//!   from a parent to a descendant count, also the name of a re-export in the parent's own code.
//! - Comments, literals, items with `#[cfg(test)]`, `src/bin`, and `src/main.rs` beside a library are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use crate::{assert_none, files};

const SKIPPED: &str =
    r###"(?s)//[^\n]*|/\*.*?\*/|\br"[^"]*"|r#".*?"#|r##".*?"##|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^\\'])'"###;
static USE: LazyLock<Regex> = LazyLock::new(|| pattern(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;<>]+);"));
static BRACES: LazyLock<Regex> = LazyLock::new(|| pattern(r"([\w:]+)::\{([^{}]*?),?\s*\}"));
static PATH: LazyLock<Regex> = LazyLock::new(|| pattern(r"\b[A-Za-z_]\w*(?:::[A-Za-z_]\w*)+"));
static DECLARED: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bmod\s+\w+\s*;"));
static WORD: LazyLock<Regex> = LazyLock::new(|| pattern(r"\w+"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the pattern is valid")
}

/// Code without comments, literals and items of tests, and the names of modules that only tests have.
fn code(text: &str) -> (String, Vec<String>) {
    let (mut code, mut tests) = (pattern(SKIPPED).replace_all(text, " ").into_owned(), Vec::new());
    while let Some((before, item)) = code.split_once("#[cfg(test)]") {
        let mut depth = 0;
        let end = item.find(|c: char| {
            depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
            depth < 0 || (depth == 0 && ";}".contains(c))
        });
        let (item, after) = item.split_at(end.map_or(item.len(), |end| end + 1));
        let declared = item.strip_suffix(';').and_then(|item| item.rsplit_once("mod "));
        tests.extend(declared.map(|(_, name)| name.to_owned()));
        code = format!("{before}{after}");
    }
    (code, tests)
}

/// Paths of the tree of a `use`, each with its name in the module.
fn leaves(tree: &str) -> Vec<(String, String)> {
    let mut tree = tree.to_owned();
    while let Some(found) = BRACES.captures(&tree) {
        let leaves: Vec<_> = found[2].split(',').map(|leaf| [&found[1], leaf.trim()].join("::")).collect();
        tree = tree.replace(&found[0], &leaves.join(","));
    }
    let leaf = |leaf: &str| {
        let (path, name) = leaf.split_once(" as ").unwrap_or((leaf, leaf));
        let [path, name] = [path, name].map(|text| text.trim().trim_end_matches("::self"));
        (path.to_owned(), name.rsplit("::").next().unwrap_or(name).to_owned())
    };
    tree.split(',').map(leaf).collect()
}

#[derive(Default)]
struct Modules<'a> {
    files: BTreeMap<String, &'a str>,
    /// Origins of imported names.
    imports: BTreeMap<String, String>,
}

impl<'a> Modules<'a> {
    /// Path from the crate root. Paths to other crates stay as they are.
    fn absolute(&self, module: &str, path: &str) -> String {
        let (mut module, mut item) = (module, path.strip_prefix("self::").unwrap_or(path));
        while let Some(rest) = item.strip_prefix("super::") {
            (module, item) = (module.rsplit_once("::").map_or(module, |(outer, _)| outer), rest);
        }
        let first = format!("{module}::{}", item.split("::").next().unwrap_or(item));
        let is_local = item != path || self.files.contains_key(&first) || self.imports.contains_key(&first);
        if is_local { format!("{module}::{item}") } else { path.to_owned() }
    }

    /// Imports the names of a module, and returns the paths in its code.
    fn scan(&mut self, module: &str, code: &str) -> Vec<String> {
        let mut paths = Vec::new();
        let items = USE.replace_all(code, "");
        let items = DECLARED.replace_all(&items, "");
        let names: BTreeSet<_> = WORD.find_iter(&items).map(|name| name.as_str()).collect();
        for found in USE.captures_iter(code) {
            for (path, name) in leaves(&found[2]) {
                let origin = self.absolute(module, &path);
                let is_reexport = found.get(1).is_some() && origin.starts_with(&format!("{module}::"));
                if !is_reexport || names.contains(name.as_str()) {
                    paths.push(origin.clone());
                }
                self.imports.insert(format!("{module}::{name}"), origin);
            }
        }
        paths.extend(PATH.find_iter(&items).map(|path| self.absolute(module, path.as_str())));
        paths
    }

    /// File to which a path leads after at most `steps` imports.
    fn file(&self, path: &str, steps: usize) -> Option<&'a str> {
        let mut prefix = path;
        while !self.files.contains_key(prefix) {
            if let Some(origin) = self.imports.get(prefix) {
                return self.file(&(origin.clone() + &path[prefix.len()..]), steps.checked_sub(1)?);
            }
            prefix = prefix.rsplit_once("::")?.0;
        }
        self.files.get(prefix).copied()
    }
}

/// Cycles of more than two files of a crate. The sources have paths relative to `src`.
fn cycles<'a>(sources: &BTreeMap<&'a str, &str>) -> BTreeSet<BTreeSet<&'a str>> {
    let root = if sources.contains_key("lib.rs") { "lib.rs" } else { "main.rs" };
    let (mut modules, mut codes, mut tests) = (Modules::default(), Vec::new(), Vec::new());
    for (&file, text) in sources {
        let path = if file == root { String::new() } else { format!("::{}", file.trim_end_matches(".rs")) };
        let module = format!("crate{}", path.replace('/', "::"));
        let (code, names) = code(text);
        tests.extend(names.iter().map(|name| format!("{module}::{name}::")));
        codes.push((file, module, code));
    }
    codes.retain(|(file, module, _)| {
        let is_test = tests.iter().any(|test| format!("{module}::").starts_with(test));
        !is_test && !file.starts_with("bin/") && (*file == root || *file != "main.rs")
    });
    for &(file, ref module, _) in &codes {
        modules.files.insert(module.clone(), file);
        // A directory without a file of its own is a module inside the crate root.
        let outer = module.rsplit_once("::").map_or("crate", |(outer, _)| outer);
        modules.files.entry(outer.to_owned()).or_insert(root);
    }
    let paths: Vec<_> = codes.iter().map(|(file, module, code)| (*file, modules.scan(module, code))).collect();
    let files = |paths: &[String]| paths.iter().filter_map(|path| modules.file(path, 8)).collect();
    let graph: BTreeMap<_, BTreeSet<_>> = paths.iter().map(|(file, paths)| (*file, files(paths))).collect();
    let reached: BTreeMap<_, _> = graph.keys().map(|&file| (file, reached(&graph, file))).collect();
    let cycles = reached.iter().map(|(from, to)| -> BTreeSet<_> {
        to.iter().copied().filter(|to| reached.get(to).is_some_and(|back| back.contains(from))).collect()
    });
    cycles.filter(|cycle| cycle.len() > 2).collect()
}

fn reached<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(file) = left.pop() {
        left.extend(graph.get(file).into_iter().flatten().copied().filter(|to| reached.insert(*to)));
    }
    reached
}

#[test]
fn no_crate_has_a_cycle_of_more_than_two_files() {
    let files = files(&[".rs"]);
    let mut crates: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for (path, text) in &files {
        if let Some((name, file)) = path.to_str().and_then(|path| path.split_once("/src/")) {
            crates.entry(name).or_default().insert(file, text);
        }
    }
    assert!(crates["node/kubernetes/volume"].len() > 20, "the sources are found");
    let problems = crates.iter().filter_map(|(name, sources)| {
        let found = cycles(sources);
        (!found.is_empty()).then(|| format!("{name}: these files use each other: {found:?}"))
    });
    assert_none(&problems.collect::<Vec<_>>());
}

fn found<const N: usize>(sources: [(&'static str, &str); N]) -> Vec<Vec<&'static str>> {
    cycles(&BTreeMap::from(sources)).into_iter().map(|cycle| cycle.into_iter().collect()).collect()
}

#[test]
fn cycles_of_three_files_are_found() {
    let [a, b] = [("a.rs", "use crate::b::B;"), ("b.rs", "use super::{a, c::{C, D as E}};")];
    assert!(found([a, b, ("c.rs", "fn c() { self::d() }")]).is_empty());
    assert_eq!(found([a, b, ("c.rs", "fn c() { crate::a::a() }")]), [["a.rs", "b.rs", "c.rs"]]);
}

#[test]
fn paths_in_comments_literals_and_tests_do_not_count() {
    for c in ["// crate::a", r#"const C: &str = "crate::a";"#, "#[cfg(test)]\nmod tests { use crate::a; }"] {
        assert!(found([("a.rs", "use crate::b;"), ("b.rs", "use crate::c;"), ("c.rs", c)]).is_empty(), "{c}");
    }
}

#[test]
fn nested_modules_and_reexports_lead_to_their_files() {
    let [a, root] = [("a.rs", "mod b; mod c; pub(crate) use b::B;"), ("lib.rs", "mod a; mod d; pub use a::B;")];
    let [b, c] = [("a/b.rs", "use super::c::C;"), ("a/c.rs", "use crate::d;")];
    assert_eq!(found([a, root, b, c, ("d.rs", "use crate::B;")]), [["a/b.rs", "a/c.rs", "d.rs"]]);
}

#[test]
fn a_reexport_counts_if_its_module_uses_the_name() {
    let [b, c] = [("a/b.rs", "use super::c::C;"), ("a/c.rs", "use super::A;")];
    assert!(found([("a.rs", "mod b; mod c; pub use b::B; struct A;"), b, c]).is_empty());
    assert_eq!(found([("a.rs", "mod b; mod c; pub use b::B; struct A(B);"), b, c]), [["a.rs", "a/b.rs", "a/c.rs"]]);
}
