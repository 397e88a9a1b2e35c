//! Parallel loops over rows.

use rayon::prelude::*;

/// Below so many elements a loop is not worth a second thread.
const SERIAL: usize = 16 * 1024;

/// Calls `each(row index, row, scratch)` for every row of `columns` elements; scratch buffers are reused within a thread's share.
pub(crate) fn for_each_row<T: Send, Scratch>(
    data: &mut [T],
    columns: usize,
    scratch: impl Fn() -> Scratch + Sync,
    each: impl Fn(usize, &mut [T], &mut Scratch) + Sync,
) {
    if columns == 0 || data.is_empty() {
        return;
    }
    let rows = data.len() / columns;
    let threads = rayon::current_num_threads();
    if data.len() < SERIAL || threads == 1 {
        let mut scratch = scratch();
        data.chunks_mut(columns)
            .enumerate()
            .for_each(|(i, row)| each(i, row, &mut scratch));
        return;
    }
    // A few shares per thread even out their differences.
    let share = rows.div_ceil(threads * 4).max(1);
    data.par_chunks_mut(share * columns)
        .enumerate()
        .for_each(|(s, rows)| {
            let mut scratch = scratch();
            rows.chunks_mut(columns)
                .enumerate()
                .for_each(|(i, row)| each(s * share + i, row, &mut scratch));
        });
}

/// Cuts `[rows, Σ widths]` into column strips: strip `i` holds, row by row, the slices of `widths` columns.
pub(crate) fn column_strips<T>(data: &mut [T], strips: usize, width: usize) -> Vec<Vec<&mut [T]>> {
    let rows = data.len().checked_div(strips * width).unwrap_or(0);
    let mut out: Vec<Vec<&mut [T]>> = (0..strips).map(|_| Vec::with_capacity(rows)).collect();
    if rows > 0 {
        for row in data.chunks_mut(strips * width) {
            row.chunks_mut(width)
                .zip(&mut out)
                .for_each(|(part, strip)| strip.push(part));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_visited_once_with_its_index() {
        for (rows, columns) in [(1, 1), (7, 3), (1000, 100), (16 * 1024, 1), (3, 20_000)] {
            let mut data = vec![0u32; rows * columns];
            for_each_row(
                &mut data,
                columns,
                || (),
                |i, row, ()| row.iter_mut().for_each(|v| *v += i as u32 + 1),
            );
            assert!(
                data.iter()
                    .enumerate()
                    .all(|(at, v)| *v == (at / columns) as u32 + 1)
            );
        }
    }

    #[test]
    fn strips_are_columns() {
        let mut data: Vec<u32> = (0..12).collect();
        let strips = column_strips(&mut data, 2, 3);
        assert_eq!(strips, [[&[0, 1, 2][..], &[6, 7, 8]], [&[3, 4, 5], &[9, 10, 11]]]);
    }
}
