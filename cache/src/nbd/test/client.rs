//! A small NBD client that can also misbehave.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::nbd::proto::{OPTION_MAGIC, option};

pub(crate) struct Client {
    pub stream: UnixStream,
    pub extended: bool,
}

/// A reply: the error number, the data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

impl Client {
    /// Connected, and nothing said yet.
    pub(crate) fn silent(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        Self {
            stream,
            extended: false,
        }
    }

    /// In the transmission phase of `export`, with simple replies or extended headers.
    pub(crate) fn new(socket: &Path, export: &str, extended: bool) -> Self {
        let mut c = Self::silent(socket);
        c.take(18);
        c.stream.write_all(&[0, 0, 0, 3]).unwrap();
        if extended {
            c.option(option::EXTENDED_HEADERS, &[]);
            c.take(20);
            c.extended = true;
        }
        c.option(option::EXPORT_NAME, export.as_bytes());
        c.take(10);
        c
    }

    pub(crate) fn option(&mut self, kind: u32, data: &[u8]) {
        let mut m = OPTION_MAGIC.to_be_bytes().to_vec();
        m.extend(kind.to_be_bytes());
        m.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        m.extend(data);
        self.stream.write_all(&m).unwrap();
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut buf = vec![0; count];
        self.stream.read_exact(&mut buf).unwrap();
        buf
    }

    pub(crate) fn send(
        &mut self,
        kind: u16,
        flags: u16,
        cookie: u64,
        offset: u64,
        data: &[u8],
        length: u32,
    ) {
        self.try_send(kind, flags, cookie, offset, data, length)
            .unwrap();
    }

    pub(crate) fn try_send(
        &mut self,
        kind: u16,
        flags: u16,
        cookie: u64,
        offset: u64,
        data: &[u8],
        length: u32,
    ) -> io::Result<()> {
        let mut m = Vec::new();
        if self.extended {
            let payload = if kind == 1 { 32 } else { 0 };
            m.extend(0x21e4_1c71_u32.to_be_bytes());
            m.extend((flags | payload).to_be_bytes());
        } else {
            m.extend(0x2560_9513_u32.to_be_bytes());
            m.extend(flags.to_be_bytes());
        }
        m.extend(kind.to_be_bytes());
        m.extend(cookie.to_be_bytes());
        m.extend(offset.to_be_bytes());
        if self.extended {
            m.extend(u64::from(length).to_be_bytes());
        } else {
            m.extend(length.to_be_bytes());
        }
        m.extend(data);
        self.stream.write_all(&m)
    }

    /// The next reply; `data` bytes of it if it is the simple, successful reply to a READ of that size.
    pub(crate) fn reply(&mut self, data: usize) -> Reply {
        if self.extended {
            let head = self.take(32);
            assert_eq!(head[..4], 0x6e8a_278c_u32.to_be_bytes());
            let kind = u16::from_be_bytes([head[6], head[7]]);
            let size = u64::from_be_bytes(head[24..].try_into().unwrap());
            let body = self.take(usize::try_from(size).unwrap());
            let error = if kind == 0x8001 {
                u32::from_be_bytes(body[..4].try_into().unwrap())
            } else {
                0
            };
            return Reply {
                cookie: u64::from_be_bytes(head[8..16].try_into().unwrap()),
                error,
                data: if kind == 1 {
                    body[8..].to_vec()
                } else {
                    Vec::new()
                },
            };
        }
        let head = self.take(16);
        assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes());
        let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
        Reply {
            cookie: u64::from_be_bytes(head[8..].try_into().unwrap()),
            error,
            data: if error == 0 {
                self.take(data)
            } else {
                Vec::new()
            },
        }
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Reply {
        self.send(0, 0, 7, offset, &[], length);
        self.reply(usize::try_from(length).unwrap())
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Reply {
        let length = u32::try_from(data.len()).unwrap();
        self.send(1, flags, 8, offset, data, length);
        self.reply(0)
    }

    /// Whether the server has hung up.
    pub(crate) fn closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }
}
