//! Modules that are loaded by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::errno::Errno;

use crate::modules::load::{LoadError, Outcome, Report, insert, read, read_order};
use crate::modules::order::{FileName, LineError, Module, OrderError};

/// Name of the file that lists the modules that a directory was built for: one per line, its name, then the files that
/// it needs, separated by spaces. A module that is built into the kernel needs no file.
pub const CATALOG: &str = "catalog";

/// `MODULE_NAME_LEN` of include/linux/module.h with the final NUL, on 64-bit machines.
const LONGEST: usize = 56;

/// Name of a module, `[A-Za-z0-9_-]{1,55}`. As for modprobe(8), `-` and `_` are the same: `Display` shows `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleName(Box<str>);

/// The text is not a name of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a module's name has 1 to 55 letters, digits, '_' and '-', without \".ko\", such as xt_comment")]
pub struct NameError;

impl ModuleName {
    /// The name, with `_` in place of `-`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ModuleName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let safe = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let fine = (1..LONGEST).contains(&text.len()) && text.bytes().all(safe);
        if fine { Ok(Self(text.replace('-', "_").into())) } else { Err(NameError) }
    }
}

/// A module directory, with the modules that it was built for.
#[derive(Clone, Debug)]
pub struct Catalog {
    dir: PathBuf,
    order: Vec<Module>,
    files: BTreeMap<ModuleName, BTreeSet<FileName>>,
}

impl Catalog {
    /// Reads the lists of a directory. Loads nothing.
    ///
    /// # Errors
    /// [`LoadError::Order`], [`LoadError::Parse`]: `dir` is not a module directory, or its lists are damaged.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, LoadError> {
        let dir = dir.into();
        let path = dir.join(CATALOG);
        match parse(&read(&path)?) {
            Ok(files) => Ok(Self { order: read_order(&dir)?, dir, files }),
            Err(source) => Err(LoadError::Parse { path, source }),
        }
    }

    /// The names of the modules.
    pub fn names(&self) -> impl Iterator<Item = &ModuleName> {
        self.files.keys()
    }

    /// Whether the directory was built for this module.
    pub fn has(&self, module: &ModuleName) -> bool {
        self.files.contains_key(module)
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Loads these modules and their dependencies, in the order of the directory. Idempotent. `finit_module`, Linux
    /// 3.8.
    ///
    /// # Errors
    /// [`LoadError`] for an unknown module, before any is loaded, or for the first module that cannot be loaded, also
    /// because of missing hardware; earlier ones stay loaded.
    pub fn load(&self, names: &[ModuleName]) -> Result<Report, LoadError> {
        let mut report = Report::default();
        for module in self.plan(names)? {
            // Checked before the load, because the kernel returns EEXIST only after it has read and decompressed the
            // file.
            if is_live(module) {
                report.present.push(module.file.clone());
                continue;
            }
            match insert(&self.dir, module)? {
                Outcome::Loaded => report.loaded.push(module.file.clone()),
                Outcome::Present => report.present.push(module.file.clone()),
                Outcome::WithoutHardware => {
                    return Err(LoadError::Rejected { module: module.file.clone(), source: Errno::ENODEV });
                }
            }
        }
        Ok(report)
    }

    /// The modules of the order that `names` need.
    fn plan(&self, names: &[ModuleName]) -> Result<Vec<&Module>, LoadError> {
        let mut needed = BTreeSet::new();
        for name in names {
            let files = self.files.get(name);
            needed.extend(files.ok_or_else(|| LoadError::Unknown { module: name.clone(), dir: self.dir.clone() })?);
        }
        Ok(self.order.iter().filter(|module| needed.contains(&module.file)).collect())
    }
}

/// Whether the module is loaded and initialized.
fn is_live(module: &Module) -> bool {
    let state = Path::new("/sys/module").join(module.file.module()).join("initstate");
    fs::read_to_string(state).is_ok_and(|state| state.trim_end() == "live")
}

fn parse(text: &str) -> Result<BTreeMap<ModuleName, BTreeSet<FileName>>, OrderError> {
    let line = |text: &str| {
        let mut words = text.split(' ');
        let name = words.next().unwrap_or_default().parse().map_err(|_: NameError| LineError::Name)?;
        Ok((name, words.map(str::parse).collect::<Result<_, LineError>>()?))
    };
    text.lines()
        .enumerate()
        .map(|(index, text)| {
            line(text).map_err(|problem| OrderError { line: index + 1, text: text.to_owned(), problem })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::order::ORDER;

    fn name(text: &str) -> ModuleName {
        text.parse().unwrap()
    }

    /// A directory with these lists and without modules.
    fn directory(order: &str, catalog: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ORDER), order).unwrap();
        fs::write(dir.path().join(CATALOG), catalog).unwrap();
        dir
    }

    #[test]
    fn a_name_is_one_word_without_a_path() {
        for text in ["", "../xfs", "xfs.ko", "xfs ", "a/b", "a\0b", "ä", &"a".repeat(56)] {
            assert_eq!(text.parse::<ModuleName>(), Err(NameError), "{text:?}");
        }
        assert_eq!(name("xt_MASQUERADE").as_str(), "xt_MASQUERADE");
        assert_eq!(name("nf-conntrack"), name("nf_conntrack"));
        assert_eq!(name(&"a".repeat(55)).as_str().len(), 55);
    }

    #[test]
    fn a_module_is_loaded_after_its_dependencies() {
        let order = "b.ko\na.ko size=8\nd.ko\nc.ko\n";
        let dir = directory(order, "a b.ko a.ko\nc d.ko c.ko\nbuilt_in\n");
        let catalog = Catalog::open(dir.path()).unwrap();
        let plan = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|text| name(text)).collect();
            let plan = catalog.plan(&names).unwrap();
            plan.iter().map(|module| (module.file.as_str(), module.parameters.to_str().unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(plan(&["a"]), [("b.ko", ""), ("a.ko", "size=8")]);
        assert_eq!(plan(&["c", "a", "c"]).len(), 4);
        assert_eq!(plan(&["built-in"]), []);
        assert_eq!(catalog.names().map(ModuleName::as_str).collect::<Vec<_>>(), ["a", "built_in", "c"]);
    }

    #[test]
    fn an_unknown_module_is_named_and_nothing_is_loaded() {
        let dir = directory("a.ko\n", "a a.ko\n");
        let catalog = Catalog::open(dir.path()).unwrap();
        assert!(!catalog.has(&name("b")));
        // The file a.ko is missing, but the call fails before it opens a file.
        let error = catalog.load(&[name("a"), name("b")]).unwrap_err();
        assert!(matches!(&error, LoadError::Unknown { module, .. } if *module == name("b")), "{error:?}");
    }

    #[test]
    fn a_damaged_catalog_is_named_with_its_line() {
        for (catalog, cause) in [("a a.ko\na/b c.ko\n", LineError::Name), ("a a.ko\nb b\n", LineError::Suffix)] {
            let dir = directory("", catalog);
            let error = Catalog::open(dir.path()).unwrap_err();
            let LoadError::Parse { path, source } = error else { panic!("{error:?}") };
            assert_eq!((path, source.line, source.problem), (dir.path().join(CATALOG), 2, cause));
        }
    }
}
