/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reuse times of what a tenant accesses through the page cache, for its miss-ratio curve: one block
 * of 64 KiB in 2^shift is looked at, chosen by a hash of which block it is (spatially hashed
 * sampling: SHARDS, FAST '15). What is done with an access, and the buckets, are those of
 * share/src/curve/sampler.rs and buckets.rs.
 *
 * An access of the block that was accessed last is none: a program that reads a file in small steps
 * uses each block once.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "tenants.h"

#define BLOCK_SHIFT 16
#define BUCKETS 256
#define SETS 256
#define WAYS 8
/* Bits of an entry that tell the time of the last access; those above tell the block. */
#define TIME_BITS 40
#define TIME_MASK ((1ULL << TIME_BITS) - 1)
/* Blocks of one call, at most. */
#define MOST_BLOCKS 4096

/* The reader (kernel/src/eyes/curves.rs) knows the order. */
struct curve {
	/* Accesses, as far as they were looked at, times 2^shift. */
	u64 clock;
	/* Written by the reader. */
	u64 shift;
	/* Accesses that made it forget a block, and accesses of blocks that it did not remember. */
	u64 evicted;
	u64 cold;
	u64 unused[4];
	/* Accesses by the time since the one before. */
	u64 times[BUCKETS];
	u64 entries[SETS * WAYS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct curve);
} curves SEC(".maps");

/* A struct that begins with 64 bits, to read such through a pointer that the verifier does not know. */
struct timespec64 {
	s64 tv_sec;
} __attribute__((preserve_access_index));

extern void *bpf_rdonly_cast(const void *object, u32 type) __ksym __weak;

/* A file position, as calls are given it: by its address. */
static __always_inline u64 position_at(const void *position)
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

/* An eighth of a power of two each. */
static __always_inline u32 bucket_of(u64 reuse)
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

/* An access that is looked at. Two processors may lose one of two at the same moment, no more. */
static __noinline int look_at(u32 index, u64 hash)
{
	struct curve *curve = bpf_map_lookup_elem(&curves, &index);
	u64 step, now, tag, *set, most = 0;
	u32 way = 0, i;

	if (!curve)
		return 0;
	hash *= 0xff51afd7ed558ccdULL;
	hash ^= hash >> 33;
	hash *= 0xc4ceb9fe1a85ec53ULL;
	hash ^= hash >> 33;
	step = 1ULL << (curve->shift & 31);
	now = (__sync_fetch_and_add(&curve->clock, step) + step) & TIME_MASK;
	tag = hash >> TIME_BITS;
	if (!tag)
		tag = 1;
	set = &curve->entries[((hash >> 32) & (SETS - 1)) * WAYS];
#pragma unroll
	for (i = 0; i < WAYS; i++) {
		u64 entry = set[i], age = (now - entry) & TIME_MASK;

		if (entry >> TIME_BITS == tag) {
			__sync_fetch_and_add(&curve->times[bucket_of(age) & (BUCKETS - 1)], step);
			set[i] = tag << TIME_BITS | now;
			return 0;
		}
		if (!entry)
			age = ~0ULL;
		if (age >= most) {
			most = age;
			way = i;
		}
	}
	__sync_fetch_and_add(&curve->cold, step);
	if (most != ~0ULL)
		__sync_fetch_and_add(&curve->evicted, step);
	/* 6.1 does not see that it is below WAYS. */
	asm volatile("" : "+r"(way));
	set[way & (WAYS - 1)] = tag << TIME_BITS | now;
	return 0;
}

/*
 * Which file it is, told from all others by secrets, so that nobody can choose what is looked at.
 * Filesystems choose the generation by chance, or count it: it tells files apart that have the same
 * number on two of them, or one after the other, and takes less than the device, which is further away.
 */
static __always_inline u64 file_key(u64 number, u32 generation)
{
	return number * config.secrets[0] + generation * config.secrets[1];
}

static __always_inline u64 key_of(struct inode *inode)
{
	return file_key(inode->i_ino, inode->i_generation);
}

/* One multiplication tells whether it is looked at; where to look takes more, and only then. */
static __always_inline void access_block(u64 sampled, u64 key)
{
	u64 hash = key * config.secrets[2];

	hash ^= hash >> 32;
	if ((u32)hash <= (u32)sampled)
		look_at((sampled >> 32) - 1, hash);
}

struct further {
	u64 sampled;
	u64 key;
};

static long further_step(u32 step, struct further *further)
{
	access_block(further->sampled, further->key + step);
	return 0;
}

/* All blocks of a call but the first. */
static __noinline int access_further(u64 sampled, u64 key, u64 count)
{
	struct further further = { sampled, key };

	bpf_loop(count < MOST_BLOCKS ? count : MOST_BLOCKS, further_step, &further, 0);
	return 0;
}

/*
 * `done` bytes that end at `end`: how many blocks were accessed beside the one accessed `last`, which
 * becomes the last of them.
 */
static __always_inline u64 access(struct row *row, u64 *last, u64 file, u64 end, u64 done)
{
	u64 sampled = row->sampled, from = (end - done) >> BLOCK_SHIFT;
	u64 further = ((end - 1) >> BLOCK_SHIFT) - from, key = file + from, visits = 0;

	if (key != *last) {
		visits++;
		access_block(sampled, key);
	}
	if (further) {
		visits += further;
		access_further(sampled, key + 1, further);
	}
	*last = key + further;
	return visits;
}

/* For the many ways in which several programs add to a row. */
static __always_inline void access_by(struct row *row, bool write, u64 file, u64 end, u64 done)
{
	u64 visits = access(row, write ? &row->last_written : &row->last_read, file, end, done);

	if (visits)
		__sync_fetch_and_add(&row->visits, visits);
}
