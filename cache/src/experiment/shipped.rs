//! The experiments that are compiled in, and those in files.

use super::error::ExperimentError;
use super::spec::Experiment;
use std::path::Path;

macro_rules! experiments {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../experiments/", $name, ".toml")))),*]
    };
}

/// The paper's, by name.
const EXPERIMENTS: [(&str, &str); 6] = experiments![
    "motivation",
    "caching-modes",
    "settings",
    "dynamic-containers",
    "dynamic-vms",
    "weight-change",
];

/// A file at most, bytes.
const MAX_TEXT_BYTES: u64 = 1 << 20;

impl Experiment {
    /// The experiments that are compiled in.
    ///
    /// # Errors
    /// When one of them is none.
    pub fn shipped() -> Result<Vec<Self>, ExperimentError> {
        EXPERIMENTS
            .iter()
            .map(|(name, text)| Self::parse(name, text))
            .collect()
    }

    /// A shipped one by its name, or that of a file.
    ///
    /// # Errors
    /// When there is neither, or it is no experiment.
    pub fn find(name: &str) -> Result<Self, ExperimentError> {
        if let Some((name, text)) = EXPERIMENTS.iter().find(|(shipped, _)| *shipped == name) {
            return Self::parse(name, text);
        }
        let path = Path::new(name);
        let text = justitia_common::regular_file::read_text(path, MAX_TEXT_BYTES);
        let text = text.map_err(|source| ExperimentError::Read {
            path: path.into(),
            source,
        })?;
        let stem = path.file_stem().unwrap_or_default();
        Self::parse(&stem.to_string_lossy(), &text)
    }

    /// An experiment as it is written.
    ///
    /// # Errors
    /// When it is none, or says what cannot be.
    pub fn parse(name: &str, text: &str) -> Result<Self, ExperimentError> {
        let parsed: Result<Self, _> = toml::from_str(text);
        let mut experiment = parsed.map_err(|source| ExperimentError::Toml {
            name: name.to_owned(),
            source: Box::new(source),
        })?;
        name.clone_into(&mut experiment.name);
        experiment
            .check()
            .map_err(|problem| ExperimentError::Content {
                name: name.to_owned(),
                problem,
            })?;
        Ok(experiment)
    }
}
