//! How a range of versions is written for people, in every message and on every screen: `3 to 7`.

use std::ops::Range;

/// Versions in words, the end of the range excluded as in code: `3 to 7`, `3` for one, `none`.
pub fn format_versions(versions: Range<u64>) -> String {
    match versions.end.saturating_sub(versions.start) {
        0 => "none".to_owned(),
        1 => versions.start.to_string(),
        _ => format!("{} to {}", versions.start, versions.end - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_version_is_in_the_words() {
        let behind = Range { start: 3, end: 0 };
        assert_eq!([3..8, 3..4, 3..3, behind].map(format_versions), ["3 to 7", "3", "none", "none"]);
        assert_eq!(format_versions(0..u64::MAX), format!("0 to {}", u64::MAX - 1));
    }
}
