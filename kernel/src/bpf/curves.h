/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reuse times of the accesses that a tenant makes through the page cache, for its miss-ratio curve.
 * One block of 64 KiB in 2^shift is sampled, chosen by a hash of the block (spatially hashed sampling:
 * SHARDS, FAST '15). The sampler and the buckets are those of share/src/curve/sampler.rs and
 * buckets.rs.
 *
 * Consecutive accesses to one block count as one: a program that reads a file in small steps uses each
 * block once. Which pages of a sampled block they were is recorded of all of them: of a block that is
 * accessed here and there no more is in memory (share/src/curve/pages.rs).
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "cgroups.h"
#include "files.h"

/* A block has 16 pages of 4 KiB. */
#define PAGE_SHIFT 12
#define PAGES_SHIFT 4
#define ALL_PAGES 0xffff
#define BUCKETS 256
#define SETS 256
#define WAYS 8
/* The lower bits of an entry hold the time of the last access, those above the block's tag. */
#define TIME_BITS 40
#define TIME_MASK ((1ULL << TIME_BITS) - 1)
/* Blocks of one call that are sampled, at most. */
#define MAX_BLOCKS 4096

/* The reader (kernel/src/probes/curves.rs) relies on the order. */
struct curve {
	/* Sampled accesses, times 2^shift. */
	u64 clock;
	/* Written by the reader. */
	u64 shift;
	/* Accesses that evicted an entry, and accesses to blocks without an entry. */
	u64 evicted;
	u64 cold;
	u64 unused[4];
	/* Accesses by the time since the access before of the same block. */
	u64 times[BUCKETS];
	u64 entries[SETS * WAYS];
	/*
	 * Of each entry, a bit for each page: in the lower half those accessed since the entry was made, in
	 * the upper half those accessed more than once.
	 */
	u32 pages[SETS * WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct curve);
} curves SEC(".maps");

/* A kernel struct that begins with 64 bits, to read a 64-bit value through an untyped pointer. */
struct timespec64 {
	s64 tv_sec;
} __attribute__((preserve_access_index));

extern void *bpf_rdonly_cast(const void *object, u32 type) __ksym __weak;

/* The file position that a call was passed by address. */
static __always_inline u64 file_position(const void *position)
{
	u64 value = 0;

	/* Since 6.2. */
	if (bpf_ksym_exists(bpf_rdonly_cast)) {
		struct timespec64 *words =
			bpf_rdonly_cast(position, bpf_core_type_id_kernel(struct timespec64));

		return words->tv_sec;
	}
	bpf_probe_read_kernel(&value, sizeof(value), position);
	return value;
}

/* Eight buckets for each power of two. Global, as the functions below: the verifier checks such a one once. */
__noinline u32 bucket_of(u64 reuse)
{
	u32 octave = 0, index;
	u64 rest = reuse;

	if (reuse < 8)
		return reuse;
	if (rest >> 32) {
		octave += 32;
		rest >>= 32;
	}
	if (rest >> 16) {
		octave += 16;
		rest >>= 16;
	}
	if (rest >> 8) {
		octave += 8;
		rest >>= 8;
	}
	if (rest >> 4) {
		octave += 4;
		rest >>= 4;
	}
	if (rest >> 2) {
		octave += 2;
		rest >>= 2;
	}
	octave += rest >> 1;
	index = ((octave - 2) << 3) + ((reuse >> ((octave - 3) & 63)) & 7);
	return index < BUCKETS ? index : BUCKETS - 1;
}

/*
 * Records a sampled access to some pages of a block; `same` if the access before was to the same block.
 * Of two CPUs that access a set at the same time, one access may be lost, and pages of one block may be
 * taken for another's.
 */
__noinline int sample_access(u32 index, u64 hash, u32 accessed, bool same)
{
	struct curve *curve = bpf_map_lookup_elem(&curves, &index);
	u64 step, now = 0, tag, *set, oldest = 0;
	u32 way = 0, i, first, *pages;

	if (!curve)
		return 0;
	hash *= 0xff51afd7ed558ccdULL;
	hash ^= hash >> 33;
	hash *= 0xc4ceb9fe1a85ec53ULL;
	hash ^= hash >> 33;
	step = 1ULL << (curve->shift & 31);
	if (!same)
		now = (__sync_fetch_and_add(&curve->clock, step) + step) & TIME_MASK;
	tag = hash >> TIME_BITS;
	if (!tag)
		tag = 1;
	first = ((hash >> 32) & (SETS - 1)) * WAYS;
	set = &curve->entries[first];
	pages = &curve->pages[first];
#pragma unroll
	for (i = 0; i < WAYS; i++) {
		u64 entry = set[i], age = (now - entry) & TIME_MASK;

		if (entry >> TIME_BITS == tag) {
			u32 before = pages[i], after = before | accessed | (before & accessed) << 16;

			if (after != before)
				pages[i] = after;
			if (same)
				return 0;
			__sync_fetch_and_add(&curve->times[bucket_of(age) & (BUCKETS - 1)], step);
			set[i] = tag << TIME_BITS | now;
			return 0;
		}
		if (!entry)
			age = ~0ULL;
		if (age >= oldest) {
			oldest = age;
			way = i;
		}
	}
	/* The block has lost its entry since. */
	if (same)
		return 0;
	__sync_fetch_and_add(&curve->cold, step);
	if (oldest != ~0ULL)
		__sync_fetch_and_add(&curve->evicted, step);
	/* 6.1's verifier does not see that it is below WAYS. */
	asm volatile("" : "+r"(way));
	set[way & (WAYS - 1)] = tag << TIME_BITS | now;
	pages[way & (WAYS - 1)] = accessed;
	return 0;
}

/*
 * A hash of the file. It takes random secrets, so that no program can choose which blocks are sampled.
 * File systems draw the generation at random, or count it: it tells files apart that have the same
 * inode number on two file systems, or one after the other. It costs less to read than the device.
 */
static __always_inline u64 file_key(u64 number, u32 generation)
{
	return number * config.secrets[0] + generation * config.secrets[1];
}

/*
 * Files of btrfs snapshots have the same number and generation, and pages of their own: there a file is
 * told by its inode in memory. What is known of one is lost when the kernel drops the inode.
 */
static __always_inline u64 subvolume_key(unsigned long magic, u64 inode)
{
	return magic == BTRFS_MAGIC ? inode * config.secrets[1] : 0;
}

static __always_inline u64 key_of(struct inode *inode)
{
	return file_key(inode->i_ino, inode->i_generation) +
	       subvolume_key(inode->i_sb->s_magic, address(inode));
}

/* One multiplication tells whether the block is sampled. The rest of the work is only for those. */
static __always_inline void access_block(u64 curve_ref, u64 key, u32 pages, bool same)
{
	u64 hash = key * config.secrets[2];

	hash ^= hash >> 32;
	if ((u32)hash <= (u32)curve_ref)
		sample_access((curve_ref >> 32) - 1, hash, pages, same);
}

/* The bits of the pages up to the one at which an access ends. */
static __always_inline u32 pages_until(u64 page)
{
	return (2U << (page & 15)) - 1;
}

struct block_run {
	u64 curve_ref;
	u64 key;
	u64 last_step;
	u64 last_page;
};

static long block_run_step(u32 step, struct block_run *run)
{
	u32 pages = step == run->last_step ? pages_until(run->last_page) : ALL_PAGES;

	access_block(run->curve_ref, run->key + step, pages, 0);
	return 0;
}

/* Accesses to all blocks of a call but the first; `last_page` is that of the file. */
__noinline int access_block_run(u64 curve_ref, u64 key, u64 count, u64 last_page)
{
	struct block_run run = { curve_ref, key, count - 1, last_page };

	bpf_loop(count < MAX_BLOCKS ? count : MAX_BLOCKS, block_run_step, &run, 0);
	return 0;
}

/*
 * An access of `done` bytes that ends at `end`. Returns how many blocks other than `last` were accessed;
 * the last of them becomes `last`.
 */
static __always_inline u64 access(struct counters *counters, u64 *last, u64 file, u64 end, u64 done)
{
	u64 curve_ref = counters->curve_ref;
	u64 first_page = (end - done) >> PAGE_SHIFT, last_page = (end - 1) >> PAGE_SHIFT;
	u64 from = first_page >> PAGES_SHIFT, more = (last_page >> PAGES_SHIFT) - from;
	u64 key = file + from, accesses = key != *last;
	u32 pages = more ? ALL_PAGES : pages_until(last_page);

	access_block(curve_ref, key, pages & ALL_PAGES << (first_page & 15), !accesses);
	if (more) {
		accesses += more;
		access_block_run(curve_ref, key + 1, more, last_page);
	}
	*last = key + more;
	return accesses;
}

/* For paths on which several programs add to the same counters. */
static __always_inline void access_atomic(struct counters *counters, bool write, u64 file, u64 end,
					  u64 done)
{
	u64 *last = write ? &counters->last_written_block : &counters->last_read_block;
	u64 accesses = access(counters, last, file, end, done);

	if (accesses)
		__sync_fetch_and_add(&counters->accesses, accesses);
}
