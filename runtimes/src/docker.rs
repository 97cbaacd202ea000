//! Containers of Docker.

use justitia_api::{TenantKind, WeightSource};

use crate::answer::{Answer, short};
use crate::files::{Base, Files};
use crate::identity::{Declared, Identity, MAX_LABELS, bounded};
use crate::parse;
use crate::path::Meaning;

/// Where Docker keeps its data, unless `daemon.json` says otherwise.
const DATA: &str = "/var/lib/docker";
/// Where runc keeps its state for Docker: of today, and of before 17.12.
const STATES: [&str; 2] = ["/run/docker/runtime-runc/moby", "/run/runc"];

/// Where Docker keeps its data on this machine.
pub(crate) fn data(files: &Files) -> Base {
    let etc = Base::root("/etc/docker");
    let named = files.parse(&etc, "daemon.json", parse::docker_data_root);
    let absolute = named.flatten().filter(|path| path.starts_with('/'));
    Base::root(absolute.unwrap_or_else(|| DATA.to_owned()))
}

/// What is known of a container with this id; `None` if there is none, or its cgroup is another.
pub(crate) fn resolve(
    files: &Files,
    data: &Base,
    id: &str,
    meaning: &Meaning<'_>,
) -> Option<Answer> {
    let state = STATES.iter().find_map(|place| {
        let name = format!("{id}/state.json");
        let state = files.parse(&Base::root(*place), &name, parse::runc_state)?;
        Some((state, format!("{place}/{name}")))
    });
    let of = |file: &str| format!("containers/{id}/{file}");
    let config = files.parse(data, &of("config.v2.json"), parse::docker_config);
    let host = files.parse(data, &of("hostconfig.json"), parse::docker_host_config);
    let cgroup = state.as_ref().and_then(|(state, _)| state.cgroup.clone());
    let complete = config.is_some() && state.is_some();
    if state.is_none() && config.is_none() && host.is_none() {
        return None;
    }
    let told = state.and_then(|(state, file)| Some((state.weight?, file.into())));
    let configured = || Some((host??, data.path.join(of("hostconfig.json"))));
    let declared = told.or_else(configured).map(|(weight, file)| Declared {
        weight,
        source: WeightSource::Runtime,
        file,
        converts: true,
    });
    let mut identity = Identity {
        kind: TenantKind::DockerContainer,
        name: short(id),
        declared,
        ..Identity::default()
    };
    if let Some(config) = config {
        identity.name = bounded(&config.name);
        identity.image = config.image.as_deref().map(bounded);
        let labels = config.labels.iter().take(MAX_LABELS);
        let labels = labels.map(|(key, value)| bounded(&format!("{key}={value}")));
        identity.labels = labels.collect();
    }
    Some(Answer::new(
        identity,
        complete,
        cgroup.as_deref(),
        meaning.whole,
    ))
}
