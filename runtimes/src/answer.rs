//! What a runtime says of one of its containers or machines.

use std::path::PathBuf;

use justitia_api::{TenantKind, WeightSource};

use crate::identity::{Declared, Identity, MAX_LABELS, bounded};
use crate::parse::Bundle;
use crate::path::Meaning;

/// What a runtime says of a container or machine.
#[derive(Debug)]
pub(crate) struct Answer {
    /// What it is.
    pub identity: Identity,
    /// Whether all of its files were read.
    pub complete: bool,
    /// Whether its runtime names this very cgroup; `None` if it names none.
    pub is_this: Option<bool>,
    /// The pod to which it belongs: its uid, and `NAMESPACE/NAME`.
    pub pod: Option<(String, String)>,
}

impl Answer {
    /// `cgroup`: the one that its runtime names. `whole`: the path of the one that is asked for, as its runtime would name it.
    pub(crate) fn new(
        identity: Identity,
        complete: bool,
        cgroup: Option<&str>,
        whole: &str,
    ) -> Self {
        Self {
            identity,
            complete,
            is_this: cgroup.map(|cgroup| cgroup == whole),
            pod: None,
        }
    }
}

/// The pod of a container, as annotations of its bundle tell it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PodOf<'a> {
    pub uid: Option<&'a str>,
    pub namespace: Option<&'a str>,
    pub name: Option<&'a str>,
    /// `None` for the one that holds the pod's namespaces.
    pub container: Option<&'a str>,
}

impl PodOf<'_> {
    /// The answer for one of its containers.
    pub(crate) fn answer(
        &self,
        id: &str,
        image: Option<&str>,
        declared: Option<Declared>,
        bundle: &Bundle,
        meaning: &Meaning<'_>,
    ) -> Answer {
        let pod = self.namespace.zip(self.name);
        let pod = pod.map(|(namespace, name)| bounded(&format!("{namespace}/{name}")));
        let container = self.container.unwrap_or("pause");
        let name = pod
            .as_ref()
            .map(|pod| bounded(&format!("{pod}/{container}")));
        let identity = Identity {
            kind: TenantKind::PodContainer,
            name: name.unwrap_or_else(|| short(id)),
            image: image.map(bounded),
            labels: labels(bundle),
            declared,
            ..Identity::default()
        };
        let cgroup = bundle.cgroup.as_deref();
        Answer {
            pod: self.uid.map(bounded).zip(pod),
            ..Answer::new(identity, true, cgroup, meaning.whole)
        }
    }
}

/// The beginning of an id, as runtimes show it.
pub(crate) fn short(id: &str) -> String {
    id.get(..12).unwrap_or(id).to_owned()
}

/// What a bundle declares.
pub(crate) fn declared(bundle: &Bundle, file: PathBuf) -> Option<Declared> {
    bundle.weight.map(|weight| Declared {
        weight,
        source: WeightSource::Runtime,
        file,
        converts: true,
    })
}

/// nerdctl's labels are annotations of the bundle; so are podman's `--annotation`, while its labels are in its database
/// alone.
pub(crate) fn labels(bundle: &Bundle) -> Vec<String> {
    let annotations = bundle.annotations.iter();
    let labels = annotations.map(|(key, value)| bounded(&format!("{key}={value}")));
    labels.take(MAX_LABELS).collect()
}
