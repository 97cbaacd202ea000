//! An object of programs in the kernel: loaded, then attached.

use std::cell::RefCell;

use libbpf_rs::{Btf, Link, Map, MapCore as _, Object};

use super::libbpf_log::{capture, reason};
use super::programs::{Program, Role};
use super::spec::{ByProgram, ObjectSpec};
use super::status::{LACKS, short, status};
use super::{ProbeError, ProbeStatus};

/// Programs in the kernel, attached until this is dropped.
pub(super) struct ProbeObject {
    // Dropped before the maps.
    links: RefCell<Vec<(&'static str, Link)>>,
    object: Object,
    programs: &'static [Program],
    /// Programs that could not be loaded or attached, and why.
    absent: ByProgram,
    status: Vec<ProbeStatus>,
}

impl std::fmt::Debug for ProbeObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let links = self.links.borrow();
        let programs: Vec<_> = links.iter().map(|(name, _)| name).collect();
        f.debug_struct("ProbeObject")
            .field("programs", &programs)
            .finish_non_exhaustive()
    }
}

impl ProbeObject {
    /// Loads the programs that this kernel supports. None runs before it is attached, so that maps can be filled.
    pub(super) fn load(spec: &ObjectSpec<'_>, types: &Btf<'_>) -> Result<Self, ProbeError> {
        let (_, mut absent) = spec.attach_points(types)?;
        let object = match spec.load_except(&absent) {
            Ok(object) => object,
            // One program that the verifier refuses makes the whole load fail: find it, and load without it.
            Err(all) => {
                for program in spec.programs {
                    if !absent.iter().any(|(name, _)| *name == program.name)
                        && let Err(why) = spec.try_load(program.name)
                    {
                        absent.push((program.name, why));
                    }
                }
                spec.load_except(&absent).map_err(|_| ProbeError::Refused {
                    reason: short(&all),
                })?
            }
        };
        Ok(Self {
            links: RefCell::default(),
            object,
            programs: spec.programs,
            absent,
            status: Vec::new(),
        })
    }

    /// Why the kernel refused a program that it has an attach point for, if it refused one.
    pub(super) fn refused(&self) -> Option<&str> {
        let mut reasons = self.absent.iter().map(|(_, why)| why.as_str());
        reasons.find(|why| !why.starts_with(LACKS))
    }

    /// Attaches the programs.
    pub(super) fn attach(&mut self) {
        let mut attached = Vec::new();
        for program in self.programs {
            if self.absent.iter().any(|(name, _)| *name == program.name) {
                continue;
            }
            match self.attach_program(program.name) {
                Some((section, Ok(link))) => {
                    attached.push((program.name, section));
                    self.links.borrow_mut().push((program.name, link));
                }
                Some((_, Err(why))) => self.absent.push((program.name, why)),
                None => self
                    .absent
                    .push((program.name, "not in this build".to_owned())),
            }
        }
        self.status = status(self.programs, &attached, &self.absent);
    }

    /// Attaches a program: its section, and the link or why the kernel refused it; `None` if this build has none.
    fn attach_program(&self, name: &str) -> Option<(String, Result<Link, String>)> {
        let mut programs = self.object.progs_mut();
        let program = programs.find(|program| program.name() == name)?;
        let section = program.section().to_string_lossy().into_owned();
        let (link, printed) = capture(|| program.attach());
        Some((section, link.map_err(|error| reason(&error, &printed))))
    }

    /// Detaches the programs, the last one first; the maps keep what they have.
    pub(super) fn detach(&self) {
        while self.links.borrow_mut().pop().is_some() {}
    }

    /// Attaches those that [`attach`](Self::attach) did and [`detach`](Self::detach) has detached.
    pub(super) fn attach_again(&self) -> Result<(), ProbeError> {
        let mut links = self.links.borrow_mut();
        for program in self.programs {
            let known = |(name, _): &(&str, Link)| *name == program.name;
            if links.iter().any(known) || self.absent.iter().any(|(name, _)| *name == program.name)
            {
                continue;
            }
            match self.attach_program(program.name) {
                Some((_, Ok(link))) => links.push((program.name, link)),
                Some((_, Err(reason))) => return Err(ProbeError::Refused { reason }),
                None => {}
            }
        }
        Ok(())
    }

    /// Every probe that the programs serve; known once they are attached.
    pub(super) fn status(&self) -> &[ProbeStatus] {
        &self.status
    }

    /// A map of the object.
    pub(super) fn map(&self, name: &'static str) -> Result<Map<'_>, ProbeError> {
        self.object
            .maps()
            .find(|map| map.name() == name)
            .ok_or_else(|| ProbeError::Map {
                map: name,
                reason: "not in this build".to_owned(),
            })
    }

    /// How often the kernel skipped a program because it was interrupted by itself. Fallbacks do not count: they are
    /// skipped more often, when there was nothing left to count.
    pub(super) fn skipped(&self) -> u64 {
        self.programs
            .iter()
            .filter(|program| program.role != Role::Fallback)
            .filter_map(|program| self.recursion_misses(program.name))
            .sum()
    }

    fn recursion_misses(&self, name: &str) -> Option<u64> {
        use std::os::fd::{AsFd as _, AsRawFd as _};
        let links = self.links.borrow();
        links.iter().find(|(attached, _)| *attached == name)?;
        let program = self
            .object
            .progs_mut()
            .find(|program| program.name() == name)?;
        let path = format!("/proc/self/fdinfo/{}", program.as_fd().as_raw_fd());
        let text = std::fs::read_to_string(path).ok()?;
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("recursion_misses:"))?;
        count.trim().parse().ok()
    }
}
