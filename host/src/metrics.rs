//! OpenMetrics: the status as series.
//!
//! A scrape asks the status socket like any other client, and costs the daemon as much. Names of VMs are escaped, as
//! everywhere.

use std::net::SocketAddr;
use std::path::Path;

use justitia_common::metric_table;
use justitia_common::metrics::{Labels, Level, Metric, Server, counts, label, levels};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::channel::Agent;
use crate::status::{Status, VmStatus, ask};

/// Of the host, bytes.
const HOST_BYTES: &[Metric<Status>] = metric_table! {
    "available": |status| status.available,
        "Available memory of the host, or how much more its VMs may hold, if that is less";
    "headroom": |status| status.headroom, "Memory that stays available";
    "capacity": |status| status.capacity, "Memory that is divided among the VMs";
    "shortage": |status| status.shortage,
        "Memory that the host lacks, with growth in the next seconds and without memory on its way";
};

/// Of a VM, bytes.
const VM_BYTES: &[Metric<VmStatus>] = metric_table! {
    "vm_resident": |vm| vm.resident, "Memory of the host that the VM holds";
    "vm_entitled": |vm| vm.entitled, "Entitlement of the VM";
    "vm_in_use": |vm| vm.in_use, "Memory that counts as in use by the VM";
    "vm_working_set": |vm| vm.working_set, "Memory that counts as the VM's working set";
};

/// Of a VM, levels.
const VM_LEVELS: &[Metric<VmStatus>] = metric_table! {
    "vm_weight": |vm| vm.weight, "The VM's weight";
    "vm_in_distress": |vm| vm.distress.into(), "1 while the VM's guest lacks memory";
    "vm_agent_answers": |vm| (vm.agent == Agent::Answers).into(),
        "1 while the agent in the VM's guest answers and is believed";
    "vm_monitor_failed": |vm| vm.monitor_error.is_some().into(), "1 while the VM's monitor does not work";
};

/// Of a VM, bytes that only grow.
const VM_SUMS: &[Metric<VmStatus>] = metric_table! {
    "vm_asked": |vm| vm.asked, "Memory that the VM's guest was asked for";
    "vm_given": |vm| vm.given, "Memory that the VM's guest says it gave";
};

/// Serves the metrics of the daemon with this directory.
///
/// # Errors
/// If the address cannot be bound.
pub(crate) fn serve(address: SocketAddr, directory: &Path) -> std::io::Result<Server> {
    let directory = directory.to_owned();
    Server::start(address, move || {
        let status = ask(&directory).map_err(|error| error.to_string())?;
        text(&status)
    })
}

/// The text of a scrape.
///
/// # Errors
/// If the text cannot be formatted, which does not happen with strings.
pub fn text(status: &Status) -> Result<String, String> {
    let mut registry = Registry::with_prefix("justitia_host");
    for &(name, help, value) in HOST_BYTES {
        let level = Level::default();
        level.set(value(status));
        registry.register_with_unit(name, help, Unit::Bytes, level);
    }
    let labels = |vm: &VmStatus| vec![("vm", label(&vm.name))];
    let rows: Vec<_> = status.vms.iter().map(|vm| (labels(vm), vm)).collect();
    for &(name, help, value) in VM_BYTES {
        registry.register_with_unit(name, help, Unit::Bytes, levels(&rows, value));
    }
    for &(name, help, value) in VM_LEVELS {
        registry.register(name, help, levels(&rows, value));
    }
    for &(name, help, value) in VM_SUMS {
        registry.register_with_unit(name, help, Unit::Bytes, counts(&rows, value));
    }
    registry.register(
        "vm_wrong_lines",
        "Lines of the VM's agent that were ignored, by their fault",
        wrong(status),
    );
    let balloons = Family::<Labels, Level>::default();
    for vm in &status.vms {
        if let Some((actual, _)) = vm.balloon {
            balloons.get_or_create(&labels(vm)).set(actual);
        }
    }
    let help = "Memory that the VM's balloon leaves to its guest";
    registry.register_with_unit("vm_balloon", help, Unit::Bytes, balloons);
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|error| error.to_string())?;
    Ok(text)
}

fn wrong(status: &Status) -> Family<Labels, Counter> {
    let family = Family::<Labels, Counter>::default();
    for vm in &status.vms {
        let wrong = vm.wrong;
        for (why, count) in [
            ("too_long", wrong.too_long),
            ("malformed", wrong.malformed),
            ("unasked", wrong.unasked),
            ("impossible", wrong.impossible),
            ("floods", wrong.floods),
        ] {
            let labels = vec![("vm", label(&vm.name)), ("why", why.to_owned())];
            family.get_or_create(&labels).inc_by(count);
        }
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::Wrong;

    fn vm(name: &str) -> VmStatus {
        VmStatus {
            name: name.to_owned(),
            pid: 7,
            weight: 300,
            minimum: 0,
            ram: 1 << 30,
            resident: 5 << 20,
            share: 0,
            entitled: 6 << 20,
            in_use: 1,
            working_set: 2,
            floor: 0,
            paused_ms: 0,
            heeds: true,
            distress: true,
            is_pinned: false,
            agent: Agent::Answers,
            wrong: Wrong {
                floods: 3,
                ..Wrong::default()
            },
            reported: None,
            balloon: Some((9, 10)),
            deflates_on_oom: true,
            monitor_error: None,
            asked: 11,
            given: 12,
            decisions: Vec::new(),
            tenants: None,
        }
    }

    #[test]
    fn promtool_accepts_the_metrics_whatever_the_names() {
        let without = VmStatus {
            balloon: None,
            agent: Agent::Ignored,
            distress: false,
            ..vm("plain")
        };
        let status = Status {
            available: 1 << 33,
            vms: vec![vm("v\"\\\n"), without],
            ..Status::default()
        };
        let page = text(&status).unwrap();
        for line in [
            "justitia_host_available_bytes 8589934592\n",
            "justitia_host_vm_resident_bytes{vm=\"v\\\"\\\\\\n\"} 5242880\n",
            "justitia_host_vm_in_distress{vm=\"plain\"} 0\n",
            "justitia_host_vm_agent_answers{vm=\"plain\"} 0\n",
            "justitia_host_vm_given_bytes_total{vm=\"plain\"} 12\n",
            "justitia_host_vm_wrong_lines_total{vm=\"plain\",why=\"floods\"} 3\n",
        ] {
            assert!(page.contains(line), "{line}: {page}");
        }
        assert!(!page.contains("vm_balloon_bytes{vm=\"plain\""), "{page}");
        assert!(page.ends_with("# EOF\n"));
        justitia_promtool::check(&page).unwrap();
        // Without VMs, too.
        justitia_promtool::check(&text(&Status::default()).unwrap()).unwrap();
    }
}
