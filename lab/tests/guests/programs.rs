//! Programs of this machine in a guest.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use justitia_lab::vm::Guest;

/// Puts a program into the guest as `/bin/to`, with the libraries that are not there.
pub(crate) fn take_along(guest: &Guest, name: &str, to: &str) {
    let directories = ["/usr/sbin", "/sbin", "/usr/bin"].map(|dir| Path::new(dir).join(name));
    let Some(program) = directories.iter().find(|path| path.exists()) else {
        panic!("expected {name} to be installed: `make deps` does that");
    };
    let listing = Command::new("ldd").arg(program).output().unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    let libraries = listing
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    let mut wanted = vec![(program.as_path(), format!("/bin/{to}"))];
    wanted.extend(libraries.map(|path| (Path::new(path), path.to_owned())));
    for (from, to) in wanted {
        if guest.sh(&format!("test -e {to}")).unwrap().status != 0 {
            let mode = std::fs::metadata(from).unwrap().permissions().mode() & 0o777;
            let content = std::fs::read(from).unwrap();
            guest.push(&to, mode, &content).unwrap();
        }
    }
}
