//! An object of programs: compiled, loaded into the kernel, then attached.

use std::cell::RefCell;

use libbpf_rs::MapCore as _;
use libbpf_rs::btf::types::{Func, Typedef};
use libbpf_rs::{Btf, Link, Map, Object, ObjectBuilder, OpenObject};

use super::limits::ProbeError;
use super::probe::{LACKS, ProbeStatus, Program, Role, capture, reason, short, status};

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

// A compiled object, and which of its programs this kernel has an attach point for, by its type information.

/// An object, and how to load it.
pub(super) struct ObjectSpec<'a> {
    /// The compiled object.
    pub(super) object: &'a [u8],
    /// Its programs, in the order in which they are attached.
    pub(super) programs: &'static [Program],
    /// How many entries each map has.
    pub(super) map_sizes: &'a [(&'a str, u32)],
    /// The content of `.rodata.config`; empty when the object has none.
    pub(super) config: &'a [u8],
}

/// A text for each of some programs, by the program's name.
pub(super) type ByProgram = Vec<(&'static str, String)>;

/// The kernel's type information.
pub(super) fn kernel_types() -> Result<Btf<'static>, ProbeError> {
    // The error says all; what libbpf prints besides is dropped.
    let (types, _) = capture(|| Btf::from_path("/sys/kernel/btf/vmlinux"));
    types.map_err(|error| ProbeError::NoTypes {
        reason: error.to_string(),
    })
}

impl ObjectSpec<'_> {
    /// What the kernel's types say about each program: its section, or why it has no attach point.
    pub(super) fn attach_points(
        &self,
        types: &Btf<'_>,
    ) -> Result<(ByProgram, ByProgram), ProbeError> {
        let (mut present, mut absent) = (ByProgram::new(), ByProgram::new());
        for program in self.open()?.progs() {
            let section = program.section().to_string_lossy().into_owned();
            let Some(program) = self.find(&program.name().to_string_lossy()) else {
                continue;
            };
            match find_attach_point(types, &section) {
                Ok(()) => present.push((program.name, section)),
                Err(why) => absent.push((program.name, why)),
            }
        }
        Ok((present, absent))
    }

    /// The status of each probe, as far as it is known without loading anything.
    pub(super) fn status(&self, types: &Btf<'_>) -> Result<Vec<ProbeStatus>, ProbeError> {
        let (present, absent) = self.attach_points(types)?;
        Ok(status(self.programs, &present, &absent))
    }

    /// Loads all programs that are not in `absent`.
    pub(super) fn load_except(&self, absent: &[(&'static str, String)]) -> Result<Object, String> {
        self.load_if(|name| {
            self.find(name).is_some() && !absent.iter().any(|(absent, _)| *absent == name)
        })
    }

    /// Loads one program, to find out whether the kernel takes it.
    pub(super) fn try_load(&self, only: &str) -> Result<(), String> {
        self.load_if(|name| name == only).map(drop)
    }

    fn find(&self, name: &str) -> Option<&'static Program> {
        self.programs.iter().find(|program| program.name == name)
    }

    fn open(&self) -> Result<OpenObject, ProbeError> {
        let (open, printed) = capture(|| ObjectBuilder::default().open_memory(self.object));
        let refused = |reason: String| ProbeError::Refused { reason };
        let mut open = open.map_err(|error| refused(reason(&error, &printed)))?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let set = match self.map_sizes.iter().find(|(sized, _)| *sized == name) {
                Some((_, entries)) => map.set_max_entries(*entries),
                None if name == ".rodata.config" => map.set_initial_value(self.config),
                None => Ok(()),
            };
            set.map_err(|error| refused(format!("size map {name}: {error}")))?;
        }
        Ok(open)
    }

    fn load_if(&self, wanted: impl Fn(&str) -> bool) -> Result<Object, String> {
        let mut open = self.open().map_err(|error| error.to_string())?;
        for mut program in open.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            program.set_autoload(wanted(&name));
        }
        let (loaded, printed) = capture(|| open.load());
        loaded.map_err(|error| reason(&error, &printed))
    }
}

/// Whether the kernel has what the section names; if not, why.
fn find_attach_point(types: &Btf<'_>, section: &str) -> Result<(), String> {
    let Some((kind, name)) = section.split_once('/') else {
        return Ok(());
    };
    let (found, noun) = if kind == "tp_btf" {
        let name = format!("btf_trace_{name}");
        (
            types.type_by_name::<Typedef<'_>>(&name).is_some(),
            "tracepoint",
        )
    } else {
        (types.type_by_name::<Func<'_>>(name).is_some(), "function")
    };
    if found {
        Ok(())
    } else {
        Err(format!("{LACKS} {noun} {name}"))
    }
}
