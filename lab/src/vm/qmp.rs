//! QEMU's machine protocol, the one command that the lab needs of it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::error::VmError;
use super::qemu::disk_id;
use crate::spec::Throttle;

/// A connection, past its greeting.
pub(super) struct Qmp {
    lines: BufReader<UnixStream>,
}

impl Qmp {
    /// Reads QEMU's greeting and enters command mode.
    pub(super) fn new(stream: UnixStream) -> Result<Self, VmError> {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut qmp = Self {
            lines: BufReader::new(stream),
        };
        qmp.line()?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Sets how fast a disk is, at once.
    pub(super) fn throttle(&mut self, disk: usize, throttle: Throttle) -> Result<(), VmError> {
        self.execute(
            "block_set_io_throttle",
            &json!({
                // The PCI device is a shell around the one that has the throttle.
                "id": format!("/machine/peripheral/{}/virtio-backend", disk_id(disk)),
                "bps": throttle.bytes_per_second, "bps_rd": 0, "bps_wr": 0,
                "iops": throttle.requests_per_second, "iops_rd": 0, "iops_wr": 0,
            }),
        )
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Result<(), VmError> {
        let mut line = serde_json::to_vec(&json!({ "execute": command, "arguments": arguments }))?;
        line.push(b'\n');
        self.lines.get_mut().write_all(&line)?;
        loop {
            let answer = self.line()?;
            if answer.get("return").is_some() {
                return Ok(());
            }
            // Anything else is an event, which may come at any time.
            if let Some(error) = answer.get("error") {
                return Err(VmError::Guest(format!("QEMU refused {command}: {error}")));
            }
        }
    }

    fn line(&mut self) -> Result<Value, VmError> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}
