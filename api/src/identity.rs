//! What a tenant is: the container, pod, virtual machine or unit whose cgroup it is.

use serde::{Deserialize, Serialize};

/// What a cgroup belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantKind {
    /// Nothing that is known by name.
    #[default]
    Cgroup,
    /// A slice of systemd.
    Slice,
    /// Another unit of systemd: a service, a scope.
    Unit,
    /// A container of Docker.
    DockerContainer,
    /// A container of podman.
    PodmanContainer,
    /// A container of containerd, by `ctr` or nerdctl.
    ContainerdContainer,
    /// A pod of Kubernetes.
    Pod,
    /// A container of a pod.
    PodContainer,
    /// A virtual machine of libvirt.
    Domain,
}

impl TenantKind {
    /// Its words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Slice => "slice",
            Self::Unit => "unit",
            Self::DockerContainer => "Docker container",
            Self::PodmanContainer => "podman container",
            Self::ContainerdContainer => "containerd container",
            Self::Pod => "pod",
            Self::PodContainer => "container of a pod",
            Self::Domain => "virtual machine",
        }
    }

    /// As `--json` and metrics have it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Slice => "slice",
            Self::Unit => "unit",
            Self::DockerContainer => "docker_container",
            Self::PodmanContainer => "podman_container",
            Self::ContainerdContainer => "containerd_container",
            Self::Pod => "pod",
            Self::PodContainer => "pod_container",
            Self::Domain => "domain",
        }
    }

    /// Whether it is one container.
    #[must_use]
    pub const fn is_container(self) -> bool {
        matches!(
            self,
            Self::DockerContainer
                | Self::PodmanContainer
                | Self::ContainerdContainer
                | Self::PodContainer
        )
    }
}

/// Where a weight comes from. The earlier of these wins, from the last to the first: a rule of the configuration, what the
/// runtime was told, the unit's `IOWeight=`, the cgroup's file, that of its only child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightSource {
    /// None is set: it is the default.
    #[default]
    Default,
    /// `io.weight` or `io.bfq.weight` of its only child.
    OnlyChild,
    /// The same of its own cgroup.
    Cgroup,
    /// `IOWeight=` of its unit.
    Unit,
    /// What the container runtime or libvirt was told.
    Runtime,
    /// The agent's configuration.
    Configuration,
}

impl WeightSource {
    /// As `--json` and metrics have it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::OnlyChild => "only_child",
            Self::Cgroup => "cgroup",
            Self::Unit => "unit",
            Self::Runtime => "runtime",
            Self::Configuration => "configuration",
        }
    }
}

/// A weight that was declared, beside the one that stands in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredWeight {
    /// What was declared, 1 to 10000.
    pub weight: u64,
    /// Where: what the runtime was told, or the unit.
    pub source: WeightSource,
    /// The file that says so.
    pub file: String,
    /// The number that the runtime makes of it for `io.weight`, if that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub converted: Option<u64>,
    /// `io.weight` of the cgroup; `None` where it has no such file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_weight: Option<u64>,
    /// `io.bfq.weight`, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_bfq_weight: Option<u64>,
    /// Whether neither file has the declared number, or what the runtime makes of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drift: bool,
}
