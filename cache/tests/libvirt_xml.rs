//! The XML that the guide gives to users of libvirt is what libvirt's schema allows.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests say what is wrong by failing"
)]

use std::path::Path;
use std::process::Command;

/// The elements of this name in a document, as they are indented there.
fn elements(document: &str, name: &str) -> Vec<String> {
    let (begin, end) = (format!("<{name}"), format!("</{name}>"));
    let mut found = Vec::new();
    let mut lines = document.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if !line.starts_with(&begin) {
            continue;
        }
        let mut element = line.to_owned();
        while !element.contains(&end) {
            element += lines.next().unwrap();
        }
        found.push(element);
    }
    found
}

fn validate(memory: &str, devices: &str) -> std::process::Output {
    let domain = format!(
        "<domain type='kvm'><name>web</name><memory>1048576</memory>{memory}<os><type>hvm</type></os>\
         <devices>{devices}</devices></domain>"
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("domain.xml");
    std::fs::write(&file, domain).unwrap();
    let mut validate = Command::new("virt-xml-validate");
    let done = validate.arg(&file).arg("domain").output();
    done.unwrap_or_else(|e| {
        panic!("expected virt-xml-validate, found {e}: `make deps` installs it (libvirt-clients, libxml2-utils)")
    })
}

#[test]
fn xml_of_the_guide_is_valid() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide");
    let read = |name: &str| std::fs::read_to_string(guide.join(name)).unwrap();
    let (cache, vms) = (read("cache.md"), read("vms.md"));
    let disks = elements(&cache, "disk");
    let memory = elements(&cache, "memoryBacking");
    let mut devices = disks.clone();
    devices.extend(elements(&vms, "memballoon"));
    devices.extend(elements(&vms, "channel"));
    assert_eq!((disks.len(), memory.len(), devices.len()), (2, 1, 4));
    for device in &devices {
        let done = validate(&memory[0], device);
        assert!(done.status.success(), "{device}\n{done:?}");
    }
    let wrong = disks[0].replace("protocol='nbd'", "protocol='nbd' uri='x'");
    assert!(!validate("", &wrong).status.success());
}
