//! Random input, the same in each run.

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Draws so many cases from a seed; makes one that fails smaller, but not for ever.
pub fn runner(cases: u32, seed: &[u8; 32]) -> TestRunner {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, seed))
}
