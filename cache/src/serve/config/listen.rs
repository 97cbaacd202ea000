//! Who may connect to the sockets of disks.

use super::error::Checker;
use super::tables::ListenTable;
use crate::frontend::SocketAccess;
use nix::unistd::{Group, User};
use toml::Spanned;

impl ListenTable {
    pub(super) fn access(&self, checker: &mut Checker) -> SocketAccess {
        let mut access = SocketAccess::default();
        if let Some(mode) = &self.socket_mode {
            let parsed = u16::from_str_radix(mode.get_ref(), 8).ok();
            match parsed.filter(|mode| mode & 0o600 == 0o600 && mode & !0o770 == 0) {
                Some(mode) => access.mode = mode,
                None => checker.error(
                    Some(mode.span().start),
                    format!(
                        "expected an octal mode for user and group, such as \"0660\", found {:?}: who may connect can read and write every disk of the socket",
                        mode.get_ref()
                    ),
                ),
            }
        }
        access.owner = id(self.socket_owner.as_ref(), "user", checker, |name| {
            User::from_name(name).ok()?.map(|user| user.uid.as_raw())
        });
        access.group = id(self.socket_group.as_ref(), "group", checker, |name| {
            Group::from_name(name).ok()?.map(|group| group.gid.as_raw())
        });
        access
    }
}

/// The number of a user or group, by its name or as it is.
fn id(
    name: Option<&Spanned<String>>,
    what: &str,
    checker: &mut Checker,
    by_name: impl Fn(&str) -> Option<u32>,
) -> Option<u32> {
    let name = name?;
    let text = name.get_ref();
    let found = text.parse().ok().or_else(|| by_name(text));
    if found.is_none() {
        let what =
            format!("expected the name or number of a {what} of this machine, found {text:?}");
        checker.error(Some(name.span().start), what);
    }
    found
}
