//! Properties of parsers of untrusted bytes. Each module has a function `check`, which panics on a violation.
//! The rule `fuzz_test` writes the fuzz targets. The tests here verify that the seeds match their names.
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

/// Seeds of a target, by name. Only tests use this function, because the fuzzer reads the seeds itself.
#[cfg(test)]
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    // Bazel starts tests in the workspace's root, cargo in the directory of the package.
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
