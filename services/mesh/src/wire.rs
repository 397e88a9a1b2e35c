//! Conversions between protobuf well-known types and std time.

use std::time::{Duration, SystemTime};

/// A protobuf duration. Durations beyond what protobuf can hold are cut to its maximum.
pub fn duration(value: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(value).unwrap_or(prost_types::Duration {
        seconds: 315_576_000_000,
        nanos: 0,
    })
}

/// The std duration of a protobuf one; `None` when it is absent or negative.
pub fn std_duration(value: Option<&prost_types::Duration>) -> Option<Duration> {
    value.and_then(|d| Duration::try_from(*d).ok())
}

/// A protobuf timestamp.
pub fn timestamp(value: SystemTime) -> prost_types::Timestamp {
    prost_types::Timestamp::from(value)
}

/// The std time of a protobuf timestamp; `None` when it is absent or out of range.
pub fn system_time(value: Option<&prost_types::Timestamp>) -> Option<SystemTime> {
    value.and_then(|t| SystemTime::try_from(*t).ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn durations_survive_the_round_trip() {
        for value in [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_millis(1500),
        ] {
            assert_eq!(std_duration(Some(&duration(value))), Some(value));
        }
        assert_eq!(std_duration(None), None);
        assert_eq!(
            std_duration(Some(&prost_types::Duration {
                seconds: -1,
                nanos: 0
            })),
            None
        );
        assert_eq!(duration(Duration::MAX).seconds, 315_576_000_000);
    }

    #[test]
    fn timestamps_survive_the_round_trip() {
        let now = SystemTime::now();
        assert_eq!(system_time(Some(&timestamp(now))).unwrap(), now);
        assert_eq!(system_time(None), None);
    }
}
