//! Configuration of the programs for the tests of this crate.

use std::path::Path;

use programs::{Config, Paths};

pub(crate) fn services(pki: &Path) -> Config {
    let paths = Paths { pki: pki.to_owned(), etcd: pki.with_extension("etcd"), ..Paths::default() };
    Config { paths, ..Config::default() }
}
