//! A bundle: Rego modules, one data document, and the test cases that it must pass to become active.

mod cases;
mod source;

use deltagate_proto::v1;
use sha2::{Digest, Sha256};

pub use source::BundleSource;

use crate::evaluator::BundleEvaluator;

/// A bundle that was read, compiled and tested.
#[derive(Clone, Debug)]
pub struct Bundle {
    wire: v1::Bundle,
    evaluator: BundleEvaluator,
}

/// Why a bundle is not taken.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A file or the folder cannot be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// The file or folder.
        path: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// There are too many files, or they are too large.
    #[error("bundle has more than {0}")]
    TooLarge(&'static str),
    /// No `.rego` file.
    #[error("bundle has no .rego file")]
    NoModules,
    /// A Rego module does not parse or compile.
    #[error("rego does not compile: {0}")]
    Rego(String),
    /// `data.json` is not a JSON object.
    #[error("data.json is not a json object: {0}")]
    Data(String),
    /// A test file is not of the expected form.
    #[error("{file} is not a list of cases: {reason}")]
    CaseFile {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A decision that the mesh asks for has no case, so nothing says that it works.
    #[error("bundle has no test case for the {0} decision")]
    NoCases(&'static str),
    /// A test case gave another decision.
    #[error("{file}: case `{case}` failed: {reason}")]
    CaseFailed {
        /// The file.
        file: String,
        /// The case's name.
        case: String,
        /// What was expected and what came.
        reason: String,
    },
    /// The content is not that of the revision.
    #[error("bundle content does not match its revision")]
    RevisionMismatch,
}

/// A bundle's files as they were read, before anything was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    /// Rego modules, by file name.
    pub(crate) modules: Vec<(String, String)>,
    /// `data.json`.
    pub(crate) data: Option<String>,
    /// `*_test.json`, by file name.
    pub(crate) cases: Vec<(String, String)>,
}

impl Bundle {
    /// Reads, compiles and tests a bundle.
    pub fn load(source: &BundleSource) -> Result<Self, BundleError> {
        Self::check(&source.name(), source.read()?)
    }

    /// Compiles and tests.
    pub(crate) fn check(name: &str, mut files: Files) -> Result<Self, BundleError> {
        if files.modules.is_empty() {
            return Err(BundleError::NoModules);
        }
        files.modules.sort();
        let data_json = files.data.unwrap_or_else(|| "{}".to_owned());
        match serde_json::from_str::<serde_json::Value>(&data_json) {
            Ok(serde_json::Value::Object(_)) => {}
            Ok(_) => return Err(BundleError::Data("another kind of value".to_owned())),
            Err(error) => return Err(BundleError::Data(error.to_string())),
        }
        let mut wire = v1::Bundle {
            name: name.to_owned(),
            revision: String::new(),
            modules: files
                .modules
                .into_iter()
                .map(|(name, rego)| v1::BundleModule { name, rego })
                .collect(),
            data_json,
        };
        wire.revision = revision(&wire);
        let evaluator = BundleEvaluator::new(&wire)?;
        cases::run(&wire, &evaluator, &files.cases)?;
        Ok(Self { wire, evaluator })
    }

    /// As it goes to gateways.
    pub fn wire(&self) -> &v1::Bundle {
        &self.wire
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.wire.name
    }

    /// Its revision.
    pub fn revision(&self) -> &str {
        &self.wire.revision
    }

    /// A compiled evaluator of it.
    pub fn evaluator(&self) -> BundleEvaluator {
        self.evaluator.clone()
    }
}

/// SHA-256 over name, modules and data, each with its length in front; lower-case hex.
///
/// Test cases are not part of it: whoever receives a bundle over the wire can compute this again.
pub(crate) fn revision(bundle: &v1::Bundle) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    };
    add(&bundle.name);
    for module in &bundle.modules {
        add(&module.name);
        add(&module.rego);
    }
    add(&bundle.data_json);
    hex::encode(hash.finalize())
}
