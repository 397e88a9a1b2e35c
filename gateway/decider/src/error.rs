//! Errors. None holds text of a request: positions, counts and fixed words only.

use std::fmt;

/// One step of a path into a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathSegment {
    /// A field. Always one of the contract's own names, never a key of the request.
    Key(&'static str),
    /// A position in a list, or of a key in an object.
    Index(usize),
}

impl From<&'static str> for PathSegment {
    fn from(key: &'static str) -> Self {
        PathSegment::Key(key)
    }
}

impl From<usize> for PathSegment {
    fn from(index: usize) -> Self {
        PathSegment::Index(index)
    }
}

/// One thing wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where, in the names of `deltagate.v1`: `questions, 0, choice, options, 3, name`. Empty: the request itself.
    pub path: Vec<PathSegment>,
    /// What, for programs: upper-case words such as `PROMPT_TOO_LONG`.
    pub reason: &'static str,
    /// What, for people.
    pub message: String,
}

impl Violation {
    /// A violation at a path.
    pub fn new(
        path: impl IntoIterator<Item = PathSegment>,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        Violation {
            path: path.into_iter().collect(),
            reason,
            message: message.into(),
        }
    }

    /// A violation at a path inside question number `question`.
    pub fn in_question(
        question: usize,
        rest: &[PathSegment],
        reason: &'static str,
        message: impl Into<String>,
    ) -> Self {
        let path = ["questions".into(), question.into()]
            .into_iter()
            .chain(rest.iter().cloned());
        Violation::new(path, reason, message)
    }

    /// The path as gRPC's BadRequest wants it: `questions[0].choice.options[3].name`.
    pub fn field(&self) -> String {
        write_path(&self.path)
    }

    /// The path in the names of the HTTP body, where all options are called `criteria`: `questions, 0, criteria, 3`.
    pub fn http_path(&self) -> Vec<PathSegment> {
        let mut path = Vec::with_capacity(self.path.len());
        for segment in &self.path {
            match segment {
                PathSegment::Key("choice" | "score" | "noul" | "id" | "name" | "description") => {}
                PathSegment::Key("options" | "levels") => path.push("criteria".into()),
                PathSegment::Key("true_description") => path.extend(["criteria".into(), "true".into()]),
                PathSegment::Key("false_description") => path.extend(["criteria".into(), "false".into()]),
                other => path.push(other.clone()),
            }
        }
        path
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = write_path(&self.http_path());
        if path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{path}: {}", self.message)
        }
    }
}

fn write_path(path: &[PathSegment]) -> String {
    let mut out = String::new();
    for segment in path {
        match segment {
            PathSegment::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(key);
            }
            PathSegment::Index(index) => out.push_str(&format!("[{index}]")),
        }
    }
    out
}

/// Most violations that one refusal names: the rest adds nothing for a reader, and a gRPC status has to fit into the few
/// KiB that clients allow for trailers.
pub const MAX_VIOLATIONS: usize = 32;

/// Why a request is refused: it says what to change. Never the server's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.summary())]
pub struct RequestError {
    /// Unreadable, or readable and not answerable.
    pub kind: RequestErrorKind,
    /// At least one and at most [`MAX_VIOLATIONS`], in request order.
    pub violations: Vec<Violation>,
}

/// The two classes that HTTP tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestErrorKind {
    /// The body is not what the contract calls a request (HTTP 400).
    Malformed,
    /// A request that cannot be answered (HTTP 422).
    Unanswerable,
}

impl RequestError {
    /// A readable request that cannot be answered.
    pub fn unanswerable(violation: Violation) -> Self {
        RequestError {
            kind: RequestErrorKind::Unanswerable,
            violations: vec![violation],
        }
    }

    /// A body that is not a request.
    pub fn malformed(violation: Violation) -> Self {
        RequestError {
            kind: RequestErrorKind::Malformed,
            violations: vec![violation],
        }
    }

    /// `Ok` when there is nothing wrong. At most [`MAX_VIOLATIONS`] are kept.
    pub fn unless_empty(mut violations: Vec<Violation>) -> Result<(), Self> {
        if violations.is_empty() {
            return Ok(());
        }
        violations.truncate(MAX_VIOLATIONS);
        Err(RequestError {
            kind: RequestErrorKind::Unanswerable,
            violations,
        })
    }

    /// 400 or 422.
    pub fn http_status(&self) -> u16 {
        match self.kind {
            RequestErrorKind::Malformed => 400,
            RequestErrorKind::Unanswerable => 422,
        }
    }

    /// Reason of the first violation.
    pub fn reason(&self) -> &'static str {
        self.violations
            .first()
            .map_or("INVALID_REQUEST", |violation| violation.reason)
    }

    /// All violations in one line, in the names of the HTTP body.
    pub fn summary(&self) -> String {
        self.violations
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    }
}

/// The tokenizer could not encode a text. Says nothing of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer failed")]
pub struct TokenizeError;

/// Why a request ended without answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeciderError {
    /// The request is at fault.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The tokenizer is.
    #[error(transparent)]
    Tokenize(#[from] TokenizeError),
    /// A value that was read is NaN or infinite.
    #[error("sequence {sequence} of the step gave a value that is not finite")]
    NotFinite {
        /// Index in the plan.
        sequence: usize,
    },
    /// Outputs do not fit the plan.
    #[error("outputs do not fit the plan: expected {expected} {what}, got {got}")]
    OutputShape {
        /// What was counted.
        what: &'static str,
        /// As planned.
        expected: usize,
        /// As given.
        got: usize,
    },
    /// `step` was called with outputs before a plan was given, without them after, or after the end.
    #[error("the decider was stepped out of turn")]
    OutOfTurn,
}

impl DeciderError {
    /// Refuses a count of outputs that is not the planned one.
    pub(crate) fn check_shape(what: &'static str, expected: usize, got: usize) -> Result<(), Self> {
        if expected == got {
            Ok(())
        } else {
            Err(DeciderError::OutputShape { what, expected, got })
        }
    }

    /// Refuses values of sequence number `sequence` that are NaN or infinite.
    pub(crate) fn check_finite(sequence: usize, values: &[f32]) -> Result<(), Self> {
        if values.iter().all(|value| value.is_finite()) {
            Ok(())
        } else {
            Err(DeciderError::NotFinite { sequence })
        }
    }
}

/// Why a family cannot be used with a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FamilyError {
    /// Not one of [`crate::families::FAMILIES`].
    #[error("unknown decider family {id:?}")]
    Unknown {
        /// The name asked for.
        id: String,
    },
    /// A key of the family's configuration file.
    #[error("decision config, key {key}: {reason}")]
    Config {
        /// Dotted.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer does not fit the family's configuration.
    #[error("tokenizer does not fit the family: {reason}")]
    Tokenizer {
        /// What differs.
        reason: String,
    },
}
