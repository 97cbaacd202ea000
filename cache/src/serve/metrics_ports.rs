//! The series of ports, and of what guests hold.

use super::api::Stats;
use justitia_metrics_http::label;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Blocks {
    vm: String,
    verdict: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Messages {
    vm: String,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Vm {
    vm: String,
}

pub(super) fn ports(stats: &Stats, registry: &mut Registry) {
    let blocks = Family::<Blocks, Counter>::default();
    let messages = Family::<Messages, Counter>::default();
    let commands = Family::<Messages, Counter>::default();
    let unknown = Family::<Vm, Counter>::default();
    for port in &stats.ports {
        let vm = label(&port.vm);
        for (verdict, count) in &port.verdicts {
            let vm = vm.clone();
            let series = Blocks { vm, verdict };
            blocks.get_or_create(&series).inc_by(*count);
        }
        let of = |result| Messages {
            vm: vm.clone(),
            result,
        };
        for (result, count) in [
            ("handled", port.messages),
            ("malformed", port.malformed),
            ("replayed", port.replayed),
        ] {
            messages.get_or_create(&of(result)).inc_by(count);
        }
        for (result, count) in [("done", port.commands), ("refused", port.commands_refused)] {
            commands.get_or_create(&of(result)).inc_by(count);
        }
        let series = Vm { vm };
        unknown.get_or_create(&series).inc_by(port.unknown_pool);
    }
    registry.register("port_blocks", "Blocks that guests offered", blocks);
    registry.register("port_messages", "Messages of guests", messages);
    registry.register("port_commands", "Commands of guests", commands);
    registry.register(
        "port_unknown_pool_blocks",
        "Offered blocks whose pool was unknown",
        unknown,
    );
    residency(stats, registry);
}

fn residency(stats: &Stats, registry: &mut Registry) {
    let known = Family::<Vm, Gauge<u64, AtomicU64>>::default();
    let capacity = Family::<Vm, Gauge<u64, AtomicU64>>::default();
    for vm in &stats.cache.vms {
        let Some(table) = vm.residency else {
            continue;
        };
        let series = Vm {
            vm: label(&vm.name),
        };
        known.get_or_create(&series).set(table.blocks);
        capacity.get_or_create(&series).set(table.capacity_blocks);
    }
    registry.register(
        "residency_blocks",
        "Blocks whose content in the guest is known",
        known,
    );
    registry.register(
        "residency_capacity_blocks",
        "Blocks whose content can be known",
        capacity,
    );
}
