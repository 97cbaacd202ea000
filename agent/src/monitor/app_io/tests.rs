use super::*;

/// Until attaching has ended, or long enough to say that it does not.
fn wait(monitor: &mut AppIoMonitor) {
    for _ in 0..10_000 {
        monitor.take_attached();
        if !monitor.is_attaching() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn it_is_there_before_the_probes_and_takes_them_when_they_come() {
    let (allow, allowed) = channel::<()>();
    let mut monitor = AppIoMonitor::meanwhile(move || {
        let _ = allowed.recv();
        AppIoMonitor::unavailable("attached")
    });
    monitor.take_attached();
    assert_eq!(monitor.unavailable_reason(), Some(ATTACHING));
    assert_eq!(monitor.watch_shared_files(true), Err(ATTACHING.to_owned()));
    drop(allow);
    wait(&mut monitor);
    assert_eq!(monitor.unavailable_reason(), Some("attached"));
}

#[test]
fn a_failure_to_attach_is_told() {
    let mut monitor = AppIoMonitor::meanwhile(|| std::panic::resume_unwind(Box::new(())));
    wait(&mut monitor);
    let why = monitor.unavailable_reason().unwrap_or_default();
    assert!(why.contains("failed"), "{why}");
}
