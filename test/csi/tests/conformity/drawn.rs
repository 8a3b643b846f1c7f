//! Random input, the same in each run.

use conformity::Census;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const CASES: u32 = 16;

/// Draws cases from a seed, and shrinks a case that fails, for a limited number of steps. After each case, the kernel's
/// mounts and devices must be the same as before.
pub fn for_each<S: Strategy>(seed: &[u8; 32], strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let before = Census::of_kernel();
    let config = Config { cases: CASES, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, seed));
    let result = runner.run(strategy, |case| {
        test(case)?;
        let changes = before.changes(&Census::of_kernel());
        prop_assert!(changes.is_empty(), "{}", changes.join("\n"));
        Ok(())
    });
    if let Err(error) = result {
        panic!("seed {seed:?}: {error}");
    }
}
