use super::*;
use crate::sql::Table;
use fanout_contract::relay::ColumnMatch;
use rstest::rstest;

fn outbox(columns: &[&str]) -> Outbox {
    Outbox {
        table: Table::parse("public.outbox").unwrap(),
        matches: columns
            .iter()
            .map(|column| ColumnMatch {
                column: (*column).to_owned(),
                value: "x".to_owned(),
            })
            .collect(),
    }
}

fn index(columns: &[&str]) -> Index {
    Index {
        valid: true,
        whole: true,
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
    let found = judge_indexes(&outbox(matches), &[index(columns)]);
    assert_eq!(found.is_ok(), serves, "{found:?}");
}

#[test]
fn an_invalid_index_is_told_from_a_missing_one() {
    let mut broken = index(&["topic", "xid", "shard"]);
    broken.valid = false;
    let outbox = outbox(&["topic"]);
    assert!(
        judge_indexes(&outbox, &[broken.clone()])
            .unwrap_err()
            .contains("reindex")
    );
    assert!(judge_indexes(&outbox, &[broken, index(&["topic", "xid", "shard"])]).is_ok());
    assert!(
        judge_indexes(&outbox, &[])
            .unwrap_err()
            .contains("create index")
    );
}
