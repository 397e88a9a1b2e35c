//! Passes that read one row each, plan by plan.

use crate::{DeciderError, Plan, PlannedSequence, SequenceOutput, Step};

/// The passes that are out, and whose turn it is.
#[derive(Debug)]
pub(super) struct Passes<T> {
    noncausal_full_attention: bool,
    out: Vec<T>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Fresh,
    PlanOut,
    Ended,
}

impl<T> Passes<T> {
    /// None is out yet. `noncausal_full_attention` is for all of them.
    pub(super) const fn new(noncausal_full_attention: bool) -> Self {
        Passes {
            noncausal_full_attention,
            out: Vec::new(),
            phase: Phase::Fresh,
        }
    }

    /// The passes that were out, each with its row of `width` values, all finite; none at the first turn. Nothing is out
    /// after this, so that the request has ended unless [`Passes::send`] follows.
    pub(super) fn receive<'o>(
        &mut self,
        outputs: Option<&'o [SequenceOutput]>,
        width: impl Fn(&T) -> usize,
    ) -> Result<Vec<(T, &'o [f32])>, DeciderError> {
        // Whatever fails below ends the request.
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        let outputs = match (phase, outputs) {
            (Phase::Fresh, None) => &[][..],
            (Phase::PlanOut, Some(outputs)) => outputs,
            _ => return Err(DeciderError::OutOfTurn),
        };
        let out = std::mem::take(&mut self.out);
        DeciderError::check_shape("sequences", out.len(), outputs.len())?;
        let mut back = Vec::with_capacity(out.len());
        for (sequence, (pass, output)) in out.into_iter().zip(outputs).enumerate() {
            DeciderError::check_shape("rows", 1, output.rows.len())?;
            let row = output.rows.first().map_or(&[][..], Vec::as_slice);
            DeciderError::check_shape("values", width(&pass), row.len())?;
            DeciderError::check_finite(sequence, row)?;
            back.push((pass, row));
        }
        Ok(back)
    }

    /// Sends passes out, in order.
    pub(super) fn send(&mut self, passes: Vec<(T, PlannedSequence)>) -> Step {
        let sequences;
        (self.out, sequences) = passes.into_iter().unzip();
        self.phase = Phase::PlanOut;
        Step::Run(Plan::sharing(sequences, self.noncausal_full_attention))
    }
}
