//! OpenMetrics as Prometheus' own tools see them.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use justitia_agent::status::metrics::{MAX_BYTES, text};
use justitia_api::{
    AppStatus, CurveStatus, DeclaredWeight, KnobOwner, KnobStatus, ProbeDrops, Status, TenantKind,
    TenantStatus, WeightSource, escape,
};

use justitia_common::metrics::Server;

/// One lost, one not.
const LOSSES: [(&str, u64); 2] = [("shared_file_evicted", 9), ("map_full", 0)];

/// Two tenants, one of them with a name made to break the format.
fn status() -> Status {
    use std::os::unix::ffi::OsStrExt;
    let hostile = std::ffi::OsStr::from_bytes(b"a\"} 1\n# HELP x\\\xff\x1b[31m");
    let app = AppStatus {
        read_bytes: 1 << 40,
        misses: 7,
        io_throttled: 0.25,
        hit_ratio: Some(0.5),
        ..AppStatus::default()
    };
    let tenants = [escape::encode(hostile), "b.slice".to_owned()].map(|path| TenantStatus {
        path,
        weight: 300,
        usage: 5 << 20,
        working_set: 8 << 20,
        curve: Some(CurveStatus {
            accesses: 10.0,
            points: vec![(0, 1.0), (10 << 20, 0.0)],
        }),
        pv: Some(0.5),
        declared: Some(DeclaredWeight::default()),
        app: Some(app),
        knobs: vec![KnobStatus {
            knob: "memory.low".to_owned(),
            value: "4096".to_owned(),
            owner: KnobOwner::Agent,
            original: Some("0".to_owned()),
            reason: None,
        }],
        ..TenantStatus::default()
    });
    Status {
        version: "1.2.3".to_owned(),
        pv: Some(0.25),
        tenants: tenants.to_vec(),
        probe_drops: LOSSES
            .map(|(what, count)| ProbeDrops {
                what: what.to_owned(),
                count,
            })
            .to_vec(),
        ..Status::default()
    }
}

#[test]
fn promtool_finds_nothing_to_criticise() {
    let counted = justitia_promtool::check(&text(&status(), 1000).unwrap()).unwrap();
    assert!(counted.contains("justitia_tenant_cache_bytes"), "{counted}");
}

#[test]
fn what_the_probes_lost_is_a_series_each() {
    let text = text(&status(), 1000).unwrap();
    for (what, count) in LOSSES {
        let series = format!("\njustitia_probe_dropped_events_total{{kind=\"{what}\"}} {count}\n");
        assert!(text.contains(&series), "expected {series:?} in {text}");
    }
}

#[test]
fn what_a_tenant_is_and_whether_its_weight_drifts_are_series() {
    let mut status = status();
    status.tenants[0].declared = None;
    let tenant = &mut status.tenants[1];
    tenant.kind = TenantKind::DockerContainer;
    tenant.name = "x\"} 1\n\u{202e}".to_owned();
    tenant.image = Some("nginx:1.25".to_owned());
    tenant.weight_source = WeightSource::Runtime;
    tenant.declared = Some(DeclaredWeight {
        weight: 400,
        drift: true,
        ..DeclaredWeight::default()
    });
    status.agent_usage.identity_errors = 3;
    let text = text(&status, 1000).unwrap();
    justitia_promtool::check(&text).unwrap();
    for series in [
        "\njustitia_tenant_info{tenant=\"b.slice\",kind=\"docker_container\",name=\"x\\\"} 1\\\\n\\\\u{202e}\",\
         image=\"nginx:1.25\",weight_source=\"runtime\"} 1\n",
        "\njustitia_weight_drift{tenant=\"b.slice\"} 1\n",
        "\njustitia_identity_errors_total 3\n",
    ] {
        assert!(text.contains(series), "expected {series:?} in {text}");
    }
    assert_eq!(text.matches("\njustitia_weight_drift{").count(), 1);
}

#[test]
fn what_another_size_of_the_cache_would_miss_is_a_series_each() {
    let text = text(&status(), 1000).unwrap();
    for (size, ratio) in [("half", 0.75), ("same", 0.5), ("twice", 0.0)] {
        let labels = format!("{{tenant=\"b.slice\",size=\"{size}\"}} {ratio}");
        assert!(text.contains(&labels), "expected {labels:?} in {text}");
    }
    assert!(text.contains("justitia_tenant_working_set_bytes{tenant=\"b.slice\"} 8388608"));
}

#[test]
fn a_working_set_that_nothing_shows_has_no_series() {
    let mut status = status();
    status.tenants[1].working_set_unknown = true;
    let text = text(&status, 1000).unwrap();
    let series = text
        .lines()
        .filter(|l| l.starts_with("justitia_tenant_working_set_bytes{"));
    let series: Vec<&str> = series.collect();
    assert_eq!(series.len(), 1, "{series:?}");
    assert!(!series[0].contains("b.slice"));
}

#[test]
fn series_are_bounded_and_what_is_left_out_is_told() {
    let text = text(&status(), 1).unwrap();
    assert!(!text.contains("tenant=\"b.slice\",direction"));
    assert!(!text.contains("justitia_tenant_weight{tenant=\"b.slice\"}"));
    assert!(text.contains("\njustitia_tenants_without_series 1\n"));
    assert!(text.contains("\njustitia_tenants 2\n"), "{text}");
}

/// Each row of the table has a sample, and each sample has a row.
#[test]
fn the_reference_lists_what_is_served() {
    let reference = justitia_agent::status::metrics::markdown();
    let listed = reference.lines().filter_map(|l| {
        let (name, _) = l.strip_prefix("| `")?.split_once('`')?;
        Some(name.to_owned())
    });
    let listed: std::collections::BTreeSet<String> = listed.collect();
    let text = text(&status(), 1000).unwrap();
    let samples = text.lines().filter(|l| !l.starts_with('#'));
    let family = |sample: &str| {
        let of_histogram = |end| {
            let family = sample.strip_suffix(end)?;
            let kind = format!("# TYPE {family} histogram\n");
            text.contains(&kind).then(|| family.to_owned())
        };
        let ends = ["_bucket", "_sum", "_count"];
        ends.into_iter()
            .find_map(of_histogram)
            .unwrap_or_else(|| sample.to_owned())
    };
    let names = samples.filter_map(|l| Some(family(l.split(['{', ' ']).next()?)));
    assert_eq!(listed, names.collect());
    assert!(listed.len() > 30, "{listed:?}");
}

/// With the longest paths that are told apart, all of bytes that are escaped, and every series that there is.
#[test]
fn a_page_is_bounded_however_long_the_names() {
    let mut status = status();
    let mut tenant = status.tenants[1].clone();
    for n in 0..5000 {
        tenant.path = format!("{n:04}{}", r"\xff".repeat(127));
        status.tenants.push(tenant.clone());
    }
    let page = text(&status, 10_000).unwrap();
    assert!(page.len() <= MAX_BYTES, "{} bytes", page.len());
    assert!(page.len() > MAX_BYTES / 2, "{} bytes", page.len());
    let left = |page: &str| -> usize {
        let line = page
            .lines()
            .find_map(|l| l.strip_prefix("justitia_tenants_without_series "));
        line.unwrap().parse().unwrap()
    };
    let weights = page.matches("\njustitia_tenant_weight{").count();
    assert_eq!(weights + left(&page), 5002);

    // All of short names fit.
    for (n, tenant) in status.tenants.iter_mut().enumerate() {
        tenant.path = format!("system.slice/unit-{n}.service");
    }
    let page = text(&status, 10_000).unwrap();
    assert!(page.len() <= MAX_BYTES, "{} bytes", page.len());
    assert_eq!(left(&page), 0);
}

fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut client = std::net::TcpStream::connect(address)?;
    write!(
        client,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    client.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_real_prometheus_scrapes_them() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let ours = Server::start(any, || text(&status(), 1000)).unwrap();
    let theirs = std::net::TcpListener::bind(any)
        .unwrap()
        .local_addr()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: justitia\n  static_configs:\n  - \
         targets: ['{}']\n",
        ours.address()
    );
    let file = dir.path().join("prometheus.yml");
    std::fs::write(&file, config).unwrap();
    let prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", dir.path().display()))
        .arg(format!("--web.listen-address={theirs}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("prometheus, of the package of that name (`make deps`)");
    let _ended = justitia_common::kill_on_drop::KillOnDrop(prometheus);
    let begun = Instant::now();
    let query = "/api/v1/query?query=justitia_tenant_io_bytes_total";
    let answer = loop {
        let answer = get(theirs, query).unwrap_or_default();
        if answer.contains("1099511627776") || begun.elapsed() > Duration::from_secs(60) {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(answer.contains("\"tenant\":\"b.slice\""), "{answer}");
    assert!(
        answer.contains("# HELP x"),
        "the hostile name is a label: {answer}"
    );
}
