//! Fragments -> tokens that fit the model, with the spans that the head reads.

use std::ops::Range;

use super::{limits, prompt};
use crate::families::encoded::too_long;
use crate::{DeciderError, DecisionRequest, FamilyContext, JointQuestion, RequestError, Violation};

/// A prompt in both forms.
#[derive(Debug)]
pub(super) struct Encoded {
    /// With all of the state, also where tokens of it were cut.
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
    /// In request order; options in the order of the prompt.
    pub(super) questions: Vec<JointQuestion>,
    /// Tokens that the state lost.
    pub(super) truncated: u64,
}

/// Validates, renders and encodes. A prompt that is too long is an error that names both numbers. If the state may be cut,
/// it keeps its first tokens, as many as fit; none at all would be a prompt about nothing, which is refused.
pub(super) fn encode(request: &DecisionRequest, cx: &FamilyContext) -> Result<Encoded, DeciderError> {
    limits().check(request)?;
    let state = request.state.as_ref().map(prompt::render).unwrap_or_default();
    let mut text = [prompt::PREFIX, &state].concat();
    let mut ids = cx.tokenizer.encode(prompt::PREFIX)?;
    let mut state_ids = cx.tokenizer.encode(&state)?;
    let suffix = cx.tokenizer.encode(prompt::SUFFIX)?;
    let mut schema = Schema::default();
    for fragment in prompt::schema(&request.questions) {
        schema.add(fragment.mark, &cx.tokenizer.encode(&fragment.text)?);
        text.push_str(&fragment.text);
    }
    text.push_str(prompt::SUFFIX);

    let fixed = ids.len() + schema.ids.len() + suffix.len();
    let (count, max) = (fixed + state_ids.len(), cx.max_tokens);
    let refuse = |message| {
        let violation = Violation::new([], "PROMPT_TOO_LONG", message);
        Err(RequestError::unanswerable(violation).into())
    };
    if fixed > max {
        return refuse(format!("without the state, {}", too_long(fixed, max)));
    }
    let room = max - fixed;
    if count > max {
        if !request.truncate_state || room == 0 {
            return refuse(too_long(count, max));
        }
        state_ids.truncate(room);
    }
    let truncated = (count.saturating_sub(max)) as u64;
    ids.append(&mut state_ids);
    let questions = schema.questions(request, ids.len())?;
    ids.append(&mut schema.ids);
    ids.extend(suffix);
    Ok(Encoded {
        text,
        ids,
        questions,
        truncated,
    })
}

/// The tokens after the state, and where they mean something.
#[derive(Default)]
struct Schema {
    ids: Vec<u32>,
    /// Span of each question, and those of its options.
    spans: Vec<(Range<usize>, Vec<Range<usize>>)>,
}

impl Schema {
    fn add(&mut self, mark: prompt::Mark, ids: &[u32]) {
        let span = self.ids.len()..self.ids.len() + ids.len();
        self.ids.extend(ids);
        match (mark, self.spans.last_mut()) {
            (prompt::Mark::Question, _) => self.spans.push((span, Vec::new())),
            (prompt::Mark::Option, Some((_, options))) => options.push(span),
            _ => {}
        }
    }

    /// The spans from the first token of the sequence on, `offset` tokens before this. A text that has no tokens, which a
    /// tokenizer may make of odd characters, has no meaning for the head: it is refused.
    fn questions(
        &self,
        request: &DecisionRequest,
        offset: usize,
    ) -> Result<Vec<JointQuestion>, DeciderError> {
        let mut found = Vec::new();
        let mut questions = Vec::with_capacity(self.spans.len());
        for (index, ((span, options), question)) in self.spans.iter().zip(&request.questions).enumerate() {
            let moved = |span: &Range<usize>| (span.start + offset) as u32..(span.end + offset) as u32;
            if span.is_empty() || options.iter().any(Range::is_empty) {
                let message = "a text of this question has no tokens";
                found.push(Violation::in_question(index, &[], "NO_TOKENS", message));
            }
            questions.push(JointQuestion {
                kind: prompt::kind(&question.criteria).0,
                span: moved(span),
                options: options.iter().map(moved).collect(),
            });
        }
        RequestError::unless_empty(found)?;
        Ok(questions)
    }
}
