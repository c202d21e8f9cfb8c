//! The function `strftime_now` of templates.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::tz::TimeZone;

/// `now` (UTC) in the notation of C's `strftime`, in its POSIX locale.
pub(super) fn strftime(format: &str, now: Timestamp) -> Result<String, String> {
    let posix = Config::new().custom(PosixCustom::new());
    BrokenDownTime::from(&now.to_zoned(TimeZone::UTC))
        .to_string_with_config(&posix, format)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_date_dash_u() {
        // From `LC_ALL=C date -u -d @SECONDS +FORMAT`.
        const FULL: &str = "%A %d %B %Y %j %H:%M:%S %I%p";
        const SHORT: &str = "%a %e %b %y, %m %F %T %Z %%";
        for (seconds, format, expected) in [
            (0, FULL, "Thursday 01 January 1970 001 00:00:00 12AM"),
            (0, SHORT, "Thu  1 Jan 70, 01 1970-01-01 00:00:00 UTC %"),
            (951_782_399, SHORT, "Mon 28 Feb 00, 02 2000-02-28 23:59:59 UTC %"),
            (951_782_400, FULL, "Tuesday 29 February 2000 060 00:00:00 12AM"),
            (1_709_164_800, "%d %b %Y, %a %e %%", "29 Feb 2024, Thu 29 %"),
            (1_735_646_399, FULL, "Tuesday 31 December 2024 366 11:59:59 11AM"),
            (1_735_689_599, SHORT, "Tue 31 Dec 24, 12 2024-12-31 23:59:59 UTC %"),
            (
                1_735_646_400,
                "%c | %x | %X | %r",
                "Tue Dec 31 12:00:00 2024 | 12/31/24 | 12:00:00 | 12:00:00 PM",
            ),
            (1_735_646_400, "%-d.%-m., %I %p", "31.12., 12 PM"),
            (4_107_542_400, FULL, "Monday 01 March 2100 060 00:00:00 12AM"),
        ] {
            let now = Timestamp::from_second(seconds).unwrap();
            assert_eq!(strftime(format, now).unwrap(), expected);
        }
        assert!(strftime("%!", Timestamp::UNIX_EPOCH).is_err());
        assert!(strftime("%", Timestamp::UNIX_EPOCH).is_err());
    }
}
