//! The visible content of a page.

use serde::Deserialize;

use crate::colour::Colour;

#[derive(Clone, Debug, Deserialize)]
pub struct Look {
    pub title: String,
    pub language: String,
    /// Whether the browser renders the page in quirks mode.
    pub quirks: bool,
    /// Elements beyond the right edge that scrolling inside the page does not reach, and elements wider than their
    /// table cell.
    pub overflow: Vec<String>,
    pub texts: Vec<Text>,
    pub headers: Vec<Header>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Text {
    #[expect(dead_code, reason = "for the message of a failed assertion")]
    pub text: String,
    pub colour: Colour,
    pub background: Colour,
    pub size: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Header {
    pub text: String,
    pub width: f64,
    pub height: f64,
}

/// An expression of the type [`Look`].
pub(crate) const LOOK: &str = include_str!("look.js");
