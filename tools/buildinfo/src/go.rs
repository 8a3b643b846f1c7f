//! What Go's linker leaves in a program: the section `.go.buildinfo`, as `debug/buildinfo` of Go 1.18 reads it.

const MAGIC: &[u8] = b"\xff Go buildinf:";

/// The head: magic, size of a pointer, flags, room for two pointers.
const HEAD: usize = 32;
const FLAGS: usize = 15;
/// The texts stand behind the head, each with its length before it.
const INLINE: u8 = 2;

/// The modules stand between two marks of so many bytes.
const MARK: usize = 16;

/// A module, as it was built: after replacements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Module {
    /// Its path: `k8s.io/api`.
    pub module: String,
    /// `v0.36.3`
    pub version: String,
}

/// What a program of Go says of itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Info {
    /// `go1.26.8`
    pub toolchain: String,
    /// All that went in, but for the standard library and a main module without a version.
    pub modules: Vec<Module>,
    /// Whether C could be called, and was linked in then.
    pub cgo: bool,
}

/// Why there is nothing to read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InfoError {
    /// Another format.
    #[error("it is not what Go writes since 1.18")]
    Form,
    /// The section ends before its texts.
    #[error("it is cut short")]
    Short,
}

/// Reads the section.
///
/// # Errors
/// The section is not one that Go 1.18 or newer writes.
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

/// `dep` names a module, `=>` what is built in the place of the one before. The main module (`mod`) has a version only if
/// it came from outside.
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

/// A text with its length before it (LEB128), and what follows.
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
    fn modules_are_those_that_were_built() {
        let lines = "path\texample.org/tool\nmod\texample.org/tool\t(devel)\t\ndep\texample.org/a\tv1.0.0\th1:x\n\
                     dep\texample.org/b\tv1.0.0\n=>\texample.org/fork\tv2.0.0\th1:y\nbuild\t-compiler=gc\n";
        let info = parse(&section("go1.26.8", lines)).unwrap();
        let module = |module: &str, version: &str| Module { module: module.into(), version: version.into() };
        assert_eq!(info.toolchain, "go1.26.8");
        assert_eq!(info.modules, [module("example.org/a", "v1.0.0"), module("example.org/fork", "v2.0.0")]);
    }

    #[test]
    fn a_program_is_without_c_only_if_it_says_so() {
        assert!(parse(&section("go1.26.8", "build\tCGO_ENABLED=1\n")).unwrap().cgo);
        assert!(parse(&section("go1.26.8", "")).unwrap().cgo);
        assert!(!parse(&section("go1.26.8", "build\tCGO_ENABLED=0\n")).unwrap().cgo);
    }

    #[test]
    fn a_section_of_another_form_or_without_its_end_is_refused() {
        let whole = section("go1.26.8", "dep\texample.org/a\tv1.0.0\n");
        assert_eq!(parse(b"something else"), Err(InfoError::Form));
        assert_eq!(parse(&whole[..whole.len() - 1]), Err(InfoError::Short));
        assert_eq!(parse(&whole[..20]), Err(InfoError::Short));
    }

    proptest! {
        #[test]
        fn no_section_makes_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            if let Some(head) = bytes.get_mut(..=FLAGS) {
                head[..MAGIC.len()].copy_from_slice(MAGIC);
                head[FLAGS] = INLINE;
                let _ = parse(&bytes);
            }
        }
    }
}
