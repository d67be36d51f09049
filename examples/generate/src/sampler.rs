//! The choice of the next token from its logits.

/// Chooses tokens: the most probable one, or a random one.
///
/// Choices are reproducible: they depend only on the seed and on the logits.
#[derive(Clone, Debug)]
pub struct Sampler {
    temperature: f32,
    top_p: f32,
    state: u64,
    /// Weights of the candidates, and their tokens. Kept for its memory.
    candidates: Vec<(f32, usize)>,
}

impl Sampler {
    /// Always takes the most probable token, and of equals the first.
    pub fn greedy() -> Sampler {
        Sampler::new(0.0, 1.0, 0)
    }

    /// Divides logits by `temperature`, and takes one of the most probable tokens whose probabilities sum up to at
    /// least `top_p`. A temperature of 0 is greedy.
    pub fn new(temperature: f32, top_p: f32, seed: u64) -> Sampler {
        Sampler { temperature, top_p, state: seed, candidates: Vec::new() }
    }

    /// The index of the chosen logit. 0 if there are no logits.
    pub fn pick(&mut self, logits: &[f32]) -> usize {
        let best = most_probable(logits);
        if self.temperature <= 0.0 || logits.is_empty() {
            return best;
        }

        // The most probable token has weight 1, so no weight overflows.
        let weight = |logit: f32| ((logit - logits[best]) / self.temperature).exp();
        let total: f32 = logits.iter().map(|logit| weight(*logit)).sum();
        // Tokens below this weight have less than `1 - top_p` of the total together: they are left out before the sort.
        let least = total * (1.0 - self.top_p).max(0.0) / logits.len() as f32;
        let weights = logits.iter().enumerate().map(|(token, logit)| (weight(*logit), token));
        self.candidates.clear();
        self.candidates.extend(weights.filter(|(weight, _)| *weight >= least && *weight > 0.0));
        self.candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));

        let wanted = total * self.top_p;
        let mut sum = 0.0;
        let inside = self.candidates.iter().take_while(|(weight, _)| {
            let is_inside = sum < wanted;
            sum += if is_inside { *weight } else { 0.0 };
            is_inside
        });
        let count = inside.count().max(1);

        let mut left = self.random() * sum;
        let nucleus = self.candidates.get(..count).unwrap_or(&[]);
        let chosen = nucleus.iter().find(|(weight, _)| {
            left -= weight;
            left < 0.0
        });
        chosen.or(nucleus.last()).map_or(best, |(_, token)| *token)
    }

    /// A random number in 0 to 1, without 1: the generator SplitMix64.
    fn random(&mut self) -> f32 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        (bits >> 40) as f32 / (1_u64 << 24) as f32
    }
}

/// The index of the first of the largest logits.
fn most_probable(logits: &[f32]) -> usize {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::Sampler;

    /// How often each token is chosen in 10,000 choices.
    fn counts(temperature: f32, top_p: f32, logits: &[f32]) -> Vec<usize> {
        let mut sampler = Sampler::new(temperature, top_p, 7);
        let mut counts = vec![0; logits.len()];
        for _ in 0..10_000 {
            counts[sampler.pick(logits)] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(Sampler::greedy().pick(&[1.0, 5.0, 5.0, -3.0]), 1);
        assert_eq!(Sampler::greedy().pick(&[]), 0);
        assert_eq!(Sampler::new(1.0, 0.9, 1).pick(&[]), 0);
    }

    #[test]
    fn frequencies_follow_the_probabilities() {
        // Probabilities 0.6, 0.3 and 0.1.
        let logits = [0.6_f32.ln(), 0.1_f32.ln(), 0.3_f32.ln()];
        let found = counts(1.0, 1.0, &logits);
        for (count, expected) in found.iter().zip([6000, 1000, 3000]) {
            assert!(count.abs_diff(expected) < 200, "{found:?}");
        }
        let cold = counts(0.5, 1.0, &logits);
        assert!(cold[0] > found[0] && cold[1] < found[1], "{cold:?}");
    }

    #[test]
    fn top_p_leaves_out_the_rest() {
        let logits = [0.6_f32.ln(), 0.1_f32.ln(), 0.3_f32.ln()];
        assert_eq!(counts(1.0, 0.5, &logits), [10_000, 0, 0]);
        assert_eq!(counts(1.0, 0.0, &logits), [10_000, 0, 0]);
        let most = counts(1.0, 0.85, &logits);
        assert!(most[1] == 0 && most[2].abs_diff(3333) < 200, "{most:?}");
    }

    #[test]
    fn a_seed_gives_the_same_choices() {
        let logits: Vec<f32> = (0..50).map(|idx| (idx as f32 * 0.7).sin()).collect();
        let choices = |seed| {
            let mut sampler = Sampler::new(0.8, 0.95, seed);
            (0..20).map(|_| sampler.pick(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(choices(3), choices(3));
        assert_ne!(choices(3), choices(4));
    }
}
