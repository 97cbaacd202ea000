//! Messages with offers of the model's guests, each sent twice.

use super::cache_model::{CacheModel, SIZES, VM_OF};
use super::port::serial;
use crate::block::{BLOCK_SIZE, Block};
use crate::block_dev::BlockDevice;
use justitia_guest_protocol::puts::{Area, MAX_BLOCKS, PAGE, PutWriter};

impl CacheModel {
    /// Offers blocks of a disk over the port of its VM, and the same message again. What is accepted is right; the second
    /// time nothing is. The other VM's port knows no such disk.
    pub(super) fn offer_over_port(&mut self, d: usize, pool: u32, blocks: &[(usize, Block)]) {
        for blocks in blocks.chunks(MAX_BLOCKS) {
            self.ports.sequence += 1;
            let sequence = self.ports.sequence;
            let mut buffer = vec![0; (blocks.len() + 1) * PAGE];
            let mut writer = PutWriter::new(&mut buffer, sequence, pool, serial(d)).unwrap();
            for (block, content) in blocks {
                assert!(writer.push(u64::try_from(*block).unwrap(), content));
            }
            let message = writer.finish();
            for port in &self.ports.ports {
                port.write_at(message, 0, false).unwrap();
            }
            let own = &self.ports.ports[VM_OF[d]];
            let mut page = vec![0; PAGE];
            own.read_at(&mut page, 0).unwrap();
            let answer = Area::new(&page).unwrap().answer(sequence).unwrap();
            for (at, (block, content)) in blocks.iter().enumerate() {
                if answer.accepted & 1 << at != 0 {
                    self.accepted += 1;
                    let range = block * BLOCK_SIZE..(block + 1) * BLOCK_SIZE;
                    assert!(range.end <= SIZES[d], "beyond the end");
                    self.check(d, range, content);
                }
            }
            let before = own.stats();
            own.write_at(message, 0, false).unwrap();
            let after = own.stats();
            assert_eq!(after.replayed, before.replayed + 1);
            assert_eq!(after.verdicts["accepted"], before.verdicts["accepted"]);
            let foreign = self.ports.ports[1 - VM_OF[d]].stats();
            assert!(foreign.verdicts["no_disk"] > 0);
        }
    }
}
