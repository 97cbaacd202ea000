//! Why a cgroup is not managed.

/// What is known of a cgroup that the agent does not manage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmanaged {
    /// There is such a cgroup.
    pub exists: bool,
    /// It is the root.
    pub root: bool,
    /// It has the memory controller.
    pub memory: bool,
    /// The configuration excludes it, or a cgroup above it.
    pub excluded: bool,
    /// It is deeper below the root than cgroups are tracked.
    pub too_deep: bool,
    /// What the agent says of cgroups that it does not track on their own, with the bound of each.
    pub bounds: Vec<String>,
    /// The nearest cgroup above it that has the memory controller; empty for the root.
    pub above: String,
    /// The tenants whose names are nearest, for a name that no cgroup has.
    pub nearest: Vec<String>,
}

/// Why a cgroup is not managed, and what would change that: its path, and a line for each.
#[must_use]
pub fn unmanaged(path: &str, facts: &Unmanaged) -> String {
    let path = path.trim_matches('/');
    if facts.root {
        "the root cgroup is no tenant: its memory is what is divided; its own processes belong to the tenant `unmanaged`"
            .to_owned()
    } else if !facts.exists {
        let nearest: String = facts.nearest.iter().map(|n| format!("\n  {n}")).collect();
        let nearest = if nearest.is_empty() {
            nearest
        } else {
            format!("; the nearest names of tenants are{nearest}")
        };
        format!("{path}: no such cgroup{nearest}")
    } else if facts.excluded {
        format!(
            "{path}\n  not managed: the configuration excludes it, or a cgroup above it (`exclude = true`); its pages \
             belong to the tenant `unmanaged`\n  to change it: remove that rule"
        )
    } else if facts.memory {
        format!(
            "{path}\n  not managed although it has the memory controller: {}",
            beyond(facts)
        )
    } else {
        let at = if facts.above.is_empty() {
            "the root cgroup, that is, in the tenant `unmanaged`".to_owned()
        } else {
            format!("{}, the nearest cgroup above that has it", facts.above)
        };
        format!(
            "{path}\n  not managed: it does not have the memory controller, so the kernel counts its pages at {at}\n  \
             to change it: {}",
            remedy(path, &facts.above)
        )
    }
}

/// Which bound a cgroup with the memory controller is beyond.
fn beyond(facts: &Unmanaged) -> String {
    const COUNTED: &str = "its pages count for the nearest managed cgroup above it";
    if facts.too_deep {
        format!("it is too deep below the root; {COUNTED}")
    } else if facts.bounds.is_empty() {
        "it was created after the last scan (try again)".to_owned()
    } else {
        let bounds = facts.bounds.join("\n    ");
        format!(
            "a bound of the agent (then {COUNTED}), or it was created after the last scan (try again). Bounds that were \
             reached:\n    {bounds}"
        )
    }
}

/// The limitations of a status that tell of cgroups that are not tracked on their own.
#[must_use]
pub fn bounds(limitations: &[String]) -> Vec<String> {
    let bounds = limitations.iter();
    let bounds = bounds.filter_map(|limitation| limitation.strip_prefix("Tenants: "));
    bounds.map(str::to_owned).collect()
}

/// What gives a cgroup the memory controller that `above` has.
fn remedy(path: &str, above: &str) -> String {
    let between = path.strip_prefix(above).unwrap_or(path).trim_matches('/');
    let mut parent = above.to_owned();
    let mut commands = Vec::new();
    let mut name = "";
    for child in between.split('/') {
        let slash = if parent.is_empty() { "" } else { "/" };
        commands.push(format!(
            "`echo +memory >/sys/fs/cgroup/{parent}{slash}cgroup.subtree_control`"
        ));
        parent = format!("{parent}{slash}{child}");
        name = child;
    }
    let unit = UNITS.iter().any(|kind| name.ends_with(kind));
    let systemd = if unit {
        format!("MemoryAccounting=yes in its unit {name}")
    } else {
        format!(
            "{name} is no unit by its name: MemoryAccounting= has no effect, its creator has to enable the controller"
        )
    };
    format!("{}; under systemd, {systemd}", commands.join(", then "))
}

/// Units that have a cgroup.
const UNITS: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];
