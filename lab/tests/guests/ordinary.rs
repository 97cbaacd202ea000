//! Two short mixtures of ordinary hosts: no tenant is much worse off with the agent than with the kernel alone. All
//! mixtures, and exactly: `make ordinary`.

use std::path::Path;

use justitia_lab::experiment::{Configuration, Experiment};
use justitia_lab::report::ordinary::{COMPARED, Mixture, OrdinaryTenant, mixtures, table};
use justitia_lab::run::{Options, Progress, run};

/// What a tenant keeps of the kernel's hits at least. Faults took a fifth to a third; of two runs of the kernel alone, one
/// has a few per cent less.
const KEPT: f64 = 0.90;

/// Hits that a single run may lose by chance.
const CHANCE: f64 = 0.02;

struct Printed;

impl Progress for Printed {
    fn now(&mut self, line: &str) {
        println!("{line}");
    }

    fn note(&mut self, line: &str) {
        println!("{line}");
    }
}

/// Runs an experiment once with the classic LRU, the kernel alone and with the agent.
fn compared(name: &str) -> Mixture {
    let _turn = crate::agent_guest::turn();
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/guests/ordinary/{name}.toml"));
    let experiment = Experiment::find(path.to_str().unwrap()).unwrap();
    let options = Options {
        configurations: COMPARED.map(|id| Configuration::find(id).unwrap()).to_vec(),
        repeat: Some(1),
        mglru: vec![Some(false)],
        kernel: "6.12".parse().unwrap_or_else(|error| match error {}),
        seed: 1,
    };
    let (results, _) = run(&experiment, &options, &mut Printed).unwrap();
    let mut found = mixtures(&[results]);
    println!("{}", table(&found));
    let mixture = found.pop().unwrap();
    assert!(mixture.good.is_some(), "a run failed: see above");
    mixture
}

fn keeps_its_hits(tenant: &OrdinaryTenant) {
    let (Some(kernel), Some(ours)) = (tenant.hits.kernel, tenant.hits.ours) else {
        panic!("{} has read nothing: {tenant:?}", tenant.name);
    };
    assert!(ours >= KEPT * kernel - CHANCE, "{tenant:?}");
}

#[test]
fn a_used_set_keeps_its_hits_beside_a_crawler() {
    let mixture = compared("slab-short");
    keeps_its_hits(&mixture.tenants[0]);
}

#[test]
fn cold_anonymous_memory_goes_before_files_in_use() {
    let mixture = compared("burst-short");
    mixture.tenants[..2].iter().for_each(keeps_its_hits);
}
