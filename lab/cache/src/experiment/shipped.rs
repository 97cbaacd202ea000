//! The experiments that are compiled in, and those in files.

use super::error::ExperimentError;
use super::spec::Experiment;
use justitia_common::toml_file::{Report, TomlError, TomlFile, none_of};
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
        if !path.exists() {
            let names = EXPERIMENTS.iter().map(|(shipped, _)| *shipped);
            let what = none_of("the path of a .toml file, or an experiment", name, names);
            let error = TomlError::whole(path, what);
            return Err(ExperimentError::Toml(vec![error]));
        }
        let text = TomlFile::read(path).map_err(|error| ExperimentError::Toml(vec![error]))?;
        let stem = path.file_stem().unwrap_or_default();
        Self::read(&stem.to_string_lossy(), &text)
    }

    /// An experiment as it is written.
    ///
    /// # Errors
    /// When it is none, or says what cannot be.
    pub fn parse(name: &str, text: &str) -> Result<Self, ExperimentError> {
        Self::read(name, &TomlFile::new(Path::new(name), text))
    }

    fn read(name: &str, text: &TomlFile) -> Result<Self, ExperimentError> {
        let mut report = Report::new(text);
        let mut table = report.parse();
        let mut experiment = report
            .read::<Self>(&mut table)
            .filter(|_| report.is_empty())
            .ok_or_else(|| ExperimentError::Toml(report.into_parts().0))?;
        name.clone_into(&mut experiment.name);
        experiment
            .check()
            .map_err(|problem| ExperimentError::Refused(format!("{name}: {problem}")))?;
        Ok(experiment)
    }
}
