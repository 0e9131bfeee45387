//! Which of two positions counts.

use super::*;
use rstest::rstest;

fn fence(term: i64, owner: &str) -> Fence {
    Fence {
        range: 5,
        owner: owner.to_owned(),
        term,
    }
}

fn here(term: i64, seq: i64) -> Standing {
    Standing {
        origin: "7/16384/16400".to_owned(),
        predecessors: Vec::new(),
        stored: Stored {
            term,
            seq,
            position: Position::At(Snapshot::nothing()),
            system_identifier: 7,
            native: true,
        },
    }
}

fn logged(term: i64, seq: i64, owner: &str) -> Logged {
    let origin = ("7/16384/16400", "00000001");
    Logged::new(
        &fence(term, owner),
        seq,
        &Position::At(Snapshot::new("9:9:")),
        origin,
        Vec::new(),
    )
}

#[rstest]
// The owner before wrote more than it told the database.
#[case(logged(3, 8, "a"), here(3, 5), true)]
#[case(logged(3, 5, "a"), here(3, 5), false)]
#[case(logged(2, 9, "a"), here(3, 0), false)]
// Of its own term an owner knows what it wrote itself.
#[case(logged(4, 2, "me"), here(4, 1), true)]
#[case(logged(4, 2, "a"), here(3, 5), false)]
// The database knows nothing of this term: it was set back.
#[case(logged(6, 1, "a"), here(3, 5), false)]
fn the_further_one_counts(#[case] logged: Logged, #[case] here: Standing, #[case] ahead: bool) {
    assert_eq!(logged.is_ahead(&fence(4, "me"), "00000001", &here), ahead);
}

#[test]
fn of_another_history_none_counts() {
    let ahead = logged(3, 8, "a");
    let me = fence(4, "me");
    assert!(ahead.is_ahead(&me, "00000001", &here(3, 5)));
    assert!(!ahead.is_ahead(&me, "00000002", &here(3, 5)));
    let mut elsewhere = here(3, 5);
    elsewhere.origin = "7/16385/16400".to_owned();
    assert!(!ahead.is_ahead(&me, "00000001", &elsewhere));
}

#[test]
fn a_position_is_read_as_it_was_written() {
    let inside = Position::Inside {
        old: Snapshot::new("5:9:6"),
        new: Snapshot::new("12:12:"),
        last_id: 77,
    };
    for position in [Position::At(Snapshot::new("5:9:6")), inside] {
        let origin = ("7/1/2", "00000001");
        let written = Logged::new(&fence(3, "a"), 8, &position, origin, vec![1, 2]);
        let json = serde_json::to_vec(&written).unwrap();
        let read: Logged = serde_json::from_slice(&json).unwrap();
        assert_eq!(read, written);
        assert_eq!(read.position(), position);
    }
}
