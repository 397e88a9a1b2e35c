//! Text of a request that spells a special token, such as `<|im_end|>`: what becomes of it.
//!
//! A tokenizer parses such text as the token, wherever it comes from, so that a state may end its turn and open another.
//! The reference programs of all families let it. What happens here is the operator's choice: [`SpecialTokens`].
//!
//! `escape` works on the request and on the tokenizer, so that no family knows of it. Each special text is cut after its
//! first character by a mark, a rare letter that stands nowhere in the request ([`mark`]); the family renders as always;
//! the tokenizer it uses encodes what lies between marks piece by piece, so that nothing matches across one; and answers
//! and explanations lose their marks again ([`literal`]). Texts without special tokens are encoded as always.
//!
//! Two things are not those of the same request without marks. Tokens do not merge across a cut. And a family that leaves
//! a description out because it says no more than the name may show it, where only one of the two spells a special token.

mod added;
mod literal;
mod mark;
mod places;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::added::AddedTokens;
use self::literal::{LiteralDecider, LiteralTokenizer, without_mark};
use self::mark::marked;
use self::places::{Place, each_text};
use crate::{
    Decider, DeciderError, DecisionRequest, ExplainedSequence, Family, FamilyContext, RequestError, Violation,
};

/// Reason of a refusal because of special-token text.
pub const SPECIAL_TOKEN_TEXT: &str = "SPECIAL_TOKEN_TEXT";

/// What becomes of text that spells a special token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpecialTokens {
    /// It becomes the token, as in the programs that the models were published with.
    #[default]
    Parity,
    /// The request is refused.
    Refuse,
    /// It is encoded as ordinary text of the same characters.
    Escape,
}

impl SpecialTokens {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::Parity, Self::Refuse, Self::Escape];

    /// As configuration, metrics and spans spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parity => "parity",
            Self::Refuse => "refuse",
            Self::Escape => "escape",
        }
    }

    /// Looks for special-token text in every text of the request that prompts of this family show.
    ///
    /// Costs time in proportion to the text. The error is [`SPECIAL_TOKEN_TEXT`] and names every field that holds some.
    pub fn treat<'r>(
        self,
        request: &'r DecisionRequest,
        family: &dyn Family,
        cx: &FamilyContext,
    ) -> Result<Treated<'r>, RequestError> {
        let mut found: Vec<Place> = Vec::new();
        each_text(request, &mut |place, text| {
            let shown = place.shown() <= family.shows();
            if shown && found.last() != Some(&place) && !cx.tokenizer.added_text(text).is_empty() {
                found.push(place);
            }
        });
        let (request, mark) = match self {
            Self::Refuse => {
                let told = "the text spells a special token of the model";
                RequestError::unless_empty(violations(&found, told))?;
                (Cow::Borrowed(request), None)
            }
            Self::Escape if !found.is_empty() => {
                let (marked, mark) = marked(request, family, cx.tokenizer.as_ref(), &found)?;
                (Cow::Owned(marked), Some(mark))
            }
            Self::Parity | Self::Escape => (Cow::Borrowed(request), None),
        };
        Ok(Treated {
            request,
            mark,
            action: (!found.is_empty()).then_some(self),
        })
    }
}

impl fmt::Display for SpecialTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not one of [`SpecialTokens::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected parity, refuse or escape")]
pub struct UnknownChoice;

impl FromStr for SpecialTokens {
    type Err = UnknownChoice;

    fn from_str(name: &str) -> Result<Self, UnknownChoice> {
        Self::ALL
            .into_iter()
            .find(|choice| choice.name() == name)
            .ok_or(UnknownChoice)
    }
}

/// One violation a place.
fn violations(places: &[Place], message: &str) -> Vec<Violation> {
    let at = |place: &Place| Violation::new(place.path(), SPECIAL_TOKEN_TEXT, message);
    places.iter().map(at).collect()
}

/// A request whose special-token text was looked for and, where it was to be, cut.
#[derive(Clone, Debug)]
pub struct Treated<'r> {
    request: Cow<'r, DecisionRequest>,
    mark: Option<char>,
    action: Option<SpecialTokens>,
}

impl Treated<'_> {
    /// What was done; `None` where no special-token text was found.
    pub fn action(&self) -> Option<SpecialTokens> {
        self.action
    }

    /// [`Family::start`].
    pub fn start(&self, family: &dyn Family, cx: &FamilyContext) -> Result<Box<dyn Decider>, DeciderError> {
        let Some(mark) = self.mark else {
            return family.start(&self.request, cx);
        };
        let inner = family.start(&self.request, &literal(cx, mark))?;
        Ok(Box::new(LiteralDecider { inner, mark }))
    }

    /// [`Family::explain`].
    pub fn explain(
        &self,
        family: &dyn Family,
        cx: &FamilyContext,
    ) -> Result<Vec<ExplainedSequence>, DeciderError> {
        let Some(mark) = self.mark else {
            return family.explain(&self.request, cx);
        };
        let mut explained = family.explain(&self.request, &literal(cx, mark))?;
        explained.iter_mut().for_each(|one| without_mark(one, mark));
        Ok(explained)
    }
}

fn literal(cx: &FamilyContext, mark: char) -> FamilyContext {
    let inner = Arc::clone(&cx.tokenizer);
    FamilyContext {
        tokenizer: Arc::new(LiteralTokenizer { inner, mark }),
        ..cx.clone()
    }
}
