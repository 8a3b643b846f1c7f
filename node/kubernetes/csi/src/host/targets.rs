//! The targets that the plugin created for one volume or device. They are only a hint: each target is checked at its
//! path before a decision, because other processes unmount and hide mounts. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Paths, with the number of mounts that may be at each: a mount that a later one at the same path hides is still
/// there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Targets(BTreeMap<PathBuf, usize>);

impl Targets {
    pub(super) fn add(&mut self, path: &Path) {
        *self.0.entry(path.to_owned()).or_default() += 1;
    }

    /// Adds a target whose mount may be known already.
    pub(super) fn ensure(&mut self, path: &Path) {
        self.0.entry(path.to_owned()).or_insert(1);
    }

    /// Removes one of the mounts at the path.
    pub(super) fn remove(&mut self, path: &Path) {
        if let Some(mounts) = self.0.get_mut(path) {
            *mounts -= 1;
            if *mounts == 0 {
                self.0.remove(path);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first target other than `path`.
    pub(super) fn besides(&self, path: &Path) -> Option<&Path> {
        self.0.keys().map(PathBuf::as_path).find(|target| *target != path)
    }
}

impl<'a> FromIterator<&'a Path> for Targets {
    fn from_iter<T: IntoIterator<Item = &'a Path>>(paths: T) -> Self {
        let mut targets = Self::default();
        paths.into_iter().for_each(|path| targets.add(path));
        targets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "/kubelet/a";
    const B: &str = "/kubelet/b";

    fn targets(paths: &[&str]) -> Targets {
        paths.iter().map(Path::new).collect()
    }

    #[test]
    fn a_target_is_not_besides_itself() {
        assert_eq!(targets(&[A]).besides(Path::new(A)), None);
        assert_eq!(targets(&[A, B]).besides(Path::new(A)), Some(Path::new(B)));
        assert_eq!(targets(&[]).besides(Path::new(A)), None);
    }

    #[test]
    fn a_hidden_mount_stays_when_the_one_above_is_removed() {
        let mut found = targets(&[A]);
        found.add(Path::new(A));
        found.remove(Path::new(A));
        assert_eq!(found, targets(&[A]));
        found.remove(Path::new(A));
        found.remove(Path::new(A));
        assert_eq!(found, Targets::default());
    }

    #[test]
    fn a_known_target_is_counted_once() {
        let mut found = targets(&[A]);
        for path in [A, B] {
            found.ensure(Path::new(path));
        }
        assert_eq!(found, targets(&[A, B]));
    }
}
