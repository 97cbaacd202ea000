//! What to load: an object of compiled programs, and which of them this kernel has an attach point for, by its type
//! information.

use libbpf_rs::btf::types::{Func, Typedef};
use libbpf_rs::{Btf, Object, ObjectBuilder, OpenObject};

use super::libbpf_log::{capture, reason};
use super::programs::Program;
use super::status::{LACKS, status};
use super::{ProbeError, ProbeStatus};

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
