//! Values as fio writes them: sizes, times, switches, lists. Reading is exact and refuses what fio would misread.

use std::ops::RangeInclusive;

/// What is wrong with a value, in a few words.
pub type Read<T> = std::result::Result<T, String>;

/// A size, or a share of something that is known later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Bytes.
    Bytes(u64),
    /// Per cent.
    Percent(u64),
}

/// What the letters of sizes mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// `k` is this many, 1024 or 1000; `kib` is the other one. (So fio has it.)
    pub kilo: u64,
}

impl Default for Units {
    fn default() -> Units {
        Units { kilo: 1024 }
    }
}

const LETTERS: &str = "kmgtp";

impl Units {
    /// Bytes: a number, and `k`, `m`, `g`, `t` or `p` with an optional `b`, `i` or `ib`.
    pub fn bytes(self, text: &str) -> Read<u64> {
        let (number, unit) = split(text)?;
        let unit = unit.to_ascii_lowercase();
        let mut letters = unit.chars();
        let power = match letters.next() {
            None | Some('b') if unit.len() <= 1 => return Ok(number),
            Some(letter) => LETTERS.find(letter).ok_or_else(|| format!("`{text}` has no unit of sizes"))? + 1,
            None => 0,
        };
        let base = match letters.as_str() {
            "" | "b" | "i" => self.kilo,
            // The other one: the names of the standard, where k is 1000.
            "ib" if self.kilo == 1000 => 1024,
            "ib" => 1000,
            _ => return Err(format!("`{text}` has no unit of sizes")),
        };
        let factor = base.checked_pow(power as u32);
        factor.and_then(|factor| number.checked_mul(factor)).ok_or_else(|| format!("`{text}` is too large"))
    }

    /// Bytes that fit a block.
    pub fn block(self, text: &str) -> Read<u32> {
        let bytes = self.bytes(text)?;
        match u32::try_from(bytes) {
            Ok(bytes @ 1..=0x4000_0000) => Ok(bytes),
            _ => Err(format!("a block has between 1 byte and 1 GiB, not {bytes}")),
        }
    }

    /// Bytes, or per cent.
    pub fn amount(self, text: &str) -> Read<Amount> {
        match text.strip_suffix('%') {
            Some(percent) => whole(percent, 0..=100).map(Amount::Percent),
            None => self.bytes(text).map(Amount::Bytes),
        }
    }
}

/// Digits (or 0x and hexadecimal ones), then the rest.
fn split(text: &str) -> Read<(u64, &str)> {
    let text = text.trim();
    let wrong = || format!("`{text}` is no number");
    if let Some(hex) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).map(|number| (number, "")).map_err(|_| wrong());
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Ok((digits.parse().map_err(|_| wrong())?, rest.trim()))
}

/// A whole number of a range.
pub fn whole(text: &str, range: RangeInclusive<u64>) -> Read<u64> {
    let (number, rest) = split(text)?;
    match rest.is_empty() && range.contains(&number) {
        true => Ok(number),
        false => Err(format!("`{text}` is no whole number from {} to {}", range.start(), range.end())),
    }
}

/// As `whole`, small enough for 32 bits.
pub fn small(text: &str, range: RangeInclusive<u32>) -> Read<u32> {
    let number = whole(text, u64::from(*range.start())..=u64::from(*range.end()))?;
    Ok(u32::try_from(number).expect("in the range"))
}

/// Nanoseconds; a number without a unit counts in `unit_ns`.
pub fn time_ns(text: &str, unit_ns: u64) -> Read<u64> {
    let (number, unit) = split(text)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" => unit_ns,
        "ns" => 1,
        "us" | "usec" => 1_000,
        "ms" | "msec" => 1_000_000,
        "s" | "sec" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3600 * 1_000_000_000,
        "d" => 86_400 * 1_000_000_000,
        _ => return Err(format!("`{text}` has no unit of time (d, h, m, s, ms, us)")),
    };
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` is too long"))
}

/// Yes or no.
pub fn switch(text: &str) -> Read<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("`{text}` is neither 0 nor 1")),
    }
}

/// One value for reads, one for writes: `r`, `r,w` (a third, for trims, is accepted and unused by fio's reads and
/// writes too). An empty place keeps what is there.
pub fn pair<T: Copy>(text: &str, before: [T; 2], read: impl Fn(&str) -> Read<T>) -> Read<[T; 2]> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let one = |part: &str, before: T| if part.is_empty() { Ok(before) } else { read(part) };
    match parts.as_slice() {
        [both] => one(both, before[0]).map(|value| [value, value]),
        [r, w] | [r, w, _] => Ok([one(r, before[0])?, one(w, before[1])?]),
        _ => Err(format!("`{text}` has more than three parts")),
    }
}

/// Numbers and ranges of processors: `0,2-3`.
pub fn processors(text: &str) -> Read<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split([',', ':']).map(str::trim) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |text| whole(text, 0..=1023).map(|n| n as usize);
        let (from, to) = (number(from)?, number(to)?);
        if from > to {
            return Err(format!("`{part}` goes backwards"));
        }
        all.extend(from..=to);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// Bytes of a pattern: `"text"`, `0x…` (in the order written), a number below 256, and these one after another.
pub fn pattern(text: &str) -> Read<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"').ok_or_else(|| format!("`{text}` has an open quotation mark"))?;
            bytes.extend_from_slice(&quoted.as_bytes()[..end]);
            rest = &quoted[end + 1..];
        } else if let Some(hex) = rest.strip_prefix("0x") {
            let end = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
            if end == 0 || end % 2 == 1 {
                return Err(format!("`{text}` has half a byte"));
            }
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
            bytes.extend((0..end).step_by(2).map(byte));
            rest = &hex[end..];
        } else {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let number = rest[..end].parse::<u8>();
            bytes.push(number.map_err(|_| format!("`{text}`: a byte is 0 to 255, 0x00 or \"text\""))?);
            rest = &rest[end..];
        }
    }
    match bytes.len() {
        0 => Err("a pattern has at least one byte".into()),
        1..=512 => Ok(bytes),
        more => Err(format!("a pattern of {more} bytes; at most 512")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_fio_reads_them() {
        // Read off fio 3.33, bs=… with kb_base 1024 and 1000.
        for (text, as_1024, as_1000) in [
            ("4k", 4096, 4000),
            ("4K", 4096, 4000),
            ("4kb", 4096, 4000),
            ("4ki", 4096, 4000),
            ("4kib", 4000, 4096),
            ("4KiB", 4000, 4096),
            ("4000b", 4000, 4000),
            ("4m", 4 << 20, 4_000_000),
            ("0x1000", 4096, 4096),
        ] {
            assert_eq!(Units { kilo: 1024 }.bytes(text), Ok(as_1024), "{text}");
            assert_eq!(Units { kilo: 1000 }.bytes(text), Ok(as_1000), "{text}");
        }
        for wrong in ["", "k", "4x", "4kk", "-4k", "1.5g", "99999999999999p", "4 k b"] {
            assert!(Units::default().bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Units::default().amount("25%"), Ok(Amount::Percent(25)));
        assert!(Units::default().amount("101%").is_err() && Units::default().block("0").is_err());
    }

    #[test]
    fn times_pairs_and_lists() {
        const S: u64 = 1_000_000_000;
        for (text, ns) in [("10", 10 * S), ("10s", 10 * S), ("2m", 120 * S), ("5ms", S / 200), ("7us", 7000)]
        {
            assert_eq!(time_ns(text, S), Ok(ns), "{text}");
        }
        assert!(time_ns("10x", S).is_err() && time_ns("1d2", S).is_err());
        let read = |text: &str| whole(text, 0..=99);
        assert_eq!(pair("4", [1, 2], read), Ok([4, 4]));
        assert_eq!(pair("4,5", [1, 2], read), Ok([4, 5]));
        assert_eq!(pair(",5", [1, 2], read), Ok([1, 5]));
        assert_eq!(pair("4,,6", [1, 2], read), Ok([4, 2]));
        assert!(pair("1,2,3,4", [1, 2], read).is_err());
        assert_eq!(processors("0,2-3"), Ok(vec![0, 2, 3]));
        assert!(processors("3-2").is_err() && processors("x").is_err());
        assert_eq!(pattern("0xdeadBEEF"), Ok(vec![0xde, 0xad, 0xbe, 0xef]));
        assert_eq!(pattern("\"ab\"0x0012"), Ok(vec![b'a', b'b', 0, 0x12,]));
        assert_eq!(pattern("7"), Ok(vec![7]));
        assert!(pattern("0xabc").is_err() && pattern("\"a").is_err() && pattern("").is_err());
        assert!(switch("yes").is_ok_and(|on| on) && switch("2").is_err());
    }
}
