//! What a configuration that names something twice, or something of somebody else's, leaves as it was.

use super::test::configured;
use super::*;
use crate::config::SsdConfig;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

fn ssd(path: &Path) -> SsdConfig {
    SsdConfig {
        path: path.to_owned(),
        bytes: 4 << 20,
        overwrite: true,
    }
}

fn private(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

#[test]
fn an_image_as_ssd_store_is_refused_before_anything_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, _) = configured(dir.path(), b"the only copy");
    let image = dir.path().join("image");
    private(&image);
    let other = dir.path().join("other name");
    std::fs::hard_link(&image, &other).unwrap();
    for path in [&image, &other] {
        config.cache.ssd = Some(ssd(path));
        let why = Service::start(&config).err().map(|e| e.to_string());
        let why = why.unwrap_or_default();
        assert!(why.contains("the image of disk \"vm\""), "{why}");
        assert_eq!(std::fs::read(&image).unwrap(), b"the only copy");
    }
}

#[test]
fn a_running_daemon_takes_no_image_as_ssd_store() {
    let dir = tempfile::tempdir().unwrap();
    let (config, control) = configured(dir.path(), &[7; 8192]);
    let service = Service::start(&config).unwrap();
    let (image, foreign) = (dir.path().join("image"), dir.path().join("foreign"));
    std::fs::write(&foreign, "a file system").unwrap();
    private(&image);
    private(&foreign);
    let set = |path: &Path, overwrite| {
        let request = ControlRequest::ReplaceSsd {
            path: path.to_owned(),
            size: Size(4 << 20),
            overwrite,
        };
        let done = send_request(&control, &request);
        done.err().map(|e| e.to_string())
    };
    let why = set(&image, true).unwrap();
    assert!(why.contains("the image of disk"), "{why}");
    let why = set(&foreign, false).unwrap();
    assert!(why.contains("--overwrite"), "{why}");
    service.shut_down(Duration::from_secs(5)).unwrap();
    assert_eq!(std::fs::read(&image).unwrap(), [7; 8192]);
    assert_eq!(std::fs::read(&foreign).unwrap(), b"a file system");
}

#[test]
fn a_failed_start_leaves_no_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (mut config, control) = configured(dir.path(), &[7; 8192]);
    config.vms[0].disks[0].vhost = Some(dir.path().join("vhost"));
    config.listen.unix = Some(dir.path().join("all"));
    let there = || {
        let mut names: Vec<_> = dir
            .path()
            .read_dir()
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    // The last two to listen, in turn: metrics, and the control socket.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    config.metrics = Some(taken.local_addr().unwrap());
    let before = there();
    let why = Service::start(&config).err().map(|e| e.to_string());
    assert!(why.is_some_and(|why| why.contains("cannot serve metrics on")));
    assert_eq!(there(), before);
    config.metrics = None;
    let other = std::os::unix::net::UnixListener::bind(&control).unwrap();
    let with_another = there();
    let why = Service::start(&config).err().map(|e| e.to_string());
    assert!(why.is_some_and(|why| why.contains("another server answers there")));
    assert_eq!(there(), with_another);
    drop(other);
    let service = Service::start(&config).unwrap();
    service.shut_down(Duration::from_secs(5)).unwrap();
    assert_eq!(there(), before);
}
