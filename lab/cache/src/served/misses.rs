//! Misses: ours with a small cache beside ours without, on the image's disk and in memory.

use super::compare::{compare, scratch};
use super::options::{BenchError, Options};
use super::report::Section;
use super::subject::Subject;
use justitia_cache::serve::Config;
use std::path::Path;

/// Serves an image below a directory, by a name, after a change of the configuration.
pub(super) type Serve =
    fn(&Path, &Path, &'static str, &dyn Fn(&mut Config)) -> Result<Subject, BenchError>;

/// How the subjects are served, and what is measured of them.
pub(super) struct Misses<'a> {
    pub(super) options: &'a Options,
    pub(super) serve: Serve,
    /// Requests a second.
    pub(super) measure: fn(&Subject, &Options) -> Result<f64, BenchError>,
}

impl Misses<'_> {
    /// Measures with this image, below its directory.
    pub(super) fn of(
        &self,
        title: &'static str,
        dir: &Path,
        image: &Path,
    ) -> Result<Section, BenchError> {
        let copy = dir.join("theirs");
        std::fs::copy(image, &copy)?;
        let name = "justitia, a cache of 1/64 of the image";
        let cached = (self.serve)(dir, image, name, &|config| {
            config.cache.memory_bytes = self.options.size.0 / 64;
        })?;
        let name = "justitia, the image uncached";
        let uncached = (self.serve)(dir, &copy, name, &|config| {
            for disk in config.vms.iter_mut().flat_map(|vm| &mut vm.disks) {
                disk.mode = None;
            }
        })?;
        compare(title, vec![cached, uncached], self.options, |subject| {
            (self.measure)(subject, self.options)
        })
    }

    /// Measures with an image in memory, if there is such a file system: where the disk takes no time, what the cache costs
    /// shows most.
    pub(super) fn in_memory(&self, title: &'static str) -> Result<Option<Section>, BenchError> {
        let memory = Path::new("/dev/shm");
        if !memory.is_dir() {
            return Ok(None);
        }
        let (scratch, image) = scratch(memory, self.options.size.0)?;
        self.of(title, scratch.path(), &image).map(Some)
    }
}
