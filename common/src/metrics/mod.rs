//! OpenMetrics, or Prometheus' own text format for clients that ask for it, over HTTP: `GET /metrics`, nothing else.
//!
//! Any client that reaches the address is served, every local user for instance. So everything is bounded: the number of
//! clients, in all and of one user or machine, the size of a request, the time that it may take, and how often the page is
//! made.

mod client;
mod page;
mod peer;
mod series;
mod server;

pub use series::{Labels, Level, Metric, counts, levels};
pub use server::Server;

/// The value of a label, escaped: `prometheus_client` does not escape values.
#[must_use]
pub fn label(text: &str) -> String {
    let mut label = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => label.push_str("\\\\"),
            '"' => label.push_str("\\\""),
            '\n' => label.push_str("\\n"),
            other => label.push(other),
        }
    }
    label
}

#[cfg(test)]
mod tests {
    use super::peer::Peer;
    use super::*;
    use std::collections::VecDeque;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    fn get(address: SocketAddr, path: &str) -> String {
        get_as(address, path, "")
    }

    /// With these header lines.
    fn get_as(address: SocketAddr, path: &str, headers: &str) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        write!(client, "GET {path} HTTP/1.0\r\n{headers}\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_label_cannot_end_itself() {
        assert_eq!(label("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
        assert_eq!(label("plain/path.slice"), "plain/path.slice");
    }

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn a_page_is_made_when_it_is_asked_for() {
        let mut scrapes = 0;
        let server = Server::start(ANY, move || {
            scrapes += 1;
            if scrapes > 2 {
                return Err("the agent is gone".into());
            }
            Ok(format!("scrapes {scrapes}\n# EOF\n"))
        })
        .unwrap();
        let first = get(server.address(), "/metrics");
        assert!(first.starts_with("HTTP/1.1 200 OK\r\n"), "{first}");
        assert!(
            first.contains(page::OPENMETRICS) && first.ends_with("scrapes 1\n# EOF\n"),
            "{first}"
        );
        let again = get(server.address(), "/metrics");
        assert!(
            again.ends_with("scrapes 1\n# EOF\n"),
            "so soon it is the same: {again}"
        );
        std::thread::sleep(page::MAX_AGE);
        assert!(get(server.address(), "/metrics?x=1").contains("scrapes 2"));
        std::thread::sleep(page::MAX_AGE);
        let failed = get(server.address(), "/metrics");
        assert!(
            failed.contains(" 503 ") && failed.ends_with("the agent is gone\n"),
            "{failed}"
        );
        assert!(get(server.address(), "/").contains(" 404 "));
        let address = server.address();
        drop(server);
        assert!(
            TcpStream::connect(address).is_err(),
            "it has stopped listening"
        );
    }

    #[test]
    fn a_client_gets_the_format_that_it_accepts() {
        let page = "# HELP a_reads Reads.\n# TYPE a_reads counter\na_reads_total{d=\"x\"} 7\n\
                    # HELP b_bytes Bytes.\n# TYPE b_bytes gauge\n# UNIT b_bytes bytes\nb_bytes 3\n# EOF\n";
        let server = Server::start(ANY, move || Ok(page.into())).unwrap();
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, kind) in [
            ("", page::OPENMETRICS),
            ("Accept: */*\r\n", page::OPENMETRICS),
            (&format!("accept: {prometheus}\r\n"), page::OPENMETRICS),
            ("Accept: text/plain;version=0.0.4\r\n", page::TEXT),
            ("Accept: text/plain, */*;q=0.5\r\n", page::TEXT),
            (
                "Accept: text/plain;q=0.9, application/openmetrics-text; q=0.1\r\n",
                page::TEXT,
            ),
        ] {
            let answer = get_as(server.address(), "/metrics", accept);
            assert!(
                answer.contains(&format!("Content-Type: {kind}\r\n")),
                "{accept}: {answer}"
            );
            let body = answer.split_once("\r\n\r\n").unwrap().1;
            if kind == page::TEXT {
                let expected = "# HELP a_reads_total Reads.\n# TYPE a_reads_total counter\na_reads_total{d=\"x\"} 7\n\
                                # HELP b_bytes Bytes.\n# TYPE b_bytes gauge\nb_bytes 3\n";
                assert_eq!(body, expected);
            } else {
                assert_eq!(body, page);
            }
        }
    }

    #[test]
    fn a_malformed_request_is_refused() {
        let server = Server::start(ANY, || Ok("# EOF\n".into())).unwrap();
        let endless = "x".repeat(64 << 10);
        for (sent, answer, may_hang_up) in [
            ("\x16\x03\x01 garbage\r\n\r\n", " 400 ", false),
            ("POST /metrics HTTP/1.1\r\n\r\n", " 404 ", false),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", " 200 ", false),
            (endless.as_str(), " 400 ", true),
        ] {
            let mut client = TcpStream::connect(server.address()).unwrap();
            // It may hang up before all is sent.
            let _ = client.write_all(sent.as_bytes());
            let mut received = String::new();
            let _ = client.read_to_string(&mut received);
            let hung_up = may_hang_up && received.is_empty();
            assert!(hung_up || received.contains(answer), "{received}");
        }
    }

    /// Clients that ask for a large page and never read it, clients that never ask, and clients that never finish their
    /// request. At most [`server::MAX_CLIENTS`] of them are kept.
    #[test]
    fn slow_clients_delay_neither_others_nor_the_end() {
        let page = "# x\n".repeat(4 << 20);
        let server = Server::start(ANY, move || Ok(page.clone())).unwrap();
        let address = server.address();
        let threads = || {
            let all = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
            all.filter_map(|task| name(task).ok())
                .filter(|name| name.trim() == "metrics-client")
                .count()
        };
        let mut bad = Vec::new();
        for n in 0..300 {
            let mut client = TcpStream::connect(address).unwrap();
            if n % 3 != 0 {
                let _ = write!(client, "GET /metrics HTTP/1.1\r\n");
            }
            if n % 3 == 1 {
                let _ = write!(client, "\r\n");
            }
            bad.push(client);
            // Threads of disconnected clients may still be ending, and other tests have some, too.
            assert!(
                threads() <= server::MAX_CLIENTS + 8,
                "{} threads",
                threads()
            );
        }
        let good = (0..50).find_map(|_| {
            let mut client = TcpStream::connect(address).ok()?;
            write!(client, "GET /metrics HTTP/1.0\r\n\r\n").ok()?;
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).ok()?;
            (answer.len() > 16 << 20).then_some(())
        });
        assert!(good.is_some(), "no client was served");
        // It ends although they are still connected.
        drop(server);
        drop(bad);
    }

    /// A socket at `from` that is connected to `to`.
    fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let client = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&client, &SocketAddr::from((from, 0)))?;
        connect(&client, &to)?;
        Ok(client.into())
    }

    /// One client holds all connections that it can get, and connects again as fast as it can; another asks.
    #[test]
    fn one_client_does_not_keep_another_out() {
        let by_address = |client: &TcpStream| Some(Peer::Address(client.peer_addr().ok()?.ip()));
        let page = "# x\n".repeat(64 << 10);
        let server =
            Server::start_with(ANY, move || Ok(page.clone()), Box::new(by_address)).unwrap();
        let (address, stop) = (server.address(), AtomicBool::new(false));
        let other = Ipv4Addr::new(127, 0, 0, 2);
        let scrape = || -> std::io::Result<usize> {
            let mut client = connect(other, address)?;
            client.write_all(b"GET /metrics HTTP/1.0\r\n")?;
            // Its request comes in two parts, the second after many others have come.
            std::thread::sleep(Duration::from_millis(20));
            client.write_all(b"\r\n")?;
            let mut answer = Vec::new();
            client.read_to_end(&mut answer)
        };
        let served = std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut held = VecDeque::new();
                    while !stop.load(Ordering::Relaxed) {
                        held.extend(connect(Ipv4Addr::LOCALHOST, address));
                        if held.len() > 32 {
                            held.pop_front();
                        }
                    }
                });
            }
            let served: Vec<_> = (0..10).map(|_| scrape().map_err(|e| e.kind())).collect();
            stop.store(true, Ordering::Relaxed);
            served
        });
        let whole = |answer: &Result<usize, _>| matches!(answer, Ok(length) if *length > 256 << 10);
        assert!(served.iter().all(whole), "{served:?}");
    }

    #[test]
    fn a_local_client_is_its_user() {
        let listener = std::net::TcpListener::bind(ANY).unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let peers = peer::Peers::new();
        match peers.of(&ours).unwrap() {
            Peer::User(uid) => assert_eq!(uid, rustix::process::geteuid().as_raw()),
            // The kernel lacks `inet_diag`, or a sandbox refuses.
            unknown => assert_eq!(unknown, Peer::Address(ANY.ip())),
        }
        drop(theirs);
        assert_ne!(
            peers.of(&ours),
            Some(Peer::User(u32::MAX)),
            "it is gone or closing"
        );
    }
}
