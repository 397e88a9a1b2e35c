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

/// One finding for each tensor that is read and holds a value that is not finite, in the order of the files; an adapter comes last. If
/// all are finite, one for each weight that is not finite with the adapter merged.
pub(crate) fn not_finite(opened: &Opened) -> Vec<Finding> {
    let found = first_of_each(&tensors(opened));
    if let (true, Some(adapter)) = (found.is_empty(), &opened.adapter) {
        let base = |name| opened.layout.view(&opened.shards, name);
        let merged = |name| adapter.merged(&base(name)?)?.err();
        return adapter.names().filter_map(merged).collect();
    }
    found
}

/// A finding for each tensor, with its file, that holds a value that is not finite.
fn first_of_each(tensors: &[(&str, TensorView<'_>)]) -> Vec<Finding> {
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
        shards,
        layout,
        side,
        adapter,
        ..
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
    let of_adapter = adapter
        .iter()
        .flat_map(|adapter| adapter.views().map(|view| (adapter.file(), view)));
    of_backbone.chain(of_side).chain(of_adapter).collect()
}
