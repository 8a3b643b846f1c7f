//! Pseudo-random numbers from a seed.

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers from the same seed, on any machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub const fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.number() % (limit as u64).max(1)) as usize
    }

    /// A random element; `None` if `choices` is empty.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.below(choices.len()))
    }
}
