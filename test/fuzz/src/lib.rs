//! Properties of the parsers of foreign bytes. Each module has a `check`, which panics on a violation; `targets/`
//! contains the fuzz targets, and the tests here show that the seeds are what their names say.
#![forbid(unsafe_code)]

pub mod btf;
pub mod disk;
pub mod gpt;
pub mod gpt_writer;
pub mod kernel_text;
pub mod mountinfo;
pub mod needle;
pub mod signatures;
pub mod stored;
pub mod sysfs;
pub mod write_log;

/// The seeds of a target, by name. Only for tests: the fuzzer reads them itself.
#[cfg(test)]
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    // Bazel starts tests above all packages, cargo in theirs.
    let place = ["test/fuzz/corpus", "corpus"].map(|root| std::path::Path::new(root).join(target));
    let place = place.into_iter().find(|place| place.exists()).expect("seeds where the test runs");
    let entries = std::fs::read_dir(&place).expect("a readable directory");
    let mut seeds: Vec<_> = entries
        .map(|entry| {
            let entry = entry.expect("an entry of the directory");
            let bytes = std::fs::read(entry.path()).expect("a readable seed");
            (entry.file_name().into_string().expect("a name in UTF-8"), bytes)
        })
        .collect();
    seeds.sort_unstable();
    assert!(!seeds.is_empty(), "{} is empty", place.display());
    seeds
}
