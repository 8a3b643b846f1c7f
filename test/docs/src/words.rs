//! The list of words that the project's texts avoid, `words.yaml`.

use std::collections::BTreeSet;

use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;

#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("invalid list")]
    Yaml(#[from] serde_saphyr::Error),
    #[error("invalid pattern")]
    Pattern(#[from] regex::Error),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    words: Vec<WordSource>,
    allowed: Vec<AllowedSource>,
    excluded: Vec<Excluded>,
    pending: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WordSource {
    pattern: String,
    write: String,
    finds: String,
    not: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowedSource {
    text: String,
    #[serde(rename = "reason")]
    _reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Excluded {
    path: String,
    #[serde(rename = "reason")]
    _reason: String,
}

struct Word {
    source: WordSource,
    pattern: Regex,
}

pub struct Words {
    words: Vec<Word>,
    allowed: Vec<Regex>,
    excluded: BTreeSet<String>,
    pending: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Match {
    /// Line number, starting at 1. Line 0 is the path.
    pub line: usize,
    pub text: String,
    pub pattern: String,
    pub write: String,
}

impl Words {
    pub fn parse(yaml: &str) -> Result<Self, ListError> {
        let source: Source = serde_saphyr::from_str(yaml)?;
        let words = source.words.into_iter().map(|source| {
            let pattern = pattern(&source.pattern)?;
            Ok(Word { source, pattern })
        });
        Ok(Self {
            words: words.collect::<Result<_, ListError>>()?,
            allowed: source.allowed.iter().map(|one| pattern(&one.text)).collect::<Result<_, _>>()?,
            excluded: source.excluded.into_iter().map(|one| one.path).collect(),
            pending: source.pending,
        })
    }

    pub fn searches(&self, path: &str) -> bool {
        !self.excluded.contains(path)
    }

    /// Directories and files that have not been rewritten yet and are expected to contain matches.
    pub fn pending(&self) -> &[String] {
        &self.pending
    }

    pub fn matches(&self, path: &str, text: &str) -> Vec<Match> {
        let text = if path.ends_with(".md") { without_code(text) } else { text.to_owned() };
        let mut text = split_names(format!("{path}\n{text}").as_bytes());
        for allowed in &self.allowed {
            // The replacement has the same length, so that line numbers stay correct.
            let places: Vec<_> = allowed.find_iter(&text).map(|found| found.range()).collect();
            for place in places {
                text[place].fill(b' ');
            }
        }
        let mut found: Vec<Match> = self.words.iter().flat_map(|word| word.matches(&text)).collect();
        found.sort_by_key(|one| one.line);
        found
    }

    /// Entries that contradict their own examples: `finds` does not match, or `not` matches.
    pub fn contradictions(&self) -> Vec<String> {
        let finds = |word: &&Word, text: &str| !word.matches(&split_names(text.as_bytes())).is_empty();
        let wrong = self.words.iter().filter(|word| !finds(word, &word.source.finds) || finds(word, &word.source.not));
        wrong.map(|word| word.source.pattern.clone()).collect()
    }
}

impl Word {
    fn matches(&self, text: &[u8]) -> Vec<Match> {
        let matched = self.pattern.find_iter(text).map(|found| Match {
            line: text[..found.start()].iter().filter(|byte| **byte == b'\n').count(),
            text: String::from_utf8_lossy(found.as_bytes()).trim().to_owned(),
            pattern: self.source.pattern.clone(),
            write: self.source.write.clone(),
        });
        matched.collect()
    }
}

/// Compiles a pattern for bytes instead of Unicode, because Unicode word boundaries in non-ASCII text are slow.
fn pattern(text: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(text).multi_line(true).unicode(false).case_insensitive(true).build()
}

/// Removes code spans and code blocks from Markdown. The number of lines stays the same.
fn without_code(page: &str) -> String {
    let mut block = false;
    let lines = page.lines().map(|line| {
        let fence = line.trim_start().starts_with("```");
        block ^= fence;
        if fence || block {
            return String::new();
        }
        // Every second part of the line is code between backticks.
        line.split('`').step_by(2).collect::<Vec<_>>().join("`")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Splits `snake_case` and `CamelCase` into words. The number of lines stays the same.
fn split_names(text: &[u8]) -> Vec<u8> {
    let mut split = Vec::with_capacity(text.len() + text.len() / 8);
    let mut former = b' ';
    for &byte in text {
        if byte.is_ascii_uppercase() && former.is_ascii_lowercase() {
            split.push(b' ');
        }
        split.push(if byte == b'_' { b' ' } else { byte });
        former = byte;
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r"
words:
- {pattern: '\bwidget\b', write: space, finds: no widget, not: rewidget}
allowed:
- {text: 'spare widget', reason: a name}
excluded:
- {path: old.md, reason: history}
pending: [node/log]
";

    fn lines(path: &str, text: &str) -> Vec<usize> {
        Words::parse(LIST).unwrap().matches(path, text).iter().map(|one| one.line).collect()
    }

    #[test]
    fn words_are_found_in_text_names_and_paths() {
        assert_eq!(lines("a.md", "No widget.\n\nSpace.\nrewidget\n"), [1]);
        assert_eq!(lines("a.rs", "fn has_widget() {}\nstruct NoWidget;\nlet widgety = 1;\n"), [1, 2]);
        assert_eq!(lines("docs/the-widget.md", "Space.\n"), [0]);
    }

    #[test]
    fn allowed_text_is_left_out_and_the_rest_of_its_line_is_not() {
        assert_eq!(lines("a.md", "A spare widget.\nA spare widget has widget.\n"), [2]);
    }

    #[test]
    fn code_in_markdown_is_left_out() {
        let page = "`no widget`\n```\nno widget\n```\nThe `code` has widget.\n   ```sh\nwidget\n   ```\n";
        assert_eq!(lines("a.md", page), [5]);
        assert_eq!(lines("a.rs", "//! `widget`\n"), [1]);
    }

    #[test]
    fn a_match_names_pattern_and_replacement() {
        let words = Words::parse(LIST).unwrap();
        let found = words.matches("a.md", "x\nno Widget\n");
        let wanted = Match { line: 2, text: "Widget".into(), pattern: r"\bwidget\b".into(), write: "space".into() };
        assert_eq!(found, [wanted]);
        assert!(words.searches("new.md") && !words.searches("old.md"));
        assert_eq!(words.pending(), ["node/log"]);
    }

    #[test]
    fn an_entry_that_contradicts_its_examples_is_reported() {
        let list = LIST.replace("not: rewidget", "not: a widget");
        assert_eq!(Words::parse(LIST).unwrap().contradictions(), Vec::<String>::new());
        assert_eq!(Words::parse(&list).unwrap().contradictions(), [r"\bwidget\b"]);
    }

    #[test]
    fn an_invalid_list_is_an_error() {
        assert!(matches!(Words::parse("words: 1"), Err(ListError::Yaml(_))));
        assert!(matches!(Words::parse(&LIST.replace(r"'\bwidget\b'", "'('")), Err(ListError::Pattern(_))));
    }
}
