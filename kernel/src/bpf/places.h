/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where on a disk the content of each page of the page cache is, by page frame number: learnt when a read
 * or a write of the page completes, moved when the kernel moves the page, forgotten when the page is added
 * to a file or deleted from one.
 */
#pragma once

#include "folio.h"

#define PAGE_SHIFT 12
#define PAGE_SIZE (1UL << PAGE_SHIFT)
/* Sectors of 512 bytes, as a logarithm: of a page. */
#define PAGE_SECTORS_SHIFT 3

/* The kernel's array of pages, and its map of all memory (x86-64; elsewhere these are constants). */
extern const void vmemmap_base __ksym __weak;
extern const void page_offset_base __ksym __weak;
u64 pages_base;
u64 memory_base;

struct place {
	/* Its number in blocks of 4 KiB from the disk's beginning, plus one; 0 is not known. */
	u64 block;
	/* The disk's device number. */
	u32 disk;
	/* Of which file and page the content was. */
	u32 owner;
};

/* As many as there are page frames: the loader's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct place);
} places SEC(".maps");

/* The first program that needs the addresses reads them. */
static __always_inline bool know_bases(void)
{
	if (!pages_base) {
		bpf_probe_read_kernel(&memory_base, sizeof(memory_base), &page_offset_base);
		bpf_probe_read_kernel(&pages_base, sizeof(pages_base), &vmemmap_base);
	}
	return pages_base != 0;
}

/* The page frame number of a page, or of a folio's first. */
static __always_inline u64 frame_of(u64 page)
{
	return (page - pages_base) / bpf_core_type_size(struct page);
}

static __always_inline u32 owner_of(u64 mapping, u64 index)
{
	u64 mixed = (mapping ^ (index * 0x9e3779b97f4a7c15ULL)) * 0xff51afd7ed558ccdULL;

	return mixed >> 32;
}

static __always_inline struct place *place_of(u64 frame)
{
	u32 key = frame;

	return bpf_map_lookup_elem(&places, &key);
}
