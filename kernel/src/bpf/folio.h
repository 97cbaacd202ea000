/* SPDX-License-Identifier: GPL-2.0-only */
/* What a folio is, over the forms that it has had. */
#pragma once

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

static __always_inline unsigned long flags_of(struct folio *folio)
{
	struct folio___wrapped *wrapped = (void *)folio;

	if (bpf_core_field_exists(wrapped->flags.f))
		return BPF_CORE_READ(wrapped, flags.f);
	return BPF_CORE_READ(folio, flags);
}

/* How many pages it has: a power of two. */
static __always_inline u64 pages_of(struct folio *folio)
{
	struct folio___renamed *renamed = (void *)folio;

	if (!(flags_of(folio) & (1UL << bpf_core_enum_value(enum pageflags, PG_head))))
		return 1;
	if (bpf_core_field_exists(renamed->_nr_pages))
		return BPF_CORE_READ(renamed, _nr_pages);
	if (bpf_core_field_exists(folio->_folio_nr_pages))
		return BPF_CORE_READ(folio, _folio_nr_pages);
	return 1;
}
