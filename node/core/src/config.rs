//! What the node is told at boot, from the kernel's command line.

use std::fmt;
use std::net::{AddrParseError, Ipv4Addr};
use std::num::ParseIntError;
use std::str::FromStr;

use tracing::Level;
use volume::{Overcommit, OvercommitError};

/// The name of a node, a DNS label (RFC 1123): lower-case letters, digits and `-`, at most 63.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeName(String);

impl NodeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let fine =
            (1..=63).contains(&text.len()) && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-');
        if fine { Ok(Self(text.to_owned())) } else { Err(ValueError::Name) }
    }
}

/// An IPv4 address with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The address.
    pub address: Ipv4Addr,
    /// Bits of the network's prefix, at most 32.
    pub prefix: u8,
}

impl FromStr for Interface {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (address, prefix) = text.split_once('/').ok_or(ValueError::NoPrefix)?;
        let address = address.parse().map_err(ValueError::Address)?;
        let prefix = prefix.parse().map_err(ValueError::Prefix)?;
        if prefix > 32 { Err(ValueError::LongPrefix) } else { Ok(Self { address, prefix }) }
    }
}

/// Why a value cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not a DNS label.
    #[error("a name has lower-case letters, digits and '-' inside, 63 at most")]
    Name,
    /// No IPv4 address.
    #[error("an IPv4 address is wanted")]
    Address(#[source] AddrParseError),
    /// No `/`.
    #[error("an address with its prefix is wanted, such as 10.0.2.15/24")]
    NoPrefix,
    /// No number behind `/`.
    #[error("a number is wanted behind '/'")]
    Prefix(#[source] ParseIntError),
    /// Over 32.
    #[error("a prefix has at most 32 bits")]
    LongPrefix,
    /// No level of the log.
    #[error("a level is wanted: error, warn, info, debug or trace")]
    Level,
    /// No factor.
    #[error(transparent)]
    Overcommit(OvercommitError),
}

/// Why the node does not start with this command line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A key of ours that this release does not know.
    #[error("the kernel's command line has {key}, which this release does not know; known are {}", KEYS.join(", "))]
    Unknown {
        /// The key.
        key: String,
    },
    /// A value that cannot be used.
    #[error("the kernel's command line has {key}={value}")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        #[source]
        source: ValueError,
    },
    /// A key that has to be there.
    #[error("the kernel's command line lacks {key}")]
    Missing {
        /// The key.
        key: &'static str,
    },
}

const NODE: &str = "granary.node";
const ADDRESS: &str = "granary.address";
const GATEWAY: &str = "granary.gateway";
const DNS: &str = "granary.dns";
const LOG: &str = "granary.log";
const OVERCOMMIT: &str = "granary.overcommit";
/// `granary.system` and `granary.failure` are for the initramfs.
const KEYS: [&str; 8] = [NODE, ADDRESS, GATEWAY, DNS, LOG, OVERCOMMIT, "granary.system", "granary.failure"];

/// The node's configuration, checked as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The node's name in the cluster, `granary` if none is given.
    pub node: NodeName,
    /// The address of the one network interface.
    pub interface: Interface,
    /// The router, if there is one.
    pub gateway: Option<Ipv4Addr>,
    /// The name server, if there is one.
    pub dns: Option<Ipv4Addr>,
    /// From which level on the node's programs are heard on the console, `error` if none is given.
    pub log: Level,
    /// How much of the data disk volumes may be promised, once its size if none is given.
    pub overcommit: Overcommit,
}

impl Config {
    /// Reads the kernel's command line; keys that do not start with `granary.` are the kernel's.
    ///
    /// # Errors
    /// The first key that is unknown, missing or has a bad value.
    pub fn parse(line: &str) -> Result<Self, ConfigError> {
        for word in line.split_whitespace().filter(|w| w.starts_with("granary.")) {
            let key = word.split_once('=').map_or(word, |(key, _)| key);
            if !KEYS.contains(&key) {
                return Err(ConfigError::Unknown { key: key.to_owned() });
            }
        }
        Ok(Self {
            node: match value(line, NODE)? {
                Some(name) => name,
                None => NodeName("granary".to_owned()),
            },
            interface: value(line, ADDRESS)?.ok_or(ConfigError::Missing { key: ADDRESS })?,
            gateway: address(line, GATEWAY)?,
            dns: address(line, DNS)?,
            log: level(line)?,
            overcommit: overcommit(line)?,
        })
    }
}

/// [`Config::log`] alone: the log starts before the rest is looked at.
///
/// # Errors
/// [`ConfigError::Value`].
pub fn level(line: &str) -> Result<Level, ConfigError> {
    let bad = |text: &str| ConfigError::Value { key: LOG, value: text.to_owned(), source: ValueError::Level };
    word(line, LOG).map_or(Ok(Level::ERROR), |text| text.parse().map_err(|_| bad(text)))
}

fn overcommit(line: &str) -> Result<Overcommit, ConfigError> {
    let bad = |text: &str, e| ConfigError::Value {
        key: OVERCOMMIT,
        value: text.to_owned(),
        source: ValueError::Overcommit(e),
    };
    word(line, OVERCOMMIT).map_or(Ok(Overcommit::default()), |text| text.parse().map_err(|e| bad(text, e)))
}

fn word<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().filter_map(|word| word.strip_prefix(key)?.strip_prefix('=')).next_back()
}

fn value<T: FromStr<Err = ValueError>>(line: &str, key: &'static str) -> Result<Option<T>, ConfigError> {
    word(line, key)
        .map(|text| text.parse().map_err(|source| ConfigError::Value { key, value: text.to_owned(), source }))
        .transpose()
}

fn address(line: &str, key: &'static str) -> Result<Option<Ipv4Addr>, ConfigError> {
    let bad = |text: &str, e| ConfigError::Value { key, value: text.to_owned(), source: ValueError::Address(e) };
    word(line, key).map(|text| text.parse().map_err(|e| bad(text, e))).transpose()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_command_line_is_read() {
        let line =
            "console=ttyS0 granary.system=x granary.node=n-1 granary.address=10.0.2.15/24 granary.gateway=10.0.2.2\n";
        let config = Config::parse(line).unwrap();
        assert_eq!(config.node.as_str(), "n-1");
        assert_eq!(config.interface, Interface { address: Ipv4Addr::new(10, 0, 2, 15), prefix: 24 });
        assert_eq!(config.gateway, Some(Ipv4Addr::new(10, 0, 2, 2)));
        assert_eq!(config.dns, None);
        assert_eq!(config.log, Level::ERROR);
        assert_eq!(config.overcommit, Overcommit::NONE);
    }

    #[test]
    fn the_disk_is_promised_more_than_once_only_if_somebody_says_so() {
        let config = Config::parse("granary.address=10.0.2.15/24 granary.overcommit=1.5").unwrap();
        assert_eq!(config.overcommit, "1.5".parse().unwrap());
    }

    #[test]
    fn a_misspelt_key_is_named_with_those_that_exist() {
        let error = Config::parse("granary.adress=10.0.2.15/24").unwrap_err();
        assert_eq!(error, ConfigError::Unknown { key: "granary.adress".into() });
        assert!(error.to_string().contains("granary.address"));
    }

    #[test]
    fn a_bad_value_names_its_key() {
        for (line, key) in [
            ("granary.address=10.0.2.15", ADDRESS),
            ("granary.address=10.0.2.15/33", ADDRESS),
            ("granary.address=10.0.2.15/24 granary.gateway=router", GATEWAY),
            ("granary.address=10.0.2.15/24 granary.node=Node_1", NODE),
            ("granary.address=10.0.2.15/24 granary.log=loud", LOG),
            ("granary.address=10.0.2.15/24 granary.overcommit=0.5", OVERCOMMIT),
            ("granary.address=10.0.2.15/24 granary.overcommit=", OVERCOMMIT),
        ] {
            assert!(
                matches!(Config::parse(line), Err(ConfigError::Value { key: found, .. }) if found == key),
                "{line}"
            );
        }
    }

    #[test]
    fn an_address_has_to_be_there() {
        assert_eq!(Config::parse("quiet"), Err(ConfigError::Missing { key: ADDRESS }));
    }

    proptest! {
        #[test]
        fn no_command_line_makes_it_panic(line in ".{0,200}", value in ".{0,40}") {
            let _ = Config::parse(&line);
            let _ = Config::parse(&format!("granary.address={value} granary.node={value}"));
        }
    }
}
