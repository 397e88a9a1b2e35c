//! Looks at every weight: a model with NaN or an infinity in it has no answers.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use deltagate_kernels_weights::{Dtype, TensorView, first_not_finite};

use crate::{Finding, Problem, checkpoint::Opened};

/// Elements that a thread looks at before it takes the next piece.
const PIECE: usize = 4 << 20;

/// A part of a tensor.
struct Piece<'a> {
    tensor: usize,
    first: usize,
    dtype: Dtype,
    bytes: &'a [u8],
}

/// One finding for each tensor that is read and holds a value that is not finite, in the order of the files.
pub(crate) fn not_finite(opened: &Opened) -> Vec<Finding> {
    let tensors = tensors(opened);
    let mut pieces = Vec::new();
    for (tensor, (_, view)) in tensors.iter().enumerate() {
        let parts = view.bytes.chunks(PIECE * view.dtype.size()).enumerate();
        pieces.extend(parts.map(|(i, bytes)| Piece {
            tensor,
            first: i * PIECE,
            dtype: view.dtype,
            bytes,
        }));
    }

    let next = AtomicUsize::new(0);
    let found = Mutex::new(vec![None::<(usize, f32)>; tensors.len()]);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads.min(pieces.len()) {
            scope.spawn(|| {
                while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some((index, value)) = first_not_finite(piece.dtype, piece.bytes) else {
                        continue;
                    };
                    let index = piece.first + index;
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(slot) = found.get_mut(piece.tensor)
                        && slot.is_none_or(|(earlier, _)| index < earlier)
                    {
                        *slot = Some((index, value));
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let bad = tensors.iter().zip(found).filter_map(|((file, view), bad)| {
        let (element, value) = bad?;
        Some(Finding::of(
            *file,
            view.name,
            Problem::NotFinite { value, element },
        ))
    });
    bad.collect()
}

/// Every tensor that is read, with its file.
fn tensors(opened: &Opened) -> Vec<(&str, TensorView<'_>)> {
    let Opened {
        shards, layout, side, ..
    } = opened;
    let mut places: Vec<_> = layout.places.values().collect();
    places.sort_by(|a, b| (a.shard, &a.name).cmp(&(b.shard, &b.name)));
    let of_backbone = places.into_iter().filter_map(|place| {
        let (name, file) = shards.files.get(place.shard)?;
        Some((name.as_str(), file.tensor(&place.name).ok()?))
    });
    let of_side = side
        .iter()
        .flat_map(|side| side.tensors().into_iter().map(|view| (side.name, view)));
    of_backbone.chain(of_side).collect()
}
