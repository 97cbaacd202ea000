//! OpenMetrics over HTTP: `GET /metrics`, nothing else.
//!
//! Any client that reaches the address is served, every local user for instance. So everything is bounded: the number of
//! clients, the size of a request, the time that it may take, and how often the page is made.

#![deny(unsafe_code)]
#![deny(clippy::indexing_slicing)]

mod client;
mod page;
mod server;

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
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    fn get(address: SocketAddr, path: &str) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        write!(client, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
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
}
