//! The image: a Debian with Redis, MariaDB, PostgreSQL and their clients, made once by mmdebstrap.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use justitia_lab::LabDir;

use super::super::commands::{self, program, run};
use super::scale::{DOCUMENTS, FILES, MEAN_SIZE};

/// What is installed; apt brings the rest.
const INCLUDE: &str =
    "--include=redis-server,redis-tools,mariadb-server,sysbench,postgresql,postgresql-contrib";

/// Makes PostgreSQL's database.
const FILL: &str = include_str!("fill.sh");

/// Room for all of it, and for what the servers write.
const SIZE: &str = "2600M";

/// The image's file, made if there is none of this content yet.
pub(crate) fn image(lab: &LabDir) -> PathBuf {
    let dir = lab.dir("databases").unwrap();
    let content = format!("{INCLUDE}{FILL}{SIZE}{DOCUMENTS}{FILES}{MEAN_SIZE}");
    let name = blake3::hash(content.as_bytes()).to_hex();
    let made = dir.join(format!("{}.img", &name[..16]));
    if !made.exists() {
        let work = tempfile::tempdir_in(&dir).unwrap();
        let tree = work.path().join("tree");
        debian(&tree);
        web_root(&tree.join("srv/web"));
        let unfinished = work.path().join("image");
        run(Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext4"])
            .args(["-E", "lazy_itable_init=0,lazy_journal_init=1", "-d"])
            .args([&tree, &unfinished])
            .arg(SIZE));
        std::fs::rename(unfinished, &made).unwrap();
    }
    made
}

/// Nothing of it runs when this is done: mmdebstrap starts no services, and PostgreSQL's server takes its input from here.
fn debian(tree: &Path) {
    commands::debian(commands::BOOKWORM, INCLUDE, tree);
    let script = tree.join("tmp/fill.sh");
    std::fs::write(&script, FILL).unwrap();
    run(Command::new("chroot")
        .arg(tree)
        .args(["/usr/bin/env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"])
        .args(["sh", "/tmp/fill.sh", &DOCUMENTS.to_string()])
        .stdin(Stdio::null()));
    std::fs::remove_file(script).unwrap();
}

/// Filebench's web server's files.
fn web_root(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    run(Command::new(program("justitia-load"))
        .args(["webserver", "--phase", "prepare", "--dir"])
        .arg(dir)
        .args(["--files", &FILES.to_string(), "--mean-size", MEAN_SIZE]));
}
