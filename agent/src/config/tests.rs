use super::*;
use justitia_cgroup_tree::{Identity, Override, Subject, overrides};
use justitia_kernel::probes::Limits;
use justitia_share::Weight;

pub(super) fn load(files: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    Config::load(Some(&dir.path().join("j.toml"))).map_err(|errors| {
        let strip = format!("{}/", dir.path().display());
        errors
            .iter()
            .map(|e| e.to_string().replace(&strip, ""))
            .collect()
    })
}

#[test]
fn the_state_directory_is_read_whatever_else_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.toml");
    let default = Config::default().state_dir;
    for (text, expected, wrong) in [
        ("state_dir = \"/run/other\"\n", "/run/other", false),
        (
            "weight = \nstate_dir = \"/run/other\"\n[idle",
            "/run/other",
            true,
        ),
        (
            "state_dir = \"/run/other\"\n[[tenant]]\nweight = 0\n",
            "/run/other",
            true,
        ),
        ("state_dir = 7\n", default.to_str().unwrap(), true),
        ("\0\0\0", default.to_str().unwrap(), true),
    ] {
        std::fs::write(&path, text).unwrap();
        let (state, errors) = Config::state_dir_of(Some(&path));
        assert_eq!(
            (state.as_path(), !errors.is_empty()),
            (Path::new(expected), wrong),
            "{text}"
        );
    }
    let (state, errors) = Config::state_dir_of(Some(&dir.path().join("none")));
    assert_eq!((state, errors.len()), (default, 1));
}

#[test]
fn drop_ins_come_later_and_win() {
    let config = load(&[
        (
            "j.toml",
            "cpu_budget = 2\n[[tenant]]\nmatch = \"a/*\"\nweight = 300\nmin_cache = \"64MiB\"\n",
        ),
        (
            "j.toml.d/10-x.toml",
            "[[tenant]]\nmatch = \"a/b*\"\nweight = 500\n",
        ),
        (
            "j.toml.d/20-y.toml",
            "cpu_budget = 0.5\n[cache]\ndemand = \"usage\"\n[unmanaged]\nweight = 50\n",
        ),
        ("j.toml.d/note.txt", "not read"),
    ])
    .unwrap();
    assert!((config.cpu_budget - 0.5).abs() < 1e-9);
    assert_eq!(config.policy().demand, justitia_api::DemandModel::Usage);
    assert_eq!(config.unmanaged.weight.get(), 50);
    let overrides = |path| overrides(&config.rules, &subject(path));
    let both = overrides("a/bc");
    assert_eq!(
        (both.weight.map(Weight::get), both.min_cache),
        (Some(500), Some(64 << 20))
    );
    let one = overrides("a/c");
    assert_eq!(one.weight.map(Weight::get), Some(300));
    assert_eq!(
        overrides("a/c/d"),
        Override::default(),
        "* stays within a name"
    );
}

/// A cgroup of which only the path is known.
fn subject(path: &str) -> Subject<'_> {
    static NOTHING: Identity = Identity {
        kind: justitia_api::TenantKind::Cgroup,
        name: String::new(),
        image: None,
        labels: Vec::new(),
        part: None,
        declared: None,
    };
    Subject {
        path: Path::new(path),
        identity: &NOTHING,
        made: false,
    }
}

#[test]
fn rules_may_be_about_containers_images_labels_units_and_machines() {
    let text = "[[tenant]]\ncontainer = \"web*\"\nimage = \"*nginx:*\"\nweight = 1\n[[tenant]]\nlabel = \"app=*\"\nweight = 2\n\
                [[tenant]]\nunit = \"db*.service\"\nweight = 3\n[[tenant]]\ndomain = \"vm?\"\nweight = 4\n";
    let config = load(&[("j.toml", text)]).unwrap();
    assert_eq!(config.rules.len(), 4);
    let weight = |path, identity: &Identity| {
        let subject = Subject {
            identity,
            ..subject(path)
        };
        overrides(&config.rules, &subject).weight.map(Weight::get)
    };
    let identity = |kind, name: &str| Identity {
        kind,
        name: name.to_owned(),
        ..Identity::default()
    };
    use justitia_api::TenantKind::{Cgroup, DockerContainer, Domain, PodContainer};
    let web = Identity {
        image: Some("docker.io/library/nginx:1.25".to_owned()),
        ..identity(DockerContainer, "web-1")
    };
    assert_eq!(weight("x", &web), Some(1));
    assert_eq!(
        weight("x", &identity(DockerContainer, "web-1")),
        None,
        "no image"
    );
    let pod = Identity {
        name: "prod/web-1/web".to_owned(),
        kind: PodContainer,
        ..web.clone()
    };
    assert_eq!(weight("x", &pod), None, "* stays within one part of a name");
    let labelled = Identity {
        labels: vec!["tier=front".to_owned(), "app=a/b".to_owned()],
        ..identity(DockerContainer, "x")
    };
    assert_eq!(weight("x", &labelled), Some(2));
    let part = Identity {
        part: Some("container".to_owned()),
        ..web
    };
    assert_eq!(
        weight("x", &part),
        None,
        "what crun makes inside is no container of its own"
    );
    let plain = Identity::default();
    assert_eq!(weight("system.slice/db-1.service", &plain), Some(3));
    assert_eq!(
        weight("user.slice/user@1.service/db-1.service", &plain),
        None
    );
    assert_eq!(weight("x", &identity(Domain, "vm1")), Some(4));
    assert_eq!(weight("x", &identity(Cgroup, "vm1")), None);
}

#[test]
fn a_rule_in_single_brackets_is_told_of_the_second_pair() {
    let errors = load(&[("j.toml", "[tenant]\nmatch = 'a'\nweight = 3\n")]).unwrap_err();
    assert_eq!(
        errors,
        ["j.toml:1: tenant: expected [[tenant]], found [tenant]: write two brackets"]
    );
}

#[test]
fn rules_that_can_never_match_are_warned_of() {
    let warnings = |rule: &str| {
        let text = format!("[[tenant]]\n{rule}\nweight = 3\n");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.toml");
        std::fs::write(&path, text).unwrap();
        Config::check(Some(&path)).unwrap().warnings
    };
    let wrong = r#"
match = 'a//b' | match = "a//b" matches no cgroup: each part of a path is a name
match = '../a' | matches no cgroup
container = '/web' | matches no container: no name begins with a slash
container = '' | at least one character
label = 'app' | a label is KEY=VALUE
unit = 'nginx' | matches no unit: expected the name of one
unit = 'nginx*.servic' | matches no unit
unit = 'system.slice/nginx.service' | there is `match`
domain = 'a'\nimage = 'b' | a virtual machine (domain) has no image
"#;
    for case in wrong.trim().lines() {
        let (rule, words) = case.split_once(" | ").unwrap();
        let warnings = warnings(&rule.replace(r"\n", "\n"));
        let warned = warnings.iter().any(|w| w.what.contains(words));
        assert!(warned && warnings.len() == 1, "{rule}: {warnings:?}");
    }
    let fine = "match = 'machine.slice/machine-qemu\\x2d1\\x2dweb.scope'\ncontainer = 'a'\nimage = 'b'\nlabel = 'c=*'\n\
                unit = '*.service'";
    for rule in [
        fine,
        "unit = 'a*'",
        "unit = 'a@*.service'",
        "unit = '{a,b}.service'",
        "unit = 'a.s*ce'",
        "label = '*'",
    ] {
        let warnings = warnings(rule);
        assert!(warnings.is_empty(), "{rule}: {warnings:?}");
    }
}

#[test]
fn every_error_has_its_file_and_line() {
    let errors = load(&[
        (
            "j.toml",
            "cpu_budgett = 1\nsocket = \"relative\"\n\n[[tenant]]\nweight = 20000\nmatch = \"[\"\n\
             \n[[tenant]]\nmin_cache = true\n[cache]\ndemand = \"soon\"\nx = 1\n",
        ),
        ("j.toml.d/10.toml", "\n\ncpu_budget = 101\ncache = 3\n"),
    ])
    .unwrap_err();
    let expect = [
        "j.toml:1: expected one of `socket`, `state_dir`, `cpu_budget`, `probes`, `metrics`, \
         `io`, `recharge`, `cache`, `pressure`, `unmanaged`, `unmapped`, `slab`, `guest`, `weights`, `tenant`, found the unknown key `cpu_budgett`: did you mean `cpu_budget`?",
        "j.toml:2: socket: expected an absolute path, found \"relative\"",
        "j.toml:5: tenant.weight: expected a weight from 1 to 10000, found 20000",
        "j.toml:6: tenant.match: expected a glob over cgroup paths, found \"[\": unclosed character class at byte 0; missing ']' (to match a literal '[', escape it as '\\[' or '[[]')",
        "j.toml:8: tenant: expected a [[tenant]] with `match`, `container`, `image`, `label`, `unit` or `domain`, found none of them",
        "j.toml:9: tenant.min_cache: expected a size such as 64K, 256MiB, 1.5GiB or a number of bytes, found true",
        "j.toml:11: cache.demand: expected `use` or `usage`, found `soon`",
        "j.toml:12: cache: expected `demand` or `swap`, found the unknown key `x`: correct or remove it",
        "j.toml.d/10.toml:3: cpu_budget: expected a number from 0.1 to 100, in percent, found 101",
        "j.toml.d/10.toml:4: cache: expected a table [cache], found 3",
    ];
    for line in expect {
        assert!(
            errors.iter().any(|e| e == line),
            "{line}\nnot in {errors:#?}"
        );
    }
    assert_eq!(errors.len(), expect.len(), "{errors:#?}");
}

#[test]
fn limits_of_the_probes_stay_within_their_ranges() {
    let read = |text: &str| load(&[("j.toml", text)]).map(|c| Limits::from(&c.probes));
    let some = read("[probes]\nmax_cgroups = 6000\nmax_shared_files = 64\n").unwrap();
    assert_eq!((some.max_cgroups, some.max_shared_files), (6000, 64));
    assert!(some.check().is_ok());
    let errors = read("[probes]\nmax_cgroups = 15\nmax_inflight = 63\n").unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:#?}");
    assert!(
        errors[0].starts_with("j.toml:2: probes.max_cgroups: expected a number from 16 to 65535"),
        "{errors:#?}"
    );
}

#[test]
fn metrics_can_be_moved_bounded_and_switched_off() {
    let read = |text: &str| {
        load(&[("j.toml", text)]).map(|c| {
            (
                c.metrics.listen.map(|a| a.to_string()),
                c.metrics.max_tenants,
            )
        })
    };
    let standard = Some("127.0.0.1:9742".to_owned());
    assert_eq!(read(""), Ok((standard.clone(), 1000)));
    assert_eq!(read("[metrics]\nlisten = \"\"\n"), Ok((None, 1000)));
    let moved = "[metrics]\nlisten = \"[::1]:80\"\nmax_tenants = 5\n";
    assert_eq!(read(moved), Ok((Some("[::1]:80".to_owned()), 5)));
    let errors = read("[metrics]\nlisten = \"here\"\nmax_tenants = -1\n").unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:?}");
}

#[test]
fn only_regular_files_of_a_bounded_size_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.toml");
    let error = |path: &Path| Config::load(Some(path)).unwrap_err()[0].to_string();
    assert_eq!(
        error(Path::new("/dev/zero")),
        "/dev/zero: expected a regular file, found a character device: name a TOML file of at most 1 MiB"
    );
    assert!(error(dir.path()).contains("found a directory"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    assert!(
        error(&path)
            .ends_with("expected a regular file, found a pipe: name a TOML file of at most 1 MiB")
    );
    std::fs::remove_file(&path).unwrap();

    std::fs::write(&path, "#".repeat(1 << 20)).unwrap();
    Config::load(Some(&path)).unwrap();
    std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    assert!(error(&path).contains(
        "expected at most 1048576 bytes, found 1048577: name a TOML file of at most 1 MiB"
    ));
    std::fs::write(&path, b"# one\n# tw\xff\n").unwrap();
    assert!(
        error(&path).ends_with(
            "j.toml:2: expected text in UTF-8, found other bytes: save the file as UTF-8"
        )
    );

    // Drop-ins too.
    std::fs::write(&path, "").unwrap();
    let drop_in = dir.path().join("j.toml.d/10.toml");
    std::fs::create_dir(dir.path().join("j.toml.d")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &drop_in).unwrap();
    assert!(
        error(&path).ends_with(
            "j.toml.d/10.toml: expected a regular file, found a character device: name a TOML file of at most 1 MiB"
        )
    );
}

#[test]
fn what_can_hardly_be_meant_is_warned_of_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.toml");
    let text = "[[tenant]]\nmatch = \"a/\"\nweight = 2\n[[tenant]]\nmatch = \"\"\nexclude = false\n[[tenant]]\n\
                weight = 3\nmatch = \"/sys/fs/cgroup/a\"\nexclude = true\n[[tenant]]\nmatch = \"sys/fs/cgroups\"\n";
    std::fs::write(&path, text).unwrap();
    let drop_ins = dir.path().join("j.toml.d");
    std::fs::create_dir(&drop_ins).unwrap();
    for name in ["20.toml", "10.toml", "30.conf"] {
        std::fs::write(drop_ins.join(name), "").unwrap();
    }
    let checked = Config::check(Some(&path)).unwrap();
    let told = |(line, words): (usize, &str)| {
        let warning = checked.warnings.iter().find(|w| w.line == Some(line));
        assert!(
            warning.is_some_and(|w| w.what.contains(words)),
            "{line}: {words}: {warning:?}"
        );
    };
    let expected = [
        (2, "no path ends with a slash"),
        (5, "expected a path below"),
        (8, "weight has no effect beside exclude = true"),
        (9, "remove /sys/fs/cgroup/"),
        (11, "this [[tenant]] changes nothing"),
    ];
    expected.into_iter().for_each(told);
    assert_eq!(
        checked.warnings.len(),
        expected.len(),
        "{:#?}",
        checked.warnings
    );
    assert_eq!(
        checked.files,
        [path, drop_ins.join("10.toml"), drop_ins.join("20.toml")]
    );
    assert_eq!(checked.skipped, [drop_ins.join("30.conf")]);
}

/// Of the file that is packaged, the lines that are configuration.
fn packaged() -> String {
    let lines = include_str!("../../../packaging/justitia.toml").lines();
    let setting = |line: &&str| line.starts_with('[') || line.split(' ').nth(1) == Some("=");
    let lines = lines.filter_map(|line| line.strip_prefix("# "));
    lines.filter(setting).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_packaged_file_shows_every_key_that_is_known() {
    /// The keys that the reader names in its error about one that it does not know.
    fn known(header: &str) -> Vec<String> {
        let errors = load(&[("j.toml", &format!("{header}\nnonsense = 1\n"))]).unwrap_err();
        let unknown = errors
            .iter()
            .find_map(|e| e.split_once(", found the unknown key `nonsense`"))
            .unwrap();
        unknown
            .0
            .split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    }
    let shown: toml::Table = packaged().parse().unwrap();
    for key in known("") {
        let value = shown
            .get(&key)
            .unwrap_or_else(|| panic!("{key} is not shown"));
        let (header, tables): (String, Vec<&toml::Table>) = match value {
            toml::Value::Table(table) => (format!("[{key}]"), vec![table]),
            toml::Value::Array(list) => (
                format!("[[{key}]]"),
                list.iter().filter_map(toml::Value::as_table).collect(),
            ),
            _ => continue,
        };
        for inner in known(&header) {
            let is_shown = tables.iter().any(|table| table.contains_key(&inner));
            assert!(is_shown, "{inner} of {header} is not shown");
        }
    }
}

#[test]
fn the_packaged_file_shows_the_defaults() {
    let mut shown = load(&[("j.toml", &packaged())]).unwrap();
    assert_eq!(shown.rules.len(), 6);
    shown.rules.clear();
    assert_eq!(format!("{shown:?}"), format!("{:?}", Config::default()));
}

#[test]
fn a_rule_that_names_a_cgroup_without_its_path_is_told_what_it_could_mean() {
    let config = load(&[(
        "j.toml",
        "[[tenant]]\nmatch = \"web.service\"\nweight = 3\n[[tenant]]\nmatch = \"app.slice/*\"\nweight = 4\n\
         [[tenant]]\nmatch = \"later.service\"\nweight = 5\n",
    )])
    .unwrap();
    let paths = ["app.slice", "app.slice/web.service"].map(Path::new);
    let hints = config
        .rules
        .iter()
        .rev()
        .filter_map(|rule| rule.near_miss(paths.into_iter()));
    assert_eq!(
        hints.collect::<Vec<_>>(),
        [
            "[[tenant]] match = \"web.service\" matches no cgroup now, but \"**/web.service\" would match \
          app.slice/web.service: a match is over the whole path below the cgroup mount"
        ]
    );
}

#[test]
fn a_glob_that_cannot_be_compiled_is_told_by_line() {
    let refused = |pattern: &str| {
        let text = format!("\n[[tenant]]\nmatch = \"{pattern}\"\n");
        let errors = load(&[("j.toml", &text)]).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].clone()
    };
    let nested = |count| "{".repeat(count) + "a" + &"}".repeat(count);
    let long = "j.toml:3: tenant.match: expected a glob of at most 1024 bytes, found one of ";
    for pattern in [nested(200_000), "[!a]".repeat(200_000)] {
        let error = refused(&pattern);
        assert!(error.starts_with(long), "{error}");
    }
    // What is deep, what would be compared with a name for ever, and what ends too soon.
    let many = "{,,,,,,,,,}".repeat(10);
    for pattern in [&nested(250), &many, "{a", "[a", "a\\\\"] {
        let error = refused(pattern);
        let expected = "j.toml:3: tenant.match: expected a glob over cgroup paths, found";
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn what_a_file_holds_or_is_called_does_nothing_to_a_terminal() {
    let bad = "\u{9b}2J\u{202e}";
    let errors = load(&[
        ("j.toml", &format!("state_dir = \"{bad}\"\n\"{bad}\" = 1\n")),
        ("j.toml.d/\x1b[2J\u{9b}.toml", "x = 1\n"),
    ])
    .unwrap_err();
    assert_eq!(errors.len(), 3, "{errors:?}");
    let shown = |c: char| !c.is_control() && c != '\u{202e}';
    for error in &errors {
        assert!(error.chars().all(shown), "{error:?}");
    }
    assert_eq!(
        errors[0],
        "j.toml:1: state_dir: expected an absolute path, found \"\\u{9b}2J\\u{202e}\""
    );
    let name = "j.toml.d/\\x1b[2J\\xc2\\x9b.toml:1: expected one of";
    assert!(errors[2].starts_with(name), "{errors:?}");
}

#[test]
fn a_tenant_that_is_no_list_of_tables_is_an_error() {
    for text in [
        "tenant = 3\n",
        "[tenant]\nmatch = \"a\"\n",
        "tenant = [3]\n",
    ] {
        let errors = load(&[("j.toml", text)]).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].starts_with("j.toml:1: ") && errors[0].contains("[[tenant]]"),
            "{errors:?}"
        );
    }
}
