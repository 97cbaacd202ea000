//! What is packaged with the agent says only what the agent knows, as its tools see it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use justitia_agent::status::metrics::text;
use justitia_api::{AppStatus, CurveStatus, Status, TenantStatus};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

/// What promtool complains of; `None` if it is content.
fn promtool(args: &[&str]) -> Option<String> {
    let done = Command::new("promtool")
        .args(args)
        .current_dir(packaging())
        .output();
    match done {
        Ok(done) if done.status.success() => None,
        Ok(done) => Some(format!(
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        )),
        Err(error) => Some(format!("promtool (`make deps`): {error}")),
    }
}

#[test]
fn alerts_are_valid_and_fire_when_they_should() {
    for (rules, test) in [
        ("alerts.yml", "alerts.test.yml"),
        ("cache-alerts.yml", "cache-alerts.test.yml"),
    ] {
        assert_eq!(promtool(&["check", "rules", rules]), None);
        assert_eq!(promtool(&["test", "rules", test]), None);
    }
}

#[test]
fn the_guide_names_the_scrape_jobs_that_the_alerts_expect() {
    for (rules, page) in [
        ("alerts.yml", "operate.md"),
        ("cache-alerts.yml", "cache.md"),
    ] {
        let rules = std::fs::read_to_string(packaging().join(rules)).unwrap();
        let page = packaging().join("../docs/guide").join(page);
        let page = std::fs::read_to_string(page).unwrap();
        let jobs = rules.split("job=\"").skip(1);
        let jobs: BTreeSet<_> = jobs.filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(jobs.len(), 1);
        for job in jobs {
            assert!(page.contains(&format!("`{job}` as the scrape job's name")));
        }
    }
}

/// The series that the agent exports.
fn exported() -> BTreeSet<String> {
    let tenant = TenantStatus {
        path: "a".to_owned(),
        pv: Some(0.1),
        app: Some(AppStatus::default()),
        curve: Some(CurveStatus::default()),
        ..TenantStatus::default()
    };
    let status = Status {
        pv: Some(0.1),
        tenants: vec![tenant],
        ..Status::default()
    };
    let text = text(&status, 10).unwrap_or_default();
    let samples = text.lines().filter(|l| !l.starts_with('#'));
    samples
        .filter_map(|l| l.split(['{', ' ']).next())
        .map(str::to_owned)
        .collect()
}

/// The names of ours in an expression.
fn named(expression: &str) -> BTreeSet<String> {
    expression
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("justitia_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn alerts_name_only_series_that_exist() {
    let rules = std::fs::read_to_string(packaging().join("alerts.yml")).unwrap();
    let expressions: String = rules.lines().filter(|l| l.contains("expr:")).collect();
    let names = named(&expressions);
    assert!(names.len() >= 5);
    let unknown: Vec<_> = names.difference(&exported()).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_dashboards_queries_are_valid_and_name_only_series_that_exist() {
    let text = std::fs::read_to_string(packaging().join("grafana.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    let mut names = BTreeSet::new();
    let mut places = BTreeSet::new();
    for panel in panels {
        let at = &panel["gridPos"];
        assert!(
            places.insert((at["x"].as_u64(), at["y"].as_u64())),
            "two panels in one place"
        );
        assert!(panel["description"].as_str().unwrap().len() > 20);
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            names.extend(named(query));
            // What Grafana puts in.
            let query = query.replace("$__rate_interval", "5m");
            rules.push_str(&format!(
                "  - record: query\n    labels: {{n: '{}'}}\n",
                names.len()
            ));
            rules.push_str(&format!(
                "    expr: {}\n",
                serde_json::to_string(&query).unwrap()
            ));
        }
    }
    assert!(names.len() >= 8);
    let unknown: Vec<_> = names.difference(&exported()).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.yml");
    std::fs::write(&file, rules).unwrap();
    assert_eq!(
        promtool(&["check", "rules", "--lint=none", file.to_str().unwrap()]),
        None
    );
}

/// What SPECIFICATION promises of the unit: a bound of its memory, a reset at each end, a watchdog, and a journal that
/// outlives the agent in a directory of root's.
#[test]
fn the_unit_bounds_the_agent_and_restores_what_it_leaves() {
    let unit = std::fs::read_to_string(packaging().join("justitia.service")).unwrap();
    let specification = packaging().join("../SPECIFICATION.md");
    let specification = std::fs::read_to_string(specification).unwrap();
    let lines: Vec<&str> = unit.lines().collect();
    for line in [
        "MemoryMax=512M",
        "LimitMEMLOCK=infinity",
        "LimitNOFILE=32768",
        "ExecReload=/usr/bin/justitia reload",
        "ExecStopPost=-/usr/bin/justitia reset",
        "WatchdogSec=30",
        "Restart=on-failure",
        "RuntimeDirectory=justitia",
        "RuntimeDirectoryMode=0700",
        "RuntimeDirectoryPreserve=yes",
    ] {
        assert!(lines.contains(&line), "{line}");
    }
    assert!(specification.contains("`MemoryMax=512M`"));
    // Below a slice without one it has no effect.
    assert!(!lines.iter().any(|line| line.starts_with("MemoryMin=")));
}

/// What the units of the cache, of its guests and of the host must say, and what would break them.
#[test]
fn the_other_units_are_hardened_and_keep_what_they_share_with_the_agent() {
    for (name, own, wrong) in [
        (
            "justitia-cache",
            &[
                "Type=notify",
                "CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_CHOWN CAP_LEASE",
                "ProtectControlGroups=yes",
                "ProtectHome=yes",
                // The agent's journal lies there.
                "RuntimeDirectoryMode=0700",
                "RuntimeDirectoryPreserve=yes",
            ][..],
            &[] as &[&str],
        ),
        (
            "justitia-guest",
            &[
                "ProtectSystem=strict",
                "PrivateNetwork=yes",
                // It says what is cached of it.
                "ProtectHome=read-only",
                "SystemCallFilter=@system-service bpf perf_event_open mincore",
            ],
            &[
                // With it systemd refuses openat2, by which it looks what is cached.
                "RestrictSUIDSGID=yes",
                // Either takes the addresses of the kernel's symbols away.
                "ProtectKernelLogs=yes",
                "ProtectKernelTunables=yes",
                // It writes memory.reclaim.
                "ProtectControlGroups=yes",
            ],
        ),
        (
            "justitia-host",
            &[
                "Type=notify",
                "ExecStopPost=-/usr/bin/justitia host reset",
                "RuntimeDirectoryPreserve=yes",
                "ProtectSystem=strict",
                // Metrics are for this machine.
                "IPAddressDeny=any",
                "IPAddressAllow=localhost",
                "SystemCallFilter=@system-service mincore",
            ],
            // Sockets of VMs may lie in /tmp.
            &["PrivateTmp=yes"],
        ),
    ] {
        let unit = std::fs::read_to_string(packaging().join(format!("{name}.service"))).unwrap();
        let lines: Vec<&str> = unit.lines().collect();
        let common = [
            "NoNewPrivileges=yes",
            "MemoryDenyWriteExecute=yes",
            "UMask=0077",
        ];
        for line in common.iter().chain(own) {
            assert!(lines.contains(line), "{name}: {line}");
        }
        for line in wrong {
            assert!(!lines.contains(line), "{name}: {line}");
        }
    }
}

#[test]
fn every_unit_and_every_rule_is_packaged_and_no_unit_is_switched_on() {
    let build: String = ["tree.sh", "after-install.sh", "before-removal.sh"]
        .map(|script| std::fs::read_to_string(packaging().join(script)).unwrap())
        .concat();
    let files = std::fs::read_dir(packaging()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    // The words of the line with this, but for comments.
    let words = |with: &str| -> Vec<&str> {
        let lines = build.lines().map(str::trim_start);
        let mut lines = lines.filter(|line| !line.starts_with('#') && line.contains(with));
        let line = lines.next().unwrap_or_default();
        line.split([' ', ';']).collect()
    };
    let (units, rules) = (words("for unit in"), words("for file in"));
    let stopped = words("systemctl disable --now");
    let mut count = 0;
    for name in names {
        if let Some(unit) = name.strip_suffix(".service") {
            assert!(units.contains(&unit), "{unit} is not installed");
            assert!(stopped.contains(&&*name), "a removal does not stop {unit}");
            count += 1;
        } else if name.ends_with("alerts.yml") {
            assert!(rules.contains(&&*name), "{name} is not installed");
        } else if name.ends_with(".rules") {
            let to = format!("$tree/lib/udev/rules.d/{name}");
            assert!(build.contains(&to), "{name} is not installed");
        }
    }
    assert_eq!(count, 4);
    assert_eq!(words("systemctl enable"), [""]);
    let restarted = words("try-restart");
    assert!(restarted.contains(&"justitia.service"));
    assert!(!restarted.contains(&"justitia-cache.service"));
}

#[test]
fn a_removal_says_whose_disks_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    std::fs::create_dir_all(dir.path().join("run/systemd/system")).unwrap();
    let script = std::fs::read_to_string(packaging().join("before-removal.sh")).unwrap();
    let script = script.replace("/run/", &format!("{root}/run/"));
    let said = |stats: &str| {
        // In the place of the programs.
        let programs = format!("systemctl() {{ :; }}\njustitia() {{ printf '{stats}'; }}\n");
        let run = Command::new("sh")
            .args(["-ec", &(programs + &script)])
            .output();
        let done = run.unwrap();
        assert!(done.status.success() && done.stdout.is_empty(), "{done:?}");
        String::from_utf8(done.stderr).unwrap()
    };
    assert_eq!(said("VM/POOL\\n20 clients of a VM\\n\\n0 clients\\n"), "");
    let both = said("VM/POOL\\n\\n20 clients\\n1 front ends over vhost-user\\n");
    let expected = "justitia: 20 clients lose their disks: justitia-cache is stopped\n\
                    justitia: 1 front ends over vhost-user lose their disks: justitia-cache is stopped\n";
    assert_eq!(both, expected);
}

/// Runs a script of the package's with a machine of its own below `root`; `None` if there is no such script, or no shell.
fn maintainer_script(name: &str, argument: &str, root: &Path) -> Option<Output> {
    let build = std::fs::read_to_string(packaging().join("deb.sh")).ok()?;
    let begin = format!("cat >\"$tree/DEBIAN/{name}\" <<'EOF'\n");
    let (_, script) = build.split_once(&begin)?;
    let (script, _) = script.split_once("\nEOF\n")?;
    let root = root.to_str()?;
    let script = script
        .replace("/run/", &format!("{root}/run/"))
        .replace("/etc/", &format!("{root}/etc/"));
    let run = Command::new("sh")
        .args(["-c", &script, name, argument])
        .output();
    run.ok()
}

#[test]
fn a_purge_keeps_the_journals_of_what_is_not_restored() {
    for journal in ["ledger", "host/balloons"] {
        let dir = tempfile::tempdir().unwrap();
        let (state, etc) = (
            dir.path().join("run/justitia"),
            dir.path().join("etc/justitia"),
        );
        std::fs::create_dir_all(state.join("host")).unwrap();
        std::fs::create_dir_all(&etc).unwrap();
        let journal = state.join(journal);
        std::fs::write(&journal, "a line").unwrap();

        let removed = maintainer_script("postrm", "remove", dir.path()).unwrap();
        assert!(removed.status.success() && etc.exists() && journal.exists());

        let purged = maintainer_script("postrm", "purge", dir.path()).unwrap();
        assert!(purged.status.success() && !etc.exists() && journal.exists());
        let said = String::from_utf8(purged.stderr).unwrap();
        let journal_is_named = said.contains(journal.to_str().unwrap());
        assert!(journal_is_named && said.contains("still set"), "{said}");

        std::fs::remove_file(&journal).unwrap();
        std::fs::write(state.join("lock"), "").unwrap();
        let purged = maintainer_script("postrm", "purge", dir.path()).unwrap();
        assert!(purged.status.success() && !state.exists());
        assert!(purged.stderr.is_empty());
    }
}
