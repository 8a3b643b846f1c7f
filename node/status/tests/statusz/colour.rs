//! Contrast of colors by the Web Content Accessibility Guidelines 2.2.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An opaque color in sRGB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Colour([u8; 3]);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a colour of the form rgb(1, 2, 3)")]
pub struct ColourError(String);

impl Colour {
    /// Contrast ratio from 1 (equal colors) to 21 (black on white). The minimum for ordinary text is 4.5 (1.4.3).
    pub fn contrast(self, other: Self) -> f64 {
        let (one, other) = (self.luminance(), other.luminance());
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    fn luminance(self) -> f64 {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        let [red, green, blue] = self.0.map(linear);
        0.2126 * red + 0.7152 * green + 0.0722 * blue
    }
}

impl FromStr for Colour {
    type Err = ColourError;

    fn from_str(text: &str) -> Result<Self, ColourError> {
        let parts = || {
            let parts = text.strip_prefix("rgb(")?.strip_suffix(')')?;
            let parts: Result<Vec<u8>, _> = parts.split(", ").map(str::parse).collect();
            parts.ok()?.try_into().ok()
        };
        parts().map(Self).ok_or_else(|| ColourError(text.to_owned()))
    }
}

impl TryFrom<String> for Colour {
    type Error = ColourError;

    fn try_from(text: String) -> Result<Self, ColourError> {
        text.parse()
    }
}

impl From<Colour> for String {
    fn from(Colour([red, green, blue]): Colour) -> Self {
        format!("rgb({red}, {green}, {blue})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contrast(one: &str, other: &str) -> f64 {
        one.parse::<Colour>().unwrap().contrast(other.parse().unwrap())
    }

    #[test]
    fn contrasts_are_those_of_the_guidelines() {
        for (one, other, expected) in [
            ("rgb(0, 0, 0)", "rgb(255, 255, 255)", 21.0),
            ("rgb(255, 255, 255)", "rgb(255, 255, 255)", 1.0),
            ("rgb(118, 118, 118)", "rgb(255, 255, 255)", 4.54),
            ("rgb(255, 0, 0)", "rgb(255, 255, 255)", 4.0),
        ] {
            assert!((contrast(one, other) - expected).abs() < 0.01, "{one} {other}: {}", contrast(one, other));
            assert!((contrast(other, one) - expected).abs() < 0.01);
        }
    }

    #[test]
    fn a_transparent_colour_is_rejected() {
        for text in ["rgba(0, 0, 0, 0.5)", "rgb(1, 2)", "rgb(1, 2, 256)", "red", ""] {
            assert_eq!(text.parse::<Colour>(), Err(ColourError(text.to_owned())));
        }
    }
}
