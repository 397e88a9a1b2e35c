//! Which executors `up` starts: the one of `[executor]`, or one for each model of `[[up.models]]` or `--model`.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use deltagate_checkpoint::Checkpoint;
use deltagate_executor::EMBEDDED;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    config::{Config, chain},
    output::Failure,
};

/// `[up]`: what `up` starts besides one of each service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpConfig {
    /// One executor for each, with everything else as in `[executor]`. Empty: one executor, as `[executor]` says.
    pub models: Vec<UpModelConfig>,
}

/// `[[up.models]]`: what differs between the executors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpModelConfig {
    /// Its `executor.model`: a folder, or `embedded`.
    pub model: String,
    /// Its `executor.model_name`. Default: the folder's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its `executor.listen`. Default: the port of `executor.listen`, plus its place in the list, counted from zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Its `executor.advertise`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
}

/// A value of `--model`: `DIR`, or `NAME=DIR`. What stands before the first `=` is a name unless it holds a `/`.
impl FromStr for UpModelConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, model) = match text.split_once('=') {
            Some((name, model)) if !name.contains('/') => (Some(name), model),
            _ => (None, text),
        };
        if model.is_empty() || name == Some("") {
            return Err("DIR or NAME=DIR is needed".to_owned());
        }
        Ok(Self {
            model: model.to_owned(),
            name: name.map(str::to_owned),
            listen: None,
            advertise: None,
        })
    }
}

/// An executor to start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Executor {
    /// `executor`, or `executor-1` and so on where there are several.
    pub(crate) label: String,
    /// Texts of `--set` in which it differs from the configuration.
    pub(crate) set: Vec<String>,
}

/// The executors of this configuration, at least one.
pub(crate) fn plan(config: &Config) -> Result<Vec<Executor>, Failure> {
    let models = &config.up.models;
    if models.is_empty() {
        return Ok(vec![Executor {
            label: "executor".to_owned(),
            set: Vec::new(),
        }]);
    }
    let several = models.len() > 1;
    if several && config.executor.advertise.is_some() && models.iter().any(|m| m.advertise.is_none()) {
        return Err(Failure::usage(
            "executor.advertise is for one executor: give each of [[up.models]] an `advertise` of its own",
        ));
    }
    let listens = listens(config)?;
    // With one model `executor.model_name` may still name it.
    let names = if several {
        names(models)?.into_iter().map(Some).collect()
    } else {
        models.iter().map(|model| model.name.clone()).collect::<Vec<_>>()
    };
    let each = models.iter().zip(listens).zip(names).enumerate();
    let planned = each.map(|(place, ((model, listen), name))| {
        let given = [
            ("model", Some(model.model.clone())),
            ("listen", Some(listen.to_string())),
            ("model_name", name),
            ("advertise", model.advertise.clone()),
        ];
        let set = given
            .into_iter()
            .filter_map(|(key, value)| Some(format!("executor.{key}={}", Value::from(value?))));
        Executor {
            label: if several {
                format!("executor-{}", place + 1)
            } else {
                "executor".to_owned()
            },
            set: set.collect(),
        }
    });
    Ok(planned.collect())
}

/// Where each listens. Two services at one address would be found out only when the second one starts, again and again.
fn listens(config: &Config) -> Result<Vec<SocketAddr>, Failure> {
    let mut taken: BTreeMap<SocketAddr, String> = [
        (config.gateway.grpc_listen, "gateway.grpc_listen"),
        (config.gateway.http_listen, "gateway.http_listen"),
        (config.capability.listen, "capability.listen"),
        (config.policy.listen, "policy.listen"),
    ]
    .into_iter()
    .map(|(address, key)| (address, key.to_owned()))
    .collect();
    let mut listens = Vec::new();
    for (place, model) in config.up.models.iter().enumerate() {
        let key = format!("up.models[{place}].listen");
        let mut listen = config.executor.listen;
        match (model.listen, u16::try_from(place)) {
            (Some(own), _) => listen = own,
            (None, Ok(more)) if listen.port().checked_add(more).is_some() => {
                listen.set_port(listen.port() + more)
            }
            (None, _) => return Err(Failure::usage(format!("{key}: there is no port that far up"))),
        }
        if let Some(other) = taken.insert(listen, key.clone()) {
            return Err(Failure::usage(format!("{key}: {listen} is taken by {other}")));
        }
        listens.push(listen);
    }
    Ok(listens)
}

/// The name of each. A name stands for one model; the same folder twice means two executors of it.
fn names(models: &[UpModelConfig]) -> Result<Vec<String>, Failure> {
    let mut folders: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut names = Vec::new();
    for model in models {
        let given = Path::new(&model.model);
        // One that does not exist is for the executor to refuse, which says what is wrong with it.
        let folder = if model.model == EMBEDDED {
            given.to_owned()
        } else {
            std::fs::canonicalize(given).unwrap_or_else(|_| given.to_owned())
        };
        let name = match &model.name {
            Some(name) => name.clone(),
            None if model.model == EMBEDDED => {
                let embedded = Checkpoint::embedded().map_err(|e| Failure::usage(chain(&e)))?;
                embedded.card().name.clone()
            }
            None => {
                let own = given.file_name().or(folder.file_name());
                own.unwrap_or(given.as_os_str()).to_string_lossy().into_owned()
            }
        };
        if folders
            .insert(name.clone(), folder.clone())
            .is_some_and(|other| other != folder)
        {
            return Err(Failure::usage(format!(
                "two folders would be served as `{name}`: name them, as in --model NAME=DIR"
            )));
        }
        names.push(name);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn with(models: &[&str]) -> Config {
        let mut config = Config::default();
        config.up.models = models.iter().map(|text| text.parse().unwrap()).collect();
        config
    }

    fn refused(config: &Config) -> String {
        plan(config).unwrap_err().to_string()
    }

    fn of(executor: &Executor, key: &str) -> Option<String> {
        let key = format!("executor.{key}=");
        let value = executor.set.iter().find_map(|text| text.strip_prefix(&key))?;
        Some(serde_json::from_str(value).unwrap())
    }

    #[test]
    fn a_flag_is_a_folder_with_or_without_a_name() {
        let parsed = |text: &str| {
            let model: UpModelConfig = text.parse().unwrap();
            (model.name, model.model)
        };
        assert_eq!(parsed("/models/a"), (None, "/models/a".to_owned()));
        assert_eq!(
            parsed("x=/models/a"),
            (Some("x".to_owned()), "/models/a".to_owned())
        );
        assert_eq!(parsed("./a=b"), (None, "./a=b".to_owned()));
        assert_eq!(
            parsed("x=embedded"),
            (Some("x".to_owned()), "embedded".to_owned())
        );
        for bad in ["", "=/models/a", "x="] {
            assert!(bad.parse::<UpModelConfig>().is_err(), "{bad}");
        }
    }

    #[test]
    fn each_model_gets_an_executor_and_a_port_of_its_own() {
        let one = plan(&with(&[])).unwrap();
        assert_eq!(
            (one.len(), one[0].label.as_str(), one[0].set.len()),
            (1, "executor", 0)
        );
        let mut config = with(&["/models/a", "b=/models/a", "c=embedded"]);
        config.executor.model_name = Some("only".to_owned());
        config.up.models[2].listen = Some(SocketAddr::from(([127, 0, 0, 1], 7)));
        let three = plan(&config).unwrap();
        let all = |key: &str| three.iter().map(|e| of(e, key).unwrap()).collect::<Vec<_>>();
        assert_eq!(all("model"), ["/models/a", "/models/a", "embedded"]);
        assert_eq!(
            all("listen"),
            ["127.0.0.1:50061", "127.0.0.1:50062", "127.0.0.1:7"]
        );
        // `executor.model_name` is for one model.
        assert_eq!(all("model_name"), ["a", "b", "c"]);
        let labels: Vec<_> = three.iter().map(|e| e.label.as_str()).collect();
        assert_eq!(labels, ["executor-1", "executor-2", "executor-3"]);
        let single = plan(&with(&["1.5=/models/a"])).unwrap();
        assert_eq!(
            (single[0].label.as_str(), of(&single[0], "model_name").as_deref()),
            ("executor", Some("1.5"))
        );
        assert_eq!(of(&plan(&with(&["/models/a"])).unwrap()[0], "model_name"), None);
    }

    #[test]
    fn what_would_collide_is_refused() {
        assert!(refused(&with(&["/one/a", "/two/a"])).contains("`a`"));
        assert!(refused(&with(&["x=/one/a", "x=/one/b"])).contains("`x`"));
        plan(&with(&["/one/a", "/one/a"])).unwrap();
        plan(&with(&["a=/one/a", "b=/two/a"])).unwrap();
        let mut config = with(&["/one/a", "/one/a"]);
        config.up.models[1].listen = Some(config.gateway.http_listen);
        let reason = refused(&config);
        assert!(
            reason.contains("up.models[1].listen") && reason.contains("gateway.http_listen"),
            "{reason}"
        );
        let mut config = with(&["/one/a", "/one/a"]);
        config.executor.listen.set_port(65_535);
        assert!(refused(&config).contains("up.models[1].listen"));
        let mut config = with(&["/one/a", "/one/a"]);
        config.executor.advertise = Some("http://10.0.0.7:50061".to_owned());
        assert!(refused(&config).contains("executor.advertise"));
    }
}
