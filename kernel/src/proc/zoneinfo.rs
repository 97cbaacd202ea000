//! `/proc/zoneinfo`.

use crate::parse::{self, ParseError, Parsed};

/// One zone's free pages and watermarks, in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// The NUMA node.
    pub node: u64,
    /// `DMA`, `Normal` …
    pub name: String,
    /// Free now.
    pub free: u64,
    /// Below it allocations reclaim for themselves.
    pub min: u64,
    /// Below it kswapd is woken.
    pub low: u64,
    /// Up to it kswapd reclaims.
    pub high: u64,
    /// Managed by the allocator.
    pub managed: u64,
    /// Kept free beyond the watermarks from allocations that could be served by a higher zone: the largest number of
    /// `protection` (`vm.lowmem_reserve_ratio`).
    pub reserve: u64,
}

impl Zone {
    /// With fewer free pages than this the zone does not keep kswapd asleep: its low watermark beyond the reserve.
    const fn low_mark(&self) -> u64 {
        self.low.saturating_add(self.reserve)
    }
}

/// The free pages of all zones together at which kswapd wakes, and at which it sleeps again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Below it kswapd is woken.
    pub low: u64,
    /// Up to it kswapd reclaims.
    pub high: u64,
}

/// All zones that hold memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zoneinfo {
    /// In the file's order; zones without memory are left out.
    pub zones: Vec<Zone>,
}

/// More zones than any machine has (1,024 nodes of 6).
const MAX_ZONES: usize = 8192;

impl Zoneinfo {
    /// Reads `Node 0, zone   Normal`, then `pages free`, `min`, `low`, `high`, `managed` and `protection`; other
    /// lines are passed over.
    ///
    /// # Errors
    /// When a zone's values are missing or no numbers, or there is no zone with memory.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        let mut zones = Vec::new();
        let mut current: Option<Partial> = None;
        for (number, line) in parse::lines(text) {
            let mut words = parse::words(line);
            let (first, second, third) = (words.next(), words.next(), words.next());
            if first == Some(b"Node") && third == Some(b"zone") {
                finish(&mut zones, current.take())?;
                current = Some(Partial::start(number, line, second, words.next())?);
                continue;
            }
            let Some(zone) = current.as_mut() else {
                continue;
            };
            if first == Some(b"protection:") {
                zone.reserve = reserve(number, line)?;
                continue;
            }
            let (field, value) = match (first, second, third) {
                (Some(b"pages"), Some(b"free"), value) => (&mut zone.free, value),
                (Some(b"min"), value, None) => (&mut zone.min, value),
                (Some(b"low"), value, None) => (&mut zone.low, value),
                (Some(b"high"), value, None) => (&mut zone.high, value),
                (Some(b"managed"), value, None) => (&mut zone.managed, value),
                _ => continue,
            };
            // Each is printed once before the lists of the per-CPU page sets, which use the same
            // words with a colon.
            *field = Some(
                value
                    .and_then(parse::number)
                    .ok_or_else(|| ParseError::new(number, "a number of pages", line))?,
            );
        }
        finish(&mut zones, current)?;
        if zones.is_empty() {
            return Err(ParseError::new(1, "a zone that has memory", text));
        }
        Ok(Self { zones })
    }

    /// The marks of kswapd. An allocation takes from the next zone before it wakes kswapd, so it is enough that one zone has
    /// more than its low watermark and reserve: what all zones have free below these is of no use, and what is missing is
    /// what the zone that is nearest to its mark lacks. Zones that lie within their reserve as a whole, such as `DMA` on
    /// large machines, are never above it.
    #[must_use]
    pub fn marks(&self) -> Marks {
        let useless = self.zones.iter().map(|zone| zone.free.min(zone.low_mark()));
        let usual = || {
            self.zones
                .iter()
                .filter(|zone| zone.low_mark() < zone.managed)
        };
        let missing = usual()
            .map(|zone| zone.low_mark().saturating_sub(zone.free))
            .min();
        let low = useless.fold(missing.unwrap_or(0), u64::saturating_add);
        let gaps = usual().map(|zone| zone.high.saturating_sub(zone.low));
        let high = gaps.fold(low, u64::saturating_add);
        Marks { low, high }
    }
}

/// The largest number of a line `protection: (0, 2991, 2991)`.
fn reserve(number: usize, line: &[u8]) -> Parsed<u64> {
    let wrong = || ParseError::new(number, "`protection: (NUMBER, ...)`", line);
    let mut largest = 0;
    for word in parse::words(line).skip(1) {
        let digits = word.strip_prefix(b"(").unwrap_or(word);
        let digits = digits.strip_suffix(b",").unwrap_or(digits);
        let digits = digits.strip_suffix(b")").unwrap_or(digits);
        largest = largest.max(parse::number(digits).ok_or_else(wrong)?);
    }
    Ok(largest)
}

/// A zone whose lines are being read.
struct Partial {
    line: usize,
    node: u64,
    name: String,
    free: Option<u64>,
    min: Option<u64>,
    low: Option<u64>,
    high: Option<u64>,
    managed: Option<u64>,
    reserve: u64,
}

impl Partial {
    fn start(line: usize, text: &[u8], node: Option<&[u8]>, name: Option<&[u8]>) -> Parsed<Self> {
        let wrong = || ParseError::new(line, "`Node NUMBER, zone NAME`", text);
        let node = node.and_then(|word| word.strip_suffix(b","));
        let name =
            name.filter(|name| name.len() <= 16 && name.iter().all(u8::is_ascii_alphanumeric));
        Ok(Self {
            line,
            node: node.and_then(parse::number).ok_or_else(wrong)?,
            name: String::from_utf8_lossy(name.ok_or_else(wrong)?).into_owned(),
            free: None,
            min: None,
            low: None,
            high: None,
            managed: None,
            reserve: 0,
        })
    }
}

/// Adds a zone that has memory.
fn finish(zones: &mut Vec<Zone>, partial: Option<Partial>) -> Parsed<()> {
    let Some(partial) = partial else {
        return Ok(());
    };
    let value = |value: Option<u64>| {
        value.ok_or_else(|| {
            const EXPECTED: &str = "pages free, min, low, high and managed of the zone";
            ParseError::new(partial.line, EXPECTED, partial.name.as_bytes())
        })
    };
    let zone = Zone {
        node: partial.node,
        free: value(partial.free)?,
        min: value(partial.min)?,
        low: value(partial.low)?,
        high: value(partial.high)?,
        managed: value(partial.managed)?,
        reserve: partial.reserve,
        name: partial.name,
    };
    if zone.managed > 0 {
        if zones.len() >= MAX_ZONES {
            return Err(ParseError::new(
                partial.line,
                "at most 8192 zones",
                zone.name.as_bytes(),
            ));
        }
        zones.push(zone);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 1
  pages free     10
        boost    0
        min      1
        low      2
        high     3
        spanned  4095
        present  3998
        managed  3840
        protection: (0, 1, 2)
  pagesets
    cpu: 0
              count:    0
              high:     0
              batch:    1
Node 0, zone   Normal
  pages free     20
        min      4
        low      5
        high     6
        managed  7
Node 0, zone  Movable
  pages free     0
        min      32
        low      32
        high     32
        managed  0
";

    #[test]
    fn zones_with_memory() {
        let info = Zoneinfo::parse(TWO.as_bytes()).unwrap();
        assert_eq!(info.zones.len(), 2);
        assert_eq!(info.zones[1].name, "Normal");
        let reserves: Vec<u64> = info.zones.iter().map(|zone| zone.reserve).collect();
        assert_eq!(reserves, [2, 0]);
    }

    #[test]
    fn kswapd_sleeps_while_one_zone_has_more_than_its_mark() {
        let zone = |free, low, managed, reserve| Zone {
            free,
            low,
            high: low + 5,
            managed,
            reserve,
            ..Zone::default()
        };
        let marks = |zones: &[Zone]| {
            let zones = zones.to_vec();
            let Marks { low, high } = Zoneinfo { zones }.marks();
            (low, high)
        };
        // Without a reserve it is the sum of the watermarks.
        let two = [zone(100, 10, 1000, 0), zone(100, 20, 1000, 0)];
        assert_eq!(marks(&two), (30, 40));
        // DMA lies within its reserve: its free pages count for nothing. DMA32 has 50 above its reserve.
        let dma = zone(300, 3, 384, 9000);
        let above = [dma.clone(), zone(550, 10, 4000, 490), zone(20, 20, 4000, 0)];
        assert_eq!(marks(&above), (820, 830));
        // No zone is above its mark: Normal lacks 5, DMA32 lacks 100.
        let below = [dma, zone(400, 10, 4000, 490), zone(15, 20, 4000, 0)];
        assert_eq!(marks(&below).0, 720);
        // A zone that is used up.
        assert_eq!(marks(&[zone(0, 20, 4000, 0)]), (20, 25));
    }

    #[test]
    fn wrong_zones_are_refused() {
        for bad in [
            "",
            "Node 0, zone Movable\n pages free 0\n min 0\n low 0\n high 0\n managed 0\n",
            "Node 0, zone Normal\n pages free 0\n min 0\n low 0\n high 0\n",
            "Node x, zone Normal\n",
            "Node 0, zone\n",
            "Node 0, zone Nä\n",
            "Node 0, zone Normal\n pages free -1\n",
            "Node 0, zone Normal\n protection: (0, x)\n",
        ] {
            assert!(Zoneinfo::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
