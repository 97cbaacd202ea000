//! The command that gives a knob the kernel's default.

use justitia_api::escape::decode;

/// A command for a shell, of a tenant's knob (`memory.low`, `io.max 8:0`). `None` for a knob without such a command, and for
/// names that no agent tells.
pub(super) fn command(tenant: &str, knob: &str) -> Option<String> {
    let value = match knob {
        "memory.low" | "memory.min" => "0".to_owned(),
        "memory.high" | "memory.max" => "max".to_owned(),
        "vm.dirty_background_ratio" => {
            return Some("sysctl vm.dirty_background_ratio=10".to_owned());
        }
        _ => {
            let device = knob.strip_prefix("io.max ")?;
            let (major, minor) = device.split_once(':')?;
            let number = |text: &str| text.parse::<u32>().ok();
            let (major, minor) = (number(major)?, number(minor)?);
            format!("'{major}:{minor} rbps=max wbps=max riops=max wiops=max'")
        }
    };
    let file = knob.split(' ').next()?;
    let path = quoted(&format!(
        "/sys/fs/cgroup/{}/{file}",
        tenant.trim_matches('/')
    ))?;
    Some(format!("echo {value} >{path}"))
}

/// A path as a shell reads it. Cgroups are named by others: a name must not become a command. `$'…'` reads the escapes of
/// [`encode`](justitia_api::escape::encode) as that wrote them; `None` for what it did not write.
fn quoted(path: &str) -> Option<String> {
    decode(path)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.@:-+".contains(c);
    if path.chars().all(is_plain) {
        return Some(path.to_owned());
    }
    let is_shown = |c: char| matches!(c, ' '..='~');
    path.chars()
        .all(is_shown)
        .then(|| format!("$'{}'", path.replace('\'', "\\'")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_knob_has_the_kernels_default() {
        for (knob, expected) in [
            (
                "memory.low",
                "echo 0 >/sys/fs/cgroup/a.slice/b@1.service/memory.low",
            ),
            (
                "memory.max",
                "echo max >/sys/fs/cgroup/a.slice/b@1.service/memory.max",
            ),
            (
                "io.max 8:0",
                "echo '8:0 rbps=max wbps=max riops=max wiops=max' >/sys/fs/cgroup/a.slice/b@1.service/io.max",
            ),
        ] {
            let found = command("a.slice/b@1.service", knob);
            assert_eq!(found.as_deref(), Some(expected));
        }
        let machine = command("-", "vm.dirty_background_ratio");
        assert_eq!(
            machine.as_deref(),
            Some("sysctl vm.dirty_background_ratio=10")
        );
    }

    /// What a shell makes of the path.
    fn read_by_a_shell(tenant: &str) -> String {
        let command = command(tenant, "memory.low").unwrap();
        let path = command.strip_prefix("echo 0 >").unwrap();
        let script = format!("printf %s {path}");
        let out = std::process::Command::new("bash")
            .args(["-c", &script])
            .output();
        String::from_utf8(out.unwrap().stdout).unwrap()
    }

    #[test]
    fn a_name_that_is_a_command_stays_a_name() {
        for (tenant, name) in [
            ("$(touch x)", "$(touch x)"),
            ("a'; touch x; '", "a'; touch x; '"),
            (r"dev-disk\x5cx2duuid.mount", r"dev-disk\x2duuid.mount"),
            (r"\x5c'; touch x #", r"\'; touch x #"),
            (r"a\x0ab", "a\nb"),
        ] {
            let expected = format!("/sys/fs/cgroup/{name}/memory.low");
            assert_eq!(read_by_a_shell(tenant), expected);
        }
    }

    #[test]
    fn a_name_that_no_agent_tells_has_no_command() {
        for tenant in [r"a\'; touch x #", "a\u{1b}[2J", "a\nb"] {
            assert_eq!(command(tenant, "memory.low"), None, "{tenant:?}");
        }
        for knob in ["io.max 8:0; touch x", "io.max", "cgroup.procs", ""] {
            assert_eq!(command("a", knob), None, "{knob:?}");
        }
    }
}
