//! What a person sees of a page.

use serde::Deserialize;

use crate::colour::Colour;

/// The page as it is shown.
#[derive(Clone, Debug, Deserialize)]
pub struct Look {
    /// In the browser's tab.
    pub title: String,
    /// Of the text: `en`.
    pub language: String,
    /// Whether the browser takes the page for one of the last century.
    pub quirks: bool,
    /// What stands out to the right, and cannot be scrolled to inside of the page, and what is wider than its
    /// cell of a table.
    pub overflow: Vec<String>,
    /// All pieces of text that are shown.
    pub texts: Vec<Text>,
    /// The heads of all columns.
    pub headers: Vec<Header>,
}

/// A piece of text.
#[derive(Clone, Debug, Deserialize)]
pub struct Text {
    /// What it says.
    pub text: String,
    /// Of the letters.
    pub colour: Colour,
    /// Of what is behind them.
    pub background: Colour,
    /// The size of the letters in CSS pixels.
    pub size: f64,
}

/// The head of a column.
#[derive(Clone, Debug, Deserialize)]
pub struct Header {
    /// What it says.
    pub text: String,
    /// In CSS pixels.
    pub width: f64,
    /// In CSS pixels.
    pub height: f64,
}

/// An expression of the type [`Look`].
pub(crate) const LOOK: &str = include_str!("look.js");
