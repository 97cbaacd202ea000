//! Opens the eyes and prints what they see: `eyes facts`, or `eyes SECONDS` for one line per
//! cgroup and second.

use std::time::Duration;

use justitia_kernel::probes::{Eyes, Limits};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut eyes = Eyes::open(&Limits::default())?;
    let argument = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "facts".to_owned());
    if argument == "facts" {
        for fact in eyes.facts() {
            println!("{:?} {}: {}", fact.state, fact.probe.title(), fact.reason);
        }
        return Ok(());
    }
    for _ in 0..argument.parse()? {
        std::thread::sleep(Duration::from_secs(1));
        let sample = eyes.sample()?;
        println!(
            "{:?}: missed {}, overflow {:?}",
            sample.at, sample.missed, sample.overflow
        );
        for (id, counters) in &sample.tenants {
            println!("  {id}: {counters:?}");
        }
    }
    Ok(())
}
