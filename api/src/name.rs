//! How a tenant is called in tables for people, and whether it is shown there.

use crate::{TenantStatus, escape};

/// The path that stands for the unmanaged tenant.
const UNMANAGED: &str = "-";

/// A tenant's name for people, by its path: as it is, but for the unmanaged tenant, which is `(unmanaged)`.
#[must_use]
pub fn display_name(path: &str) -> &str {
    if path == UNMANAGED {
        "(unmanaged)"
    } else {
        path
    }
}

impl TenantStatus {
    /// Whether it is the unmanaged tenant.
    #[must_use]
    pub fn is_unmanaged(&self) -> bool {
        self.path == UNMANAGED
    }

    /// Its name for people: that of its container, machine or unit, else its path; `(unmanaged)`. A long id in it is cut
    /// short, and characters that do something to a terminal are escaped.
    #[must_use]
    pub fn display_name(&self) -> String {
        if self.name.is_empty() {
            return with_short_ids(display_name(&self.path));
        }
        let name = with_short_ids(&escape::plain(&self.name));
        match &self.part {
            Some(part) => format!("{name}/{}", escape::plain(part)),
            None => name,
        }
    }

    /// Whether it is left out of tables: the kernel has neither a process nor 64 KiB of cache of it, and the agent does nothing
    /// about it. Such are mount units, sockets, and slices without services. Or it is a part of a container or machine, that
    /// counts there.
    #[must_use]
    pub fn is_minor(&self) -> bool {
        let idle = self.no_processes && self.usage < MINOR && self.knobs.is_empty();
        !self.is_unmanaged() && (idle || self.part.is_some())
    }
}

/// Cache below this is none, bytes.
const MINOR: u64 = 64 << 10;
/// At least this many hexadecimal digits in a row are an id.
const ID: usize = 32;
/// How many of them are shown.
const SHORT_ID: usize = 12;

/// A text with ids cut short.
fn with_short_ids(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        let (id, after) = rest.split_at(digits);
        match id.get(..SHORT_ID) {
            Some(short) if digits >= ID => {
                out.push_str(short);
                out.push('…');
            }
            _ => out.push_str(id),
        }
        let other = after.bytes().take_while(|b| !b.is_ascii_hexdigit()).count();
        let (other, after) = after.split_at(other);
        out.push_str(other);
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_shown_by_name_and_a_long_id_by_its_beginning() {
        let id = "46ec00ce0123456789abcdef0123456789abcdef0123456789abcdef01234567";
        let mut tenant = TenantStatus {
            path: format!("system.slice/docker-{id}.scope"),
            ..TenantStatus::default()
        };
        assert_eq!(
            tenant.display_name(),
            "system.slice/docker-46ec00ce0123….scope"
        );
        tenant.name = "web\n\u{202e}".to_owned();
        assert_eq!(tenant.display_name(), "web\\n\\u{202e}");
        tenant.part = Some("container".to_owned());
        assert_eq!(tenant.display_name(), "web\\n\\u{202e}/container");
        tenant = TenantStatus {
            path: "-".to_owned(),
            no_processes: true,
            ..TenantStatus::default()
        };
        assert_eq!(
            (tenant.display_name().as_str(), tenant.is_minor()),
            ("(unmanaged)", false)
        );
        for text in ["", "é", "größe-ab", "x\u{1b}y"] {
            assert_eq!(with_short_ids(text), text);
        }
    }

    #[test]
    fn a_tenant_without_process_and_cache_is_left_out() {
        let tenant = |no_processes, usage| TenantStatus {
            path: "a.mount".to_owned(),
            no_processes,
            usage,
            ..TenantStatus::default()
        };
        assert!(tenant(true, 0).is_minor() && tenant(true, 40_000).is_minor());
        assert!(!tenant(true, 1 << 20).is_minor() && !tenant(false, 0).is_minor());
    }
}
