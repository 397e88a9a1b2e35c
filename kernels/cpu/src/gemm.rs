//! A checked face of the `gemm` crate: the only unsafe code of this backend.

/// A matrix somewhere in a slice.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// Row-major, rows `stride` elements apart.
    pub(crate) const fn new(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        Self {
            data,
            rows,
            columns,
            row_stride: stride,
            column_stride: 1,
        }
    }

    /// The same elements with rows and columns exchanged.
    pub(crate) const fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    fn check(&self) {
        let last = |count: usize, stride: usize| count.saturating_sub(1).checked_mul(stride);
        let end = last(self.rows, self.row_stride)
            .and_then(|r| last(self.columns, self.column_stride).and_then(|c| r.checked_add(c)));
        let fits = self.rows == 0 || self.columns == 0 || end.is_some_and(|end| end < self.data.len());
        assert!(
            fits,
            "view of {}x{} does not fit its slice",
            self.rows, self.columns
        );
    }
}

/// What becomes of the destination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Into {
    /// It is overwritten.
    Overwrite,
    /// The product is added to it.
    Add,
    /// The product is subtracted from it.
    Subtract,
}

/// `destination ← / += / -= a · b`. `destination` is `[a.rows, b.columns]`, row-major, rows `stride` elements apart; `threads` > 1
/// works on the current rayon pool.
///
/// # Panics
/// If the sides do not match or a view does not fit its slice: mistakes of the caller, which has checked the shapes of its tensors.
pub(crate) fn gemm(
    destination: &mut [f32],
    stride: usize,
    a: View<'_>,
    b: View<'_>,
    into: Into,
    threads: usize,
) {
    assert_eq!(a.columns, b.rows, "inner sides of a product");
    a.check();
    b.check();
    View::new(destination, a.rows, b.columns, stride).check();
    assert!(stride >= b.columns, "rows of the destination overlap");
    if a.rows == 0 || b.columns == 0 {
        return;
    }
    if a.columns == 0 {
        if into == Into::Overwrite {
            destination
                .chunks_mut(stride)
                .take(a.rows)
                .for_each(|row| row[..b.columns].fill(0.0));
        }
        return;
    }
    let parallelism = if threads > 1 {
        gemm::Parallelism::Rayon(threads)
    } else {
        gemm::Parallelism::None
    };
    let factor = if into == Into::Subtract { -1.0 } else { 1.0 };
    // SAFETY: `check` has shown that every element that the sides and strides reach lies inside its slice; the destination is
    // borrowed mutably, so it does not overlap the operands, and its rows do not overlap each other.
    #[allow(unsafe_code)]
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            destination.as_mut_ptr(),
            1,
            stride as isize,
            into != Into::Overwrite,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0f32,
            factor,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use deltagate_kernels_api::Random;

    use super::*;

    fn naive(a: &[f32], b: &[f32], m: usize, n: usize, k: usize) -> Vec<f32> {
        let at = |i: usize, j: usize| {
            (0..k)
                .map(|l| f64::from(a[i * k + l]) * f64::from(b[l * n + j]))
                .sum::<f64>() as f32
        };
        (0..m * n).map(|ij| at(ij / n, ij % n)).collect()
    }

    #[test]
    fn agrees_with_a_naive_product() {
        let mut random = Random::new(11);
        for (m, n, k) in [
            (1, 1, 1),
            (3, 5, 7),
            (64, 128, 64),
            (65, 33, 129),
            (1, 200, 64),
            (136, 300, 80),
            (5, 4, 0),
        ] {
            let (a, b) = (random.values(m * k, -1.0, 1.0), random.values(k * n, -1.0, 1.0));
            let turned: Vec<f32> = (0..n * k).map(|at| b[at % k * n + at / k]).collect();
            let expected = naive(&a, &b, m, n, k);
            for threads in [1, 2] {
                let near = |actual: &[f32], factor: f32, base: f32| {
                    for (row, expected) in actual.chunks(n + 3).zip(expected.chunks(n)) {
                        assert!(
                            row.iter()
                                .zip(expected)
                                .all(|(x, e)| (x - (base + factor * e)).abs() < 1e-4)
                        );
                        assert!(row[n..].iter().all(|x| x.is_nan()), "beyond the row");
                    }
                };
                let mut d = vec![f32::NAN; m * (n + 3)];
                gemm(
                    &mut d,
                    n + 3,
                    View::new(&a, m, k, k),
                    View::new(&b, k, n, n),
                    Into::Overwrite,
                    threads,
                );
                near(&d, 1.0, 0.0);
                let turned = View::new(&turned, n, k, k).transposed();
                gemm(&mut d, n + 3, View::new(&a, m, k, k), turned, Into::Add, threads);
                near(&d, 2.0, 0.0);
                d.chunks_mut(n + 3).for_each(|row| row[..n].fill(3.0));
                gemm(
                    &mut d,
                    n + 3,
                    View::new(&a, m, k, k),
                    turned,
                    Into::Subtract,
                    threads,
                );
                near(&d, -1.0, 3.0);
            }
        }
    }

    #[test]
    #[should_panic(expected = "does not fit its slice")]
    fn a_view_beyond_its_slice_is_refused() {
        let (a, mut d) = ([0.0; 11], [0.0; 9]);
        gemm(
            &mut d,
            3,
            View::new(&a, 3, 4, 4),
            View::new(&a, 4, 3, 2),
            Into::Overwrite,
            1,
        );
    }
}
