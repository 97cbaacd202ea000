//! The host's side: what a guest writes. A message that is understood means what it says when it is written again.
#![no_main]

use justitia_guest_protocol::puts::{Body, MAX_BLOCKS, MAX_MESSAGE, PAGE, PutWriter, decode};
use libfuzzer_sys::fuzz_target;

/// The input is the page's bytes up to where it is 0, and how many pages follow.
fn message(data: &[u8]) -> Vec<u8> {
    let (pages, head) = data
        .split_first()
        .map_or((0, data), |(n, head)| (*n % 34, head));
    let mut bytes = vec![0; PAGE * (1 + usize::from(pages))];
    let count = head.len().min(bytes.len());
    bytes[..count].copy_from_slice(&head[..count]);
    bytes
}

fuzz_target!(|data: &[u8]| {
    let _ = decode(data);
    let bytes = message(data);
    let Some(message) = decode(&bytes) else {
        return;
    };
    match message.body {
        Err(_) => {}
        Ok(Body::Put(put)) => {
            assert!((1..=MAX_BLOCKS).contains(&put.len()) && bytes.len() == PAGE * (1 + put.len()));
            let mut buffer = vec![0; MAX_MESSAGE];
            let mut writer =
                PutWriter::new(&mut buffer, message.sequence, put.pool, put.serial).unwrap();
            assert!(
                put.blocks()
                    .all(|(block, content)| writer.push(block, content))
            );
            let again = decode(writer.finish()).unwrap();
            let Ok(Body::Put(same)) = again.body else {
                panic!("no put");
            };
            assert!(again.sequence == message.sequence && same.blocks().eq(put.blocks()));
        }
        Ok(Body::Command(command)) => {
            let mut page = [0; PAGE];
            command.encode(message.sequence, &mut page);
            assert_eq!(decode(&page).unwrap(), message);
        }
    }
});
