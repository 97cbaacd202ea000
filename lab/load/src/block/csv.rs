//! Traces whose lines are fields with commas between.

use super::line::{Line, SECTOR, request, seconds};

/// A line of MSR Cambridge's: `128166372003061629,usr,0,Write,8192,4096,1331`.
pub(super) fn msr(line: &str) -> Result<Line, String> {
    let mut fields = line.split(',').map(str::trim);
    let mut next = || fields.next().unwrap_or_default();
    let time: u64 = next()
        .parse()
        .map_err(|_| "a time in units of 100 ns".to_owned())?;
    let (_host, _disk) = (next(), next());
    let write = match next() {
        "Read" | "read" => false,
        "Write" | "write" => true,
        _ => return Err("Read or Write in the fourth field".to_owned()),
    };
    let offset: u64 = number(next(), "an offset in bytes in the fifth field")?;
    let bytes: u64 = number(next(), "a size in bytes in the sixth field")?;
    // Since 1601: nanoseconds fit until the year 2185.
    request(time.saturating_mul(100), write, Some(offset), Some(bytes))
}

/// A line of SPC's: `0,20941264,8192,W,0.551706`; more fields may follow.
pub(super) fn spc(line: &str) -> Result<Line, String> {
    let mut fields = line.split(',').map(str::trim);
    let mut next = || fields.next().unwrap_or_default();
    let _unit = next();
    let block: u64 = number(next(), "a first 512-byte block in the second field")?;
    let bytes: u64 = number(next(), "a size in bytes in the third field")?;
    let write = match next() {
        "R" | "r" => false,
        "W" | "w" => true,
        _ => return Err("R or W in the fourth field".to_owned()),
    };
    let at = seconds(next()).ok_or("a time in seconds in the fifth field")?;
    request(at, write, block.checked_mul(SECTOR), Some(bytes))
}

/// A line of `CloudPhysics`': `1,5633898,2a,512,42932745`; the first line may name the columns.
pub(super) fn cloudphysics(line: &str, first: bool) -> Result<Line, String> {
    if first && line.starts_with("version,") {
        return Ok(Line::Other);
    }
    let mut fields = line.split(',').map(str::trim);
    let mut next = || fields.next().unwrap_or_default();
    let _version = next();
    let at = seconds(next()).ok_or("a time in seconds in the second field")?;
    let operation = u8::from_str_radix(next(), 16)
        .map_err(|_| "a SCSI operation in hexadecimal in the third field".to_owned())?;
    let bytes: u64 = number(next(), "a size in bytes in the fourth field")?;
    let block: u64 = number(next(), "a first 512-byte block in the fifth field")?;
    // READ and WRITE of 6, 10, 12 and 16 bytes.
    let write = match operation {
        0x08 | 0x28 | 0xa8 | 0x88 => false,
        0x0a | 0x2a | 0xaa | 0x8a => true,
        _ => return Ok(Line::Other),
    };
    request(at, write, block.checked_mul(SECTOR), Some(bytes))
}

fn number(text: &str, expected: &str) -> Result<u64, String> {
    text.parse().map_err(|_| expected.to_owned())
}
