//! The visible content of a page.

use serde::Deserialize;

use crate::colour::Colour;

#[derive(Clone, Debug, Deserialize)]
pub struct Look {
    pub title: String,
    pub language: String,
    /// Whether the browser takes the page for one of the last century.
    pub quirks: bool,
    /// Elements beyond the right edge that no scrolling inside the page reaches, and those wider than their table cell.
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
