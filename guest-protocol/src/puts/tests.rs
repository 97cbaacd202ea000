//! Both sides: each reads the other's messages, and nothing else is read as a message.

use crate::puts::*;
use proptest::prelude::*;

fn serial() -> impl Strategy<Value = Serial> {
    any::<[u8; Serial::MAX]>().prop_map(Serial::from_bytes)
}

fn name() -> impl Strategy<Value = Name> {
    "[a-zé. ]{1,30}".prop_map(|text| Name::new(&text).unwrap())
}

/// A store, and an additional weight on the SSD.
fn stores() -> impl Strategy<Value = (Store, u32)> {
    prop_oneof![
        any::<u32>().prop_map(|ssd_weight| (Store::Memory, ssd_weight)),
        Just((Store::Ssd, 0))
    ]
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        (name(), stores(), any::<u32>()).prop_map(|(name, (store, ssd_weight), weight)| {
            Command::Create {
                name,
                store,
                weight,
                ssd_weight,
            }
        }),
        (any::<u32>(), stores(), any::<u32>()).prop_map(|(pool, (store, ssd_weight), weight)| {
            Command::SetWeight {
                pool,
                store,
                weight,
                ssd_weight,
            }
        }),
        (any::<u32>(), serial(), any::<u64>(), 0..=MAX_MIGRATE).prop_map(
            |(pool, serial, first, blocks)| Command::Migrate {
                pool,
                serial,
                first,
                blocks
            }
        ),
        any::<u32>().prop_map(|pool| Command::Destroy { pool }),
        Just(Command::GetStats),
    ]
}

fn tally() -> impl Strategy<Value = Tally> {
    prop::collection::vec(0_u64..1000, Verdict::ALL.len()).prop_map(|counts| {
        let mut tally = Tally::default();
        for (verdict, count) in Verdict::ALL.into_iter().zip(counts) {
            tally.add(verdict, count);
        }
        tally
    })
}

fn put(buffer: &mut [u8], blocks: &[u64], at: Serial) -> usize {
    let mut writer = PutWriter::new(buffer, 7, 3, at).unwrap();
    for block in blocks {
        assert!(writer.push(*block, &[block.to_le_bytes()[0]; PAGE]));
    }
    writer.finish().len()
}

proptest! {
    #[test]
    fn a_command_comes_back(command in command(), sequence: u64) {
        let mut page = [0xA5; PAGE];
        command.encode(sequence, &mut page);
        let decoded = decode(&page).unwrap();
        prop_assert_eq!(decoded.sequence, sequence);
        prop_assert_eq!(Kind::from_number(decoded.kind), Some(command.kind()));
        prop_assert_eq!(decoded.body, Ok(Body::Command(command)));
    }

    #[test]
    fn a_put_comes_back(blocks in prop::collection::vec(any::<u64>(), 1..=MAX_BLOCKS), at in serial()) {
        let mut buffer = vec![0xA5; MAX_MESSAGE];
        let len = put(&mut buffer, &blocks, at);
        let Ok(Body::Put(found)) = decode(&buffer[..len]).unwrap().body else {
            panic!("no put");
        };
        prop_assert_eq!((found.pool, found.serial, found.len()), (3, at, blocks.len()));
        for ((number, content), block) in found.blocks().zip(&blocks) {
            prop_assert_eq!((number, content[17]), (*block, block.to_le_bytes()[0]));
        }
        prop_assert_eq!(found.blocks().count(), blocks.len());
    }

    /// Only the right length is accepted, for any count of blocks.
    #[test]
    fn a_message_of_another_length_is_none(n in 1..=MAX_BLOCKS, count: u32, len in 0..=MAX_MESSAGE) {
        let mut buffer = vec![0; MAX_MESSAGE];
        put(&mut buffer, &vec![5; n], Serial::from_bytes([0; 20]));
        buffer[12..16].copy_from_slice(&count.to_le_bytes());
        let right = usize::try_from(count).is_ok_and(|count| {
            (1..=MAX_BLOCKS).contains(&count) && len == (count + 1) * PAGE
        });
        let read = decode(&buffer[..len]).is_some_and(|message| message.body.is_ok());
        prop_assert_eq!(read, right);
    }

    #[test]
    fn what_is_read_of_anything_is_bounded(mut bytes in prop::collection::vec(any::<u8>(), 0..3 * PAGE), magic: bool) {
        if magic && bytes.len() > 8 {
            bytes[..8].copy_from_slice(b"JUSTPORT");
        }
        if let Some(Ok(Body::Put(put))) = decode(&bytes).map(|m| m.body) {
            prop_assert!(put.blocks().count() <= MAX_BLOCKS);
        }
        if bytes.len() > 10 {
            bytes[..10].copy_from_slice(b"JUSTANSW\x01\x00");
        }
        if let Some(area) = Area::new(&bytes) {
            prop_assert!(area.answers().count() <= MAX_ANSWERS && area.pools().count() <= MAX_POOLS);
        }
    }

    #[test]
    fn an_area_comes_back(verdicts in tally(), words: [u64; 11], pools in 0..300_u32, answers in 0..60_u64) {
        let header = AreaHeader {
            daemon_start_id: words[0],
            sequence: words[1],
            stats_sequence: words[2],
            messages: words[3],
            malformed: words[4],
            replayed: words[5],
            verdicts,
            unknown_pool: words[6],
            max_message_version: words[0],
            missed: ReadTime {
                blocks: words[7],
                ns: words[8],
            },
            hit: ReadTime {
                blocks: words[9],
                ns: words[10],
            },
        };
        let rows: Vec<_> = (0..pools)
            .map(|n| PoolRow {
                weight: n + 1,
                store: Store::Ssd,
                ssd_weight: n,
                created_over_port: n % 2 == 1,
                entitlement_bytes: words[0],
                accepted: words[6],
                taken: (n % 3 == 0).then_some(words[7]),
                ..PoolRow::new(n, Name::new("some pool").unwrap())
            })
            .collect();
        let answers: Vec<_> = (0..answers)
            .map(|n| {
                let mut answer = Answer::new(n, 1, Status::ALL[usize::try_from(n).unwrap() % Status::ALL.len()]);
                answer.pool = 9;
                answer.record(3, Verdict::Accepted);
                answer.record(30, Verdict::Mismatch);
                answer
            })
            .collect();
        let mut area = Box::new([0xA5; PORT_SIZE]);
        let mut writer = AreaWriter::new(&mut area);
        writer.header(&header);
        writer.answers(answers.iter());
        writer.pools(rows.iter().copied());
        let read = Area::new(&area[..]).unwrap();
        prop_assert_eq!(read.header(), header);
        prop_assert_eq!(read.answers().collect::<Vec<_>>(), &answers[..answers.len().min(MAX_ANSWERS)]);
        prop_assert_eq!(read.pools().collect::<Vec<_>>(), &rows[..rows.len().min(MAX_POOLS)]);
        if !answers.is_empty() {
            let first = read.answer(0).unwrap();
            prop_assert_eq!((first.accepted, first.verdicts.of(Verdict::Mismatch)), (1 << 3, 1));
        }
        // Its first page has everything but the pools.
        let page = Area::new(&area[..PAGE]).unwrap();
        prop_assert_eq!((page.header(), page.pools().count()), (header, 0));
    }
}

#[test]
fn each_fault_is_found() {
    let mut page = [0; PAGE];
    let create = Command::Create {
        name: Name::new("web").unwrap(),
        store: Store::Memory,
        weight: 100,
        ssd_weight: 0,
    };
    let mut fault = |at: usize, byte: u8| {
        create.encode(1, &mut page);
        page[at] = byte;
        decode(&page).map(|message| message.body.err())
    };
    assert_eq!(fault(0, 0), None, "no magic");
    assert_eq!(fault(16, 9), Some(None), "another sequence number");
    for (at, byte, expected) in [
        (8, 0, Fault::Version),
        (8, 3, Fault::Version),
        (10, 0, Fault::Kind),
        (10, 7, Fault::Kind),
        (12, 1, Fault::Count),
        (24, 1, Fault::Reserved),
        (28, 1, Fault::Reserved),
        (32, b'a', Fault::Reserved),
        (63, 1, Fault::Reserved),
        (68, 2, Fault::Store),
        (69, 0, Fault::Name),
        (69, 65, Fault::Name),
        (70, 1, Fault::Reserved),
        (75, b'x', Fault::Reserved),
        (135, 1, Fault::Reserved),
        (72, b'/', Fault::Name),
        (72, 0xFF, Fault::Name),
        (72, b'\n', Fault::Name),
        (10, 1, Fault::Count),
    ] {
        assert_eq!(fault(at, byte), Some(Some(expected)), "byte {at} is {byte}");
    }
    assert_eq!(decode(&page[..PAGE - 1]), None, "cut");
}

#[test]
fn a_message_takes_only_so_many_blocks() {
    let mut buffer = vec![0; MAX_MESSAGE];
    let at = Serial::new("vda").unwrap();
    let mut writer = PutWriter::new(&mut buffer, 1, 0, at).unwrap();
    for n in 0..u64::try_from(MAX_BLOCKS).unwrap() {
        assert!(writer.push(n, &[1; PAGE]));
    }
    assert!(!writer.push(0, &[1; PAGE]));
    assert_eq!(writer.finish().len(), MAX_MESSAGE);
    let mut small = vec![0; 2 * PAGE + 5];
    let mut writer = PutWriter::new(&mut small, 1, 0, at).unwrap();
    assert!(writer.push(1, &[1; PAGE]) && !writer.push(2, &[1; PAGE]));
    assert!(PutWriter::new(&mut [0; PAGE], 1, 0, at).is_none());
    let mut empty = vec![0; MAX_MESSAGE];
    let none = PutWriter::new(&mut empty, 1, 0, at).unwrap().finish();
    assert_eq!(decode(none).unwrap().body, Err(Fault::Count));
}

#[test]
fn names_are_what_a_table_can_show() {
    assert_eq!(Name::new("web é").unwrap().as_str(), "web é");
    for bad in ["", "a/b", "a\nb", "\u{1b}[31m", &"x".repeat(65)] {
        assert_eq!(Name::new(bad), None, "{bad:?}");
    }
    assert_eq!(Name::cut(&"é".repeat(40)).unwrap().as_str(), "é".repeat(32));
    assert_eq!(Name::cut("web").unwrap().as_str(), "web");
    assert_eq!(Name::cut(""), None);
    assert_eq!(Serial::new("root").unwrap().bytes()[..5], *b"root\0");
    for bad in ["", "a b", "é", "123456789012345678901"] {
        assert_eq!(Serial::new(bad), None, "{bad:?}");
    }
}

/// Fields that a command does not use are 0: another version may give them a meaning.
#[test]
fn what_a_command_does_not_use_is_zero() {
    let at = Serial::new("vda").unwrap();
    let weight = Command::SetWeight {
        pool: 3,
        store: Store::Memory,
        weight: 1,
        ssd_weight: 0,
    };
    let migrate = |blocks| Command::Migrate {
        pool: 3,
        serial: at,
        first: u64::MAX,
        blocks,
    };
    for (command, byte, expected) in [
        (weight, 24, None),
        (weight, 32, Some(Fault::Reserved)),
        (weight, 69, Some(Fault::Reserved)),
        (weight, 72, Some(Fault::Reserved)),
        (weight, 135, Some(Fault::Reserved)),
        // The rest of the page is not used.
        (weight, 200, None),
        (migrate(MAX_MIGRATE), 32, None),
        (migrate(MAX_MIGRATE), 73, Some(Fault::TooLong)),
        (migrate(MAX_MIGRATE), 79, Some(Fault::TooLong)),
        (migrate(MAX_MIGRATE - 2), 72, None),
        (migrate(MAX_MIGRATE), 72, Some(Fault::TooLong)),
        (Command::Destroy { pool: 3 }, 24, None),
        (Command::Destroy { pool: 3 }, 51, Some(Fault::Reserved)),
        (Command::GetStats, 27, Some(Fault::Reserved)),
        (Command::GetStats, 40, Some(Fault::Reserved)),
    ] {
        let mut page = [0; PAGE];
        command.encode(1, &mut page);
        assert!(decode(&page).unwrap().body.is_ok(), "{command:?}");
        page[byte] |= 1;
        let found = decode(&page).unwrap().body.err();
        assert_eq!(found, expected, "{command:?}, byte {byte}");
    }
}

/// Only commands about both stores need a host of version 2; the field is not read elsewhere.
#[test]
fn a_message_has_the_lowest_version_that_says_it() {
    let create = |ssd_weight| Command::Create {
        name: Name::new("web").unwrap(),
        store: Store::Memory,
        weight: 100,
        ssd_weight,
    };
    let mut page = [0; PAGE];
    for (ssd_weight, version) in [(0, 1), (1, 2), (u32::MAX, 2)] {
        create(ssd_weight).encode(1, &mut page);
        assert_eq!(page[8..10], [version, 0]);
        let decoded = decode(&page).unwrap().body;
        assert_eq!(decoded, Ok(Body::Command(create(ssd_weight))));
    }
    page[8] = 1;
    let decoded = decode(&page).unwrap().body;
    assert_eq!(decoded, Ok(Body::Command(create(0))));
    (page[8], page[68]) = (2, 1);
    assert_eq!(decode(&page).unwrap().body, Err(Fault::Store));
    Command::GetStats.encode(1, &mut page);
    page[8] = 2;
    let decoded = decode(&page).unwrap().body;
    assert_eq!(decoded, Ok(Body::Command(Command::GetStats)));
}
