use super::*;
use crate::claim::columns::Columns;
use crate::sql::Table;
use fanout_contract::relay::ColumnMatch;
use rstest::rstest;

fn outbox(claim: Claim, columns: &[&str]) -> Outbox {
    let types = [("id".to_owned(), "int8".to_owned())].into();
    Outbox {
        table: Table::parse("public.outbox").unwrap(),
        matches: columns
            .iter()
            .map(|column| ColumnMatch {
                column: (*column).to_owned(),
                value: "x".to_owned(),
            })
            .collect(),
        claim,
        columns: Columns::new(None, String::new(), types),
    }
}

fn index(columns: &[&str]) -> Index {
    Index {
        valid: true,
        unique: false,
        predicate: String::new(),
        method: "btree".to_owned(),
        columns: columns.iter().map(|column| (*column).to_owned()).collect(),
    }
}

#[rstest]
#[case::as_in_the_manifest(&["topic"], &["topic", "xid", "shard"], true)]
#[case::whole_table(&[], &["xid", "shard"], true)]
#[case::any_order_of_the_match(&["topic", "tenant"], &["tenant", "topic", "xid", "shard"], true)]
#[case::more_columns(&["topic"], &["topic", "xid", "shard", "id"], true)]
#[case::shard_before_xid(&["topic"], &["topic", "shard", "xid"], false)]
#[case::another_column_between(&["topic"], &["topic", "id", "xid", "shard"], false)]
#[case::match_column_missing(&["topic"], &["xid", "shard"], false)]
#[case::too_short(&["topic"], &["topic"], false)]
fn an_index_serves_when_it_begins_with_match_then_xid_then_shard(
    #[case] matches: &[&str],
    #[case] columns: &[&str],
    #[case] serves: bool,
) {
    let found = judge(&outbox(Claim::Snapshot, matches), &[index(columns)]);
    assert_eq!(found.is_ok(), serves, "{found:?}");
}

#[test]
fn an_invalid_index_is_told_from_a_missing_one() {
    let mut broken = index(&["topic", "xid", "shard"]);
    broken.valid = false;
    let outbox = outbox(Claim::Snapshot, &["topic"]);
    assert!(
        judge(&outbox, &[broken.clone()])
            .unwrap_err()
            .contains("reindex")
    );
    assert!(judge(&outbox, &[broken, index(&["topic", "xid", "shard"])]).is_ok());
    assert!(judge(&outbox, &[]).unwrap_err().contains("create index"));
}

#[test]
fn lease_wants_partial_indexes_of_the_unfinished() {
    let outbox = outbox(Claim::Lease, &["topic"]);
    let mut unique = index(&["id"]);
    unique.unique = true;
    let mut pending = index(&["topic", "id", "shard"]);
    let mut processing = index(&["topic", "lease_expires"]);
    let whole = [unique.clone(), pending.clone(), processing.clone()];
    assert!(
        judge(&outbox, &whole)
            .unwrap_err()
            .contains("where status = 'pending'")
    );
    pending.predicate = "(status = 'pending'::text)".to_owned();
    processing.predicate = "(status <> 'done'::text)".to_owned();
    assert_eq!(
        judge(&outbox, &[unique, pending.clone(), processing.clone()]),
        Ok(())
    );
    let missing = judge(&outbox, &[pending, processing]).unwrap_err();
    assert!(missing.contains("create unique index"), "{missing}");
}
