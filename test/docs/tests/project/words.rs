//! Comparison of the project's texts with `words.yaml`.

use std::path::Path;

use docs::Words;

use crate::{assert_none, files, read};

const LIST: &str = "test/docs/words.yaml";
const ENDINGS: [&str; 9] = [".md", ".rs", ".c", ".proto", ".bazel", ".bzl", ".yaml", ".tpl", ".txt"];

fn list() -> Words {
    Words::parse(&read(LIST)).unwrap_or_else(|error| panic!("{LIST}: {error:?}"))
}

#[test]
fn texts_and_names_use_the_words_of_the_list() {
    let list = list();
    let files = files(&ENDINGS);
    assert!(files.len() > 500, "the sources are found: {}", files.len());
    let mut problems = Vec::new();
    let mut rewritten = list.pending().to_vec();
    for (path, text) in &files {
        let path = path.to_str().expect("paths are text");
        if !list.searches(path) {
            continue;
        }
        let matches = list.matches(path, text);
        let mut pending = list.pending().iter().filter(|pending| Path::new(path).starts_with(pending)).peekable();
        if pending.peek().is_none() {
            problems.extend(matches.iter().map(|found| {
                format!("{path}:{}: \"{}\" ({}); write: {}", found.line, found.text, found.pattern, found.write)
            }));
        } else if !matches.is_empty() {
            for used in pending {
                rewritten.retain(|left| left != used);
            }
        }
    }
    let rewritten = rewritten.iter().map(|path| format!("{LIST}: {path} has no match; remove it from pending"));
    problems.extend(rewritten);
    assert_none(&problems);
}

#[test]
fn each_word_of_the_list_matches_its_example() {
    let wrong = list().contradictions();
    assert_none(&wrong);
}
