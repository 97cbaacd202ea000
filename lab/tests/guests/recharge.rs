//! Page ownership in a guest: a container image's layer that a light tenant has read first becomes a heavier
//! tenant's, and nothing that must stay is touched.

use std::time::{Duration, Instant};

use super::agent_guest::{Guest, in_guest};
use justitia_lab::vm::{DiskSpec, Filesystem, VmSpec};
use serde_json::Value;

fn roomy() -> VmSpec {
    VmSpec {
        memory: 1 << 30,
        // The probe is attached to a function that is executed all the time, again and again: emulated, a second
        // processor does not survive the patching of the code that it runs.
        vcpus: 1,
        disks: vec![
            DiskSpec::ext4(1 << 30),
            DiskSpec::of(Some(Filesystem::Xfs), 512 << 20),
        ],
        ..VmSpec::default()
    }
}

/// Two tenants, 100 and 800, each with an overlay over the same lower directory; the light one reads the layer
/// first, then only the heavy one does. And the agent, that looks every 10 s.
const LAYER: &str = "
    mkdir -p /data/layer /etc/justitia && modprobe overlay 2>/dev/null
    printf '[recharge]\\nenabled = true\\ninterval = \"10s\"\\n' >/etc/justitia/justitia.toml
    live light && live heavy && echo 100 >$C/light/io.weight && echo 800 >$C/heavy/io.weight || exit 1
    overlay() {
        mkdir -p /data/$1/up /data/$1/work /data/$1/root
        mount -t overlay overlay -o lowerdir=${2:-/data/layer},upperdir=/data/$1/up,workdir=/data/$1/work /data/$1/root
    }
    unlay() { for t in light heavy; do umount -l /data/$t/root 2>/dev/null; done; true; }
";

/// `heavy` reads 160 MiB a second of what `light` is charged for; the other 400 MiB of `light`'s cache have it above its
/// part.
const USE: &str = "
    hole /data/own 400
    dd if=/dev/urandom of=$LOWER/lib bs=1M count=64 2>/dev/null; sync; busybox sha256sum <$LOWER/lib >/run/whole; echo 3 >/proc/sys/vm/drop_caches
    overlay light $LOWER && overlay heavy $LOWER || exit 1
    cache light /data/light/root/lib 64; cache light /data/own 400
    reread heavy /data/heavy/root/lib 0.3
";

#[track_caller]
fn file_of(guest: &Guest, tenant: &str) -> u64 {
    guest.number(&format!("file_of {tenant}")) >> 20
}

/// The decisions about a tenant, as text.
fn decisions(status: &Value, tenant: &str) -> Vec<String> {
    let all = status["decisions"].as_array().cloned().unwrap_or_default();
    let text = |decision: &Value, key: &str| decision[key].as_str().unwrap_or("").to_owned();
    all.iter()
        .filter(|d| d["path"] == tenant)
        .map(|d| format!("{}: {}", text(d, "what"), text(&d["reason"], "text")))
        .collect()
}

/// What the agent has decided about `heavy`'s files, once it has; at most after a minute.
#[track_caller]
fn decided(guest: &Guest, what: &str) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let status = guest.status();
        let found = decisions(&status, "heavy");
        if found.iter().any(|d| d.starts_with(what)) {
            return found;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "expected a decision {what:?} in {status:#}\n{}",
            guest.log()
        );
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
#[ignore = "minutes: make test-vm"]
fn an_image_layer_is_recharged_to_its_heaviest_user() {
    in_guest(roomy, |guest| {
        for (filesystem, lower) in [("ext4", "/data/layer"), ("xfs", "/xfs/layer")] {
            guest.ok(&format!(
                "{LAYER} LOWER={lower}; unlay
                [ $LOWER = /data/layer ] || {{ modprobe xfs; mkdir -p /xfs && {{ grep -q /xfs /proc/mounts || mount /dev/vdb /xfs; }} && mkdir -p $LOWER; }} || exit 1
                {USE}"
            ));
            let (light, heavy) = (file_of(guest, "light"), file_of(guest, "heavy"));
            assert!(light > 440 && heavy < 20, "{filesystem}: {light} {heavy}");
            guest.ok("export JUSTITIA_LOG=justitia_agent::recharge=trace,info; start");
            let reasons = decided(guest, "recharge ");
            let (light, heavy) = (file_of(guest, "light"), file_of(guest, "heavy"));
            println!("{filesystem}: light {light} MiB, heavy {heavy} MiB: {reasons:#?}");
            assert!(light < 420 && heavy > 56, "{filesystem}: {light} {heavy}");
            let reasons = reasons.join("\n");
            for fact in ["/layer/lib", "expected gain", "by the kernel's counters"] {
                assert!(reasons.contains(fact), "{fact}: {reasons}");
            }
            let lost = decisions(&guest.status(), "light").join("\n");
            assert!(lost.contains("to a heavier tenant"), "{lost}");
            // No page is left behind, and the file is whole: what is cached, and what is on the disk.
            guest.ok("! grep -la '[r]echarge-helper' /proc/[0-9]*/cmdline");
            guest.ok(&format!(
                "busybox sha256sum <{lower}/lib | cmp - /run/whole"
            ));
            println!("{}", guest.ok("justitia explain heavy"));
            assert_eq!(guest.ok("end TERM").trim(), "0");
            guest.ok(&format!(
                "umount -l /data/light/root /data/heavy/root; echo 3 >/proc/sys/vm/drop_caches
                busybox sha256sum <{lower}/lib | cmp - /run/whole && clean"
            ));
        }
    });
}

#[test]
#[ignore = "minutes: make test-vm"]
fn mapped_files_and_files_beyond_the_free_headroom_are_not_recharged() {
    in_guest(roomy, |guest| {
        guest.ok(&format!("{LAYER} LOWER=/data/layer; {USE}"));
        // It is mapped, as a library is: a program that runs from it.
        guest.ok("cp /bin/busybox /data/layer/sleep && cat /data/layer/lib >>/data/layer/sleep && sync
            umount /data/heavy/root /data/light/root; kill -9 $(cat /run/loads); rm /run/loads; echo 3 >/proc/sys/vm/drop_caches");
        guest.ok(&format!(
            "{LAYER} overlay light && overlay heavy || exit 1
            cache light /data/light/root/sleep 70; cache light /data/own 400
            /data/light/root/sleep 100000 & echo $! >>/run/loads
            reread heavy /data/heavy/root/sleep 0.3
            cache light /data/light/root/lib 64
            sh -c 'echo $$ >\"$0/cgroup.procs\" && while :; do dd if=/data/heavy/root/lib of=/dev/null bs=1M count=1 2>/dev/null; done' $C/heavy >/dev/null 2>&1 &
            echo $! >>/run/loads
            export JUSTITIA_LOG=justitia_agent::recharge=trace,info; start; sleep 18"
        ));
        let log = guest.ok("grep -a 'a shared file is not recharged' $LOG | tail -40");
        assert!(log.contains("Mapped"), "{log}");
        // Of the other, the heavier one reads the first sixty-fourth as often as it can.
        assert!(log.contains("Little"), "{log}");
        assert!(
            decisions(&guest.status(), "heavy")
                .iter()
                .all(|d| !d.contains("recharge"))
        );
        // Not mapped any more, but there is no room for it where it should go.
        guest.ok("echo 30M >$C/heavy/memory.max; kill -9 $(head -n 1 /run/loads)");
        let told = decided(guest, "a shared file could not be recharged to it").join("\n");
        assert!(
            told.contains("memory.max of heavy does not allow"),
            "{told}"
        );
        assert!(file_of(guest, "light") > 440);
        guest.ok("! grep -la '[r]echarge-helper' /proc/[0-9]*/cmdline");
        assert_eq!(guest.ok("end TERM").trim(), "0");
        guest.ok("umount -l /data/light/root /data/heavy/root; clean");
    });
}
