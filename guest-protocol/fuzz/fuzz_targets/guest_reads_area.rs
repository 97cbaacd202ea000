//! The guest's side: what is read from a port, which may be any disk.
#![no_main]

use justitia_guest_protocol::puts::{Area, AreaWriter, MAX_ANSWERS, MAX_POOLS, PORT_SIZE};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut bytes = vec![0; PORT_SIZE];
    let count = data.len().min(PORT_SIZE);
    bytes[..count].copy_from_slice(&data[..count]);
    for cut in [count, PORT_SIZE] {
        let Some(area) = Area::new(&bytes[..cut]) else {
            continue;
        };
        let answers: Vec<_> = area.answers().collect();
        let pools: Vec<_> = area.pools().collect();
        assert!(answers.len() <= MAX_ANSWERS && pools.len() <= MAX_POOLS);
        let mut again = Box::new([0; PORT_SIZE]);
        let mut writer = AreaWriter::new(&mut again);
        writer.header(&area.header());
        writer.answers(answers.iter());
        writer.pools(pools.iter().copied());
        let read = Area::new(&again[..]).unwrap();
        assert_eq!(read.header(), area.header());
        assert!(read.answers().eq(answers) && read.pools().eq(pools));
    }
});
