//! The pools of containers: one for each cgroup of the administrator, by its weight. The plan is a pure function.

pub(crate) mod cgroups;
pub(crate) mod plan;
pub(crate) mod table;
