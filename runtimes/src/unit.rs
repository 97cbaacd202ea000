//! `IOWeight=` of a unit, from its file and its drop-ins, in systemd's order (systemd.unit(5), "Unit File Load Path").

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use justitia_api::WeightSource;

use crate::files::{Base, Files, Found};
use crate::identity::Declared;
use crate::parse;

/// Where the system manager looks for units, the first first. `/lib/systemd/system` is the same as the one in `/usr` where
/// these are merged.
const DIRECTORIES: [&str; 12] = [
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/run/systemd/generator.late",
];

/// What systemd divides I/O by if it was told a number for this unit. It writes that number to `io.weight` as it is. `None` also where a file
/// of the unit may not be used, such as a link: then `io.weight` counts.
pub(crate) fn weight(files: &Files, unit: &str) -> Option<Declared> {
    let (_, suffix) = unit.rsplit_once('.')?;
    let section = section(suffix)?;
    let (mut declared, mut is_known) = (None, true);
    let mut say = |base: &Base, name: &str| -> bool {
        let content = match files.find(base, name) {
            Found::Content(content) => content,
            Found::Nothing => return false,
            Found::Refused => {
                // systemd may read what is not read here: then nothing is known. A link to /dev/null hides what lies below (systemd.unit(5)).
                let link = files.link(base, name);
                is_known &= link
                    .as_deref()
                    .is_none_or(|to| to == Path::new("/dev/null"));
                return link.is_some();
            }
        };
        match parse::unit_weight(&content.bytes, section) {
            Some(Some(weight)) => {
                declared = Some(Declared {
                    weight,
                    source: WeightSource::Unit,
                    file: base.path.join(name),
                    converts: false,
                });
            }
            Some(None) => declared = None,
            None => {}
        }
        true
    };
    // The file itself: the first that there is; of an instance else that of its template.
    let names = [Some(unit.to_owned()), template(unit)];
    let places = names.iter().flatten();
    let mut places = places.flat_map(|name| DIRECTORIES.iter().map(move |place| (place, name)));
    let _ = places.any(|(place, name)| say(&Base::root(*place), name));
    for (name, directory) in drop_ins(files, unit, suffix) {
        say(&Base::root(directory), &name);
    }
    declared.filter(|_| is_known)
}

/// The section of a unit in which its resources are.
fn section(suffix: &str) -> Option<&'static str> {
    Some(match suffix {
        "service" => "Service",
        "scope" => "Scope",
        "slice" => "Slice",
        "mount" => "Mount",
        "socket" => "Socket",
        "swap" => "Swap",
        _ => return None,
    })
}

/// The drop-ins of a unit and their directories, in the order in which they count. Of several with one name the first counts,
/// by the order of directories.
fn drop_ins(files: &Files, unit: &str, suffix: &str) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let names = names(unit, suffix);
    let own = DIRECTORIES
        .iter()
        .flat_map(|place| names.iter().map(move |name| (place, name.clone())));
    let of_type = DIRECTORIES.iter().map(|place| (place, suffix.to_owned()));
    for (place, name) in own.chain(of_type) {
        let directory = format!("{name}.d");
        for file in files.list(&Base::root(*place), &directory) {
            if file.ends_with(".conf") {
                let path = PathBuf::from(place).join(&directory);
                found.entry(file).or_insert(path);
            }
        }
    }
    found
}

/// The template of an instance.
fn template(unit: &str) -> Option<String> {
    let (stem, suffix) = unit.rsplit_once('.')?;
    let (prefix, instance) = stem.split_once('@')?;
    (!instance.is_empty()).then(|| format!("{prefix}@.{suffix}"))
}

/// The names by which drop-ins of a unit are found: its own, its template's, and those of its prefixes, each ending in a dash
/// (`a-b.service`: `a-.service`).
fn names(unit: &str, suffix: &str) -> Vec<String> {
    let mut names = vec![unit.to_owned()];
    names.extend(template(unit));
    let Some((stem, _)) = unit.rsplit_once('.') else {
        return names;
    };
    let (mut prefix, instance) = match stem.split_once('@') {
        Some((prefix, instance)) => (prefix, Some(instance)),
        None => (stem, None),
    };
    while let Some((shorter, _)) = prefix.trim_end_matches('-').rsplit_once('-') {
        if shorter.is_empty() {
            break;
        }
        let at = instance.map_or_else(String::new, |instance| format!("@{instance}"));
        names.push(format!("{shorter}-{at}.{suffix}"));
        if instance.is_some() {
            names.push(format!("{shorter}-@.{suffix}"));
        }
        prefix = shorter;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_ins_are_found_by_template_and_prefixes() {
        assert_eq!(names("a.service", "service"), ["a.service"]);
        assert_eq!(
            names("a-b-c.service", "service"),
            ["a-b-c.service", "a-b-.service", "a-.service"]
        );
        assert_eq!(
            names("a-b@x.service", "service"),
            [
                "a-b@x.service",
                "a-b@.service",
                "a-@x.service",
                "a-@.service"
            ]
        );
        assert_eq!(names("-.slice", "slice"), ["-.slice"]);
    }
}
