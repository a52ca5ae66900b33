//! Sizes on a command line: `4096`, `64KiB`, `1GiB`. What they mean is the space's business.

/// Parses a size; for clap's `value_parser`.
pub fn size(text: &str) -> Result<u64, String> {
    forebay_space::parse_bytes(text).map_err(|e| e.message().to_string())
}
