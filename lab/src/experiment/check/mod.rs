//! What a definition must satisfy beyond its syntax.

mod measured;
mod phases;
mod problem;
mod tenants;

use super::definition::Experiment;
use super::source::Place;
use crate::spec::Filesystem;
pub(super) use problem::Problem;
use problem::problem;

/// mkfs.ext4 makes no smaller journal, bytes.
const SMALLEST_JOURNAL: u64 = 4 << 20;

/// Finds the first problem.
pub(super) fn check(experiment: &Experiment) -> Result<(), Problem> {
    measured::configurations(experiment)?;
    measured::metrics(experiment)?;
    measured::goals(experiment)?;
    journal(experiment)?;
    if experiment.scale.is_some() {
        return Ok(());
    }
    tenants::files(experiment)?;
    tenants::tenants(experiment)?;
    phases::phases(experiment)
}

fn journal(experiment: &Experiment) -> Result<(), Problem> {
    let (journal, disk) = (experiment.disk.journal.0, &experiment.disk);
    let fits = (SMALLEST_JOURNAL..=disk.size.0 / 2).contains(&journal);
    if journal == 0 || (disk.filesystem == Filesystem::Ext4 && fits) {
        return Ok(());
    }
    problem(
        Place::within("disk", "journal"),
        format!(
            "expected ext4, and 4MiB to half of the disk, found {} with {}",
            disk.filesystem, disk.journal
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ordinary_hosts_need_is_checked() {
        let text = "base = \"burst\"\n";
        let wrong = [
            (
                "[[tenant]]\nname = \"a\"\nweight = 1\ncgroup = { \"../memory.min\" = \"1\" }",
                "t.toml:2: tenant: expected a file of a cgroup",
            ),
            (
                "[[phase]]\ndo = \"sample\"\nseconds = 1",
                "t.toml:2: phase: expected probes",
            ),
            (
                "[[phase]]\ndo = \"renew\"\nin = [\"outsider\"]",
                "t.toml:2: phase: expected a tenant",
            ),
        ];
        for (more, what) in wrong {
            let error = Experiment::parse("t", "t.toml", &format!("{text}{more}\n"));
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(what), "{error}");
        }
    }
}
