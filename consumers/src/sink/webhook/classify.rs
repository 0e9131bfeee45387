//! The one place that says what an endpoint's answer means.

use crate::verdict::{Failure, Verdict};
use std::time::{Duration, SystemTime};

/// Attempts for answers that say the request itself is wrong.
const FEW: u32 = 3;
/// Longest pause an endpoint can ask for.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A status, with the value of `Retry-After`.
    Status {
        status: u16,
        retry_after: Option<String>,
    },
    /// No status.
    Nothing(Nothing),
}

/// Why there was no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nothing {
    Timeout,
    Dns,
    Connect,
    Tls,
    Broken,
    /// The address guard refused the address.
    Refused,
}

/// The verdict on `answer` at `now`. `final_statuses` are those that the subscription takes as an event's refusal.
pub(super) fn classify(answer: &Answer, final_statuses: &[u16], now: SystemTime) -> Verdict {
    let retry = |reason| Verdict::Retry {
        reason,
        at_most: None,
    };
    match answer {
        Answer::Nothing(Nothing::Refused) => Verdict::Refused,
        Answer::Nothing(Nothing::Timeout) => retry(Failure::Timeout),
        Answer::Nothing(Nothing::Dns) => retry(Failure::Dns),
        Answer::Nothing(Nothing::Connect) => retry(Failure::Connect),
        Answer::Nothing(Nothing::Tls) => retry(Failure::Tls),
        Answer::Nothing(Nothing::Broken) => retry(Failure::Broken),
        Answer::Status {
            status,
            retry_after,
        } => {
            let reason = Failure::Status(*status);
            match status {
                200..=299 => Verdict::Delivered,
                status if final_statuses.contains(status) => Verdict::Reject(reason),
                410 => Verdict::Gone,
                400 | 401 | 403 | 405 | 413 | 415 | 422 => Verdict::Retry {
                    reason,
                    at_most: Some(FEW),
                },
                429 | 503 => retry_after
                    .as_deref()
                    .and_then(|value| pause(value, now))
                    .map_or_else(|| retry(reason), |after| Verdict::Pause { reason, after }),
                _ => retry(reason),
            }
        }
    }
}

/// `Retry-After` in seconds or as a date; nothing when it is neither, zero or past.
fn pause(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let after = if digits {
        // More digits than fit are a long time.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        httpdate::parse_http_date(value)
            .ok()?
            .duration_since(now)
            .ok()?
    };
    (!after.is_zero()).then(|| after.min(LONGEST_PAUSE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn now() -> SystemTime {
        httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap()
    }

    fn verdict(status: u16, retry_after: Option<&str>) -> Verdict {
        let answer = Answer::Status {
            status,
            retry_after: retry_after.map(str::to_owned),
        };
        classify(&answer, &[], now())
    }

    #[test]
    fn a_subscription_says_which_statuses_refuse_an_event_for_good() {
        let chosen = [400, 404, 410, 429, 500, 200];
        for status in 100..=599 {
            let answer = Answer::Status {
                status,
                retry_after: Some("5".to_owned()),
            };
            let expected = if chosen.contains(&status) && status != 200 {
                Verdict::Reject(Failure::Status(status))
            } else {
                verdict(status, Some("5"))
            };
            assert_eq!(classify(&answer, &chosen, now()), expected, "{status}");
        }
    }

    fn retry(status: u16, at_most: Option<u32>) -> Verdict {
        Verdict::Retry {
            reason: Failure::Status(status),
            at_most,
        }
    }

    #[test]
    fn every_status_has_its_verdict() {
        for status in 100..=599 {
            let expected = match status {
                200..=299 => Verdict::Delivered,
                410 => Verdict::Gone,
                400 | 401 | 403 | 405 | 413 | 415 | 422 => retry(status, Some(3)),
                _ => retry(status, None),
            };
            assert_eq!(verdict(status, None), expected, "{status}");
        }
    }

    #[rstest]
    #[case("7", Some(7))]
    #[case(" 7 ", Some(7))]
    #[case("3600", Some(3600))]
    #[case("3601", Some(3600))]
    #[case("99999999999999999999999999", Some(3600))]
    #[case("Sun, 06 Nov 1994 08:50:37 GMT", Some(60))]
    #[case("Sunday, 06-Nov-94 08:50:37 GMT", Some(60))]
    #[case("Sun Nov  6 08:50:37 1994", Some(60))]
    #[case("Mon, 07 Nov 1994 08:49:37 GMT", Some(3600))]
    #[case("Sun, 06 Nov 1994 08:49:37 GMT", None)]
    #[case("Sat, 05 Nov 1994 08:49:37 GMT", None)]
    #[case("0", None)]
    #[case("-5", None)]
    #[case("+5", None)]
    #[case("1.5", None)]
    #[case("", None)]
    #[case("soon", None)]
    fn retry_after_is_obeyed_in_both_forms(#[case] value: &str, #[case] seconds: Option<u64>) {
        for status in [429, 503] {
            let expected = seconds.map_or_else(
                || retry(status, None),
                |seconds| Verdict::Pause {
                    reason: Failure::Status(status),
                    after: Duration::from_secs(seconds),
                },
            );
            assert_eq!(verdict(status, Some(value)), expected, "{value}");
        }
    }

    #[test]
    fn retry_after_means_nothing_on_other_answers() {
        assert_eq!(verdict(200, Some("5")), Verdict::Delivered);
        assert_eq!(verdict(500, Some("5")), retry(500, None));
        assert_eq!(verdict(302, Some("5")), retry(302, None));
    }

    #[test]
    fn no_answer_is_retried_unless_the_guard_refused() {
        for (nothing, reason) in [
            (Nothing::Timeout, Failure::Timeout),
            (Nothing::Dns, Failure::Dns),
            (Nothing::Connect, Failure::Connect),
            (Nothing::Tls, Failure::Tls),
            (Nothing::Broken, Failure::Broken),
        ] {
            let expected = Verdict::Retry {
                reason,
                at_most: None,
            };
            assert_eq!(classify(&Answer::Nothing(nothing), &[], now()), expected);
        }
        let refused = Answer::Nothing(Nothing::Refused);
        assert_eq!(classify(&refused, &[], now()), Verdict::Refused);
    }

    proptest! {
        #[test]
        fn any_retry_after_gives_a_bounded_pause_or_none(value in ".{0,40}") {
            if let Some(after) = pause(&value, now()) {
                prop_assert!(after <= LONGEST_PAUSE && !after.is_zero());
            }
        }
    }
}
