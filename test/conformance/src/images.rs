//! Images of the tests. The nodes import archives.

use crate::arguments::Archive;

/// Error for an archive with a name that no test uses.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no test runs the image {image}; the tests run {}: change its tag in test/conformance/BUILD.bazel",
    or_none(.tests)
)]
pub(crate) struct UnusedImage {
    image: String,
    /// Images whose names differ only in their tags.
    tests: Vec<String>,
}

fn or_none(tests: &[String]) -> String {
    if tests.is_empty() { "no image of this name".to_owned() } else { tests.join(", ") }
}

/// Compares the archives with the output of `--list-images`, so that changed tags of a new Kubernetes version are
/// reported before a boot.
pub(crate) fn check<'a>(archives: impl IntoIterator<Item = &'a Archive>, list: &str) -> Result<(), UnusedImage> {
    let unused = archives.into_iter().find(|archive| !list.lines().any(|line| line == archive.image));
    let Some(Archive { image, .. }) = unused else { return Ok(()) };
    let name = |image: &str| image.rsplit_once(':').map(|(name, _)| name.to_owned());
    let tests = list.lines().filter(|line| name(line) == name(image)).map(str::to_owned).collect();
    Err(UnusedImage { image: image.clone(), tests })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "k8s.invalid/agnhost:2.1\nk8s.invalid/agnhost:2.2\nk8s.invalid/pause:3\n";

    fn archives(images: &[&str]) -> Vec<Archive> {
        images.iter().map(|image| Archive { image: (*image).to_owned(), file: "file".into() }).collect()
    }

    #[test]
    fn each_archive_has_a_name_that_tests_use() {
        assert_eq!(check(&archives(&["k8s.invalid/pause:3", "k8s.invalid/agnhost:2.1"]), LIST), Ok(()));
    }

    #[test]
    fn another_tag_is_reported_with_those_of_the_tests() {
        let error = check(&archives(&["k8s.invalid/pause:3", "k8s.invalid/agnhost:2.0"]), LIST).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no test runs the image k8s.invalid/agnhost:2.0; the tests run k8s.invalid/agnhost:2.1, \
             k8s.invalid/agnhost:2.2: change its tag in test/conformance/BUILD.bazel"
        );
        let error = check(&archives(&["k8s.invalid/nginx:1"]), LIST).unwrap_err();
        assert!(error.to_string().contains("the tests run no image of this name"), "{error}");
    }
}
