/* SPDX-License-Identifier: GPL-2.0-only */
/* Fields of a folio, in each form that kernels have given it. */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

static __always_inline unsigned long folio_flags(struct folio *folio)
{
	struct folio___memdesc *wrapped = (void *)folio;

	if (bpf_core_field_exists(wrapped->flags.f))
		return BPF_CORE_READ(wrapped, flags.f);
	return BPF_CORE_READ(folio, flags);
}

static __always_inline bool has_flag(unsigned long flags, int bit)
{
	return (flags >> bit) & 1;
}
/* Is this page flag, named as in the kernel, among the flags? */
#define HAS(flags, name) has_flag(flags, bpf_core_enum_value(enum pageflags, name))

/* The folio that a page belongs to. */
static __always_inline struct folio *folio_of(struct page *page)
{
	unsigned long head = BPF_CORE_READ(page, compound_head);

	return head & 1 ? (void *)(head - 1) : (void *)page;
}

/* The cgroup that is charged for a folio, which the verifier does not know to be one; NULL when none is. */
static __always_inline struct mem_cgroup *charged_memcg(struct folio *folio)
{
	if (!bpf_core_field_exists(folio->memcg_data))
		return NULL;
	return (void *)(BPF_CORE_READ(folio, memcg_data) & ~MEMCG_DATA_FLAGS);
}

/* The number of its pages: a power of two. */
static __always_inline u64 folio_pages(struct folio *folio)
{
	struct folio___nr_pages *renamed = (void *)folio;

	if (!HAS(folio_flags(folio), PG_head))
		return 1;
	if (bpf_core_field_exists(renamed->_nr_pages))
		return BPF_CORE_READ(renamed, _nr_pages);
	if (bpf_core_field_exists(folio->_folio_nr_pages))
		return BPF_CORE_READ(folio, _folio_nr_pages);
	return 1;
}
