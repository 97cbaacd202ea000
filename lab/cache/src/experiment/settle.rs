//! How long it takes until containers hold what their new weights give.

use super::world::World;
use justitia_share::num::to_f64;

/// Within this of its target a container has arrived.
const TOLERANCE: f64 = 0.05;

/// What a container is to hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Target {
    /// Which container.
    pub(super) container: usize,
    /// Bytes of the memory store, divided by scale.
    pub(super) bytes: f64,
}

impl Target {
    /// Of the containers that run, by the weights of now: what all of them get when all want more.
    pub(super) fn of(world: &World<'_>) -> Vec<Self> {
        let weights = world.weights();
        let running: Vec<_> = world
            .tenants
            .iter()
            .enumerate()
            .filter(|(_, tenant)| tenant.is_active())
            .filter_map(|(at, tenant)| {
                let [memory, _] = *weights.containers.get(&tenant.spec.name)?;
                (memory > 0).then_some((at, &*tenant.spec.vm, memory))
            })
            .collect();
        let of_vm = |vm: &str| weights.vms.get(vm).copied().unwrap_or(100);
        let mut vms: Vec<_> = running.iter().map(|(_, vm, _)| *vm).collect();
        vms.sort_unstable();
        vms.dedup();
        let all: u64 = vms.iter().map(|vm| of_vm(vm)).sum();
        let store = to_f64(world.experiment.scaled(weights.memory));
        let target = |(at, vm, memory): &(usize, &str, u64)| {
            let siblings = running.iter().filter(|(_, other, _)| other == vm);
            let inside: u64 = siblings.map(|(_, _, memory)| memory).sum();
            let of_store = to_f64(of_vm(vm)) / to_f64(all) * store;
            Self {
                container: *at,
                bytes: of_store * to_f64(*memory) / to_f64(inside),
            }
        };
        running.iter().map(target).collect()
    }
}

/// A change, and what containers are to hold after it.
pub(super) struct Settling {
    at: f64,
    targets: Vec<Target>,
}

impl Settling {
    pub(super) const fn new(at: f64, targets: Vec<Target>) -> Self {
        Self { at, targets }
    }

    /// Seconds until all containers had arrived for good, as samples show it up to `until`; `None` when they did not.
    pub(super) fn seconds(&self, samples: &[(f64, Vec<[u64; 2]>)], until: f64) -> Option<f64> {
        let after = samples
            .iter()
            .filter(|(at, _)| *at >= self.at && *at < until);
        let mut arrived = None;
        for (at, held) in after {
            let there = self.targets.iter().all(|target| {
                let held = held.get(target.container).map_or(0.0, |h| to_f64(h[0]));
                (held - target.bytes).abs() <= TOLERANCE * target.bytes
            });
            arrived = match arrived {
                _ if !there => None,
                None => Some(at - self.at),
                already => already,
            };
        }
        arrived
    }

    /// When the change was made.
    pub(super) const fn at(&self) -> f64 {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_arrived_when_it_stays() {
        let targets = vec![
            Target {
                container: 0,
                bytes: 60.0,
            },
            Target {
                container: 1,
                bytes: 40.0,
            },
        ];
        let settling = Settling::new(10.0, targets);
        let sample = |at, a, b| (at, vec![[a, 0], [b, 0]]);
        let mut samples = vec![
            sample(9.0, 60, 40),
            sample(11.0, 60, 40),
            sample(12.0, 70, 30),
            sample(13.0, 62, 39),
            sample(14.0, 58, 41),
        ];
        assert_eq!(settling.seconds(&samples, 20.0), Some(3.0));
        assert_eq!(settling.seconds(&samples, 12.0), Some(1.0));
        samples.push(sample(15.0, 60, 44));
        assert_eq!(settling.seconds(&samples, 20.0), None);
        assert_eq!(settling.seconds(&[], 20.0), None);
    }
}
