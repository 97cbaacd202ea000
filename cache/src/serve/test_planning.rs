//! Weights that are planned: as configured, by requests, over the control socket.

use super::control::send_request;
use super::test::configured;
use super::*;
use crate::nbd::test::client::Client;
use crate::planner::{PoolState, Target};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[test]
fn targets_that_contradict_the_rest_are_refused_with_their_line() {
    for (vm, pool, line, words) in [
        ("", "hit_percent = 90", 6, "expected `plan = true`"),
        ("plan = true", "hit_percent = 100", 7, "found 100 % hits"),
        ("plan = true", "hit_percent = 0", 7, "found 0 % hits"),
        ("plan = true", "hit_percent = 300", 7, "300"),
        (
            "plan = true",
            "hit_percent = 9\nread_latency_us = 5",
            7,
            "found both",
        ),
        ("plan = true", "read_latency_us = 0", 7, "found 0 us a read"),
        ("plan = 1", "", 4, "expected a boolean"),
    ] {
        let text = format!(
            "[[vm]]\nname = \"a\"\nsocket = \"/run/a\"\n{vm}\n[[vm.pool]]\nname = \"p\"\n{pool}\n"
        );
        let text = text.replace("\n\n", "\n");
        let errors = Config::parse(Path::new("cache.toml"), &text).unwrap_err();
        let found = errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        let begins = format!("cache.toml:{line}: ");
        let expected = |error: &&String| error.starts_with(&begins) && error.contains(words);
        assert!(
            found.iter().any(|error| expected(&error)),
            "{text}: {found:?}"
        );
    }
}

/// A daemon with a VM of two pools, whose weights are planned.
struct Rig {
    _dir: tempfile::TempDir,
    control: PathBuf,
    service: Service,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (mut config, control) = configured(dir.path(), &[0; 8192]);
        config.vms[0].plan = true;
        config.vms[0].pools = vec![PoolConfig {
            name: "files".into(),
            spec: crate::config::PoolSpec::default(),
            tag: None,
            target: Some(Target::HitPercent(50)),
        }];
        let service = Service::start(&config).unwrap();
        let mut client = Client::new(&dir.path().join("nbd"), "vm", false);
        client.read(0, 8192);
        Self {
            _dir: dir,
            control,
            service,
        }
    }

    fn request(&self, request: &str) -> Result<(), String> {
        let request = serde_json::from_str(request).unwrap();
        let response = send_request(&self.control, &request);
        response.map(drop).map_err(|e| e.to_string())
    }

    /// The weights in memory of the pools `default` and `files`.
    fn weights(&self) -> Vec<u64> {
        let stats = self.service.stats();
        let pools = stats.cache.vms[0].pools.iter();
        pools.map(|pool| pool.memory_weight).collect()
    }

    /// As the planner sets a weight.
    fn plan(&self, pool: usize, weight: u64) {
        let id = self.service.stats().cache.vms[0].pools[pool].id;
        let weight = justitia_share::Weight::try_from(weight).unwrap();
        let spec = crate::config::PoolSpec::of(crate::config::StoreKind::Memory, weight);
        self.service
            .cache()
            .set_pools(&[(id, spec)].into())
            .unwrap();
    }

    fn shut_down(self) {
        self.service.shut_down(Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn a_weight_that_is_set_by_hand_wins() {
    let rig = Rig::new();
    let states = || {
        rig.service.plan();
        let stats = rig.service.stats();
        let plan = stats.plans[0].clone();
        assert_eq!((plan.vm.as_str(), plan.pools.len()), ("vm", 2));
        assert_eq!(plan.pools[1].target, Some(Target::HitPercent(50)));
        plan.pools
            .iter()
            .map(|pool| pool.plan.state)
            .collect::<Vec<_>>()
    };
    assert_eq!(states(), [PoolState::NoCurve, PoolState::NoCurve]);
    let set = r#"{ "command": "set-pool", "vm": "vm", "pool": "files", "weight": 30 }"#;
    rig.request(set).unwrap();
    assert_eq!(states(), [PoolState::NoCurve, PoolState::SetByHand]);
    assert_eq!(rig.weights(), [100, 30]);
    // A tag is no weight; a new target, and planning anew, are asked for by hand, too.
    for (request, state) in [
        (
            r#"{ "command": "set-pool", "vm": "vm", "pool": "default", "tag": 3 }"#,
            PoolState::NoCurve,
        ),
        (
            r#"{ "command": "set-pool", "vm": "vm", "pool": "default", "weight": 3 }"#,
            PoolState::SetByHand,
        ),
        (
            r#"{ "command": "set-target", "vm": "vm", "pool": "default", "target": { "read_latency_us": 50 } }"#,
            PoolState::NoCurve,
        ),
        (
            r#"{ "command": "set-pool", "vm": "vm", "pool": "default", "weight": 4 }"#,
            PoolState::SetByHand,
        ),
        (
            r#"{ "command": "plan-vm", "vm": "vm", "plan": true }"#,
            PoolState::NoCurve,
        ),
    ] {
        rig.request(request).unwrap();
        assert_eq!(states()[0], state, "{request}");
    }
    rig.shut_down();
}

#[test]
fn declared_weights_come_back_when_planning_ends() {
    let rig = Rig::new();
    rig.plan(0, 7);
    rig.plan(1, 193);
    assert_eq!(rig.weights(), [7, 193]);
    let off = r#"{ "command": "plan-vm", "vm": "vm", "plan": false }"#;
    rig.request(off).unwrap();
    assert_eq!(rig.weights(), [100, 100]);
    rig.service.plan();
    assert!(rig.service.stats().plans.is_empty());
    let target = r#"{ "command": "set-target", "vm": "vm", "pool": "files", "target": null }"#;
    let error = rig.request(target).unwrap_err();
    assert!(
        error.contains("justitia cache set vm vm --plan true"),
        "{error}"
    );
    rig.shut_down();
}

#[test]
fn targets_that_are_none_are_refused() {
    let rig = Rig::new();
    for (target, words) in [
        (r#"{ "hit_percent": 0 }"#, "found 0 % hits"),
        (r#"{ "hit_percent": 100 }"#, "found 100 % hits"),
        (r#"{ "read_latency_us": 0 }"#, "found 0 us a read"),
    ] {
        let request = format!(
            r#"{{ "command": "set-target", "vm": "vm", "pool": "files", "target": {target} }}"#
        );
        let error = rig.request(&request).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let nobody = r#"{ "command": "set-target", "vm": "vm", "pool": "x", "target": null }"#;
    assert!(
        rig.request(nobody)
            .unwrap_err()
            .contains("there are: default, files")
    );
    rig.shut_down();
}
