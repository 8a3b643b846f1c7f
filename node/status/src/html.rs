//! Generates well-formed HTML: elements are always closed, and foreign text is always escaped.

use std::fmt::{self, Write};

/// A document under construction.
#[derive(Debug, Default)]
pub(crate) struct Html(String);

/// Name and value of an attribute; the value is escaped.
pub(crate) type Attribute<'a> = (&'static str, &'a str);

impl Html {
    /// A document with a doctype.
    pub(crate) fn document() -> Self {
        Self("<!DOCTYPE html>\n".to_owned())
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }

    /// Adds an element; `inside` adds its content.
    pub(crate) fn element(&mut self, name: &'static str, attributes: &[Attribute<'_>], inside: impl FnOnce(&mut Self)) {
        self.open(name, attributes);
        inside(self);
        self.close(name);
    }

    /// Adds an element that contains only text.
    pub(crate) fn line(&mut self, name: &'static str, attributes: &[Attribute<'_>], text: &str) {
        self.element(name, attributes, |html| html.text(text));
    }

    /// Adds an element without content, such as `meta`.
    pub(crate) fn void(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.open(name, attributes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        // Writing to a String cannot fail.
        let _ = Escaped(&mut self.0).write_str(text);
    }

    /// Adds a constant style sheet, not escaped.
    pub(crate) fn style(&mut self, sheet: &'static str) {
        self.0.push_str("<style>");
        self.0.push_str(sheet);
        self.0.push_str("</style>");
    }

    fn open(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        self.0.push('<');
        self.0.push_str(name);
        for (name, value) in attributes {
            self.0.push(' ');
            self.0.push_str(name);
            self.0.push_str("=\"");
            self.text(value);
            self.0.push('"');
        }
        self.0.push('>');
    }

    fn close(&mut self, name: &'static str) {
        self.0.push_str("</");
        self.0.push_str(name);
        self.0.push('>');
        // After a link, the line break would be shown as a space.
        if name != "a" {
            self.0.push('\n');
        }
    }
}

/// Escapes text for elements and attributes.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(visible(c)),
            }
        }
        Ok(())
    }
}

/// The character, or a replacement if HTML does not allow it or if it could change the order of other text.
const fn visible(c: char) -> char {
    match c {
        '\n' | '\t' => c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' => char::REPLACEMENT_CHARACTER,
        // Bidirectional controls, Unicode Standard Annex 9.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            char::REPLACEMENT_CHARACTER
        }
        '\u{fdd0}'..='\u{fdef}' => char::REPLACEMENT_CHARACTER,
        // The last two code points of each plane are not characters.
        c if c as u32 & 0xfffe == 0xfffe => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::RefCell;

    use html5ever::TokenizerResult;
    use html5ever::tendril::StrTendril;
    use html5ever::tokenizer::states::RawKind;
    use html5ever::tokenizer::{
        BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts,
    };
    use proptest::prelude::*;

    use super::*;

    /// An element of a document as parsed by a tokenizer for browsers. Requires that every element is closed.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Element {
        pub(crate) name: String,
        pub(crate) attributes: Vec<(String, String)>,
        pub(crate) children: Vec<Element>,
        /// Text including that of the children.
        pub(crate) text: String,
    }

    impl Element {
        /// Parses a document. Unlike a browser, fails for syntax errors, unclosed elements, and end tags of other
        /// elements.
        pub(crate) fn read(document: &str) -> Self {
            let queue = BufferQueue::default();
            queue.push_back(StrTendril::from(document));
            let options = TokenizerOpts { exact_errors: true, ..TokenizerOpts::default() };
            let tokenizer = Tokenizer::new(Tree(RefCell::new(vec![Self::default()])), options);
            assert!(matches!(tokenizer.feed(&queue), TokenizerResult::Done));
            tokenizer.end();
            let mut open = tokenizer.sink.0.into_inner();
            assert_eq!(open.len(), 1, "left open: {open:?}");
            open.remove(0)
        }

        pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
            self.attributes.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
        }

        /// This element and all below, in document order.
        pub(crate) fn all(&self) -> Vec<&Self> {
            let mut found = vec![self];
            found.extend(self.children.iter().flat_map(Self::all));
            found
        }

        pub(crate) fn named<'a>(&'a self, name: &str) -> Vec<&'a Self> {
            self.all().into_iter().filter(|element| element.name == name).collect()
        }

        pub(crate) fn by_id(&self, id: &str) -> &Self {
            self.all().into_iter().find(|element| element.attribute("id") == Some(id)).expect("an element with the id")
        }
    }

    /// Elements without an end tag, HTML Living Standard, 13.1.2.
    const VOID: [&str; 2] = ["meta", "link"];

    /// The open elements; the first is the document.
    struct Tree(RefCell<Vec<Element>>);

    impl TokenSink for Tree {
        type Handle = ();

        fn process_token(&self, token: Token, line: u64) -> TokenSinkResult<()> {
            let mut open = self.0.borrow_mut();
            match token {
                Token::TagToken(Tag { kind: TagKind::StartTag, name, attrs, self_closing, .. }) => {
                    assert!(!self_closing, "{name}");
                    let attribute = |attr: html5ever::Attribute| (attr.name.local.to_string(), attr.value.to_string());
                    let attributes = attrs.into_iter().map(attribute).collect();
                    let element = Element { name: name.to_string(), attributes, ..Element::default() };
                    if VOID.contains(&&*name) {
                        open.last_mut().expect("the document").children.push(element);
                        return TokenSinkResult::Continue;
                    }
                    open.push(element);
                    match &*name {
                        "style" => TokenSinkResult::RawData(RawKind::Rawtext),
                        "title" => TokenSinkResult::RawData(RawKind::Rcdata),
                        _ => TokenSinkResult::Continue,
                    }
                }
                Token::TagToken(Tag { kind: TagKind::EndTag, name, .. }) => {
                    let closed = open.pop().expect("the document");
                    assert_eq!(closed.name, *name, "closes another element in line {line}");
                    let parent = open.last_mut().expect("the document stays open");
                    parent.text.push_str(&closed.text);
                    parent.children.push(closed);
                    TokenSinkResult::Continue
                }
                Token::CharacterTokens(text) => {
                    open.last_mut().expect("the document").text.push_str(&text);
                    TokenSinkResult::Continue
                }
                Token::DoctypeToken(doctype) => {
                    assert_eq!(doctype.name.as_deref(), Some("html"));
                    TokenSinkResult::Continue
                }
                Token::EOFToken => TokenSinkResult::Continue,
                token => panic!("line {line}: {token:?}"),
            }
        }
    }

    /// Text with and without special meaning in HTML.
    pub(crate) fn hostile() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            any::<char>().prop_map(String::from),
            prop::sample::select(vec![
                "<script>alert(1)</script>",
                "</td>",
                "</style>",
                "</title>",
                "<!--",
                "-->",
                "]]>",
                "<![CDATA[",
                "&",
                "&lt;",
                "&#x3c;",
                "&amp;lt",
                "\"",
                "'",
                " onload=",
                ">",
                "<",
                "\0",
                "\r\n",
                "\u{202e}",
                "\u{ffff}",
                "\u{fdd0}",
                "javascript:",
            ])
            .prop_map(str::to_owned),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    /// The displayed form of a text.
    pub(crate) fn shown(text: &str) -> String {
        text.chars().map(visible).collect()
    }

    proptest! {
        #[test]
        fn any_text_is_escaped(text in hostile(), value in hostile()) {
            let mut html = Html::document();
            html.element("p", &[("title", &value), ("class", "one")], |html| html.line("b", &[], &text));
            let document = Element::read(&html.into_string());
            let [p] = &*document.children else { panic!("one element: {document:?}") };
            prop_assert_eq!(&p.attributes, &[("title".to_owned(), shown(&value)), ("class".into(), "one".into())]);
            let [b] = &*p.children else { panic!("one element: {p:?}") };
            prop_assert_eq!((&*b.name, &b.text, b.children.len()), ("b", &shown(&text), 0));
        }

        #[test]
        fn ordinary_text_is_unchanged(text in "[ -~äöüß€日本\n\t]{0,40}") {
            prop_assert_eq!(shown(&text), text);
        }
    }

    #[test]
    fn bidirectional_controls_are_replaced() {
        assert_eq!(shown("a\u{202e}b\u{2066}c"), "a\u{fffd}b\u{fffd}c");
    }
}
