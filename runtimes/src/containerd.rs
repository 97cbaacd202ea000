//! Containers of containerd: pods of Kubernetes, nerdctl's, and those of `ctr`.

use justitia_api::TenantKind;

use crate::answer::{Answer, PodOf, declared, labels, short};
use crate::files::{Base, Files};
use crate::identity::{Declared, Identity, bounded};
use crate::parse;
use crate::path::Meaning;

/// Where containerd keeps the bundles of what runs, by namespace.
const TASKS: &str = "/run/containerd/io.containerd.runtime.v2.task";
/// Where runc keeps its state for containerd, by namespace.
const STATES: &str = "/run/containerd/runc";
/// The namespace of the kubelet.
pub(crate) const KUBERNETES: &str = "k8s.io";
/// The most namespaces that are looked into for a container.
const MAX_NAMESPACES: usize = 16;

/// What is known of a container of this namespace and id; `None` if there is none, or its cgroup is another.
pub(crate) fn resolve(
    files: &Files,
    namespace: &str,
    id: &str,
    meaning: &Meaning<'_>,
) -> Option<Answer> {
    let tasks = Base::root(TASKS);
    let file = format!("{namespace}/{id}/config.json");
    let bundle = files.parse(&tasks, &file, parse::bundle)?;
    let declared = told(files, namespace, id).or_else(|| declared(&bundle, tasks.path.join(&file)));
    let of = |key: &str| bundle.annotations.get(key).map(String::as_str);
    if of("io.kubernetes.cri.container-type").is_some() {
        let pod = PodOf {
            uid: of("io.kubernetes.cri.sandbox-uid"),
            namespace: of("io.kubernetes.cri.sandbox-namespace"),
            name: of("io.kubernetes.cri.sandbox-name"),
            container: of("io.kubernetes.cri.container-name"),
        };
        let image = of("io.kubernetes.cri.image-name");
        return Some(pod.answer(id, image, declared, &bundle, meaning));
    }
    let is_long = id.len() == 64;
    let name = of("nerdctl/name").map(bounded);
    let identity = Identity {
        kind: TenantKind::ContainerdContainer,
        name: name.unwrap_or_else(|| if is_long { short(id) } else { id.to_owned() }),
        image: of("nerdctl/image-ref")
            .or_else(|| of("org.opencontainers.image.ref.name"))
            .map(bounded),
        labels: labels(&bundle),
        declared,
        ..Identity::default()
    };
    Some(Answer::new(
        identity,
        true,
        bundle.cgroup.as_deref(),
        meaning.whole,
    ))
}

/// The weight that runc was told last: it counts before the one that the container was made with.
fn told(files: &Files, namespace: &str, id: &str) -> Option<Declared> {
    let states = Base::root(STATES);
    let file = format!("{namespace}/{id}/state.json");
    let state = files.parse(&states, &file, parse::runc_state)?;
    Some(Declared {
        weight: state.weight?,
        source: justitia_api::WeightSource::Runtime,
        file: states.path.join(file),
        converts: true,
    })
}

/// Whether containers of this namespace run.
pub(crate) fn has(files: &Files, namespace: &str) -> bool {
    files.state(&Base::root(TASKS), namespace).is_some()
}

/// The same in whatever namespace has such a container.
pub(crate) fn resolve_anywhere(files: &Files, id: &str, meaning: &Meaning<'_>) -> Option<Answer> {
    let namespaces = files.list(&Base::root(TASKS), "");
    let namespaces = namespaces.iter().filter(|name| !name.starts_with('.'));
    namespaces
        .take(MAX_NAMESPACES)
        .find_map(|namespace| resolve(files, namespace, id, meaning))
}
