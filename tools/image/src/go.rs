//! Build information of Go programs: the section `.go.buildinfo`, in the format of `debug/buildinfo` since Go 1.18.

const MAGIC: &[u8] = b"\xff Go buildinf:";

/// Length of the header: magic, pointer size, flags, and space for two pointers.
const HEAD: usize = 32;
const FLAGS: usize = 15;
/// Flag for texts that follow the header, each preceded by its length.
const INLINE: u8 = 2;

/// Length of the marks before and after the list of modules.
const MARK: usize = 16;

/// A module as it was built, after replacements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Module {
    /// Module path, such as `k8s.io/api`.
    pub module: String,
    /// Version, such as `v0.36.3`.
    pub version: String,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Info {
    /// Toolchain, such as `go1.26.8`.
    pub toolchain: String,
    /// Linked modules, without the standard library and without a main module that has no version.
    pub modules: Vec<Module>,
    /// Whether cgo was enabled, which links C libraries.
    pub cgo: bool,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InfoError {
    #[error("the section does not have the format of Go 1.18 or later")]
    Form,
    #[error("the section is truncated")]
    Short,
}

pub fn parse(section: &[u8]) -> Result<Info, InfoError> {
    if !section.starts_with(MAGIC) || section.get(FLAGS).is_none_or(|flags| flags & INLINE == 0) {
        return Err(InfoError::Form);
    }
    let rest = section.get(HEAD..).ok_or(InfoError::Short)?;
    let (toolchain, rest) = text(rest).ok_or(InfoError::Short)?;
    let (marked, _) = text(rest).ok_or(InfoError::Short)?;
    let lines = marked.len().checked_sub(MARK).and_then(|end| marked.get(MARK..end)).unwrap_or_default();
    let lines = String::from_utf8_lossy(lines);
    Ok(Info {
        toolchain: String::from_utf8_lossy(toolchain).into_owned(),
        modules: modules(&lines),
        cgo: !lines.lines().any(|line| line == "build\tCGO_ENABLED=0"),
    })
}

/// Parses the list of modules. `dep` is a module, and `=>` the replacement of the previous one. The main module (`mod`)
/// has a version only if it was fetched.
fn modules(lines: &str) -> Vec<Module> {
    let mut found = Vec::new();
    for line in lines.lines() {
        let mut words = line.split('\t');
        let (Some(kind), Some(module), Some(version)) = (words.next(), words.next(), words.next()) else { continue };
        let module = Module { module: module.to_owned(), version: version.to_owned() };
        match kind {
            "mod" if version != "(devel)" => found.push(module),
            "dep" => found.push(module),
            "=>" => {
                found.pop();
                found.push(module);
            }
            _ => {}
        }
    }
    found
}

/// Splits a text, preceded by its length (LEB128), from the rest.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0_usize;
    for (at, byte) in bytes.iter().enumerate().take(9) {
        length |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return bytes[at + 1..].split_at_checked(length);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with_length(text: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut left = text.len();
        while left >= 0x80 {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.push(left as u8);
        bytes.extend(text);
        bytes
    }

    fn section(toolchain: &str, lines: &str) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([8, INLINE]);
        bytes.resize(HEAD, 0);
        bytes.extend(with_length(toolchain.as_bytes()));
        bytes.extend(with_length(format!("0123456789abcdef{lines}0123456789abcdef").as_bytes()));
        bytes
    }

    #[test]
    fn replaced_modules_are_listed_as_built() {
        let lines = "path\texample.org/tool\nmod\texample.org/tool\t(devel)\t\ndep\texample.org/a\tv1.0.0\th1:x\n\
                     dep\texample.org/b\tv1.0.0\n=>\texample.org/fork\tv2.0.0\th1:y\nbuild\t-compiler=gc\n";
        let info = parse(&section("go1.26.8", lines)).unwrap();
        let module = |module: &str, version: &str| Module { module: module.into(), version: version.into() };
        assert_eq!(info.toolchain, "go1.26.8");
        assert_eq!(info.modules, [module("example.org/a", "v1.0.0"), module("example.org/fork", "v2.0.0")]);
    }

    #[test]
    fn cgo_is_assumed_unless_disabled() {
        assert!(parse(&section("go1.26.8", "build\tCGO_ENABLED=1\n")).unwrap().cgo);
        assert!(parse(&section("go1.26.8", "")).unwrap().cgo);
        assert!(!parse(&section("go1.26.8", "build\tCGO_ENABLED=0\n")).unwrap().cgo);
    }

    #[test]
    fn invalid_and_truncated_sections_are_rejected() {
        let whole = section("go1.26.8", "dep\texample.org/a\tv1.0.0\n");
        assert_eq!(parse(b"something else"), Err(InfoError::Form));
        assert_eq!(parse(&whole[..whole.len() - 1]), Err(InfoError::Short));
        assert_eq!(parse(&whole[..20]), Err(InfoError::Short));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            if let Some(head) = bytes.get_mut(..=FLAGS) {
                head[..MAGIC.len()].copy_from_slice(MAGIC);
                head[FLAGS] = INLINE;
                let _ = parse(&bytes);
            }
        }
    }
}
