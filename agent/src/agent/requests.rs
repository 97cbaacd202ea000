//! Requests of an operator for one knob: `justitia release` and `justitia take`.

use std::path::Path;

use justitia_api::control::Answer;
use justitia_api::escape;
use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::io::io_cost_devices;
use justitia_kernel::knob::{Knob, read_raw};

use super::Agent;

/// The most names that an error suggests.
const MAX_SUGGESTED: usize = 5;

impl Agent {
    /// Restores a knob, and does not write it any more.
    pub(crate) fn release(&mut self, name: &str) -> Answer {
        answer(self.try_release(name))
    }

    /// Takes a knob that was left to another writer.
    pub(crate) fn take(&mut self, name: &str) -> Answer {
        answer(self.try_take(name))
    }

    fn try_release(&mut self, name: &str) -> Result<String, String> {
        let (cgroup, knob) = self.named(name)?;
        let (id, shown) = (cgroup.id(), full_name(&cgroup, knob));
        let store = self.knobs.as_mut().ok_or(OBSERVES)?;
        let found = store
            .release(&cgroup, knob)
            .map_err(|error| format!("{shown}: {error}"))?;
        tracing::info!(knob = shown, found, "released: it is left as it is");
        if knob == Knob::MemoryLow {
            self.protection.on_cgroup_removed(id);
            self.monitor.cgroups.read_low(id);
        }
        Ok(format!(
            "{shown} is left as it is, at {found}: `justitia take` gives it back to the agent"
        ))
    }

    fn try_take(&mut self, name: &str) -> Result<String, String> {
        let (cgroup, knob) = self.named(name)?;
        let (id, shown) = (cgroup.id(), full_name(&cgroup, knob));
        let store = self.knobs.as_mut().ok_or(OBSERVES)?;
        // The status would show it as the agent's, which never writes it.
        if is_of_disks(knob) && !self.config.io.enabled {
            return Err(format!(
                "{shown} is left as it is: the agent writes it only to divide disks, and [io] is off; set enabled = true \
                 there and run `justitia reload` first"
            ));
        }
        let asked = match knob {
            Knob::DirtyBackground => self.credits.take_dirty_background(),
            Knob::VfsCachePressure => self.slab.take(),
            Knob::IoCostQos(_) if store.applied(id, knob).is_none() => not_enabled(&cgroup, knob),
            _ => Ok(()),
        };
        asked.map_err(|why| format!("{shown} is left as it is: {why}"))?;
        let taken = store
            .take(&cgroup, knob)
            .map_err(|error| format!("{shown}: {error}"))?;
        if !taken {
            return Ok(format!("{shown} is the agent's already"));
        }
        tracing::info!(knob = shown, "taken: the agent writes it again");
        if knob == Knob::MemoryLow {
            self.monitor.cgroups.record_low(id, Ok(Some(0)));
        }
        Ok(format!(
            "{shown} is the agent's again; its present value is restored whenever the agent does not need the knob"
        ))
    }

    /// The knob of this name: its file below the cgroup mount, for a disk's line also the device.
    fn named(&self, name: &str) -> Result<(Cgroup, Knob), String> {
        let cgroups = &self.monitor.cgroups;
        let mount = cgroups.root_cgroup().full_path();
        let mount = escape::encode(mount.as_os_str());
        let path = name.strip_prefix(&mount).unwrap_or(name);
        let path = path.trim_start_matches('/');
        let (of, file) = path.rsplit_once('/').unwrap_or(("", path));
        let knob = parsed(file).ok_or_else(|| {
            format!(
                "expected a knob like system.slice/db.service/memory.low, with memory.low, memory.high, io.weight, \
                 io.bfq.weight, or io.weight and a device (\"io.weight 8:0\"), or one of the whole host like \
                 \"io.cost.qos 8:0\" or vm.dirty_background_ratio, found {}{}",
                escape::plain(name),
                self.suggestions(path)
            )
        })?;
        if is_of_host(knob) {
            return match of.is_empty() {
                true => Ok((cgroups.root_cgroup().clone(), knob)),
                false => Err(format!(
                    "expected {knob} without a cgroup, since it is the whole host's, found {}",
                    escape::plain(name)
                )),
            };
        }
        // The raw path, or the one that the status shows.
        let decoded = escape::decode(of);
        let is_meant = |path: &Path| {
            path == Path::new(of) || decoded.as_ref().is_some_and(|of| path == Path::new(of))
        };
        let found = cgroups
            .breadth_first()
            .into_iter()
            .filter_map(|id| cgroups.get(id))
            .find(|node| is_meant(node.cgroup.path()));
        match found {
            Some(node) => Ok((node.cgroup.clone(), knob)),
            None => Err(format!(
                "expected a cgroup that the agent manages, found {}{}",
                escape::plain(name),
                self.suggestions(path)
            )),
        }
    }

    /// The end of an error: cgroups whose names contain a part of `written`.
    fn suggestions(&self, written: &str) -> String {
        let cgroups = &self.monitor.cgroups;
        let meant = |path: &str| {
            let last = path.rsplit('/').next().unwrap_or_default();
            let asked = written.split('/').find(|part| parsed(part).is_none());
            asked.is_some_and(|asked| !asked.is_empty() && last.contains(asked))
        };
        let paths = cgroups.breadth_first().into_iter();
        let paths = paths.filter_map(|id| cgroups.get(id));
        let paths = paths.map(|node| escape::encode(node.cgroup.path().as_os_str()));
        let found: Vec<String> = paths
            .filter(|path| meant(path))
            .take(MAX_SUGGESTED)
            .map(|path| format!("{path}/memory.low"))
            .collect();
        match found.is_empty() {
            true => ": `justitia status` lists the cgroups".to_owned(),
            false => format!("; perhaps {}", found.join(", or ")),
        }
    }
}

/// The error of both requests where the agent only observes.
const OBSERVES: &str = "the agent only observes: it writes no knob";

fn answer(done: Result<String, String>) -> Answer {
    match done {
        Ok(done) => Answer {
            done: vec![done],
            ..Answer::default()
        },
        Err(error) => Answer {
            errors: vec![error],
            ..Answer::default()
        },
    }
}

/// The knob of a cgroup with this name.
fn parsed(name: &str) -> Option<Knob> {
    match name {
        "memory.low" => Some(Knob::MemoryLow),
        "memory.high" => Some(Knob::MemoryHigh),
        "io.weight" => Some(Knob::IoWeight),
        "io.bfq.weight" => Some(Knob::IoBfqWeight),
        "vm.dirty_background_ratio" => Some(Knob::DirtyBackground),
        "vm.vfs_cache_pressure" => Some(Knob::VfsCachePressure),
        _ => {
            let (file, device) = name.split_once(' ')?;
            let device = device.parse().ok()?;
            match file {
                "io.weight" => Some(Knob::IoWeightOn(device)),
                "io.bfq.weight" => Some(Knob::IoBfqWeightOn(device)),
                "io.cost.qos" => Some(Knob::IoCostQos(device)),
                "io.cost.model" => Some(Knob::IoCostModel(device)),
                _ => None,
            }
        }
    }
}

/// Whether a knob belongs to the machine or the root cgroup.
const fn is_of_host(knob: Knob) -> bool {
    matches!(
        knob,
        Knob::DirtyBackground | Knob::VfsCachePressure | Knob::IoCostQos(_) | Knob::IoCostModel(_)
    )
}

/// Whether a knob is written only to divide disks.
const fn is_of_disks(knob: Knob) -> bool {
    matches!(
        knob,
        Knob::MemoryHigh
            | Knob::IoWeightOn(_)
            | Knob::IoBfqWeightOn(_)
            | Knob::IoCostQos(_)
            | Knob::IoCostModel(_)
            | Knob::DirtyBackground
    )
}

/// An error if the operator has enabled io.cost: then its line of `io.cost.qos` is not taken, and the agent corrects weights.
fn not_enabled(root: &Cgroup, knob: Knob) -> Result<(), String> {
    let found = read_raw(root, knob).map_err(|error| error.to_string())?;
    if io_cost_devices(found.as_bytes()).is_empty() {
        return Ok(());
    }
    Err(format!(
        "its operator has enabled io.cost there, and the agent corrects weights in it; write \"{}\" to {} first to have the \
         agent enable it while tenants contend",
        knob.default_value(),
        knob.file()
    ))
}

fn full_name(cgroup: &Cgroup, knob: Knob) -> String {
    if is_of_host(knob) {
        return knob.to_string();
    }
    format!("{}/{knob}", escape::encode(cgroup.path().as_os_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::knobs::KnobStore;
    use crate::monitor::AppIoMonitor;
    use crate::page_cache::ReclaimFeatures;
    use justitia_kernel::cgroup::CgroupFs;

    /// An agent with these cgroups, all with a `memory.low` of 0.
    fn agent(dir: &Path, names: &[&str], acts: bool) -> Agent {
        let root = dir.join("cgroup");
        for name in names {
            std::fs::create_dir_all(root.join(name)).unwrap();
            for (file, text) in [("cgroup.controllers", "memory\n"), ("memory.low", "0\n")] {
                std::fs::write(root.join(name).join(file), text).unwrap();
            }
        }
        let fs = CgroupFs::open_fixture(&root).unwrap();
        let store = acts.then(|| KnobStore::open(&fs, &dir.join("state")).unwrap().0);
        let features = ReclaimFeatures::default();
        let app_io = AppIoMonitor::unavailable("a test");
        Agent::new(Config::default(), &fs, features, store, None, app_io).unwrap()
    }

    #[test]
    fn a_knob_is_named_by_its_path_and_others_are_suggested() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["a.slice", "a.slice/db.service", "a.slice/x\\x2dy.scope"];
        let mut agent = agent(dir.path(), &names, true);
        let mount = dir.path().join("cgroup");
        for name in [
            "a.slice/db.service/memory.low",
            "/a.slice/db.service/memory.low",
            &format!("{}/a.slice/db.service/memory.low", mount.display()),
            // As it is, and as the status shows it.
            "a.slice/x\\x2dy.scope/memory.low",
            "a.slice/x\\x5cx2dy.scope/memory.low",
        ] {
            let answer = agent.release(name);
            assert!(answer.errors.is_empty(), "{answer:?}");
            let done = &answer.done[0];
            assert!(
                done.contains("/memory.low is left as it is, at 0: "),
                "{done}"
            );
            let answer = agent.take(name);
            assert!(
                answer.done[0].contains("is the agent's again"),
                "{answer:?}"
            );
            let answer = agent.take(name);
            assert!(
                answer.done[0].ends_with("is the agent's already"),
                "{answer:?}"
            );
        }
        for (name, expected) in [
            (
                "db.service/memory.low",
                "; perhaps a.slice/db.service/memory.low",
            ),
            ("db/memory.low", "; perhaps a.slice/db.service/memory.low"),
            (
                "nothing/memory.low",
                ": `justitia status` lists the cgroups",
            ),
            ("a.slice/memory.max", "expected a knob like "),
            ("a.slice", "expected a knob like "),
            ("a.slice/io.max", "io.weight and a device"),
            ("\u{1b}[31m/memory.low", "found \\u{1b}[31m"),
        ] {
            let answer = agent.release(name);
            assert!(answer.done.is_empty(), "{answer:?}");
            assert!(answer.errors[0].contains(expected), "{name}: {answer:?}");
        }
    }

    #[test]
    fn knobs_of_the_whole_host_are_named_without_a_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = agent(dir.path(), &["a"], true);
        agent.config.io.enabled = true;
        let mount = dir.path().join("cgroup");
        for (file, text) in [
            ("io.cost.qos", ""),
            ("io.cost.model", ""),
            ("dirty_ratio", "20\n"),
            ("dirty_background_ratio", "10\n"),
            ("vfs_cache_pressure", "100\n"),
        ] {
            std::fs::write(mount.join(file), text).unwrap();
        }
        for name in [
            "io.cost.qos 8:0",
            "io.cost.model 8:0",
            &format!("{}/io.cost.qos 8:0", mount.display()),
        ] {
            let answer = agent.release(name);
            assert!(answer.errors.is_empty(), "{answer:?}");
            assert!(answer.done[0].starts_with("io.cost."), "{answer:?}");
        }
        let answer = agent.take("a/vm.vfs_cache_pressure");
        assert!(answer.errors[0].contains("without a cgroup"), "{answer:?}");
        for name in ["vm.dirty_background_ratio", "vm.vfs_cache_pressure"] {
            // The kernel's default is no other writer's value.
            assert!(agent.take(name).done[0].contains("already"), "{name}");
        }
    }

    #[test]
    fn an_operators_setting_of_the_host_is_not_called_the_agents() {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = agent(dir.path(), &["a"], true);
        agent.config.io.enabled = true;
        let write = |file: &str, text: &str| {
            std::fs::write(dir.path().join("cgroup").join(file), text).unwrap();
        };
        write("vfs_cache_pressure", "500\n");
        let answer = agent.take("vm.vfs_cache_pressure");
        assert!(
            answer.done[0].contains("is the agent's again"),
            "{answer:?}"
        );
        write("dirty_ratio", "20\n");
        write("dirty_background_ratio", "0\n");
        let answer = agent.take("vm.dirty_background_ratio");
        assert!(
            answer.errors[0].contains("vm.dirty_background_bytes"),
            "{answer:?}"
        );
    }

    #[test]
    fn what_divides_disks_is_not_taken_while_they_are_not_divided() {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = agent(dir.path(), &["a"], true);
        let mount = dir.path().join("cgroup");
        let files = [
            ("a/memory.high", "8192\n"),
            ("a/io.weight", "default 100\n8:0 400\n"),
            ("io.cost.qos", "8:0 enable=1 ctrl=auto\n"),
            ("dirty_ratio", "20\n"),
            ("dirty_background_ratio", "5\n"),
        ];
        for (file, text) in files {
            std::fs::write(mount.join(file), text).unwrap();
        }
        for name in [
            "a/memory.high",
            "a/io.weight 8:0",
            "io.cost.qos 8:0",
            "vm.dirty_background_ratio",
        ] {
            let answer = agent.take(name);
            assert!(answer.errors[0].contains("[io] is off"), "{answer:?}");
        }
        for (file, text) in files {
            assert_eq!(std::fs::read_to_string(mount.join(file)).unwrap(), text);
        }
        std::fs::write(mount.join("a/memory.high"), "max\n").unwrap();
        agent.config.io.enabled = true;
        assert!(agent.take("a/memory.high").done[0].contains("already"));
    }

    #[test]
    fn io_cost_that_its_operator_has_enabled_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = agent(dir.path(), &["a"], true);
        agent.config.io.enabled = true;
        let qos = dir.path().join("cgroup/io.cost.qos");
        let theirs = "8:0 enable=1 ctrl=auto\n";
        std::fs::write(&qos, theirs).unwrap();
        let answer = agent.take("io.cost.qos 8:0");
        assert!(
            answer.errors[0].contains("\"8:0 enable=0 ctrl=auto\" to io.cost.qos first"),
            "{answer:?}"
        );
        assert_eq!(std::fs::read_to_string(&qos).unwrap(), theirs);
        std::fs::write(&qos, "8:0 enable=0 ctrl=user rpct=95.00\n").unwrap();
        let answer = agent.take("io.cost.qos 8:0");
        assert!(
            answer.done[0].contains("is the agent's again"),
            "{answer:?}"
        );
    }

    #[test]
    fn an_observer_releases_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = agent(dir.path(), &["a"], false);
        assert_eq!(agent.release("a/memory.low").errors, [OBSERVES]);
        assert_eq!(agent.take("a/memory.low").errors, [OBSERVES]);
    }
}
