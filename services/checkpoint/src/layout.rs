//! Finds every tensor of the model in its files, and every tensor that should not be there.

use std::collections::HashMap;

use deltagate_kernels_weights::{Dtype, TensorView};

use crate::{Finding, ModelConfig, Problem, index::Shards, tensors::backbone_tensors};

/// What stands before the names of the text backbone.
pub(crate) const PREFIXES: [&str; 4] = ["model.language_model.", "language_model.", "model.", ""];
/// Any of these under a prefix means that a backbone is there, be it a broken one.
const ANCHORS: [&str; 3] = [
    "embed_tokens.weight",
    "norm.weight",
    "layers.0.input_layernorm.weight",
];
/// Vision towers and multi-token prediction are not run.
const IGNORED: [&str; 4] = ["mtp.", "model.mtp.", "visual.", "model.visual."];
const EMBEDDING: &str = "embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Where the output embedding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// There is none.
    Bare,
    /// The embedding table.
    Tied,
    /// `lm_head.weight`.
    Own,
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Index into the shards.
    pub(crate) shard: usize,
    /// Name in the file.
    pub(crate) name: String,
}

/// Every tensor that is read, by its unprefixed name.
pub(crate) struct Layout {
    pub(crate) places: HashMap<String, Place>,
    pub(crate) head: Head,
    pub(crate) parameters: u64,
    pub(crate) weight_bytes: u64,
}

/// Checks names, shapes and dtypes against the config; `beside` the backbone a family may have a tensor of its own. A layout that comes with findings must not be used.
pub(crate) fn find(
    shards: &Shards,
    config: Option<&ModelConfig>,
    beside: Option<(&str, [usize; 2])>,
    findings: &mut Vec<Finding>,
) -> Option<Layout> {
    let holders = holders(shards, findings);
    let prefix = prefix(shards, &holders, findings)?;
    let config = config?;
    let mut layout = Layout {
        places: HashMap::new(),
        head: Head::Bare,
        parameters: 0,
        weight_bytes: 0,
    };
    for (name, shape) in backbone_tensors(config) {
        let full = format!("{prefix}{name}");
        match holders.get(full.as_str()) {
            Some(&shard) => layout.add(shards, Place { shard, name: full }, name, &shape, findings),
            None if is_lost(shards, &full) => {}
            None => findings.push(Finding::of(
                should_hold(shards, &full),
                full,
                Problem::MissingTensor,
            )),
        }
    }
    if let Some((name, shape)) = beside {
        match holders.get(name) {
            Some(&shard) => {
                let place = Place {
                    shard,
                    name: name.to_owned(),
                };
                layout.add(shards, place, name.to_owned(), &shape, findings);
            }
            None if is_lost(shards, name) => {}
            None => findings.push(Finding::of(
                should_hold(shards, name),
                name,
                Problem::MissingTensor,
            )),
        }
    }
    let head = head(shards, &holders, prefix, config, &mut layout, findings);
    unknown(shards, &holders, &layout, head.as_deref(), findings);
    Some(layout)
}

impl Layout {
    fn add(
        &mut self,
        shards: &Shards,
        place: Place,
        name: String,
        shape: &[usize],
        findings: &mut Vec<Finding>,
    ) {
        let (file, weights) = &shards.files[place.shard];
        match weights.tensor(&place.name) {
            Ok(view) => {
                if view.shape != shape {
                    let problem = Problem::Shape {
                        expected: shape.to_vec(),
                        actual: view.shape.to_vec(),
                    };
                    findings.push(Finding::of(file, &place.name, problem));
                }
                if view.dtype == Dtype::F16 {
                    findings.push(Finding::of(
                        file,
                        &place.name,
                        Problem::Dtype { dtype: view.dtype },
                    ));
                }
                self.parameters += view.elements() as u64;
                self.weight_bytes += view.bytes.len() as u64;
            }
            Err(error) => findings.push(error.into()),
        }
        self.places.insert(name, place);
    }

    /// A tensor by its unprefixed name.
    pub(crate) fn view<'a>(&'a self, shards: &'a Shards, name: &str) -> Option<TensorView<'a>> {
        let (name, place) = self.places.get_key_value(name)?;
        let (_, weights) = shards.files.get(place.shard)?;
        weights
            .tensor(&place.name)
            .ok()
            .map(|view| TensorView { name, ..view })
    }
}

/// Shard of every tensor. Files and index must tell the same story.
fn holders<'a>(shards: &'a Shards, findings: &mut Vec<Finding>) -> HashMap<&'a str, usize> {
    let mut holders = HashMap::new();
    for (shard, (file, weights)) in shards.files.iter().enumerate() {
        let mut names: Vec<&str> = weights.names().collect();
        names.sort_unstable();
        for name in names {
            if let Some(other) = holders.insert(name, shard) {
                let other = shards.files[other].0.clone();
                findings.push(Finding::of(file, name, Problem::DuplicateTensor { other }));
            }
            if shards
                .listed
                .as_ref()
                .is_some_and(|listed| listed.get(name) != Some(file))
            {
                findings.push(Finding::of(file, name, Problem::Unlisted));
            }
        }
    }
    for (name, file) in shards.listed.iter().flatten() {
        let opened = shards.files.iter().find(|(shard, _)| shard == file);
        // A shard that could not be opened has its own finding.
        if opened.is_some_and(|(_, weights)| !weights.contains(name)) {
            findings.push(Finding::of(file, name, Problem::MissingTensor));
        }
    }
    holders
}

fn prefix(
    shards: &Shards,
    holders: &HashMap<&str, usize>,
    findings: &mut Vec<Finding>,
) -> Option<&'static str> {
    let has = |prefix: &str| {
        ANCHORS
            .iter()
            .any(|anchor| holders.contains_key(format!("{prefix}{anchor}").as_str()))
    };
    let found: Vec<&'static str> = PREFIXES.into_iter().filter(|prefix| has(prefix)).collect();
    let file = shards.files.first().map(|(name, _)| name.clone())?;
    match found[..] {
        [prefix] => return Some(prefix),
        [] => findings.push(Finding::file(file, Problem::NoBackbone)),
        _ => findings.push(Finding::file(file, Problem::SeveralBackbones(found))),
    }
    None
}

/// Finds `lm_head.weight`, which stands at the root or beside the backbone, and gives its full name.
fn head(
    shards: &Shards,
    holders: &HashMap<&str, usize>,
    prefix: &str,
    config: &ModelConfig,
    layout: &mut Layout,
    findings: &mut Vec<Finding>,
) -> Option<String> {
    let place = |name: String| {
        let &shard = holders.get(name.as_str())?;
        Some(Place { shard, name })
    };
    let beside = place(format!("{prefix}{HEAD}")).filter(|_| !prefix.is_empty());
    // If both are there, the one beside the backbone stays over, and is refused as a tensor that nobody reads.
    let own = place(HEAD.to_owned()).or(beside);
    let full = own.as_ref().map(|place| place.name.clone());
    let shape = [config.vocab_size, config.hidden_size];
    match (config.tie_word_embeddings, own) {
        (false, None) => layout.head = Head::Bare,
        (false, Some(place)) => {
            layout.head = Head::Own;
            layout.add(shards, place, HEAD.to_owned(), &shape, findings);
        }
        (true, None) => layout.head = Head::Tied,
        (true, Some(place)) => {
            layout.head = Head::Tied;
            let (file, weights) = &shards.files[place.shard];
            let same = match (layout.view(shards, EMBEDDING), weights.tensor(&place.name)) {
                (Some(a), Ok(b)) => (a.dtype, a.shape, a.bytes) == (b.dtype, b.shape, b.bytes),
                _ => false,
            };
            if !same {
                findings.push(Finding::of(file, &place.name, Problem::NotTied));
            }
        }
    }
    full
}

/// A tensor that nobody reads is a part of the model that would silently be left out: a bias, a scale, a layer, an adapter.
fn unknown(
    shards: &Shards,
    holders: &HashMap<&str, usize>,
    layout: &Layout,
    head: Option<&str>,
    findings: &mut Vec<Finding>,
) {
    let read: std::collections::HashSet<&str> =
        layout.places.values().map(|place| place.name.as_str()).collect();
    let mut names: Vec<(&&str, &usize)> = holders.iter().collect();
    names.sort_unstable();
    for (&name, &shard) in names {
        if head == Some(name) || read.contains(name) || IGNORED.iter().any(|prefix| name.starts_with(prefix))
        {
            continue;
        }
        let problem = match name {
            "score.weight" => Problem::Key {
                reason: "is the head of a sequence classifier, but `architectures` of config.json names none"
                    .to_owned(),
            },
            _ => Problem::UnknownTensor,
        };
        findings.push(Finding::of(&shards.files[shard].0, name, problem));
    }
}

/// Whether the index puts a tensor into a file that could not be opened: that file has its own finding, and one is enough.
pub(crate) fn is_lost(shards: &Shards, full: &str) -> bool {
    let listed = shards.listed.as_ref().and_then(|listed| listed.get(full));
    listed.is_some_and(|file| shards.files.iter().all(|(opened, _)| opened != file))
}

/// The file to name for a tensor that is nowhere.
fn should_hold(shards: &Shards, full: &str) -> String {
    let listed = shards.listed.as_ref().and_then(|listed| listed.get(full));
    match (listed, &shards.files[..]) {
        (Some(file), _) => file.clone(),
        (None, [(file, _)]) => file.clone(),
        (None, _) => "model.safetensors.index.json".to_owned(),
    }
}
