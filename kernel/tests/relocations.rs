//! The fields that the eBPF programs read are found in the types of each kernel, the newest included.
//!
//! `fixtures/linux-6.18/types.btf` is what `bpftool gen min_core_btf` leaves of 6.18.44's types for the compiled
//! objects (`target/debug/build/justitia-kernel-*/out/*.bpf.o`): generate it anew when a program reads
//! other fields.

#![expect(
    unsafe_code,
    clippy::unwrap_used,
    reason = "libbpf-rs does not show a program's instructions after relocation; helpers of tests are tests"
)]

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

use libbpf_sys as sys;

const OBJECTS: [(&str, &[u8]); 3] = [
    (
        "account",
        include_bytes!(concat!(env!("OUT_DIR"), "/account.bpf.o")),
    ),
    (
        "evict",
        include_bytes!(concat!(env!("OUT_DIR"), "/evict.bpf.o")),
    ),
    (
        "shared",
        include_bytes!(concat!(env!("OUT_DIR"), "/shared.bpf.o")),
    ),
];

/// The instruction that libbpf puts in the place of one whose field or type it did not find.
const UNRESOLVED: (u8, i32) = (0x85, 0x0bad_2310);
const JUMP: u8 = 0x05;
const JUMP32: u8 = 0x06;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/linux-6.18/types.btf")
}

/// The programs of an object as they would be loaded into a kernel with these types: name and instructions.
/// Needs the privilege to load a program that does nothing, which libbpf tries first.
fn relocated(object: &[u8], types: &Path) -> Vec<(String, Vec<sys::bpf_insn>)> {
    let types = CString::new(types.to_str().unwrap()).unwrap();
    // SAFETY: the structure is plain data, of which zeroes mean defaults.
    let mut options: sys::bpf_object_open_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of_val(&options).try_into().unwrap();
    options.btf_custom_path = types.as_ptr();
    let size = object.len().try_into().unwrap();
    // SAFETY: the object and the path live until the object is closed, below.
    let object =
        unsafe { sys::bpf_object__open_mem(object.as_ptr().cast(), size, &raw const options) };
    assert!(!object.is_null());
    // SAFETY: opened above.
    let error = unsafe { sys::bpf_object__prepare(object) };
    assert_eq!(error, 0, "expected to be root, as for the guests' tests");
    let mut programs = Vec::new();
    let mut program = std::ptr::null_mut();
    loop {
        // SAFETY: the program before it, or null for the first.
        program = unsafe { sys::bpf_object__next_program(object, program) };
        if program.is_null() {
            break;
        }
        // SAFETY: names and instructions belong to the object, and are copied while it is open.
        let (name, instructions) = unsafe {
            let length = sys::bpf_program__insn_cnt(program).try_into().unwrap();
            let first = sys::bpf_program__insns(program);
            (
                CStr::from_ptr(sys::bpf_program__name(program)),
                std::slice::from_raw_parts(first, length),
            )
        };
        let name = name.to_str().unwrap().to_owned();
        programs.push((name, instructions.to_vec()));
    }
    // SAFETY: nothing of it is used any more.
    unsafe { sys::bpf_object__close(object) };
    programs
}

/// The index of an instruction that was not resolved and can be reached, if there is one: follows every path but those that
/// a constant excludes, as `bpf_core_field_exists` makes one of 0 or 1 just before it is compared. So does the verifier.
fn reached(program: &[sys::bpf_insn]) -> Option<usize> {
    let mut open = vec![0];
    // Other functions are called from this one.
    open.extend(program.iter().enumerate().filter_map(|(at, i)| {
        let target =
            |imm: i32| usize::try_from(i64::try_from(at).unwrap() + 1 + i64::from(imm)).unwrap();
        let call = i.code == 0x85 && i.src_reg() == 1;
        let callback = i.code == 0x18 && i.src_reg() == 4;
        (call || callback).then(|| target(i.imm))
    }));
    let mut seen = vec![false; program.len()];
    while let Some(at) = open.pop() {
        let Some(i) = program.get(at) else { continue };
        if std::mem::replace(&mut seen[at], true) {
            continue;
        }
        if (i.code, i.imm) == UNRESOLVED {
            return Some(at);
        }
        let next = at + if i.code == 0x18 { 2 } else { 1 };
        let target = || usize::try_from(i64::try_from(next).unwrap() + i64::from(i.off)).unwrap();
        let class = i.code & 0x07;
        let operation = i.code & 0xf0;
        match (class, operation) {
            (JUMP, 0x90) => {}
            (JUMP, 0x00) => open.push(target()),
            (JUMP, 0x80) => open.push(next),
            (JUMP | JUMP32, _) => {
                let known = at
                    .checked_sub(1)
                    .and_then(|before| constant(&program[before], i));
                // Equal, or not equal, to a constant.
                let taken = known.and_then(|value| match operation {
                    0x10 => Some(value == i.imm),
                    0x50 => Some(value != i.imm),
                    _ => None,
                });
                if taken != Some(false) {
                    open.push(target());
                }
                if taken != Some(true) {
                    open.push(next);
                }
            }
            _ => open.push(next),
        }
    }
    None
}

/// What the instruction before a comparison has put into its register, if that is a constant.
fn constant(before: &sys::bpf_insn, compared: &sys::bpf_insn) -> Option<i32> {
    let moves = matches!(before.code, 0xb7 | 0xb4) && before.dst_reg() == compared.dst_reg();
    (moves && compared.code & 0x08 == 0).then_some(before.imm)
}

#[test]
fn every_field_is_found_in_the_newest_kernel_and_in_this_one() {
    let running = PathBuf::from("/sys/kernel/btf/vmlinux");
    let types = [Some(fixture()), running.exists().then_some(running)];
    for types in types.into_iter().flatten() {
        for (object, content) in OBJECTS {
            let programs = relocated(content, &types);
            assert!(!programs.is_empty());
            for (name, program) in programs {
                let place = reached(&program);
                assert_eq!(place, None, "{object}: {name} with {}", types.display());
            }
        }
    }
}

/// The same object has both: where a folio's flags are a structure and where they are a number, and
/// `io_uring_complete` with and without a completion entry. Which of them is used is the kernel's.
#[test]
fn fields_that_a_kernel_lacks_are_not_reached() {
    let programs = relocated(OBJECTS[0].1, &fixture());
    let of = |name: &str| {
        let found = programs.iter().find(|(program, _)| program == name);
        found
            .unwrap_or_else(|| panic!("no program {name}"))
            .1
            .clone()
    };
    let cache_miss = of("cache_miss");
    let unresolved = |i: &sys::bpf_insn| (i.code, i.imm) == UNRESOLVED;
    assert!(
        cache_miss.iter().any(unresolved),
        "a number's place is not found"
    );
    // Without the comparison it would be.
    let mut always = cache_miss;
    for i in &mut always {
        if matches!(i.code & 0xf7, 0x15 | 0x55 | 0x16 | 0x56) {
            i.code |= 0x08;
        }
    }
    assert!(reached(&always).is_some());
    // The result is read from the entry, the third argument, and a fourth is never read.
    let io_uring = of("io_uring");
    let reads = |offset: i16| {
        (0..io_uring.len()).any(|at| {
            let i = &io_uring[at];
            i.code == 0x79 && i.src_reg() == 1 && i.off == offset
        })
    };
    assert!(reads(16), "the completion entry");
    let mut cut = io_uring.clone();
    // As long as the register has not been given the address of a map.
    let maps = |i: &sys::bpf_insn| i.code == 0x18 && i.dst_reg() == 1;
    for i in cut.iter_mut().take_while(|i| !maps(i)) {
        if i.code == 0x79 && i.src_reg() == 1 && i.off == 24 {
            (i.code, i.imm) = UNRESOLVED;
        }
    }
    assert_eq!(reached(&cut), None, "a fourth argument is read");
}
