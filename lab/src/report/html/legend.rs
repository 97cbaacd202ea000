//! Which colour stands for which tenant.

use maud::{Markup, html};

use super::super::chart::tenant_class;
use super::super::schema::Results;

/// The tenants' colours, and with `context` that of what is no tenant.
pub(super) fn legend(results: &Results, context: bool) -> Markup {
    html! {
        ul.legend {
            @for (position, tenant) in results.tenants.iter().enumerate() {
                li {
                    span.key.(tenant_class(position, results.tenants.len())) {}
                    (tenant.name) " (weight " (tenant.weight) ")"
                }
            }
            @if context {
                li { span.key.context {} "not a tenant" }
            }
        }
    }
}
