//! Two hours of everything at once (`make soak`; `SOAK_MINUTES=10` for less): containers that come and go, contention that
//! comes and goes, kills of the agent and its watchdog, stops, reloads, a full file system under the journal, no descriptors,
//! delegates that flood the tree. At the end every knob is what it was, and no tenant was limited on an idle disk for long.

use std::time::{Duration, Instant};

use super::agent_guest::{in_guest, small};
use justitia_lab::vm::VmSpec;

/// On an idle disk no tenant is limited for longer, whatever happens to the agent while it or its watchdog lives.
const LONGEST: Duration = Duration::from_secs(5);
/// Descriptors of the agent: three a cgroup of a tree of some 500, and a hundred for everything else.
const DESCRIPTORS: u64 = 1700;
/// Resident memory of the agent, KiB, an unoptimised build.
const RESIDENT: u64 = 128 << 10;

fn minutes() -> u64 {
    let minutes = std::env::var("SOAK_MINUTES");
    minutes.map_or(120, |text| text.parse().expect("SOAK_MINUTES: a number"))
}

fn machine() -> VmSpec {
    // One processor: emulated ones stumble now and then over the code that another has patched (the probes' places), once
    // in some 50 attachments.
    VmSpec {
        memory: 1 << 30,
        vcpus: 1,
        ..small()
    }
}

#[test]
#[ignore = "two hours: make soak"]
fn after_faults_and_kills_every_knob_is_restored_and_no_tenant_stays_limited() {
    in_guest(machine, |guest| {
        let begun = Instant::now();
        let soak = include_str!("agent_guest/soak.sh");
        guest.ok(&format!(
            "cat >/root/soak.sh <<'END'\n{soak}\nEND\n. /root/soak.sh && soak"
        ));
        let told = ". /root/soak.sh; for f in $S.count.*; do echo \"${f##*.} $(wc -l <$f)\"; done | tr '\\n' ',';
            echo \" longest $(head -1 $S.longest 2>/dev/null) ms\"";
        while begun.elapsed() < Duration::from_secs(60 * minutes()) {
            std::thread::sleep(Duration::from_secs(60));
            println!(
                "{:>4} min: {}",
                begun.elapsed().as_secs() / 60,
                guest.ok(told).trim()
            );
        }
        let end = guest.sh(". /root/soak.sh && soak_end; cat $S.diff");
        println!(
            "{}",
            guest.ok(&format!(
                "{told}; cat $S.longest $S.alone $S.errors $S.reset 2>/dev/null | tail -n 40; true"
            ))
        );
        assert_eq!(
            (end.status, end.stdout.trim()),
            (0, ""),
            "knobs differ: {end:?}"
        );
        let kills = guest.number("cat /run/soak.count.kill_* | wc -l");
        // 300 in two hours.
        assert!(kills * 2 >= minutes() * 5, "{kills} kills");
        for part in ["container", "contention", "flood"] {
            assert!(
                guest.number(&format!("wc -l </run/soak.count.{part}")) > 0,
                "{part}"
            );
        }
        let longest = guest.number("head -1 /run/soak.longest 2>/dev/null || echo 0");
        assert!(
            u128::from(longest) <= LONGEST.as_millis(),
            "limited for {longest} ms on an idle disk"
        );
        let most = |column: u32| {
            guest.number(&format!(
                "sort -n -k{column} /run/soak.cost | tail -1 | cut -d' ' -f{column}"
            ))
        };
        let (descriptors, resident) = (most(1), most(2));
        println!("at most {descriptors} descriptors, {resident} KiB resident; {kills} kills");
        assert!(
            descriptors <= DESCRIPTORS && resident <= RESIDENT,
            "{descriptors} {resident}"
        );
    });
}
