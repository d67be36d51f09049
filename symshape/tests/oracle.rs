//! Everything the engine says, against brute force over small domains.

mod cases;

use cases::{Case, Source};

/// How many random cases a test run tries; `ORACLE_CASES` asks for more.
fn count() -> u64 {
    std::env::var("ORACLE_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(4_000)
}

fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    (0..160).map(|_| next()).collect()
}

#[test]
fn random_cases_agree_with_evaluation() {
    let first: u64 = std::env::var("ORACLE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for seed in first..first + count() {
        let bytes = bytes(seed);
        let result = std::panic::catch_unwind(|| {
            if let Some(case) = Case::read(&mut Source::new(&bytes)) {
                case.check();
            }
        });
        assert!(result.is_ok(), "seed {seed}");
    }
}
