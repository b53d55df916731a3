//! A database with the tables of an older version.

use std::fs;

use covey_tests::program::{covey, run, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server};

use super::publish::LIMIT;

/// The tables as the first version made them.
const FIRST: &str = include_str!("../../../crates/engines/tests/data/schema_1.sql");

#[test]
fn an_older_database_is_refused_and_upgraded() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 1);
    fs::write(shared.path(0, "file"), "kept").unwrap();
    shared.nodes[0].unmount();
    let join = &FIRST[FIRST.find("create function covey_join_1").unwrap()..];
    shared.server.sql("drop function covey_join_2; alter table covey_session drop column program");
    shared.server.script_in("covey", join);
    shared.server.sql("update covey_schema set version = 1");
    let advice = format!("run: covey upgrade '{}'", shared.address);
    let refused = shared.nodes[0].try_mount(&[]).unwrap_err();
    assert!(refused.contains("has tables of version 1") && refused.contains(&advice), "{refused}");
    for args in [["doctor", &shared.address], ["sessions", &shared.address], ["fsck", &shared.address]] {
        let done = run(covey().args(args), LIMIT);
        assert!(
            done.code() == 1 && [&done.stdout, &done.stderr].iter().any(|said| said.contains(&advice)),
            "{args:?}: {done:?}"
        );
    }
    let origin = format!("file:{}", shared.folder.path().join("other").display());
    let other = shared.address.replace("volume=work", "volume=other");
    let done = run(covey().args(["format", &other, "--origin", &origin]), LIMIT);
    assert!(done.code() == 1 && done.stderr.contains("run: covey upgrade"), "{done:?}");
    let upgrade = || run_ok(covey().args(["upgrade", "--json", &shared.address]), LIMIT).json();
    assert_eq!(upgrade(), serde_json::json!({"from": "1", "to": "3"}));
    assert_eq!(upgrade(), serde_json::json!({"from": "3", "to": "3"}));
    shared.nodes[0].mount();
    assert_eq!(fs::read_to_string(shared.path(0, "file")).unwrap(), "kept");
    let rows = run_ok(covey().args(["sessions", "--json", &shared.address]), LIMIT).json();
    assert_eq!(rows[0]["program"], env!("CARGO_PKG_VERSION"), "{rows}");
}
