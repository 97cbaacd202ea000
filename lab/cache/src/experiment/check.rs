//! Whether an experiment says what can be.

use super::spec::{Configuration, Division, Experiment, Kind};
use justitia_cache::lab::BLOCK_BYTES;
use justitia_common::toml_file::{known, unique};
use justitia_share::Weight;
use std::collections::BTreeSet;

/// Threads of a container at most.
const MAX_THREADS: u32 = 1024;
/// Files of all containers together at most, bytes after they were divided: the model keeps 20 bytes for each of their
/// blocks.
const MAX_FILE_BYTES: u64 = 16 << 30;
/// Stores at most, bytes after they were divided.
const MAX_STORE_BYTES: u64 = 64 << 30;
/// A run at most, seconds after they were divided.
const MAX_SECONDS: f64 = 3600.0;

impl Experiment {
    /// Bytes after they were divided.
    pub(crate) fn scaled(&self, bytes: u64) -> u64 {
        bytes / u64::from(self.scale.max(1))
    }

    /// `seconds` of the definition, divided by `time_scale`, as nanoseconds.
    pub(crate) fn nanos(&self, seconds: f64) -> u64 {
        justitia_share::num::to_u64(seconds * 1e9 / self.time_scale())
    }

    /// By what times are divided.
    pub(crate) fn time_scale(&self) -> f64 {
        f64::from(self.time_scale.unwrap_or(self.scale).max(1))
    }

    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<(), String> {
        between("scale", f64::from(self.scale), 1.0, 4096.0)?;
        between("time_scale", self.time_scale(), 1.0, 65_536.0)?;
        let seconds = self.seconds / self.time_scale();
        between("seconds / time_scale", seconds, 0.001, MAX_SECONDS)?;
        between("measure_from", self.measure_from, 0.0, self.seconds)?;
        if self.measure_from >= self.seconds {
            return Err("expected measure_from before the end of the run".to_owned());
        }
        for (what, size) in [("memory", Some(self.memory)), ("ssd", self.ssd)] {
            if let Some(size) = size {
                store(what, self.scaled(size.0))?;
            }
        }
        let names = unique("container", self.container.iter().map(|c| &*c.name))?;
        let ids = unique("configuration", self.configuration.iter().map(|c| &*c.id))?;
        if names.is_empty() || ids.is_empty() {
            return Err("expected at least one container and one configuration".to_owned());
        }
        self.check_containers()?;
        for configuration in &self.configuration {
            self.check_configuration(configuration, &names)?;
        }
        self.check_events(&names)?;
        let named = self.paper.iter().flat_map(|p| {
            let occupancy = p.occupancy.iter().map(|o| &*o.configuration);
            let results = p.results.iter().map(|r| &*r.configuration);
            occupancy.chain(results)
        });
        for id in named.chain(self.goal.iter().map(|g| &*g.configuration)) {
            known("configuration", &ids, id)?;
        }
        Ok(())
    }

    fn check_containers(&self) -> Result<(), String> {
        for container in &self.container {
            let of = |what: &str| format!("{what} of container {:?}", container.name);
            weights(&of("weights"), container.weights)?;
            let most = f64::from(MAX_THREADS);
            between(&of("threads"), f64::from(container.threads), 1.0, most)?;
            between(&of("start"), container.start, 0.0, self.seconds)?;
            if let Some(stop) = container.stop {
                between(&of("stop"), stop, container.start, self.seconds)?;
            }
            let least = match container.workload {
                Kind::Videoserver => 32 * BLOCK_BYTES,
                _ => 64 * BLOCK_BYTES,
            };
            size(&of("files / scale"), self.scaled(container.files.0), least)?;
            size(
                &of("memory / scale"),
                self.scaled(container.memory.0),
                BLOCK_BYTES,
            )?;
        }
        let files = self.container.iter().map(|c| self.scaled(c.files.0)).sum();
        size("files / scale of all containers", files, BLOCK_BYTES)
    }

    fn check_configuration(
        &self,
        configuration: &Configuration,
        names: &BTreeSet<&str>,
    ) -> Result<(), String> {
        let of = |what: &str| format!("{what} of configuration {:?}", configuration.id);
        let mut vms: Vec<_> = self.container.iter().map(|c| &c.vm).collect();
        vms.dedup();
        if configuration.cache == Division::Global && vms.len() > 1 {
            return Err(of(
                "expected all containers in one VM with the global cache",
            ));
        }
        for (name, both) in &configuration.weights {
            known("container", names, name)?;
            weights(&of("weights"), *both)?;
        }
        let named = configuration.containers.iter();
        for name in named.chain(configuration.starts.keys()) {
            known("container", names, name)?;
        }
        for start in configuration.starts.values() {
            between(&of("starts"), *start, 0.0, self.seconds)?;
        }
        Ok(())
    }

    fn check_events(&self, names: &BTreeSet<&str>) -> Result<(), String> {
        let vms: BTreeSet<_> = self.container.iter().map(|c| &*c.vm).collect();
        for event in &self.event {
            between("at of an event", event.at, 0.0, self.seconds)?;
            for (name, both) in &event.weights {
                known("container", names, name)?;
                weights("weights of an event", *both)?;
            }
            for (name, weight) in &event.vms {
                known("vm", &vms, name)?;
                Weight::try_from(*weight).map_err(|e| e.to_string())?;
            }
            if let Some(memory) = event.memory {
                store("memory of an event", self.scaled(memory.0))?;
            }
        }
        Ok(())
    }
}

fn store(what: &str, bytes: u64) -> Result<(), String> {
    if bytes <= MAX_STORE_BYTES {
        return Ok(());
    }
    Err(format!(
        "expected {what} of at most {MAX_STORE_BYTES} bytes after the division by scale, found {bytes}"
    ))
}

fn size(what: &str, bytes: u64, least: u64) -> Result<(), String> {
    if (least..=MAX_FILE_BYTES).contains(&bytes) {
        return Ok(());
    }
    Err(format!(
        "expected {what} from {least} to {MAX_FILE_BYTES} bytes, found {bytes}"
    ))
}

fn between(what: &str, found: f64, least: f64, most: f64) -> Result<(), String> {
    // NaN is in no range.
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(format!(
        "expected {what} from {least} to {most}, found {found}"
    ))
}

fn weights(what: &str, both: [u64; 2]) -> Result<(), String> {
    let good = |w: u64| w == 0 || Weight::try_from(w).is_ok();
    if both.iter().all(|w| good(*w)) && both != [0, 0] {
        return Ok(());
    }
    Err(format!(
        "expected {what} [memory, SSD] from 0 to 10000 and not both 0, found {both:?}"
    ))
}
