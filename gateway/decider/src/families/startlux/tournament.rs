//! Choices of more than 26 options: near-equal groups, the best of each go on, until one pass holds them all.

use super::MAX_LETTERS;
use crate::Limits;

/// `wide_choice` of the config.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WideChoice {
    /// Most options of a group.
    pub group: usize,
    /// Options of each group that go on.
    pub keep: usize,
    /// Probability that is shared by those that do not, in `[0, 1)`.
    pub residual: f64,
}

impl Default for WideChoice {
    fn default() -> Self {
        WideChoice {
            group: 25,
            keep: 3,
            residual: 0.001,
        }
    }
}

impl WideChoice {
    /// Checks that for every allowed number of options each group fits into a prompt and each level gets smaller.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if !(2..=MAX_LETTERS).contains(&self.group) {
            return Err("group is not in 2..=26");
        }
        if self.keep == 0 {
            return Err("keep is 0");
        }
        for n in MAX_LETTERS + 1..=Limits::default().max_options {
            let sizes: Vec<usize> = split(n, self.group).iter().map(ExactSizeIterator::len).collect();
            if sizes.iter().any(|size| *size < 2) {
                return Err("group leaves groups of one option");
            }
            if sizes.iter().map(|size| self.keep.min(*size)).sum::<usize>() >= n {
                return Err("keep lets every option go on");
            }
        }
        Ok(())
    }
}

/// `n` options in `ceil(n / group)` ranges, as equal as can be, the longer ones first.
fn split(n: usize, group: usize) -> Vec<std::ops::Range<usize>> {
    let groups = n.div_ceil(group.max(1)).max(1);
    let (size, longer) = (n / groups, n % groups);
    let mut start = 0;
    (0..groups)
        .map(|index| {
            let range = start..start + size + usize::from(index < longer);
            start = range.end;
            range
        })
        .collect()
}

/// A tournament on its way. Options are numbers from 0, in request order.
#[derive(Clone, Debug)]
pub struct Tournament {
    rules: WideChoice,
    /// Options of the round that is due, in the order in which they are shown.
    entrants: Vec<usize>,
    played: Vec<Level>,
}

#[derive(Clone, Debug)]
struct Level {
    finalists: Vec<usize>,
    /// The others, with their probability within their group.
    rest: Vec<(usize, f64)>,
}

impl Tournament {
    /// Of options `0..n`. With at most 26 it is a single pass.
    pub fn new(n: usize, rules: WideChoice) -> Self {
        Tournament {
            rules,
            entrants: (0..n).collect(),
            played: Vec::new(),
        }
    }

    /// The passes of the round that is due: their options, in letter order.
    pub fn passes(&self) -> Vec<Vec<usize>> {
        if self.entrants.len() <= MAX_LETTERS {
            return vec![self.entrants.clone()];
        }
        let ranges = split(self.entrants.len(), self.rules.group);
        ranges
            .into_iter()
            .map(|range| self.entrants[range].to_vec())
            .collect()
    }

    /// Takes the probabilities of those passes. `Some` when that was the last round: those of options `0..n`.
    pub fn advance(&mut self, p: &[Vec<f64>]) -> Option<Vec<f64>> {
        let passes = self.passes();
        if self.entrants.len() <= MAX_LETTERS {
            return Some(self.finish(p.first().map_or(&[], Vec::as_slice)));
        }
        let (mut finalists, mut rest) = (Vec::new(), Vec::new());
        for (options, p) in passes.into_iter().zip(p) {
            let mut ranked: Vec<(usize, f64)> = options.into_iter().zip(p.iter().copied()).collect();
            // Stable: equals stay in the order shown.
            ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
            let others = ranked.split_off(self.rules.keep.min(ranked.len()));
            finalists.extend(ranked.into_iter().map(|(option, _)| option));
            rest.extend(others);
        }
        self.entrants.clone_from(&finalists);
        self.played.push(Level { finalists, rest });
        None
    }

    /// `P(finalist) = p_final (1 - residual)`, `P(other) = residual p_group / (sum of p_group over all others)`,
    /// normalised; from the last level back to the first.
    fn finish(&self, last: &[f64]) -> Vec<f64> {
        let total = self.entrants.len() + self.played.iter().map(|level| level.rest.len()).sum::<usize>();
        let mut out = vec![0.0; total];
        for (option, p) in self.entrants.iter().zip(last) {
            out[*option] = *p;
        }
        for level in self.played.iter().rev() {
            let mass: f64 = level.rest.iter().map(|(_, p)| p).sum();
            let divisor = if mass == 0.0 { 1.0 } else { mass };
            for option in &level.finalists {
                out[*option] *= 1.0 - self.rules.residual;
            }
            for (option, p) in &level.rest {
                out[*option] = self.rules.residual * p / divisor;
            }
            let members = || {
                level
                    .finalists
                    .iter()
                    .chain(level.rest.iter().map(|(option, _)| option))
            };
            let sum: f64 = members().map(|option| out[*option]).sum();
            for option in members() {
                out[*option] /= sum;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sizes(tournament: &Tournament) -> Vec<usize> {
        tournament.passes().iter().map(Vec::len).collect()
    }

    fn uniform(sizes: &[usize]) -> Vec<Vec<f64>> {
        sizes.iter().map(|n| vec![1.0 / *n as f64; *n]).collect()
    }

    #[test]
    fn groups_are_as_equal_as_can_be() {
        let lengths = |n, group| {
            split(n, group)
                .iter()
                .map(ExactSizeIterator::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(lengths(27, 25), [14, 13]);
        assert_eq!(lengths(60, 25), [20, 20, 20]);
        assert_eq!(lengths(255, 25), [24, 24, 23, 23, 23, 23, 23, 23, 23, 23, 23]);
        assert_eq!(split(255, 25).last().unwrap().end, 255);
    }

    #[test]
    fn the_widest_choice_takes_three_rounds() {
        let mut tournament = Tournament::new(255, WideChoice::default());
        let mut rounds = Vec::new();
        let p = loop {
            let round = sizes(&tournament);
            rounds.push(round.clone());
            if let Some(p) = tournament.advance(&uniform(&round)) {
                break p;
            }
        };
        assert_eq!(rounds[1..], [vec![17, 16], vec![6]]);
        assert_eq!(p.len(), 255);
        assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn finalists_go_on_by_probability_and_equals_as_shown() {
        let mut tournament = Tournament::new(27, WideChoice::default());
        let mut first = vec![0.0; 14];
        (first[3], first[9], first[5]) = (0.25, 0.5, 0.25);
        assert!(tournament.advance(&[first, vec![1.0 / 13.0; 13]]).is_none());
        assert_eq!(tournament.passes(), [[9, 3, 5, 14, 15, 16]]);
        let p = tournament
            .advance(&[vec![0.5, 0.25, 0.0, 0.25, 0.0, 0.0]])
            .unwrap();
        assert!((p[9] - 0.4995).abs() < 1e-15 && (p[3] - 0.24975).abs() < 1e-15);
        assert!((p[17] - 0.0001).abs() < 1e-15);
        assert_eq!(p[0], 0.0);
    }

    #[test]
    fn nothing_left_for_the_others_is_no_division_by_zero() {
        let mut tournament = Tournament::new(27, WideChoice::default());
        let certain = |n: usize| (0..n).map(|i| if i == 0 { 1.0 } else { 0.0 }).collect::<Vec<_>>();
        assert!(tournament.advance(&[certain(14), certain(13)]).is_none());
        let p = tournament.advance(&[certain(6)]).unwrap();
        assert_eq!(p[0], 1.0);
        assert_eq!(p[1..].iter().sum::<f64>(), 0.0);
    }

    #[test]
    fn rules_must_end() {
        let rules = |group, keep| {
            WideChoice {
                group,
                keep,
                residual: 0.0,
            }
            .check()
        };
        assert_eq!(rules(25, 3), Ok(()));
        assert_eq!(rules(26, 12), Ok(()));
        for (group, keep) in [(1, 1), (27, 3), (25, 0), (25, 14), (26, 14), (2, 1)] {
            assert!(rules(group, keep).is_err(), "{group} {keep}");
        }
    }
}
