//! Sizes as text: `512MiB`, `1.5 GiB`, `64KB`, `4096`.
//!
//! Guarantees: reading is exact (no floating point), never overflows silently, and refuses what could mean
//! two things (`64M`). What [`format_bytes`] writes, [`parse_bytes`] reads, to the digits that are shown. Not
//! here: rates and durations.

use forebay_tier::{Error, Kind, Result};

/// Unit suffixes in lower case and their factor. Binary ones have an `i`, decimal ones do not.
const UNITS: &[(&str, u64)] = &[
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

/// Most digits after the point: enough for one byte of a TiB, few enough for 128-bit arithmetic.
const FRACTION_DIGITS_MAX: usize = 12;

/// Reads a size in bytes. A number without a unit is bytes; `KiB MiB GiB TiB` are powers of 1024, `KB MB GB
/// TB` powers of 1000; upper and lower case and one or more blanks before the unit do not matter. A fraction
/// is rounded down to whole bytes.
///
/// # Errors
/// [`Kind::Usage`]: no number, an unknown or ambiguous unit, or more than 2^64 - 1 bytes.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let factor = unit_factor(unit.trim(), text)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.replace('_', "");
    if whole.is_empty() || fraction.len() > FRACTION_DIGITS_MAX || fraction.contains(['.', '_']) {
        return Err(refused(text));
    }
    let whole: u64 = whole.parse().map_err(|_| refused(text))?;
    let mut bytes = u128::from(whole) * u128::from(factor);
    if !fraction.is_empty() {
        let value: u64 = fraction.parse().map_err(|_| refused(text))?;
        bytes += u128::from(value) * u128::from(factor) / 10u128.pow(fraction.len() as u32);
    }
    u64::try_from(bytes).map_err(|_| refused(text).with("largest", u64::MAX))
}

/// The factor of a unit; an empty one is bytes.
fn unit_factor(unit: &str, text: &str) -> Result<u64> {
    let lower = unit.to_ascii_lowercase();
    if lower.is_empty() {
        return Ok(1);
    }
    if let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == lower) {
        return Ok(*factor);
    }
    let error = refused(text);
    Err(match lower.as_str() {
        "k" | "m" | "g" | "t" => {
            let letter = lower.to_ascii_uppercase();
            error.hint(format!("write {letter}iB for a power of 1024 or {letter}B for a power of 1000"))
        }
        _ => error,
    })
}

#[cold]
fn refused(text: &str) -> Error {
    Error::new(Kind::Usage, format!("`{text}` is not a size"))
        .hint("a size is a number of bytes or a number with a unit, as in 4096, 64KiB, 512MiB, 1.5GiB")
}

/// Writes a size for people: `512 B`, `64.0 MiB`, `1.5 GiB`; one digit after the point, rounded to nearest.
pub fn format_bytes(bytes: u64) -> String {
    const NAMES: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut index = ((63 - bytes.leading_zeros()) / 10 - 1) as usize;
    let mut tenths = tenths_of(bytes, index);
    // 1023.96 KiB would show as 1024.0 KiB; the next unit says it better.
    if tenths >= 10 * 1024 && index + 1 < NAMES.len() {
        index += 1;
        tenths = tenths_of(bytes, index);
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, NAMES[index])
}

/// Tenths of the unit 1024^(index + 1), rounded to nearest.
fn tenths_of(bytes: u64, index: usize) -> u64 {
    let unit = 1u128 << (10 * (index + 1));
    ((u128::from(bytes) * 10 + unit / 2) / unit) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_every_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1_000", 1000),
            ("17 B", 17),
            ("64KiB", 64 << 10),
            ("512MiB", 512 << 20),
            ("1GiB", 1 << 30),
            ("2 tib", 2 << 40),
            ("64kb", 64_000),
            ("1.5GiB", 3 << 29),
            ("0.5KB", 500),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn refuses_what_it_cannot_read() {
        let far_too_much = "18446744073709551616";
        for text in
            ["", " ", "MiB", "-1", "1.2.3", "1.MiB.", "12x", "16777216TiB", far_too_much, "1e9", "_", ".5"]
        {
            let error = parse_bytes(text).unwrap_err();
            assert_eq!(error.kind(), Kind::Usage, "{text}");
        }
        let error = parse_bytes("64M").unwrap_err();
        assert!(error.hint_text().unwrap().contains("MiB"), "{error}");
    }

    #[test]
    fn writes_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (64 << 20, "64.0 MiB"),
            (3 << 29, "1.5 GiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_to_the_digit_shown(bytes in 0u64..(1 << 50)) {
            let text = format_bytes(bytes);
            let unit = text.split(' ').nth(1).unwrap();
            let factor = match unit {
                "B" => 1u64,
                "KiB" => 1 << 10,
                "MiB" => 1 << 20,
                "GiB" => 1 << 30,
                _ => 1 << 40,
            };
            prop_assume!(unit != "PiB");
            let read = parse_bytes(&text).unwrap();
            prop_assert!(read.abs_diff(bytes) <= factor / 20 + 1, "{bytes} -> {text} -> {read}");
            prop_assert_eq!(parse_bytes(&bytes.to_string()).unwrap(), bytes);
        }
    }
}
