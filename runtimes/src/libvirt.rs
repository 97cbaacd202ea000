//! Virtual machines of libvirt.

use justitia_api::{TenantKind, WeightSource};

use crate::answer::Answer;
use crate::files::{Base, Files};
use crate::identity::{Declared, Identity, bounded};
use crate::parse;
use crate::path::Meaning;

/// Where libvirt keeps the state of machines that run.
const STATES: &str = "/run/libvirt/qemu";
/// The most files that are looked into for a machine whose name its cgroup does not tell.
const MAX_SEARCHED: usize = 64;

/// What is known of the machine with this number, whose name is, as far as the cgroup tells it, `name`.
pub(crate) fn resolve(files: &Files, id: u32, name: &str, meaning: &Meaning<'_>) -> Answer {
    let states = Base::root(STATES);
    let read = |file: &str| {
        let domain = files.parse(&states, file, parse::domain)?;
        (domain.id == Some(id)).then(|| (domain, states.path.join(file)))
    };
    let found = read(&format!("{name}.xml")).or_else(|| {
        // The cgroup's name has 64 bytes at most, and letters, digits, dots and dashes alone.
        let listed = files.list(&states, "");
        let alike = listed.iter().filter(|file| {
            let stem = file.strip_suffix(".xml");
            stem.is_some_and(|stem| plain(stem).starts_with(name))
        });
        alike.take(MAX_SEARCHED).find_map(|file| read(file))
    });
    let complete = found.is_some();
    let mut identity = Identity {
        kind: TenantKind::Domain,
        name: bounded(name),
        ..Identity::default()
    };
    if let Some((domain, file)) = found {
        identity.name = bounded(&domain.name);
        identity.declared = domain.weight.map(|weight| Declared {
            weight,
            source: WeightSource::Runtime,
            file,
            converts: false,
        });
    }
    // libvirt's cgroups are in slices, or without systemd in its own `machine` and partitions: no delegatee makes one there.
    let is_libvirts =
        |name: &str| name == "machine" || name.ends_with(".slice") || name.ends_with(".partition");
    let above = meaning
        .whole
        .rsplit_once('/')
        .map_or("", |(above, _)| above);
    let is_this = above.split('/').all(is_libvirts);
    let cgroup = if is_this { meaning.whole } else { "" };
    Answer::new(identity, complete, Some(cgroup), meaning.whole)
}

/// What libvirt leaves of a name in that of a cgroup.
fn plain(name: &str) -> String {
    let mut plain = String::new();
    for c in name.chars() {
        let separates = matches!(c, '.' | '-');
        let again = separates && plain.ends_with(['.', '-']);
        if (c.is_ascii_alphanumeric() || separates) && !again {
            plain.push(c);
        }
    }
    plain
}
