//! The pools of containers: one a cgroup that the administrator has made, by its weight. The plan is a pure function.

pub(crate) mod cgroups;
pub(crate) mod plan;
pub(crate) mod table;
