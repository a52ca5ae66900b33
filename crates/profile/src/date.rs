//! Dates as profiles have them, and as others write the same moment.
//!
//! Guarantees: UTC; years have four digits. What lies behind the last of them is its last second.

use jiff::Timestamp;

/// `2026-03-01T10:20:30Z` of seconds since 1970.
pub fn of_unix(seconds: u64) -> String {
    moment(seconds).to_string()
}

/// Seconds since 1970 in the form that the letters of strftime say.
pub fn formatted(seconds: u64, form: &'static str) -> String {
    moment(seconds).strftime(form).to_string()
}

fn moment(seconds: u64) -> Timestamp {
    let last = Timestamp::MAX.as_second();
    let seconds = i64::try_from(seconds).map_or(last, |s| s.min(last));
    Timestamp::from_second(seconds).expect("1970 to the last second of a calendar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_772_360_430, "2026-03-01T10:20:30Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(of_unix(seconds), text);
        }
        assert!(of_unix(u64::MAX).starts_with("9999-12-3"), "{}", of_unix(u64::MAX));
    }

    #[test]
    fn other_forms_of_a_moment() {
        assert_eq!(formatted(951_782_400, "%Y%m%d-%H%M%S"), "20000229-000000");
        assert_eq!(formatted(1_795_260_600, "%a, %d %b %Y %H:%M:%S GMT"), "Sat, 21 Nov 2026 11:30:00 GMT");
    }
}
