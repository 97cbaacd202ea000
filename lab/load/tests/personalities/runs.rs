//! Runs: their start, their end, what they report, full disks.

use super::*;

#[test]
fn intervals_add_up_to_the_totals() {
    let directory = tempfile::tempdir().unwrap();
    let lines = run(
        "fileserver",
        directory.path(),
        "--files 60 --mean-size 8k --threads 2 --duration 1 --interval 0.1",
    );
    let intervals = events(&lines, "interval");
    // A machine with other things to do skips some.
    assert!((2..=12).contains(&intervals.len()), "{}", intervals.len());
    let last = last(&lines);
    for key in ["operations", "read_bytes", "written_bytes"] {
        let sum: u64 = intervals.iter().map(|l| l[key].as_u64().unwrap()).sum();
        let total = last[key].as_u64().unwrap();
        assert_eq!(sum, total, "{key}");
    }
    let seconds = last["seconds"].as_f64().unwrap();
    assert!((1.0..4.0).contains(&seconds), "{seconds}");
}

#[test]
fn direct_files_are_whole_pages_and_nothing_fails() {
    let directory = tempfile::tempdir().unwrap();
    for personality in ["fileserver", "reread"] {
        let lines = run(
            personality,
            &directory.path().join(personality),
            "--files 60 --mean-size 10k --append-size 5k --threads 2 --duration 0.5 --direct",
        );
        let last = last(&lines);
        assert_eq!(last["errors"], 0, "{last}");
        assert!(last["read_bytes"].as_u64().unwrap() > 0);
    }
    for path in files_below(directory.path()) {
        let bytes = path.metadata().unwrap().len();
        assert_eq!(bytes % 4096, 0, "{}", path.display());
    }
}

/// A tmpfs that is too small, mounted for this test; `None` where that is not allowed.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(directory: &Path, size: &str) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"])
            .arg(directory)
            .stderr(Stdio::null())
            .status();
        mounted
            .is_ok_and(|s| s.success())
            .then(|| Self(directory.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_file_system_is_reported_and_survived() {
    let directory = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(directory.path(), "4m") else {
        eprintln!("skipped: mounting a tmpfs needs root");
        return;
    };
    // 80 files of 32 KiB fit into 4 MiB; what the workload adds does not.
    let options = "--files 100 --mean-size 32k --threads 4 --append-size 1m";
    run("fileserver", &disk.0, &format!("{options} --phase prepare"));
    let output = command(
        "fileserver",
        &disk.0,
        &format!("{options} --phase run --duration 1"),
    )
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let lines = lines(&output);
    let last = last(&lines);
    let errors = last["errors"].as_u64().unwrap();
    let failures = last["failures"].as_array().unwrap();
    assert!(errors > 0);
    assert!(
        failures.iter().any(|f| f["errno"] == "ENOSPC"),
        "{failures:?}"
    );
    let counted: u64 = failures.iter().map(|f| f["count"].as_u64().unwrap()).sum();
    assert!(counted >= errors && counted - errors <= 4);
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"));
    assert!(last["loops"].as_u64().unwrap() > 0, "it went on");
    let files = files_below(&disk.0.join("files")).len();
    assert!(
        files.abs_diff(80) <= 4,
        "failures kept the balance: {files}"
    );
    // A set that cannot be completed is no workload at all.
    let output = command(
        "fileserver",
        &disk.0,
        "--files 100 --mean-size 1m --phase prepare",
    )
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("write "),
        "says which file"
    );
}

fn spawn(directory: &Path, options: &str) -> Child {
    command("reread", directory, options)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn several_instances_wait_for_their_start() {
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let mut children: Vec<_> = (0..3)
        .map(|i| {
            let tenant = directory.path().join(format!("tenant{i}"));
            let ready = directory.path().join(format!("ready{i}"));
            let child = spawn(
                &tenant,
                &format!(
                    "--mean-size 1m --ready {} --wait-for {}",
                    ready.display(),
                    go.display()
                ),
            );
            (child, ready)
        })
        .collect();
    let patience = Instant::now() + Duration::from_secs(20);
    while !children.iter().all(|(_, ready)| ready.exists()) {
        assert!(Instant::now() < patience);
        std::thread::sleep(Duration::from_millis(5));
    }
    for (child, _) in &mut children {
        assert!(child.try_wait().unwrap().is_none(), "one does not wait");
    }
    fs::write(&go, "").unwrap();
    for (child, _) in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(events(&lines(&output), "start").len(), 1);
    }
}

#[test]
fn a_run_that_only_prepares_reports_ready_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    let options = format!(
        "--mean-size 64k --phase prepare --ready {}",
        ready.display()
    );
    assert_eq!(run("reread", directory.path(), &options).len(), 0);
    assert!(ready.exists());
    let empty = directory.path().join("empty");
    let nothing = command("webserver", &empty, "--phase run")
        .output()
        .unwrap();
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("do --phase prepare first"));
}

#[test]
fn sigterm_prints_the_totals() {
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    // 1 KB/s: it would take hours.
    let options = format!(
        "--mean-size 8m --rate 1k --duration 9999 --ready {}",
        ready.display()
    );
    let child = spawn(directory.path(), &options);
    let patience = Instant::now() + Duration::from_secs(20);
    while !ready.exists() {
        assert!(Instant::now() < patience);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.status.signal()),
        (Some(0), None)
    );
    let lines = lines(&output);
    assert_eq!(last(&lines)["interrupted"], true);
    assert!(last(&lines)["seconds"].as_f64().unwrap() < 10.0);
}

#[test]
fn cold_memory_is_touched_once() {
    let dir = tempfile::tempdir().unwrap();
    let lines = run("memory", dir.path(), "--size 4m --duration 2");
    assert_eq!(last(&lines)["operations"], 1024);
    assert_eq!(last(&lines)["read_bytes"], 0);
}

#[test]
fn names_that_do_not_exist_are_looked_up_and_made_by_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let lines = run("names", dir.path(), "--duration 0.5");
    assert!(
        last(&lines)["operations"].as_u64().unwrap() > 0,
        "{lines:?}"
    );
    assert_eq!(last(&lines)["errors"], 0);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
