//! How live relays share the ranges of a topic; decisions only.
//!
//! Each relay says every three seconds that it is up, and wants its fair share: the ranges divided by the live relays,
//! rounded up. Who holds more finishes what is in flight on one, stores the position and gives the lease back; who holds
//! less takes what is free. Two that decide at once on old news do no harm: only a lease permits to publish.

use crate::lease::{RangeView, View};

/// What a relay does about its ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Free ranges to try for, best first.
    pub acquire: Vec<i64>,
    /// Own ranges to give back.
    pub release: Vec<i64>,
    /// This relay has less than its share: look again soon.
    pub hungry: bool,
}

/// Decides on `view`; `working` are the ranges this relay works on at the moment.
pub fn decide(view: &View, working: &[i64]) -> Decision {
    let share = view.ranges.len().div_ceil(view.members.max(1));
    let excess = working.len().saturating_sub(share);
    let wanted = share.saturating_sub(working.len());
    // The last ones go, so that every relay agrees on which stay.
    let release: Vec<i64> = view
        .ranges
        .iter()
        .rev()
        .map(|range| range.id)
        .filter(|id| working.contains(id))
        .take(excess)
        .collect();
    let free = |range: &&RangeView| !range.held && !working.contains(&range.id);
    let acquire: Vec<i64> = view
        .ranges
        .iter()
        .filter(free)
        .map(|range| range.id)
        .take(wanted)
        .collect();
    Decision {
        hungry: wanted > 0,
        acquire,
        release,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Shards;
    use crate::position::History;
    use rstest::rstest;

    /// Two ranges; `held` says which have an unexpired lease.
    fn view(members: usize, held: [bool; 2]) -> View {
        let ranges = [(1, 0, held[0]), (2, 32, held[1])]
            .map(|(id, lo, held)| RangeView {
                id,
                shards: Shards { lo, hi: lo + 32 },
                term: 1,
                held,
                mine: false,
            })
            .to_vec();
        View {
            members,
            ranges,
            history: History {
                system_identifier: 1,
                timeline: "00000001".into(),
                incarnation: 1,
            },
        }
    }

    #[rstest]
    #[case::one_relay_takes_all(1, [false, false], &[], &[1, 2], &[])]
    #[case::one_relay_keeps_all(1, [true, true], &[1, 2], &[], &[])]
    #[case::a_second_one_makes_the_first_give(2, [true, true], &[1, 2], &[], &[2])]
    #[case::the_second_one_takes_what_is_free(2, [true, false], &[], &[2], &[])]
    #[case::both_have_their_share(2, [true, true], &[1], &[], &[])]
    #[case::the_other_one_died(1, [true, false], &[1], &[2], &[])]
    #[case::a_third_one_waits(3, [true, true], &[], &[], &[])]
    #[case::a_third_one_steps_in(3, [false, true], &[], &[1], &[])]
    #[case::an_expired_lease_of_a_range_still_draining_is_not_taken_again(1, [false, true], &[1], &[], &[])]
    fn ranges_are_shared(
        #[case] members: usize,
        #[case] held: [bool; 2],
        #[case] working: &[i64],
        #[case] acquire: &[i64],
        #[case] release: &[i64],
    ) {
        let decision = decide(&view(members, held), working);
        assert_eq!(decision.acquire, acquire);
        assert_eq!(decision.release, release);
    }

    #[test]
    fn a_relay_below_its_share_is_hungry() {
        assert!(decide(&view(2, [true, true]), &[]).hungry);
        assert!(!decide(&view(2, [true, true]), &[1]).hungry);
    }
}
