//! What the parser refuses, and how it says so.

/// What to do when an object has a key twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateKeys {
    /// Refuse the document.
    Reject,
    /// Keep the last value at the first position, as Python does.
    LastWins,
}

/// Policy of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// Deepest nesting of arrays and objects: `[[1]]` is 2. More than 256 counts as 256.
    pub max_depth: usize,
    /// What to do with duplicate keys.
    pub duplicate_keys: DuplicateKeys,
}

impl JsonLimits {
    /// Depth 64, duplicate keys refused: the rule of gRPC.
    pub const STRICT: JsonLimits = JsonLimits {
        max_depth: 64,
        duplicate_keys: DuplicateKeys::Reject,
    };
    /// Depth 64, the last of duplicate keys wins: the rule of most families' HTTP servers.
    pub const LAST_WINS: JsonLimits = JsonLimits {
        duplicate_keys: DuplicateKeys::LastWins,
        ..Self::STRICT
    };
}

/// Why a document is refused. Holds a position, never text of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {offset}")]
pub struct JsonError {
    /// What is wrong.
    pub kind: JsonErrorKind,
    /// Where: a byte offset.
    pub offset: usize,
}

/// What is wrong with a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonErrorKind {
    /// The text ends too early.
    #[error("unexpected end of JSON")]
    UnexpectedEnd,
    /// A character that cannot stand here.
    #[error("unexpected character in JSON")]
    UnexpectedCharacter,
    /// Text after the document.
    #[error("text after the JSON document")]
    TrailingText,
    /// `NaN` or `Infinity`.
    #[error("NaN and Infinity are not JSON")]
    NotFinite,
    /// Not a number of RFC 8259.
    #[error("malformed number")]
    MalformedNumber,
    /// A float beyond f64.
    #[error("number too large for a 64-bit float")]
    NumberOverflow,
    /// An unescaped control character in a string.
    #[error("control character in a string")]
    ControlCharacter,
    /// An unknown or unfinished escape.
    #[error("malformed escape in a string")]
    MalformedEscape,
    /// Half of a surrogate pair.
    #[error("lone surrogate in a string")]
    LoneSurrogate,
    /// A key that this object has already.
    #[error("duplicate key")]
    DuplicateKey,
    /// Nested too deep.
    #[error("nested too deep")]
    TooDeep,
}

impl JsonErrorKind {
    /// A violation's reason code.
    pub fn reason(self) -> &'static str {
        match self {
            JsonErrorKind::DuplicateKey => "DUPLICATE_KEY",
            JsonErrorKind::TooDeep => "JSON_TOO_DEEP",
            _ => "INVALID_JSON",
        }
    }
}
