//! Points in time, as people read them.

use jiff::Timestamp;

/// How long ago something was, in at most two units: `45s`, `4m12s`, `2h10m`, `3d4h`, `45d`.
pub(super) fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |large: i64, unit: &str, small: i64, below: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{below}"),
    };
    match seconds {
        ..60 => format!("{seconds}s"),
        60..600 => two(minutes, "m", seconds % 60, "s"),
        600..3600 => format!("{minutes}m"),
        3600..86400 => two(hours, "h", minutes % 60, "m"),
        _ if days < 10 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

/// A point in time in UTC, to the second.
pub(super) fn utc(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn an_age_has_at_most_two_units() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 365);
        for (seconds, words) in [
            (-5, "0s"),
            (59, "59s"),
            (60, "1m"),
            (252, "4m12s"),
            (1_500, "25m"),
            (7_800, "2h10m"),
            (273_600, "3d4h"),
            (3_888_000, "45d"),
        ] {
            assert_eq!(ago(now - SignedDuration::from_secs(seconds), now), words);
        }
    }

    #[test]
    fn a_moment_is_in_utc() {
        assert_eq!(utc(Timestamp::UNIX_EPOCH), "1970-01-01 00:00:00Z");
    }
}
