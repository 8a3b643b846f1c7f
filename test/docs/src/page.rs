//! A Markdown file.

use std::collections::BTreeSet;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub anchors: BTreeSet<String>,
    pub links: Vec<String>,
    pub examples: Vec<Example>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Language after the opening fence; may be empty.
    pub language: String,
    pub text: String,
}

impl Page {
    pub fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        let mut example: Option<Example> = None;
        for event in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    if let Some(title) = heading.take() {
                        page.add_anchor(&anchor(&title));
                    }
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                    example = Some(Example { language: language.into_string(), text: String::new() });
                }
                Event::End(TagEnd::CodeBlock) => page.examples.extend(example.take()),
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Text(part) | Event::Code(part) => {
                    let open = example.as_mut().map(|example| &mut example.text).or(heading.as_mut());
                    if let Some(open) = open {
                        open.push_str(&part);
                    }
                }
                _ => {}
            }
        }
        page
    }

    /// Adds an anchor. Later headings with the same text get a number.
    fn add_anchor(&mut self, anchor: &str) {
        let numbered = (0_usize..).map(|number| match number {
            0 => anchor.to_owned(),
            number => format!("{anchor}-{number}"),
        });
        for anchor in numbered {
            if self.anchors.insert(anchor) {
                return;
            }
        }
    }
}

/// Anchor of a heading: letters in lower case, digits, `-` and `_` stay, spaces become `-`, and other characters are
/// removed.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchors(text: &str) -> Vec<String> {
        Page::parse(text).anchors.into_iter().collect()
    }

    #[test]
    fn a_heading_is_reached_by_its_words() {
        assert_eq!(anchors("## Orphans and volumes kept by `Retain`\n"), ["orphans-and-volumes-kept-by-retain"]);
        assert_eq!(anchors("# Größe: 1.5 GiB?\n"), ["größe-15-gib"]);
    }

    #[test]
    fn the_second_heading_of_the_same_words_has_a_number() {
        assert_eq!(anchors("# Tests\n\n# Tests\n\n# Tests\n"), ["tests", "tests-1", "tests-2"]);
    }

    #[test]
    fn links_of_every_kind_are_found_and_code_is_none() {
        let page = Page::parse("[a](b.md) ![c](d.png) [e][f] `[g](h)`\n\n```\n[i](j)\n# k\n```\n\n[f]: f.md#x\n");
        assert_eq!(page.links, ["b.md", "d.png", "f.md#x"]);
        assert_eq!(page.anchors, BTreeSet::new());
    }

    #[test]
    fn an_example_has_its_language_and_its_lines() {
        let page = Page::parse("```yaml\na: 1\nb: 2\n```\n");
        assert_eq!(page.examples, [Example { language: "yaml".into(), text: "a: 1\nb: 2\n".into() }]);
    }
}
