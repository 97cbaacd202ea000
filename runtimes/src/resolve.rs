//! From a cgroup's path to what it is.

use std::collections::HashMap;
use std::path::Path;

use justitia_api::TenantKind;

use crate::answer::{Answer, short};
use crate::files::{Base, Files};
use crate::identity::{Declared, Found, Identity, bounded};
use crate::path::{Candidate, Meaning, is_unit_name, meaning, system_unit};
use crate::podman::Stores;
use crate::{containerd, docker, libvirt, podman, unit};

/// The most pods whose names are remembered.
const MAX_PODS: usize = 4096;

/// Says what cgroups are. It remembers lists of containers that it has read, and the names of pods; nothing of a cgroup.
#[derive(Debug)]
pub struct Resolver {
    files: Files,
    docker: Base,
    stores: Stores,
    /// `NAMESPACE/NAME` of pods, by their uids: a pod's own cgroup has no file that says it.
    pods: HashMap<String, String>,
}

impl Resolver {
    /// One that reads files below `root`: `/`, but in tests.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        let files = Files::new(root);
        Self {
            docker: docker::data(&files),
            files,
            stores: Stores::default(),
            pods: HashMap::new(),
        }
    }

    /// How many files were there and could not be used: too long, of another user, no regular file, or not understood.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.files.errors()
    }

    /// What the cgroup at `path` is, relative to the mount. `in_delegation`: whether others than the administrator may have
    /// made it. There its name proves nothing: only what a runtime's files say of this very path counts, or a user's own files
    /// of a cgroup in the user's slice.
    pub fn resolve(&mut self, path: &Path, in_delegation: bool) -> Found {
        let Some(text) = path.to_str() else {
            return plain(path);
        };
        let meaning = meaning(text);
        let kind = match &meaning.candidate {
            Candidate::Pod { uid } if !in_delegation => return self.pod(uid),
            Candidate::Other | Candidate::Pod { .. } => return self.unit(path, in_delegation),
            // A part is in what the runtime was given; whether that is believed is asked for the whole.
            candidate => kind(candidate),
        };
        let answer = self.ask(&meaning);
        let answer = answer.filter(|answer| answer.is_this.unwrap_or(!in_delegation));
        let Some(answer) = answer else {
            return self.unanswered(path, &meaning, kind, in_delegation);
        };
        let mut identity = answer.identity;
        if let Some((uid, pod)) = answer.pod {
            if self.pods.len() >= MAX_PODS {
                self.pods.clear();
            }
            self.pods.insert(uid, pod);
        }
        // Of a machine the parts divide among themselves, by weights of their own.
        if let (TenantKind::Domain, Some(_)) = (identity.kind, meaning.part) {
            identity.declared = None;
        } else if identity.declared.is_none() && meaning.part.is_none() && !in_delegation {
            identity.declared = self.unit_weight(path);
        }
        if identity.kind == TenantKind::Domain && !in_delegation {
            self.undo_bfqs_scale(&mut identity, path);
        }
        identity.name = with_user(&identity.name, meaning.user);
        // Where only the administrator makes cgroups, a user's file says nothing of weights.
        if meaning.user.is_some() && !in_delegation {
            identity.declared = None;
        }
        identity.part = meaning.part.map(str::to_owned);
        Found {
            identity,
            complete: answer.complete,
            may_change: true,
        }
    }

    /// Asks the runtime that a path names.
    fn ask(&mut self, meaning: &Meaning<'_>) -> Option<Answer> {
        let files = &self.files;
        match meaning.candidate {
            Candidate::Docker { id } => docker::resolve(files, &self.docker, id, meaning),
            Candidate::Podman { id } => podman::resolve(files, &mut self.stores, id, meaning),
            Candidate::Cri { id } => {
                containerd::resolve(files, containerd::KUBERNETES, id, meaning)
            }
            Candidate::Crio { id } => podman::resolve_crio(files, id, meaning),
            Candidate::Nerdctl { id } => containerd::resolve_anywhere(files, id, meaning),
            Candidate::Bare { id, .. } => docker::resolve(files, &self.docker, id, meaning)
                .or_else(|| containerd::resolve_anywhere(files, id, meaning)),
            Candidate::Task { namespace, id } => containerd::resolve(files, namespace, id, meaning),
            Candidate::Domain { id, ref name } => Some(libvirt::resolve(files, id, name, meaning)),
            Candidate::Pod { .. } | Candidate::Other => None,
        }
    }

    /// A container or machine of which no file says anything: by the form of its name.
    fn unanswered(
        &self,
        path: &Path,
        meaning: &Meaning<'_>,
        kind: Option<(TenantKind, &str)>,
        in_delegation: bool,
    ) -> Found {
        let Some((kind, id)) = kind.filter(|_| !in_delegation || meaning.user.is_some()) else {
            let may_come = match meaning.candidate {
                Candidate::Bare { .. } => true,
                Candidate::Task { namespace, .. } => containerd::has(&self.files, namespace),
                _ => false,
            };
            return Found {
                complete: in_delegation || !may_come,
                ..self.unit(path, in_delegation)
            };
        };
        let declared = meaning.part.is_none() && !in_delegation;
        let identity = Identity {
            kind,
            name: with_user(&short(id), meaning.user),
            part: meaning.part.map(str::to_owned),
            declared: declared.then(|| self.unit_weight(path)).flatten(),
            ..Identity::default()
        };
        Found {
            identity,
            complete: false,
            may_change: true,
        }
    }

    fn pod(&self, uid: &str) -> Found {
        let name = self.pods.get(uid);
        let identity = Identity {
            kind: TenantKind::Pod,
            name: name.cloned().unwrap_or_else(|| format!("pod {uid}")),
            ..Identity::default()
        };
        Found {
            identity,
            complete: name.is_some(),
            may_change: name.is_none(),
        }
    }

    /// A unit, or what is none.
    fn unit(&self, path: &Path, in_delegation: bool) -> Found {
        let mut found = plain(path);
        if in_delegation {
            // Others chose it: it is no unit of the system's.
            found.identity.name = String::new();
        } else {
            found.identity.declared = self.unit_weight(path);
        }
        found
    }

    /// Where BFQ is loaded, libvirt takes what systemd made of a new weight for BFQ (`virsh blkiotune --weight`) for the
    /// machine's weight, and notes that. The unit has the number that was asked for.
    fn undo_bfqs_scale(&self, identity: &mut Identity, path: &Path) {
        let noted = identity.declared.as_mut();
        let Some((noted, unit)) = noted.zip(self.unit_weight(path)) else {
            return;
        };
        if Some(noted.weight) == unit.in_bfq_weight() {
            (noted.weight, noted.file) = (unit.weight, unit.file);
        }
    }

    fn unit_weight(&self, path: &Path) -> Option<Declared> {
        unit::weight(&self.files, system_unit(path)?)
    }
}

/// The name of a container with its user: several users, and root, may have one of that name.
fn with_user(name: &str, user: Option<u32>) -> String {
    match user {
        Some(uid) => bounded(&format!("user-{uid}/{name}")),
        None => name.to_owned(),
    }
}

/// What a container or machine is by its path alone; `None` where that could be anything.
fn kind<'a>(candidate: &'a Candidate<'_>) -> Option<(TenantKind, &'a str)> {
    match candidate {
        Candidate::Docker { id } => Some((TenantKind::DockerContainer, id)),
        Candidate::Bare {
            id,
            parent: "docker",
        } => Some((TenantKind::DockerContainer, id)),
        Candidate::Podman { id } => Some((TenantKind::PodmanContainer, id)),
        Candidate::Cri { id } | Candidate::Crio { id } => Some((TenantKind::PodContainer, id)),
        Candidate::Nerdctl { id } => Some((TenantKind::ContainerdContainer, id)),
        _ => None,
    }
}

/// What a path says without any file.
fn plain(path: &Path) -> Found {
    let name = path.file_name().and_then(|name| name.to_str());
    let unit = name.filter(|name| is_unit_name(name));
    let kind = match unit {
        Some(name) if name.ends_with(".slice") => TenantKind::Slice,
        Some(_) => TenantKind::Unit,
        None => TenantKind::Cgroup,
    };
    Found {
        identity: Identity {
            kind,
            name: unit.unwrap_or_default().to_owned(),
            ..Identity::default()
        },
        complete: true,
        may_change: false,
    }
}
