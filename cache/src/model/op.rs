//! Random operations on a cache.

use super::fault::Moment;
use proptest::prelude::*;
use proptest::sample::select;

#[derive(Clone, Debug)]
pub(super) enum Op {
    Read(usize, u32, u32),
    ReadFor(usize, usize, u32, u32),
    Try(usize, u32, u32),
    /// A block is read while it is written and perhaps evicted and put again.
    Slow(usize, usize, u8, u8),
    Get(usize, usize, u8),
    Put(usize, usize, u8, Offer),
    /// Puts of neighbours: units of the SSD store get full, and their blocks are read from the device.
    PutRun(usize, usize, u8, u8),
    Write(usize, u32, u32),
    Discard(usize, u32, u32),
    Zero(usize, u32, u32),
    /// A write of the image that does not go through the disk, and an invalidation for it.
    Outside(usize, u32, u32),
    Migrate(usize, u8, u8, usize),
    VmWeight(usize, u16),
    /// ⟨memory weight, SSD weight⟩, one of them not 0.
    Pool(usize, u16, u16),
    Policy(usize, u8),
    /// The admission of a pool's blocks to the SSD: all, a few, or a few with bypass (a block leaves when it is read).
    SsdAdmission(usize, u8),
    Memory(u8),
    Ssd(u8),
    NewSsd(u8),
    NoSsd,
    SsdWrites(u8),
    Drop(usize, bool),
    Recreate(usize),
    Reattach(usize),
    /// A read or a write, and something else while it is under way.
    During(usize, usize, Overlap),
    DiskFault(usize, bool, u8),
    SsdFault(u8, u8),
    /// The SSD does not answer reads any more, or does again.
    SsdHangs(bool),
    Restart,
}

/// The content that a guest offers for a block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Offer {
    /// The content that it has just read.
    Read,
    /// The disk's content, read before or not.
    Unread,
    /// The block's content before its last change.
    Stale,
    /// The content of another disk's block of the same number.
    OfAnotherDisk,
    /// The content of the next block.
    OfAnotherBlock,
    /// The content that it has just read, with a byte changed.
    Forged,
}

fn offer() -> impl Strategy<Value = Offer> {
    prop_oneof![
        8 => Just(Offer::Read),
        2 => Just(Offer::Unread),
        2 => Just(Offer::Stale),
        1 => Just(Offer::OfAnotherDisk),
        1 => Just(Offer::OfAnotherBlock),
        1 => Just(Offer::Forged),
    ]
}

fn weights() -> impl Strategy<Value = (u16, u16)> {
    prop_oneof![
        2 => (1u16..1000, 1u16..1000),
        1 => (1u16..1000, Just(0)),
        1 => (Just(0), 1u16..1000),
    ]
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let (d, p) = (0usize..3, 0usize..3);
    // Offsets and lengths in 512ths of a block's eighth, so that many are aligned and many are not.
    let at = prop_oneof![(0u32..300).prop_map(|b| b * 4096), 0u32..1_228_800];
    let len = prop_oneof![(1u32..40).prop_map(|b| b * 4096), 1u32..20_000];
    let range = move || (0usize..3, at.clone(), len.clone());
    prop_oneof![
        60 => range().prop_map(|(d, o, l)| Op::Read(d, o, l)),
        20 => (p.clone(), range()).prop_map(|(p, (d, o, l))| Op::ReadFor(d, p, o, l)),
        20 => range().prop_map(|(d, o, l)| Op::Try(d, o, l)),
        30 => (d.clone(), p.clone(), any::<u8>(), 0u8..3).prop_map(|(d, p, b, k)| Op::Slow(d, p, b, k)),
        30 => (d.clone(), p.clone(), any::<u8>()).prop_map(|(d, p, b)| Op::Get(d, p, b)),
        60 => (d.clone(), p.clone(), any::<u8>(), offer()).prop_map(|(d, p, b, o)| Op::Put(d, p, b, o)),
        30 => (d.clone(), p.clone(), any::<u8>(), 1u8..64).prop_map(|(d, p, b, n)| Op::PutRun(d, p, b, n)),
        20 => range().prop_map(|(d, o, l)| Op::Write(d, o, l)),
        2 => range().prop_map(|(d, o, l)| Op::Discard(d, o, l)),
        2 => range().prop_map(|(d, o, l)| Op::Zero(d, o, l)),
        2 => range().prop_map(|(d, o, l)| Op::Outside(d, o, l)),
        3 => (d.clone(), any::<u8>(), any::<u8>(), p.clone()).prop_map(|(d, a, b, p)| Op::Migrate(d, a, b, p)),
        1 => (0usize..2, 1u16..1000).prop_map(|(v, w)| Op::VmWeight(v, w)),
        3 => (0usize..6, weights()).prop_map(|(p, (m, s))| Op::Pool(p, m, s)),
        1 => (0usize..2, 0u8..4).prop_map(|(v, p)| Op::Policy(v, p)),
        2 => (0usize..6, 0u8..6).prop_map(|(p, w)| Op::SsdAdmission(p, w)),
        2 => any::<u8>().prop_map(Op::Memory),
        1 => (0u8..20).prop_map(Op::Ssd),
        1 => (0u8..20).prop_map(Op::NewSsd),
        1 => Just(Op::NoSsd),
        40 => (0u8..12).prop_map(Op::SsdWrites),
        1 => (0usize..6, any::<bool>()).prop_map(|(p, s)| Op::Drop(p, s)),
        1 => (0usize..6).prop_map(Op::Recreate),
        1 => d.clone().prop_map(Op::Reattach),
        20 => (d.clone(), p.clone(), overlap()).prop_map(|(d, p, o)| Op::During(d, p, o)),
        1 => (d, any::<bool>(), 1u8..4).prop_map(|(d, w, n)| Op::DiskFault(d, w, n)),
        1 => (0u8..4, 1u8..12).prop_map(|(k, n)| Op::SsdFault(k, n)),
        1 => Just(Op::SsdHangs(true)),
        8 => Just(Op::SsdHangs(false)),
        1 => Just(Op::Restart),
    ]
}

/// A transfer, and what happens at a moment of it. Ranges as offset and length.
#[derive(Clone, Debug)]
pub(super) struct Overlap {
    pub(super) moment: Moment,
    /// The content that is read (if the moment is a read's) or written.
    pub(super) first: (u32, u32),
    pub(super) other: Other,
    /// Where that happens.
    pub(super) second: (u32, u32),
}

/// The concurrent operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Other {
    Read,
    Write,
    Discard,
    Put,
    /// The disk is removed, and added again afterwards.
    Reattach,
}

fn overlap() -> impl Strategy<Value = Overlap> {
    let moment = select(vec![Moment::Read, Moment::Before, Moment::After]);
    let other = prop_oneof![
        4 => Just(Other::Read),
        4 => Just(Other::Write),
        1 => Just(Other::Discard),
        2 => Just(Other::Put),
        1 => Just(Other::Reattach),
    ];
    let range = || (0u32..1_228_800, 1u32..20_000);
    (moment, range(), other, range(), any::<bool>()).prop_map(
        |(moment, first, other, second, same)| Overlap {
            moment,
            first,
            other,
            second: if same { first } else { second },
        },
    )
}
