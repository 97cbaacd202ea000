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

/* The number of its pages: a power of two. */
static __always_inline u64 folio_pages(struct folio *folio)
{
	struct folio___nr_pages *renamed = (void *)folio;

	if (!(folio_flags(folio) & (1UL << bpf_core_enum_value(enum pageflags, PG_head))))
		return 1;
	if (bpf_core_field_exists(renamed->_nr_pages))
		return BPF_CORE_READ(renamed, _nr_pages);
	if (bpf_core_field_exists(folio->_folio_nr_pages))
		return BPF_CORE_READ(folio, _folio_nr_pages);
	return 1;
}
