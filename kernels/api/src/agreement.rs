//! How close an output is to the oracle's.

use crate::Refusal;

/// Distance of an output from the oracle's.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Agreement {
    /// `|actual − expected|₂ / |expected|₂`.
    pub relative_l2: f64,
    /// Largest absolute difference of one element.
    pub worst_element: f64,
    /// Largest absolute value of the oracle's output.
    pub largest: f64,
}

impl Agreement {
    /// The worse of both, field by field.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        Self {
            relative_l2: self.relative_l2.max(other.relative_l2),
            worst_element: self.worst_element.max(other.worst_element),
            largest: self.largest.max(other.largest),
        }
    }
}

/// What a distance may be at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Limit of `Agreement::relative_l2`.
    pub relative_l2: f64,
    /// Limit of `Agreement::worst_element` as a share of `Agreement::largest`.
    pub worst_element: f64,
}

impl Bound {
    /// Refuses an agreement beyond the bound.
    pub fn allows(&self, agreement: &Agreement) -> Result<(), Refusal> {
        // Written so that a NaN distance is refused too.
        let l2_is_fine = agreement.relative_l2 <= self.relative_l2;
        let worst_is_fine = agreement.worst_element <= self.worst_element * agreement.largest;
        if l2_is_fine && worst_is_fine {
            return Ok(());
        }
        Err(Refusal(format!(
            "differs from the oracle: relative L2 {:.3e} (limit {:.1e}), worst element {:.3e} of {:.3e} (limit {:.1e} of it)",
            agreement.relative_l2,
            self.relative_l2,
            agreement.worst_element,
            agreement.largest,
            self.worst_element
        )))
    }
}

/// Compares an output with the oracle's. Another length and numbers that are not finite are refusals.
pub fn compare(actual: &[f32], expected: &[f64]) -> Result<Agreement, Refusal> {
    if actual.len() != expected.len() {
        return Err(Refusal(format!(
            "{} elements, expected {}",
            actual.len(),
            expected.len()
        )));
    }
    if let Some(at) = actual.iter().position(|v| !v.is_finite()) {
        return Err(Refusal(format!("element {at} of {} is not finite", actual.len())));
    }
    let (mut difference, mut norm, mut worst, mut largest) = (0.0, 0.0, 0.0f64, 0.0f64);
    for (&a, &e) in actual.iter().zip(expected) {
        let d = f64::from(a) - e;
        difference += d * d;
        norm += e * e;
        worst = worst.max(d.abs());
        largest = largest.max(e.abs());
    }
    // An oracle output of zeros has no relative distance: any difference at all is then infinitely far.
    let relative_l2 = if difference == 0.0 {
        0.0
    } else {
        (difference / norm).sqrt()
    };
    Ok(Agreement {
        relative_l2,
        worst_element: worst,
        largest,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const BOUND: Bound = Bound {
        relative_l2: 1e-3,
        worst_element: 1e-2,
    };

    #[test]
    fn measures_distance() {
        let a = compare(&[1.0, 2.0, 3.5], &[1.0, 2.0, 3.0]).unwrap();
        assert_eq!(a.worst_element, 0.5);
        assert_eq!(a.largest, 3.0);
        assert!((a.relative_l2 - 0.5 / 14f64.sqrt()).abs() < 1e-12);
        assert!(BOUND.allows(&a).is_err());
        assert!(
            BOUND
                .allows(&compare(&[1.0, 2.0], &[1.0, 2.0000001]).unwrap())
                .is_ok()
        );
    }

    #[test]
    fn refuses_what_is_not_finite_or_not_whole() {
        assert!(compare(&[1.0, f32::NAN], &[1.0, 2.0]).is_err());
        assert!(compare(&[f32::INFINITY], &[1.0]).is_err());
        assert!(compare(&[1.0], &[1.0, 2.0]).is_err());
        let nan = Agreement {
            relative_l2: f64::NAN,
            worst_element: 0.0,
            largest: 1.0,
        };
        assert!(BOUND.allows(&nan).is_err());
    }

    #[test]
    fn one_bad_element_is_seen_although_the_norm_hides_it() {
        let expected = vec![1.0; 1_000_000];
        let mut actual = vec![1.0; 1_000_000];
        actual[77] = 1.5;
        let a = compare(&actual, &expected).unwrap();
        assert!(a.relative_l2 < BOUND.relative_l2 && BOUND.allows(&a).is_err());
    }
}
