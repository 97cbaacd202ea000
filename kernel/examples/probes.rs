//! Attaches the probes and prints what they count: `probes status`, or `probes SECONDS` for one line per
//! cgroup and second.

use std::time::Duration;

use justitia_kernel::probes::{IoProbes, Limits};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut probes = IoProbes::attach(&Limits::default())?;
    let argument = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "status".to_owned());
    if argument == "status" {
        for status in probes.status() {
            println!(
                "{:?} {}: {}",
                status.state,
                status.probe.title(),
                status.reason
            );
        }
        return Ok(());
    }
    for _ in 0..argument.parse()? {
        std::thread::sleep(Duration::from_secs(1));
        let sample = probes.sample()?;
        println!(
            "{:?}: dropped {}, overflow {:?}",
            sample.at, sample.dropped_events, sample.overflow
        );
        for (id, counters) in &sample.cgroups {
            println!("  {id}: {counters:?}");
        }
    }
    Ok(())
}
