//! From an object of compiled programs to attached ones: what this kernel has a place for is
//! decided program by program, from its type information and, where that does not suffice, by
//! trying.

use std::sync::Mutex;

use libbpf_rs::btf::types::{Func, Typedef};
use libbpf_rs::{Btf, Link, Map, MapCore as _, Object, ObjectBuilder, OpenObject, PrintLevel};

use super::programs::{Kind, Program};
use super::{Probe, ProbeError, ProbeStatus};
use crate::capabilities::State;

/// Programs in the kernel, attached as long as this lives.
pub(super) struct Loaded {
    // Detached before the maps go.
    links: Vec<(&'static str, Link)>,
    object: Object,
    programs: &'static [Program],
    absent: Told,
    /// About every probe that the programs serve; known once they are attached.
    pub(super) facts: Vec<ProbeStatus>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded")
            .field(
                "programs",
                &self.links.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            )
            .finish_non_exhaustive()
    }
}

/// Something about programs, by their names.
type Told = Vec<(&'static str, String)>;

/// What to load.
pub(super) struct Spec<'a> {
    /// The compiled object.
    pub(super) object: &'a [u8],
    /// Its programs, in the order in which they are attached.
    pub(super) programs: &'static [Program],
    /// How many entries each map has.
    pub(super) sizes: &'a [(&'a str, u32)],
    /// The content of `.rodata.config`; empty when the object has none.
    pub(super) config: &'a [u8],
}

/// The kernel's type information.
pub(super) fn kernel_types() -> Result<Btf<'static>, ProbeError> {
    // libbpf's answer, and not what it prints on the way.
    let _ = say(|| ());
    Btf::from_path("/sys/kernel/btf/vmlinux").map_err(|error| ProbeError::NoTypes {
        reason: error.to_string(),
    })
}

impl Loaded {
    /// Loads what this kernel has a place for. Nothing runs before it is attached, so that maps can be filled.
    pub(super) fn load(spec: &Spec<'_>, types: &Btf<'_>) -> Result<Self, ProbeError> {
        let (_, mut absent) = spec.places(types)?;
        let object = match spec.load(&absent) {
            Ok(object) => object,
            // One that the verifier refuses takes all down: find it, and go on without it.
            Err(all) => {
                for program in spec.programs {
                    if !absent.iter().any(|(name, _)| *name == program.name)
                        && let Err(why) = spec.load_only(program.name)
                    {
                        absent.push((program.name, why));
                    }
                }
                spec.load(&absent).map_err(|_| ProbeError::Refused {
                    reason: in_short(&all),
                })?
            }
        };
        Ok(Self {
            links: Vec::new(),
            object,
            programs: spec.programs,
            absent,
            facts: Vec::new(),
        })
    }

    /// Why a program was refused for which the kernel has a place, if one was.
    pub(super) fn refused(&self) -> Option<&str> {
        let why = self.absent.iter().map(|(_, why)| why.as_str());
        why.into_iter().find(|why| !why.starts_with(LACKS))
    }

    /// Attaches it.
    pub(super) fn attach(&mut self) {
        let mut places = Vec::new();
        for program in self.programs {
            if self.absent.iter().any(|(name, _)| *name == program.name) {
                continue;
            }
            let found = self
                .object
                .progs_mut()
                .find(|found| found.name() == program.name);
            let (attached, said) =
                say(|| found.map(|found| (found.section().to_owned(), found.attach())));
            match attached {
                Some((section, Ok(link))) => {
                    places.push((program.name, section.to_string_lossy().into_owned()));
                    self.links.push((program.name, link));
                }
                Some((_, Err(error))) => {
                    self.absent.push((program.name, reason(&error, &said)));
                }
                None => self
                    .absent
                    .push((program.name, "not in this build".to_owned())),
            }
        }
        self.facts = facts(self.programs, &places, &self.absent);
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

    /// How often the kernel skipped a program because it was interrupted by itself, twins apart: they are the more
    /// often skipped, for what was counted before them.
    pub(super) fn skipped(&self) -> u64 {
        self.programs
            .iter()
            .filter(|program| program.kind != Kind::Twin)
            .filter_map(|program| self.skipped_by(program.name))
            .sum()
    }

    fn skipped_by(&self, name: &str) -> Option<u64> {
        use std::os::fd::{AsFd as _, AsRawFd as _};
        self.links.iter().find(|(attached, _)| *attached == name)?;
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

impl Spec<'_> {
    /// What the kernel's types say about each program: where it goes, or why nowhere.
    fn places(&self, types: &Btf<'_>) -> Result<(Told, Told), ProbeError> {
        let (mut places, mut absent) = (Told::new(), Told::new());
        for program in self.open()?.progs() {
            let section = program.section().to_string_lossy().into_owned();
            let Some(program) = self.find(&program.name().to_string_lossy()) else {
                continue;
            };
            match place(types, &section) {
                Ok(()) => places.push((program.name, section)),
                Err(why) => absent.push((program.name, why)),
            }
        }
        Ok((places, absent))
    }

    /// The facts as far as they are known without loading anything.
    pub(super) fn facts(&self, types: &Btf<'_>) -> Result<Vec<ProbeStatus>, ProbeError> {
        let (places, absent) = self.places(types)?;
        Ok(facts(self.programs, &places, &absent))
    }

    fn find(&self, name: &str) -> Option<&'static Program> {
        self.programs.iter().find(|program| program.name == name)
    }

    fn open(&self) -> Result<OpenObject, ProbeError> {
        let (open, said) = say(|| ObjectBuilder::default().open_memory(self.object));
        let refused = |reason: String| ProbeError::Refused { reason };
        let mut open = open.map_err(|error| refused(reason(&error, &said)))?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let set = match self.sizes.iter().find(|(sized, _)| *sized == name) {
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
        let (loaded, said) = say(|| open.load());
        loaded.map_err(|error| reason(&error, &said))
    }

    fn load(&self, absent: &[(&'static str, String)]) -> Result<Object, String> {
        self.load_if(|name| {
            self.find(name).is_some() && !absent.iter().any(|(absent, _)| *absent == name)
        })
    }

    fn load_only(&self, only: &str) -> Result<(), String> {
        self.load_if(|name| name == only).map(drop)
    }
}

/// How a reason begins that is about the kernel's version or configuration.
const LACKS: &str = "this kernel has no";

/// Whether the kernel has what the section names; if not, why.
fn place(types: &Btf<'_>, section: &str) -> Result<(), String> {
    let Some((kind, name)) = section.split_once('/') else {
        return Ok(());
    };
    let there = if kind == "tp_btf" {
        types
            .type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}"))
            .is_some()
    } else {
        types.type_by_name::<Func<'_>>(name).is_some()
    };
    if there {
        return Ok(());
    }
    Err(format!("{LACKS} {} {name}", noun(kind)))
}

fn noun(kind: &str) -> &'static str {
    if kind == "tp_btf" {
        "tracepoint"
    } else {
        "function"
    }
}

/// One fact for each probe that the programs serve. All its programs must be attached, or of
/// alternatives one.
fn facts(
    programs: &[Program],
    places: &[(&'static str, String)],
    absent: &[(&'static str, String)],
) -> Vec<ProbeStatus> {
    let of = |probe: Probe| {
        let mine = || {
            programs
                .iter()
                .filter(move |program| program.probe == probe)
        };
        let attached = |program: &&Program| places.iter().any(|(name, _)| *name == program.name);
        mine().next()?;
        let of_kind = |kind: Kind| mine().filter(move |program| program.kind == kind);
        let alternatives = of_kind(Kind::Alternative).next().is_some();
        let works = mine()
            .filter(|program| program.kind != Kind::Alternative)
            .all(|program| attached(&program))
            && (!alternatives || of_kind(Kind::Alternative).any(|program| attached(&program)));
        let details: Vec<String> = if works {
            let at = places
                .iter()
                .filter(|(name, _)| mine().any(|program| program.name == *name));
            at.map(|(_, section)| section.clone()).collect()
        } else {
            let why = absent
                .iter()
                .filter(|(name, _)| mine().any(|program| program.name == *name));
            let details: Vec<_> = why.map(|(_, why)| why.clone()).collect();
            // Of alternatives only one can be there: what the kernel lacks matters if it refused none.
            let lacks = |why: &String| why.starts_with(LACKS);
            if details.iter().all(lacks) {
                details
            } else {
                details.into_iter().filter(|why| !lacks(why)).collect()
            }
        };
        let mut reasons: Vec<String> = Vec::new();
        for reason in details.iter().map(|why| in_short(why)) {
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
        let more = details.iter().any(|why| !reasons.contains(why));
        Some(ProbeStatus {
            probe,
            state: if works { State::Yes } else { State::No },
            reason: reasons.join(", "),
            details: if more { details } else { Vec::new() },
        })
    };
    Probe::ALL.into_iter().filter_map(of).collect()
}

/// The last that libbpf said, which is where the verifier's reasons are.
static SAID: Mutex<String> = Mutex::new(String::new());
/// One at a time: libbpf has one listener.
static SAYING: Mutex<()> = Mutex::new(());

/// How much of it is kept, from the end.
const HEARD: usize = 300;

/// Runs `what` and returns what libbpf said meanwhile.
fn say<T>(what: impl FnOnce() -> T) -> (T, String) {
    fn listen(_: PrintLevel, text: String) {
        let mut said = SAID
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        said.push_str(&text);
        let mut cut = said.len().saturating_sub(HEARD);
        while !said.is_char_boundary(cut) {
            cut += 1;
        }
        said.drain(..cut);
    }
    let _one = SAYING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, listen)));
    let result = what();
    libbpf_rs::set_print(before);
    let said = std::mem::take(
        &mut *SAID
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner),
    );
    (result, said)
}

/// The error, and the loader's words after it.
fn reason(error: &libbpf_rs::Error, said: &str) -> String {
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    if said.is_empty() {
        error.to_string()
    } else {
        format!("{error}{WORDS}{said}")
    }
}

/// Stands between an error and the loader's words about it.
const WORDS: &str = ": … ";

/// Why programs of a kind are refused altogether.
pub(super) const DENIED: &str =
    "the kernel does not allow it (EPERM): it takes root outside a container, and no lockdown";

/// A reason in a few words: what the loader says goes on for lines, and names objects that nobody knows.
fn in_short(why: &str) -> String {
    const MISFIT: &str = "resolve CO-RE relocation";
    let (error, said) = why.split_once(WORDS).unwrap_or((why, ""));
    if error.contains("(os error 1)") {
        return DENIED.to_owned();
    }
    // `<byte_off> [155] struct folio.flags (0:0 @ offset 0)`
    let misfit = said.rsplit_once(MISFIT).and_then(|(_, rest)| {
        let (_, named) = rest.split_once("] ")?;
        Some(named.split_once(" (")?.0)
    });
    match misfit {
        Some(field) => {
            format!("this kernel is newer or older than what is known of it: {field} differs")
        }
        None => error.replace('\n', " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_short_and_says_the_loaders_words_apart() {
        let denied = "Operation not permitted (os error 1): … libbpf: prog 'read': BPF program load failed: -EPERM";
        let misfit = "Invalid argument (os error 22): … failed to resolve CO-RE relocation <byte_off> [155] struct \
                      folio.flags (0:0 @ offset 0) processed 122 insns";
        let lacks = "this kernel has no function do_splice_to";
        for (why, short) in [
            (denied, DENIED),
            (
                misfit,
                "this kernel is newer or older than what is known of it: struct folio.flags differs",
            ),
            (lacks, lacks),
            ("Out of memory: … libbpf: what\never", "Out of memory"),
        ] {
            assert_eq!(in_short(why), short);
        }
        // The same for each of a probe's programs is told once; what of its alternatives is not there, not at all.
        let programs: Vec<&Program> = super::super::programs::ACCOUNT.iter().collect();
        let splice = |kind| {
            programs
                .iter()
                .find(|p| p.probe == Probe::SpliceRead && p.kind == kind)
        };
        let one = splice(Kind::Alternative).map(|p| p.name).unwrap();
        let other = programs
            .iter()
            .find(|p| p.probe == Probe::SpliceRead && p.name != one)
            .map(|p| p.name)
            .unwrap();
        let absent = [(one, lacks.to_owned()), (other, denied.to_owned())];
        let told = facts(super::super::programs::ACCOUNT, &[], &absent);
        let fact = told
            .iter()
            .find(|fact| fact.probe == Probe::SpliceRead)
            .unwrap();
        assert_eq!(
            (fact.reason.as_str(), fact.details.len()),
            (in_short(denied).as_str(), 1)
        );
    }
}
