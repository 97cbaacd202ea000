//! Finding, reading and checking definitions.

use std::borrow::Cow;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use justitia_common::regular_file;
use justitia_common::toml_file::{TomlFile, none_of};

use super::check;
use super::definition::Experiment;
use super::shipped::{EXPERIMENTS, ORDINARY, TRACES};
use super::source::Source;

/// The largest file of a definition, in bytes: files lie in the guest's memory.
const LARGEST_FILE: u64 = 128 << 20;

/// What a file of an experiment holds.
pub(super) type Content = Cow<'static, [u8]>;

impl Experiment {
    /// Reads and checks a definition. Errors say the file and the line.
    ///
    /// With `base = "NAME"` it takes everything from the shipped experiment of this name, and each of its own keys
    /// replaces that of the base. Of a table (`[disk]`, `[workload]`) single keys are replaced: `[workload.fill]`
    /// replaces the workload `fill` and leaves the others. An array is replaced as a whole: one `[[phase]]`, and none
    /// of the base's phases is left.
    ///
    /// # Errors
    /// It is no TOML, has a wrong key or value, or bases that build on each other.
    pub fn parse(name: &str, file: &str, text: &str) -> Result<Self> {
        Self::read(name, &Source::load(file, text, &shipped)?)
    }

    fn read(name: &str, source: &Source) -> Result<Self> {
        let table = source.merge()?;
        let mut experiment: Self = source.read(table.clone())?;
        name.clone_into(&mut experiment.name);
        check::check(&experiment)
            .map_err(|problem| source.error_at(table.get_ref(), &problem.place, &problem.what))?;
        Ok(experiment)
    }

    /// The shipped experiment of this name, or the file at this path. A base of a file may also be the name of a
    /// `.toml` file in the same directory.
    ///
    /// # Errors
    /// There is none, or it is wrong: see [`Experiment::parse`].
    pub fn find(name: &str) -> Result<Self> {
        let source = source(name)?;
        if !is_file(name) {
            return Self::read(name, &source);
        }
        let path = Path::new(name);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut experiment = Self::read(&stem, &source)?;
        path.parent()
            .unwrap_or(Path::new(""))
            .clone_into(&mut experiment.dir);
        // Everything is checked before anything runs.
        experiment.contents().with_context(|| name.to_owned())?;
        Ok(experiment)
    }

    /// The definition of this name or at this path as it is written, and those that it builds on: each with its file.
    ///
    /// # Errors
    /// There is none, or a base is wrong.
    pub fn texts(name: &str) -> Result<Vec<TomlFile>> {
        Ok(source(name)?.into_texts())
    }

    /// Every shipped experiment.
    ///
    /// # Errors
    /// One is wrong: see [`Experiment::parse`].
    pub fn shipped() -> Result<Vec<Self>> {
        EXPERIMENTS
            .iter()
            .chain(&ORDINARY)
            .map(|(name, _)| Self::find(name))
            .collect()
    }

    /// The mixtures that ordinary hosts have, of [`shipped`](Self::shipped) the part that `justitia-lab ordinary` runs.
    ///
    /// # Errors
    /// One is wrong: see [`Experiment::parse`].
    pub fn ordinary() -> Result<Vec<Self>> {
        ORDINARY.iter().map(|(name, _)| Self::find(name)).collect()
    }

    /// Its files' contents, by name.
    ///
    /// # Errors
    /// A file cannot be read, or is too large for a guest.
    pub fn contents(&self) -> Result<Vec<(&str, Content)>> {
        let content = |path: &Path| -> Result<Content> {
            let trace = TRACES.iter().find(|(name, _)| Path::new(name) == path);
            if let Some((_, text)) = trace {
                return Ok(Cow::Borrowed(text.as_bytes()));
            }
            let path = self.dir.join(path);
            let reading = || format!("reading {}", path.display());
            let content = regular_file::read(&path, LARGEST_FILE).with_context(reading)?;
            Ok(Cow::Owned(content))
        };
        self.files
            .iter()
            .map(|(name, path)| Ok((name.as_str(), content(path)?)))
            .collect()
    }
}

/// Whether an experiment is named by its file.
fn is_file(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|ending| ending == "toml")
}

/// The texts of the shipped experiment of this name, or of the file at this path.
fn source(name: &str) -> Result<Source> {
    if !is_file(name) {
        // The cache's experiments are definitions of another kind, which another command runs.
        let (file, text) = shipped(name).map_err(|none| {
            anyhow!("{none}; those of the cache: `justitia-lab cache experiment --list`")
        })?;
        return Source::load(&file, &text, &shipped);
    }
    let path = Path::new(name);
    let dir = path.parent().unwrap_or(Path::new(""));
    let beside = |base: &str| match Path::new(base) {
        _ if !is_file(base) => shipped(base),
        path if path.components().count() == 1 => {
            let path = dir.join(path);
            Ok((path.display().to_string(), text_of(&path)?))
        }
        _ => bail!("expected a file in the same directory, found {base:?}"),
    };
    Source::load(name, &text_of(path)?, &beside)
}

/// The file and the text of a shipped experiment.
fn shipped(name: &str) -> Result<(String, String)> {
    let all = EXPERIMENTS.iter().chain(&ORDINARY);
    match all.clone().find(|(shipped, _)| *shipped == name) {
        Some((_, text)) => Ok((format!("lab/experiments/{name}.toml"), (*text).to_owned())),
        None => {
            let kind = "the path of a .toml file, or an experiment";
            Err(anyhow!(none_of(kind, name, all.map(|(name, _)| *name))))
        }
    }
}

fn text_of(path: &Path) -> Result<String> {
    Ok(TomlFile::read(path)?.text().to_owned())
}
