//! The network card that a node uses.

use std::fmt;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Card {
    /// The first card that the kernel lists.
    #[default]
    First,
    Interface(Box<str>),
    Mac([u8; 6]),
    Driver(Box<str>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    #[error(
        "{0:?} is not a name of a network interface, which has 1 to 15 letters, digits, '.', '_' and '-', such as eth0"
    )]
    Interface(String),
    #[error("{0:?} is not an Ethernet address, such as 52:54:00:12:34:56")]
    Mac(String),
    #[error("{0:?} is not a name of a driver, which has 1 to 55 letters, digits, '_' and '-', such as e1000e")]
    Driver(String),
}

impl Card {
    /// Parses the name of an interface; `IFNAMSIZ` is 16 with the NUL.
    pub fn interface(text: &str) -> Result<Self, CardError> {
        let is_name = is_word(text, b"._-", 15) && text != "." && text != "..";
        if is_name { Ok(Self::Interface(text.into())) } else { Err(CardError::Interface(text.to_owned())) }
    }

    pub fn mac(text: &str) -> Result<Self, CardError> {
        let octet = |text: &str| {
            let is_hex = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_hex { u8::from_str_radix(text, 16).ok() } else { None }
        };
        let octets: Option<Vec<u8>> = text.split(':').map(octet).collect();
        let octets = octets.and_then(|octets| octets.try_into().ok());
        octets.map(Self::Mac).ok_or_else(|| CardError::Mac(text.to_owned()))
    }

    pub fn driver(text: &str) -> Result<Self, CardError> {
        if is_word(text, b"_-", 55) { Ok(Self::Driver(text.into())) } else { Err(CardError::Driver(text.to_owned())) }
    }

    /// Whether the setting selects the card with the interface `name`, this Ethernet address and this driver.
    pub fn matches(&self, name: &str, mac: Option<[u8; 6]>, driver: Option<&str>) -> bool {
        match self {
            Self::First => true,
            Self::Interface(wanted) => **wanted == *name,
            Self::Mac(wanted) => mac == Some(*wanted),
            Self::Driver(wanted) => driver == Some(wanted),
        }
    }
}

fn is_word(text: &str, others: &[u8], most: usize) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
    (1..=most).contains(&text.len()) && text.bytes().all(known)
}

/// Formats an Ethernet address as the kernel does.
pub fn shown(octets: [u8; 6]) -> String {
    octets.map(|octet| format!("{octet:02x}")).join(":")
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("any name"),
            Self::Interface(name) => write!(f, "the name {name}"),
            Self::Mac(octets) => write!(f, "the address {}", shown(*octets)),
            Self::Driver(name) => write!(f, "the driver {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_chosen_by_name_address_or_driver() {
        let mac = [0x52, 0x54, 0, 0x12, 0x34, 0x5a];
        for card in [
            Card::First,
            Card::interface("eth0.7").unwrap(),
            Card::mac("52:54:00:12:34:5A").unwrap(),
            Card::driver("xen-netfront").unwrap(),
        ] {
            assert!(card.matches("eth0.7", Some(mac), Some("xen-netfront")), "{card}");
            assert_eq!(card.matches("eth1", Some([0; 6]), Some("igb")), card == Card::First, "{card}");
            assert_eq!(card.matches("eth1", None, None), card == Card::First, "{card}");
        }
        assert_eq!(Card::Mac(mac).to_string(), "the address 52:54:00:12:34:5a");
    }

    #[test]
    fn invalid_names_and_addresses_are_rejected() {
        for text in ["", "..", "a/b", "eth 0", "abcdefghijklmnop", "ä"] {
            assert_eq!(Card::interface(text), Err(CardError::Interface(text.to_owned())));
        }
        for text in
            ["", "52:54:00:12:34", "52:54:00:12:34:56:78", "525:4:00:12:34:56", "52-54-00-12-34-56", "+1:2:3:4:5:6"]
        {
            assert_eq!(Card::mac(text), Err(CardError::Mac(text.to_owned())));
        }
        for text in ["", "e1000e.ko", "../e1000e", &"a".repeat(56)] {
            assert_eq!(Card::driver(text), Err(CardError::Driver(text.to_owned())));
        }
    }
}
