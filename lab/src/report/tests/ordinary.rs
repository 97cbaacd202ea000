//! What `justitia-lab ordinary` makes of results.

use super::super::ordinary::{COMPARED, mixtures, table};
use super::super::schema::{Outcome, Results, Run, TenantValues};
use super::fixture;

/// A run of a tenant with these hits and reads, and disk reads of the host, in MiB.
fn run(configuration: &str, hits: f64, reads: f64, disk: f64, processor: f64) -> Run {
    let mib = 1_048_576.0;
    let tenant = |name: &str| {
        let values = [("hits", hits), ("reads", reads * mib)];
        TenantValues::new(name.to_owned(), values)
    };
    Run {
        configuration: configuration.to_owned(),
        mglru: Some(true),
        repeat: 0,
        outcome: Outcome::Measured,
        tenants: vec![tenant("a"), tenant("b")],
        values: [("disk_reads", disk * mib), ("processor", processor)]
            .map(|(key, value)| (key.to_owned(), value))
            .into(),
        timeline: Vec::new(),
        curves: Vec::new(),
    }
}

fn results(runs: Vec<Run>) -> Results {
    Results {
        tenants: vec![fixture::tenant("a", 100), fixture::tenant("b", 100)],
        runs,
        ..fixture::results()
    }
}

#[test]
fn who_is_not_above_its_share_keeps_its_hits_and_its_throughput() {
    let [kernel, ours] = COMPARED;
    for (hits, reads, disk, good) in [
        (0.9, 1000.0, 1000.0, true),
        (0.88, 980.0, 1030.0, true),
        (0.80, 1000.0, 1000.0, false),
        (0.9, 900.0, 1000.0, false),
        (0.9, 1000.0, 1100.0, false),
    ] {
        let runs = vec![
            run(kernel, 0.9, 1000.0, 1000.0, 0.5),
            run(ours, hits, reads, disk, 0.5),
        ];
        let mut results = results(runs);
        let found = mixtures(std::slice::from_ref(&results));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].good, Some(good), "{hits} {reads} {disk}");
        assert_eq!(found[0].losses().is_empty(), good);
        // A tenant above its share may lose; the disk may not.
        for tenant in &mut results.tenants {
            tenant.above_share = true;
        }
        let found = mixtures(&[results]);
        assert_eq!(found[0].good, Some(disk < 1050.0));
    }
}

#[test]
fn a_table_says_what_was_not_measured_and_what_the_processor_bounded() {
    let [kernel, ours] = COMPARED;
    let alone = run(kernel, 0.9, 1000.0, 1000.0, 0.97);
    let only_one = mixtures(&[results(vec![alone.clone()])]);
    assert_eq!(only_one[0].good, None);
    assert!(table(&only_one).contains("not measured"));
    let both = mixtures(&[results(vec![alone, run(ours, 0.5, 1000.0, 1000.0, 0.5)])]);
    let text = table(&both);
    assert!(
        text.contains("LOST") && text.contains("busy 97.0 %"),
        "{text}"
    );
    assert!(text.ends_with("disk reads at most 1.03"), "{text}");
}
