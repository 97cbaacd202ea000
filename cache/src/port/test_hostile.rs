//! Attacks of a guest over its port.

use super::test::{Guest, cache, cache_of, content, guest, message, serial};
use crate::block::BLOCK_SIZE;
use crate::block_dev::BlockDevice;
use crate::config::PoolSpec;
use justitia_guest_protocol::puts::{
    Area, Command, PAGE, PORT_SIZE, Serial, Status, Store, Verdict,
};

fn header(g: &Guest) -> justitia_guest_protocol::puts::AreaHeader {
    Area::new(&g.area()).unwrap().header()
}

#[test]
fn a_replayed_message_does_nothing() {
    let mut g = guest(&cache(), "web", false);
    let old = message(1, 0, serial(), &[(3, g.read(3))]);
    g.write(&old);
    assert_eq!(header(&g).verdicts.of(Verdict::Accepted), 1);
    // The guest reads the block, so that its content is known again: the message stays replayed.
    g.read(3);
    g.write(&old);
    assert_eq!(header(&g).replayed, 1);
    assert_eq!(header(&g).verdicts.of(Verdict::Replayed), 1);
    assert_eq!(
        g.disk
            .offer(g.cache.default_pool(g.vm).unwrap(), 3, &content("web", 3)),
        Verdict::Accepted
    );
    // Later messages may come first; one that is too old, or has no number, is replayed.
    g.sequence = 1999;
    assert_eq!(g.put(0, &[(4, g.read(4))]).accepted, 1);
    for (sequence, replayed) in [(1999, 1), (977, 1), (976, 2), (0, 3), (2000, 4)] {
        g.write(&message(sequence, 0, serial(), &[(5, g.read(5))]));
        assert_eq!(header(&g).replayed, replayed, "{sequence}");
    }
    // A command is not executed twice either.
    let mut page = [0; PAGE];
    Command::Destroy { pool: 1 }.encode(3000, &mut page);
    g.write(&page);
    g.write(&page);
    assert_eq!(g.port.stats().commands_refused, 1);
}

#[test]
fn no_sequence_number_shuts_the_port() {
    let mut g = guest(&cache(), "web", false);
    // The last number at once, and in two steps after others.
    let steps = [&[u64::MAX][..], &[100, 99 + (1 << 63), u64::MAX]];
    for (first, numbers) in [(10, steps[0]), (20, steps[1])] {
        for number in numbers {
            g.write(&message(*number, 0, serial(), &[(6, g.read(6))]));
        }
        assert_eq!(header(&g).sequence, u64::MAX);
        // An agent takes the port's number and goes on.
        for block in first..first + 10 {
            g.sequence = justitia_guest_protocol::puts::sequence::next(header(&g).sequence) - 1;
            assert_eq!(g.put(0, &[(block, g.read(block))]).accepted, 1);
        }
        assert_eq!((header(&g).sequence, header(&g).replayed), (10, 0));
    }
}

#[test]
fn what_is_no_message_is_counted_and_changes_nothing() {
    let g = guest(&cache(), "web", false);
    let whole = message(1, 0, serial(), &[(3, g.read(3)), (4, g.read(4))]);
    let mut writes: Vec<Vec<u8>> = vec![
        vec![0; PORT_SIZE],
        vec![0xFF; 1],
        b"JUSTPORT".to_vec(),
        whole[..PAGE - 1].to_vec(),
    ];
    // Of these the sequence can be read: they are answered.
    let answered = writes.len();
    for (at, count) in [(12, 0), (12, 1), (12, 3), (12, 255), (8, 9), (10, 99)] {
        let mut wrong = whole.clone();
        wrong[at] = count;
        writes.push(wrong);
    }
    writes.extend([
        whole[..PAGE].to_vec(),
        whole[..2 * PAGE].to_vec(),
        whole[..3 * PAGE - 1].to_vec(),
    ]);
    let mut longer = whole.clone();
    longer.push(0);
    writes.push(longer);
    let mut many = whole.clone();
    many[12..16].fill(0xFF);
    writes.push(many);
    for (sequence, write) in (10_u8..).zip(&mut writes) {
        if write.len() > 16 {
            write[16] = sequence;
        }
        g.write(write);
    }
    let found = header(&g);
    assert_eq!(found.malformed, u64::try_from(writes.len()).unwrap());
    assert_eq!(found.verdicts.total(), 0);
    let area = g.area();
    let area = Area::new(&area).unwrap();
    assert_eq!(area.answers().count(), writes.len() - answered);
    assert_eq!(
        area.answers()
            .filter(|a| a.status == Status::Version)
            .count(),
        1
    );
    // Elsewhere, in two parts, or not as a write: no message.
    g.port.write_at(&whole[PAGE..], 4096, false).unwrap();
    g.port.write_at(&[], 0, false).unwrap();
    g.port.discard(0, 4096).unwrap();
    g.port.write_zeroes(0, 4096, false, true).unwrap();
    g.port.flush().unwrap();
    assert_eq!(header(&g).malformed, found.malformed + 2);
    assert!(g.port.write_at(&whole, g.port.size() - 1, false).is_err());
    assert!(g.port.read_at(&mut [0; 2], g.port.size() - 1).is_err());
    // It is still one message.
    g.write(&whole);
    assert_eq!(header(&g).verdicts.of(Verdict::Accepted), 2);
}

#[test]
fn contents_that_are_not_the_disks_are_refused_and_counted() {
    let cache = cache();
    let mut g = guest(&cache, "web", false);
    let other = guest(&cache, "db", false);
    let mine = g.read(3);
    other.read(3);
    let offers = [
        (3, other.read(3)),
        (3, mine.map(|byte| !byte)),
        (3, [0; BLOCK_SIZE]),
        (3, g.read(4)),
    ];
    let answer = g.put(0, &offers);
    assert_eq!(
        (answer.accepted, answer.verdicts.of(Verdict::Mismatch)),
        (0, 4)
    );
    assert_eq!(
        g.put(0, &[(9, content("web", 9))])
            .verdicts
            .of(Verdict::Unknown),
        1
    );
    // The other's disk has the same serial, and is not reached.
    assert_eq!(g.put(0, &[(3, mine)]).accepted, 1);
    assert_eq!(cache.stats().vms[1].pools[0].memory_bytes, 0);
    g.write(&message(
        50,
        0,
        Serial::from_bytes([0xFF; 20]),
        &[(3, mine)],
    ));
    assert_eq!(header(&g).verdicts.of(Verdict::NoDisk), 1);
}

#[test]
fn a_flood_of_commands_is_refused_and_puts_go_on() {
    let mut g = guest(&cache(), "web", false);
    let mut busy = 0;
    for n in 0..2000 {
        busy += u32::from(g.create(&format!("pool {n}")).status == Status::Busy);
    }
    // 256 at once; on a slow machine a few more in the time that it took.
    assert!(busy > 1000, "{busy}");
    assert_eq!(g.put(2, &[(3, g.read(3))]).accepted, 1);
}

#[test]
fn a_vm_has_only_so_many_pools_over_its_port() {
    let cache = cache();
    let mut g = guest(&cache, "web", false);
    {
        let mut pools = g.port.vm.pools.lock();
        for _ in pools.len()..256 {
            let id = cache
                .create_pool(g.vm, "more", PoolSpec::default())
                .unwrap();
            pools.insert(g.cache.pool(id).unwrap());
        }
    }
    assert_eq!(g.create("one more").status, Status::TooManyPools);
    assert_eq!(g.command(Command::GetStats).status, Status::Done);
    assert_eq!(g.rows().len(), 256);
}

/// A guest that makes many pools of the highest weight takes nothing of another VM's part.
#[test]
fn a_vms_own_division_never_leaks_outside() {
    let cache = cache_of(64);
    let mut g = guest(&cache, "web", false);
    let mut other = guest(&cache, "db", false);
    let part = || {
        let vm = &cache.stats().vms[1];
        let pools = vm.pools.iter();
        let entitled: u64 = pools.map(|pool| pool.memory_entitlement_bytes).sum();
        let held: u64 = vm.pools.iter().map(|pool| pool.memory_bytes).sum();
        (entitled, held)
    };
    // Everything that both have, several times over: twice as much as the cache can hold.
    let contend = |g: &mut Guest, other: &mut Guest, pools: u32| {
        for block in (0..64).cycle().take(4 * 64) {
            let pool = 2 + u32::try_from(block).unwrap() % pools.max(1);
            g.put(pool, &[(block, g.read(block))]);
            other.put(0, &[(block, other.read(block))]);
        }
    };
    contend(&mut g, &mut other, 0);
    let before = part();
    for n in 0..20 {
        let pool = g.create(&format!("greedy {n}")).pool;
        let weight = Command::SetWeight {
            pool,
            store: Store::Memory,
            weight: 10_000,
            ssd_weight: 0,
        };
        assert_eq!(g.command(weight).status, Status::Done);
    }
    contend(&mut g, &mut other, 20);
    let after = part();
    assert!(after.0 >= before.0, "{before:?} {after:?}");
    assert!(after.1 >= 28 * 4096, "{before:?} {after:?}");
    // And nothing that the other has can be named: each counts from its own first.
    assert_eq!(other.create("mine").pool, 2);
    assert_eq!(other.rows().len(), 3);
}
