//! Truncation of long texts.

/// Truncates a text to `most` bytes and appends three dots if it was longer.
pub fn clip(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

/// A writer that takes at most `most` bytes and then ends the formatting with an error.
pub(crate) struct Clipped<'a> {
    pub(crate) text: &'a mut String,
    pub(crate) most: usize,
}

impl std::fmt::Write for Clipped<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let space = self.most.saturating_sub(self.text.len());
        if text.len() <= space {
            self.text.push_str(text);
            return Ok(());
        }
        self.text.push_str(&text[..text.floor_char_boundary(space)]);
        Err(std::fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn clip_keeps_the_beginning(text in ".{0,40}", most in 0_usize..50) {
            let clipped = clip(text.clone(), most);
            if text.len() <= most {
                prop_assert_eq!(clipped, text);
            } else {
                let kept = clipped.strip_suffix('…').unwrap();
                prop_assert!(kept.len() <= most && text.starts_with(kept));
            }
        }

        #[test]
        fn a_clipped_writer_keeps_the_beginning(pieces in prop::collection::vec(".{0,9}", 0..9), most in 0_usize..50) {
            let mut text = String::new();
            let mut writer = Clipped { text: &mut text, most };
            let all = pieces.iter().try_for_each(|piece| writer.write_str(piece));
            let whole = pieces.concat();
            prop_assert_eq!(all.is_ok(), whole.len() <= most);
            prop_assert!(text.len() <= most && whole.starts_with(&text));
        }
    }
}
