//! Reads the materials and builds the bill.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;

use image::files::{self, Examined, FileError};
use image::go::Info;
use image::lock;
use image::program::Program;
use image::sysroot::Sysroot;

use crate::bill::{AmbiguousError, Bill};
use crate::debian::Documents;
use crate::description::{Crate, Description};
use crate::licence::{self, Expression, ParseExpressionError};
use crate::manifest;
use crate::package::{self, Ecosystem, Package};
use crate::texts::{Texts, is_licence, is_text};
use crate::vendor::Vendor;

const OWN: &str = "Apache-2.0";
/// Licence of Rust's standard library and its crates.
const RUST: &str = "MIT OR Apache-2.0";

#[derive(Debug)]
pub(crate) struct Materials {
    texts: Texts,
    apache: String,
    crates: BTreeMap<String, Package>,
    vendor: Vendor,
    toolchain: Vendor,
    documents: Documents,
    sysroot: Sysroot,
    libraries: BTreeMap<String, lock::Package>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum MaterialsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "Go module {module} has no known licence text; review it and extend PHRASES in tools/image/src/bin/sbom/licence.rs"
    )]
    Module { module: String },
    #[error("Debian package {package} has no copyright file; add the package that its symbolic link points to")]
    Copyright { package: String, source: io::Error },
    #[error("package {0} is not in a lock file")]
    Unlocked(String),
    #[error(transparent)]
    Licence(#[from] ParseExpressionError),
    #[error(transparent)]
    Ambiguous(#[from] AmbiguousError),
}

impl Materials {
    pub(crate) fn read(described: &Description) -> Result<Self, MaterialsError> {
        let mut texts = Texts::default();
        let apache = texts.add(files::bytes(&described.apache)?);
        let mut crates = BTreeMap::new();
        for (directory, files) in &described.crates {
            crates.insert(directory.clone(), of_crate(&mut texts, &apache, files)?);
        }
        let archive = |path: &Path, root| {
            let vendor = File::open(path).and_then(|file| Vendor::read(file, root));
            vendor.map_err(FileError::of("read", path))
        };
        let debian = &described.debian;
        let libraries = files::lock(&debian.lock)?.into_iter().map(|package| (package.package.clone(), package));
        Ok(Self {
            apache,
            crates,
            vendor: archive(&described.go.vendor, "vendor/")?,
            toolchain: archive(&described.go.toolchain, "")?,
            documents: Documents(debian.documents.clone()),
            sysroot: files::sysroot(&debian.libraries)?,
            libraries: libraries.collect(),
            texts,
        })
    }

    pub(crate) fn bill(&mut self, described: &Description) -> Result<Bill, MaterialsError> {
        let own: Expression = OWN.parse()?;
        let mut bill = Bill::new(self.under_apache(&described.name, &described.version, own.clone()));
        for path in &described.debian.installed {
            for package in files::lock(path)? {
                bill.install(self.of_debian(package)?)?;
            }
        }
        for (path, program) in &described.programs {
            let Examined { bytes, program: found, libraries } = files::program(path, &program.file, &self.sysroot)?;
            let mut linked = Vec::new();
            for directory in &program.crates {
                linked.extend(self.crates.get(directory).cloned());
            }
            linked.extend(self.of_rust(&found)?);
            if let Some(info) = &found.go {
                linked.extend(self.of_go(info)?);
            }
            for name in libraries {
                let package = self.libraries.get(&name).cloned().ok_or(MaterialsError::Unlocked(name))?;
                linked.push(self.of_debian(package)?);
            }
            bill.program(path, &bytes, found.go.is_none().then_some(&own), linked)?;
        }
        Ok(bill)
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.texts.iter()
    }

    /// The standard library of the Rust compiler that built the program.
    fn of_rust(&self, program: &Program) -> Result<Option<Package>, MaterialsError> {
        let version = program.with.iter().find_map(|name| name.strip_prefix("rustc version ")?.split(' ').next());
        let Some(version) = version else { return Ok(None) };
        Ok(Some(self.under_apache("rust-std", version, RUST.parse()?)))
    }

    /// A package with the text of Apache-2.0.
    fn under_apache(&self, name: &str, version: &str, licence: Expression) -> Package {
        let texts = package::Texts { texts: [self.apache.clone()].into(), remark: None };
        Package::new(Ecosystem::Generic, name, version, licence, texts)
    }

    /// The modules of a Go program, and the standard library.
    fn of_go(&mut self, info: &Info) -> Result<Vec<Package>, MaterialsError> {
        let modules: BTreeSet<&str> = info.modules.iter().map(|module| &*module.module).collect();
        let mut found = Vec::new();
        let version = info.toolchain.trim_start_matches("go");
        found.push(of_module(&mut self.texts, "stdlib", version, self.toolchain.top())?);
        for module in &info.modules {
            let texts = self.vendor.of(&module.module, &modules);
            found.push(of_module(&mut self.texts, &module.module, &module.version, texts)?);
        }
        Ok(found)
    }

    fn of_debian(&mut self, package: lock::Package) -> Result<Package, MaterialsError> {
        let lock::Package { package: name, version, sha256, .. } = package;
        let texts =
            self.documents.of(&name).map_err(|source| MaterialsError::Copyright { package: name.clone(), source })?;
        let texts = texts.into_iter().map(|text| self.texts.add(text)).collect();
        let texts = package::Texts { texts, remark: None };
        let licence = Expression::reference(&format!("debian-{name}"));
        Ok(Package { sha256: Some(sha256), ..Package::new(Ecosystem::Debian, &name, &version, licence, texts) })
    }
}

fn of_crate(texts: &mut Texts, apache: &str, found: &Crate) -> Result<Package, MaterialsError> {
    let manifest = manifest::parse(&files::text(&found.manifest)?)
        .map_err(FileError::of("parse the manifest of a crate,", &found.manifest))?;
    let mut own = package::Texts::default();
    for path in &found.texts {
        if path.file_name().is_some_and(|name| is_text(&name.to_string_lossy())) {
            own.texts.insert(texts.add(files::bytes(path)?));
        }
    }
    if own.texts.is_empty() && manifest.licence.allows_apache() {
        own.texts.insert(apache.to_owned());
        own.remark = Some("the package contains no licence text; this is the text of its licence");
    } else if own.texts.is_empty() {
        own.remark = Some("the package contains no licence text");
    }
    Ok(Package::new(Ecosystem::Cargo, &manifest.name, &manifest.version, manifest.licence, own))
}

fn of_module<'a>(
    texts: &mut Texts,
    name: &str,
    version: &str,
    files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> Result<Package, MaterialsError> {
    let mut own = package::Texts::default();
    let mut licences = Vec::new();
    for (path, text) in files {
        own.texts.insert(texts.add(text.to_vec()));
        if is_licence(path.rsplit('/').next().unwrap_or_default()) {
            licences.extend(licence::in_text(&String::from_utf8_lossy(text)));
        }
    }
    let licence = Expression::all(licences).ok_or_else(|| MaterialsError::Module { module: name.to_owned() })?;
    Ok(Package::new(Ecosystem::Go, name, version, licence, own))
}
