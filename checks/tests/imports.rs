//! No circle of imports between the files of a crate, and no crate that depends on one above it.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use justitia_checks::{Edge, Modules, Workspace, circle_through, edges_in_circles, imports};

/// The floors, from the lowest. A crate depends on those of lower floors only.
const FLOORS: [&[&str]; 9] = [
    &["share", "guest-protocol"],
    &["common/promtool", "kernel", "api"],
    &["runtimes"],
    &["cgroup-tree", "common"],
    &["agent", "cache", "host", "lab/load"],
    &["guest", "view", "plant", "lab/cache"],
    &["cli"],
    &["lab"],
    &["checks"],
];

/// The packages that are linked with libbpf, by way of the kernel crate. The others are built without clang, and run
/// where libelf is not installed.
const WITH_LIBBPF: [&str; 7] = [
    "agent",
    "cgroup-tree",
    "cli",
    "guest",
    "kernel",
    "lab",
    "plant",
];

type Names = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// The imports of a crate that are part of a circle, each with the shortest circle through it.
fn circles(workspace: &Workspace, names: &Names) -> BTreeMap<String, String> {
    let edges: BTreeSet<Edge<PathBuf>> = names.keys().cloned().collect();
    let name = |path: &Path| workspace.name(path);
    let told = |edge: &Edge<PathBuf>| {
        let circle = circle_through(&edges, edge).unwrap();
        let steps = circle.windows(2).map(|step| {
            let of = &names[&(step[0].clone(), step[1].clone())];
            let of: Vec<&str> = of.iter().map(String::as_str).collect();
            format!(
                "\n    {} names {} of {}",
                name(&step[0]),
                of.join(", "),
                name(&step[1])
            )
        });
        let steps: String = steps.collect();
        (
            format!("{} -> {}", name(&edge.0), name(&edge.1)),
            format!("part of a circle{steps}"),
        )
    };
    edges_in_circles(&edges).iter().map(told).collect()
}

/// The roots of a package's crates.
fn roots(directory: &Path) -> Vec<PathBuf> {
    let src = directory.join("src");
    let mut roots = vec![src.join("lib.rs"), src.join("main.rs")];
    let programs = fs::read_dir(src.join("bin")).into_iter().flatten();
    roots.extend(programs.map(|entry| entry.unwrap().path()));
    roots.retain(|root| root.is_file());
    roots
}

#[test]
fn no_file_imports_in_a_circle() {
    let workspace = Workspace::this();
    let mut found = BTreeMap::new();
    for member in workspace.members().unwrap() {
        for root in roots(&workspace.root.join(&member.directory)) {
            let names = imports(&Modules::of(&root).unwrap());
            found.extend(circles(&workspace, &names));
        }
    }
    let told: Vec<String> = found
        .iter()
        .map(|(edge, why)| format!("{edge}: {why}"))
        .collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
}

/// Packages by directory and name, with the names of their dependencies.
type Packages = [(String, String, Vec<String>)];

/// The directories of the packages that depend on this one, of the workspace or not, at any number of steps.
fn dependents<'a>(packages: &'a Packages, on: &str) -> BTreeSet<&'a str> {
    let direct = packages
        .iter()
        .filter(|(.., dependencies)| dependencies.iter().any(|name| name == on));
    direct
        .flat_map(|(directory, name, _)| {
            let mut found = dependents(packages, name);
            found.insert(directory);
            found
        })
        .collect()
}

/// What is wrong with the dependencies of packages among each other.
fn upward(packages: &Packages) -> Vec<String> {
    let floor = |directory: &str| FLOORS.iter().position(|floor| floor.contains(&directory));
    let directory = |name: &String| {
        let package = packages.iter().find(|(_, of, _)| of == name);
        package.map(|(directory, ..)| directory)
    };
    let mut wrong = Vec::new();
    for (from, _, dependencies) in packages {
        let Some(own) = floor(from) else {
            wrong.push(format!("{from}: no floor is given for it"));
            continue;
        };
        // For its tests a crate may depend on itself, with another feature.
        let others = dependencies.iter().filter_map(directory);
        for to in others.filter(|to| *to != from) {
            if floor(to).is_some_and(|other| other >= own) {
                wrong.push(format!("{from} depends on {to}, which is not below it"));
            }
        }
    }
    wrong
}

fn package(directory: &str, dependency: &str) -> (String, String, Vec<String>) {
    (
        directory.to_owned(),
        format!("justitia-{directory}"),
        vec![dependency.to_owned()],
    )
}

/// The packages of this workspace.
fn members() -> Vec<(String, String, Vec<String>)> {
    let members = Workspace::this().members().unwrap_or_default();
    assert!(members.len() > 8);
    members
        .into_iter()
        .map(|member| (member.directory, member.name, member.dependencies))
        .collect()
}

#[test]
fn no_crate_depends_on_one_above_it() {
    let wrong = upward(&members());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_the_agents_the_lab_and_the_command_line_are_linked_with_libbpf() {
    let packages = members();
    let mut found = dependents(&packages, "libbpf-rs");
    found.extend(dependents(&packages, "libbpf-sys"));
    assert_eq!(found, BTreeSet::from(WITH_LIBBPF));
}

#[test]
fn a_dependency_at_several_steps_is_found() {
    let packages = [
        package("kernel", "libbpf-rs"),
        package("agent", "justitia-kernel"),
        package("view", "justitia-agent"),
        package("cache", "justitia-share"),
    ];
    let expected = BTreeSet::from(["agent", "kernel", "view"]);
    assert_eq!(dependents(&packages, "libbpf-rs"), expected);
}

#[test]
fn a_dependency_upwards_is_found() {
    let good = [
        package("share", "serde"),
        package("kernel", "justitia-share"),
    ];
    assert!(upward(&good).is_empty());
    let bad = [
        package("share", "justitia-kernel"),
        package("kernel", "justitia-api"),
        package("api", "justitia-share"),
        package("other", "justitia-share"),
    ];
    assert_eq!(
        upward(&bad),
        [
            "share depends on kernel, which is not below it",
            "kernel depends on api, which is not below it",
            "other: no floor is given for it",
        ]
    );
}

/// The imports in circles of a crate with these files.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    for (path, source) in files {
        let path = directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, source).unwrap();
    }
    let root = directory.path().to_owned();
    let modules = Modules::of(&root.join("lib.rs")).unwrap();
    circles(&Workspace { root }, &imports(&modules))
        .into_keys()
        .collect()
}

#[test]
fn circles_are_found() {
    let both = ["a.rs -> b.rs", "b.rs -> a.rs"];
    let lib = ("lib.rs", "mod a; mod b;");
    let a = ("a.rs", "use crate::b::B; pub struct A; fn f(_: B) {}");
    for b in [
        "use super::a::A; pub struct B;",
        "pub struct B; fn g() { let _ = crate::a::A; }",
        "pub struct B; fn g() { use crate::a; }",
        "pub mod inner { use crate::a::A; } pub struct B;",
        "pub use self::own::B; mod own { pub struct B; } use super::{a::{self as other}};",
        "pub struct B; use crate::a::*;",
    ] {
        assert_eq!(circles_of(&[lib, a, ("b.rs", b)]), both, "{b}");
    }
    // By a name that a third one hands on, or that comes with all of another's.
    let again = (
        "lib.rs",
        "mod a; mod b; pub use a::A; pub mod all { pub use crate::a::*; }",
    );
    for b in [
        "use crate::A; pub struct B;",
        "use crate::all::A; pub struct B;",
    ] {
        assert_eq!(circles_of(&[again, a, ("b.rs", b)]), both, "{b}");
    }
    // Of a module with its root, by way of one below.
    let files = [
        ("lib.rs", "pub struct Id; mod a; use a::A; fn f(_: A) {}"),
        ("a/mod.rs", "mod b; pub struct A(b::B);"),
        ("a/b.rs", "pub struct B(crate::Id);"),
    ];
    let three = [
        "a/b.rs -> lib.rs",
        "a/mod.rs -> a/b.rs",
        "lib.rs -> a/mod.rs",
    ];
    assert_eq!(circles_of(&files), three);
}

#[test]
fn what_is_no_circle_is_not_found() {
    let lib = ("lib.rs", "mod a; mod b; pub use a::A;");
    let a = ("a.rs", "use crate::b::B; pub struct A; fn f(_: B) {}");
    for b in [
        "pub struct B;",
        "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }",
        "pub struct B; #[test] fn t() { crate::a::f(B); }",
        "use other::a::A; pub struct B;",
        "pub struct B; mod a { pub struct A; } use a::A;",
    ] {
        assert_eq!(
            circles_of(&[lib, a, ("b.rs", b)]),
            Vec::<String>::new(),
            "{b}"
        );
    }
    // Handing on what a child has is no use of it.
    let files = [
        ("lib.rs", "pub struct Id; mod a; pub use a::A;"),
        ("a.rs", "pub struct A(super::Id);"),
    ];
    assert_eq!(circles_of(&files), Vec::<String>::new());
}

/// The most packages in the product, its own among them: each is built, reviewed and updated.
const MOST_PACKAGES: usize = 150;

#[test]
fn the_product_is_made_of_few_packages() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(&Workspace::this().root);
    cargo.args("tree --offline --package justitia --edges normal --prefix none".split(' '));
    let tree = cargo.output().unwrap();
    assert!(tree.status.success(), "{tree:?}");
    let packages: BTreeSet<&str> = str::from_utf8(&tree.stdout)
        .unwrap()
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .collect();
    assert!(
        packages
            .iter()
            .any(|name| name.starts_with("justitia-share "))
    );
    assert!(
        packages.len() <= MOST_PACKAGES,
        "{} packages, more than {MOST_PACKAGES}: {packages:#?}",
        packages.len()
    );
}
