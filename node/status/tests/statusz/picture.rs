//! The picture in the documentation: a PNG with a checksum of the page's HTML, including styles. A test compares the
//! checksum to detect changes of the page. Pixels cannot be compared: rounding differs between machines.

/// The signature of a PNG, PNG specification, 5.2.
const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The last chunk: its length, name and checksum, 11.2.5.
const END: &[u8] = b"\0\0\0\0IEND\xae\x42\x60\x82";
/// Keyword of the text in a `tEXt` chunk, 11.3.3.3.
const KEYWORD: &str = "Source";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture(Vec<u8>);

impl Picture {
    pub fn new(png: Vec<u8>) -> Option<Self> {
        (png.len() >= 33 && png.starts_with(SIGNATURE) && png.ends_with(END)).then_some(Self(png))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Width and height from the beginning of the header, 11.2.1.
    pub fn size(&self) -> [u32; 2] {
        [16, 20].map(|at| u32::from_be_bytes(*self.0[at..].first_chunk().expect("a header")))
    }

    /// Adds the checksum of the HTML of the page that the picture shows.
    pub fn of_page(self, html: &str) -> Self {
        let Self(mut png) = self;
        png.truncate(png.len() - END.len());
        png.extend(chunk(html));
        png.extend_from_slice(END);
        Self(png)
    }

    /// Whether the picture has the checksum of this page ([`Picture::of_page`]).
    pub fn is_of_page(&self, html: &str) -> bool {
        self.0[..self.0.len() - END.len()].ends_with(&chunk(html))
    }
}

fn chunk(html: &str) -> Vec<u8> {
    let content = format!("tEXt{KEYWORD}\0/statusz, CRC-32 of its HTML: {:08x}", crc32(html.as_bytes()));
    let length = u32::try_from(content.len() - 4).expect("a short text");
    [&length.to_be_bytes(), content.as_bytes(), &crc32(content.as_bytes()).to_be_bytes()].concat()
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |rest, byte| {
        (0..8).fold(rest ^ u32::from(*byte), |rest, _| (rest >> 1) ^ (0xedb8_8320 * (rest & 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Picture {
        let header = b"\0\0\0\x0dIHDR\0\0\x05\0\0\0\x03\x20\x08\x02\0\0\0";
        Picture::new([SIGNATURE, header, b"\0\0\0\0", END].concat()).unwrap()
    }

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b"IEND").to_be_bytes(), END[8..]);
    }

    #[test]
    fn a_picture_identifies_its_page() {
        assert!(!picture().is_of_page("<p>one"));
        let one = picture().of_page("<p>one");
        assert!(one.is_of_page("<p>one") && !one.is_of_page("<p>two"));
        assert_eq!(one.size(), [1280, 800]);
        assert_eq!(Picture::new(one.bytes().to_vec()), Some(one));
    }

    #[test]
    fn a_truncated_picture_is_rejected() {
        let whole = picture();
        assert_eq!(Picture::new(whole.bytes()[..40].to_vec()), None);
        assert_eq!(Picture::new(Vec::new()), None);
    }
}
