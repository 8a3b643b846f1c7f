//! Parser of pages, for tests.

use std::cell::RefCell;

use html5ever::TokenizerResult;
use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};
use proptest::prelude::*;

/// An element of a document as parsed by a tokenizer for browsers. Requires that every element is closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) name: String,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) children: Vec<Element>,
    /// Text including that of the children.
    pub(super) text: String,
}

impl Element {
    /// Parses a document. Unlike a browser, fails for syntax errors, unclosed elements, and end tags of other
    /// elements.
    pub(super) fn read(document: &str) -> Self {
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

    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(found, _)| found == name).map(|(_, value)| &**value)
    }

    /// This element and all below, in document order.
    pub(super) fn all(&self) -> Vec<&Self> {
        let mut found = vec![self];
        found.extend(self.children.iter().flat_map(Self::all));
        found
    }

    pub(super) fn named<'a>(&'a self, name: &str) -> Vec<&'a Self> {
        self.all().into_iter().filter(|element| element.name == name).collect()
    }

    pub(super) fn by_id(&self, id: &str) -> &Self {
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
pub(super) fn hostile() -> impl Strategy<Value = String> {
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
