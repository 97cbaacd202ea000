//! The weights of a pool in the two stores: as configured, and as changed.

use super::control::send_request;
use super::test::configured;
use super::{Config, ControlRequest, Service};
use crate::config::StoreKind;
use std::path::Path;

#[test]
fn weights_of_a_pool_that_contradict_each_other_are_refused() {
    let pool = |keys: &str| {
        let text = format!(
            "[[vm]]\nname = \"a\"\nsocket = \"/run/a\"\n[[vm.pool]]\nname = \"p\"\n{keys}\n"
        );
        let found = Config::parse(Path::new("cache.toml"), &text).unwrap_err();
        found
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    };
    for (keys, line, words) in [
        ("memory_weight = 0\nssd_weight = 0", 6, "found none"),
        ("memory_weight = 0", 6, "found none"),
        ("ssd_weight = 5\nweight = 5", 6, "found both"),
        ("memory_weight = 5\nstore = \"memory\"", 6, "found both"),
        (
            "memory_weight = 5\nssd_weight = 10001",
            7,
            "from 1 to 10000, found 10001",
        ),
    ] {
        let found = pool(keys);
        let begins = format!("cache.toml:{line}: ");
        assert!(
            found.starts_with(&begins) && found.contains(words),
            "{keys}: {found}"
        );
    }
}

/// A change, and what the pool's weights in memory and on the SSD are then, or why it is refused.
type Change = (
    (Option<u64>, Option<StoreKind>, Option<u64>, Option<u64>),
    Result<(u64, u64), &'static str>,
);

const CHANGES: [Change; 10] = [
    ((Some(300), None, None, None), Ok((300, 0))),
    ((None, None, None, Some(40)), Ok((300, 40))),
    (
        (Some(5), None, None, None),
        Err("pool \"default\" of VM \"vm\" uses both; give `--memory-weight` or `--ssd-weight`"),
    ),
    (
        (Some(5), None, Some(1), None),
        Err("of pool \"default\" of VM \"vm\", found both"),
    ),
    ((None, None, Some(0), Some(0)), Err("found 0 for both")),
    (
        (None, None, Some(10_001), None),
        Err("expected a weight from 1 to 10000"),
    ),
    ((None, None, Some(0), None), Ok((0, 40))),
    ((Some(7), None, None, None), Ok((0, 7))),
    ((None, Some(StoreKind::Memory), None, None), Ok((7, 0))),
    ((Some(9), Some(StoreKind::Ssd), None, None), Ok((0, 9))),
];

#[test]
fn weights_are_changed_in_each_store_or_as_a_store_and_a_weight() {
    let dir = tempfile::tempdir().unwrap();
    let (config, control) = configured(dir.path(), &[0; 8192]);
    let service = Service::start(&config).unwrap();
    for ((weight, store, memory_weight, ssd_weight), expected) in CHANGES {
        let request = ControlRequest::SetPool {
            vm: "vm".into(),
            pool: "default".into(),
            weight,
            store,
            memory_weight,
            ssd_weight,
            tag: None,
            create: false,
        };
        match (send_request(&control, &request), expected) {
            (Ok(_), Ok((memory, ssd))) => {
                let pool = &service.stats().cache.vms[0].pools[0];
                assert_eq!((pool.memory_weight, pool.ssd_weight), (memory, ssd));
            }
            (Err(found), Err(words)) => {
                assert!(found.to_string().contains(words), "{found}");
            }
            (found, expected) => panic!("{request:?}: {found:?}, expected {expected:?}"),
        }
    }
    service
        .shut_down(std::time::Duration::from_secs(5))
        .unwrap();
}
