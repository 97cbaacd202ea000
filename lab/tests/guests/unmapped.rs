//! Unmapped page cache control (Linux Symposium 2010, 5.1): by what means a stock kernel can hold a cap, and what a build under one
//! costs. These measure; what the agent promises of its caps is in `agent_caps`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use justitia_lab::LabDir;
use justitia_lab::vm::{DiskSpec, Guest, Vm, VmSpec};

use super::agent_guest::turn;
use super::commands::{self, run};
use super::retry::{fail, retry_after_a_crash};

/// A script's most time.
const LIMIT: Duration = Duration::from_secs(900);

#[track_caller]
fn script(guest: &Guest, text: &str) -> String {
    let done = guest.sh_within(text, LIMIT);
    let done = done.unwrap_or_else(|error| fail(&error));
    assert!(done.status == 0 && !done.timed_out, "{text}\n{done:?}");
    print!("{}", done.stdout);
    done.stdout
}

/// The C program of this name, without libraries, in the guest.
fn program(guest: &Guest, dir: &Path, name: &str, source: &str) {
    let (from, to) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&from, source).unwrap();
    run(Command::new("cc")
        .args(["-O2", "-static", "-o"])
        .args([&to, &from]));
    let content = std::fs::read(to).unwrap();
    guest
        .push(&format!("/bin/{name}"), 0o755, &content)
        .unwrap();
}

/// One line each: root and cgroup are `memory.reclaim`, zone is `vm.zone_reclaim_mode` with `vm.min_unmapped_ratio`.
#[test]
#[ignore = "minutes; a table of docs/results/vms.md"]
fn means_of_holding_a_cap() {
    retry_after_a_crash(|| {
        let _turn = turn();
        let vm = Vm::boot(&VmSpec {
            memory: 512 << 20,
            disks: vec![DiskSpec::ext4(2 << 30)],
            ..VmSpec::default()
        });
        let vm = vm.unwrap();
        let (guest, dir) = (vm.guest(), tempfile::tempdir().unwrap());
        program(
            guest,
            dir.path(),
            "mapped",
            include_str!("unmapped/mapped.c"),
        );
        program(guest, dir.path(), "hold", include_str!("unmapped/hold.c"));
        let functions = include_bytes!("unmapped/means.sh");
        guest.push("/root/means.sh", 0o644, functions).unwrap();
        script(guest, ". /root/means.sh; prepare");
        for lru in ["y", "n"] {
            for (means, cap) in [
                ("none", 5),
                ("root", 5),
                ("cgroup", 5),
                ("fadvise", 5),
                ("drop", 5),
                ("zone", 5),
                ("cgroup", 51),
                ("fadvise", 51),
            ] {
                let line = script(
                    guest,
                    &format!(". /root/means.sh; means {lru} {means} {cap}"),
                );
                let spared = line.contains("hot 12288/12288 cold 12288/12288");
                // Neither takes a page that is mapped.
                assert!(spared || !["fadvise", "drop"].contains(&means), "{line}");
            }
        }
    });
}

/// What is installed to compile.
const INCLUDE: &str = "--include=gcc,libc6-dev,make";
/// The crate whose sources are built, MIT like Lua itself.
const CRATE: &str = "lua-src = \"=547.0.0\"";
const SOURCES: &str = "vendor/lua-src/lua-5.4.7";
const MAKEFILE: &str = "\
OBJ = $(patsubst %.c,%.o,$(wildcard *.c))
liblua.so: $(OBJ)
\tgcc -shared -o $@ $^ -lm
%.o: %.c
\tgcc -O1 -fPIC -DLUA_USE_POSIX -c -o $@ $<
";

/// A Debian with a compiler, and Lua's sources from the crates registry; made once.
pub(crate) fn image(lab: &LabDir) -> PathBuf {
    let dir = lab.dir("unmapped").unwrap();
    let name = blake3::hash(format!("{INCLUDE}{CRATE}{SOURCES}{MAKEFILE}").as_bytes()).to_hex();
    let made = dir.join(format!("{}.img", &name[..16]));
    if !made.exists() {
        let work = tempfile::tempdir_in(&dir).unwrap();
        let (fetch, tree) = (work.path().join("fetch"), work.path().join("tree"));
        std::fs::create_dir(&fetch).unwrap();
        let manifest = format!(
            "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[dependencies]\n{CRATE}\n[workspace]\n"
        );
        std::fs::write(fetch.join("Cargo.toml"), manifest).unwrap();
        std::fs::write(fetch.join("lib.rs"), "").unwrap();
        run(Command::new("cargo")
            .args(["vendor", "-q"])
            .current_dir(&fetch));
        commands::debian(commands::BOOKWORM, INCLUDE, &tree);
        std::fs::create_dir(tree.join("src")).unwrap();
        run(Command::new("cp")
            .arg("-r")
            .args([fetch.join(SOURCES), tree.join("src/lua")]));
        std::fs::write(tree.join("src/lua/Makefile"), MAKEFILE).unwrap();
        let unfinished = work.path().join("image");
        run(Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4"])
            .args(["-E", "lazy_itable_init=0,lazy_journal_init=1", "-d"])
            .args([&tree, &unfinished])
            .arg("900M"));
        std::fs::rename(unfinished, &made).unwrap();
    }
    made
}

/// The seconds that a line of `build` tells.
fn seconds(text: &str) -> f64 {
    let mut words = text.split_whitespace();
    words.find(|word| *word == "seconds").unwrap();
    words.next().unwrap().parse().unwrap()
}

pub(crate) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// The paper's Fig. 3 to 5: a build with and without a cap of 1 %, in a guest whose host caches its disk. Three of each, in turn.
#[test]
#[ignore = "a quarter of an hour; a table of docs/results/vms.md"]
fn a_build_under_a_cap() {
    retry_after_a_crash(|| {
        let _turn = turn();
        let lab = LabDir::find().unwrap();
        let drive = format!(
            "if=none,id=debian,format=raw,snapshot=on,file={}",
            image(&lab).display()
        );
        let device = "virtio-blk-pci,drive=debian,serial=debian".to_owned();
        let vm = Vm::boot(&VmSpec {
            // With the ballast, what a guest of 384 MiB has: the lab's own file system takes 135.
            memory: 640 << 20,
            vcpus: 2,
            heartbeat_timeout: Duration::from_secs(120),
            qemu_args: vec!["-drive".into(), drive, "-device".into(), device],
            ..VmSpec::default()
        });
        let vm = vm.unwrap();
        let guest = vm.guest();
        let functions = include_bytes!("unmapped/build.sh");
        guest.push("/root/build.sh", 0o644, functions).unwrap();
        let build = |before: &str, name: &str, after: &str| {
            seconds(&script(
                guest,
                &format!(". /root/build.sh; {before}\nbuild {name}\n{after}"),
            ))
        };
        build("prepare; ballast 120", "first", "");
        let (mut alone, mut capped) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            alone.push(build("", "alone", ""));
            capped.push(build(
                "agent '[unmapped]\nmax_ratio = 1'",
                "capped",
                "kill $agent; wait $agent",
            ));
        }
        println!(
            "with the cap {:.3} times as long",
            median(capped) / median(alone)
        );
    });
}
