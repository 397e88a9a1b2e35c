//! The HTTP body of `POST /v1/systemone`, in both directions.
//!
//! [`parse_body`] is lenient where the families' own servers are: `type` may be left out, `bool` is `noul`, `options`
//! and `question` stand for `criteria` and `instructions`, unknown fields are ignored. What differs between families
//! is data: [`Rules`]. One field is our own: `x_truncate_state`, which lets the state be cut to fit; what was cut is then
//! told as `usage.truncated_tokens`.

mod body;
mod question;
mod response;

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

pub use body::{SystemOneRequest, parse_body};
pub(crate) use response::by_level;
pub use response::{error_body, refusal_body, render_response};

use crate::{JsonLimits, Limits};

/// What a family's server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Limits on the shape.
    pub limits: Limits,
    /// Depth of the body and the rule for duplicate keys.
    pub json: JsonLimits,
    /// Options that a choice may have when they come as a list of names.
    pub listed_options: RangeInclusive<usize>,
    /// Whether the criteria of a noul may have no other key than `true` and `false`. Otherwise others are ignored.
    pub only_noul_sides: bool,
    /// What the keys of levels mean that come as an object.
    pub level_keys: LevelKeys,
    /// Whether the sides of a noul may also be called `yes` or `1`, and `no` or `0`, in any case. The first one counts.
    pub noul_words: bool,
    /// Fields of a body or of a question that may be left out or be true. With another value the family's own server answers in a way
    /// that is not implemented here.
    pub only_true: &'static [&'static str],
}

/// What the keys of levels mean that come as an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelKeys {
    /// Numbers by which they are sorted; if one of them is none, the levels are taken as given.
    SortedOrGiven,
    /// Numbers by which they are sorted.
    Sorted,
    /// `0`, `1`, `2` and so on, in this order.
    Counted,
}

impl Rules {
    /// The first field of an object that must be true and is not.
    fn not_true(&self, fields: &Map<String, Value>) -> Option<&'static str> {
        let wrong = |field: &&str| {
            fields
                .get(*field)
                .is_some_and(|value| *value != Value::Bool(true))
        };
        self.only_true.iter().find(|field| wrong(field)).copied()
    }

    /// A choice's options are an object and never a list.
    pub const NO_LISTS: RangeInclusive<usize> = RangeInclusive::new(1, 0);
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            limits: Limits::default(),
            json: JsonLimits::LAST_WINS,
            listed_options: 1..=255,
            only_noul_sides: false,
            level_keys: LevelKeys::SortedOrGiven,
            noul_words: false,
            only_true: &[],
        }
    }
}
