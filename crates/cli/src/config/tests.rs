use clap::CommandFactory;

use super::*;
use crate::Cli;

fn entries(text: &str) -> Result<Vec<Entry>> {
    file::read(Path::new("covey.toml"), text, &Known::of(&Cli::command()))
}

fn config(texts: &[&str]) -> Config {
    let mut config = Config::default();
    for text in texts {
        config.entries.extend(entries(text).unwrap());
    }
    config.entries.sort_by_key(|entry| matches!(entry.section, Section::Volume(_)));
    config
}

#[test]
fn what_is_nearer_wins() {
    let system = "[mount]\ncommit = 9\nreaders = 2\nro = true\n[volume.\"/srv/a\"]\ncommit = 0.5\n";
    let user = "[mount]\ncommit = 7\nwriteback = false\n[volume.\"/srv/b\"]\nro = false\nendpoint = \"http://s3:9000\"\n";
    let config = config(&[system, user]);
    let words = |volume: &str| config.words(Some(Path::new(volume))).join(",");
    assert_eq!(words("/srv/other"), "ro,commit=7,writeback=off");
    assert_eq!(words("/srv/a"), "ro,writeback=off,commit=0.5");
    assert_eq!(words("/srv/b"), "commit=7,writeback=off", "what is false is not said");
    let readers = config.of_volume(None).find(|entry| entry.key == "readers").unwrap();
    assert_eq!((&readers.value, readers.line), (&Value::Text("2".to_owned()), 3));
    assert!(config.of_volume(Some(Path::new("/srv/b"))).any(|entry| entry.key == "endpoint"));
    assert!(config.of_volume(None).all(|entry| entry.key != "endpoint"));
}

#[test]
fn what_is_wrong_is_said_with_its_line_and_the_nearest_key() {
    for (text, line, says) in [
        ("[mount]\n\ncomit = 5\n", 3, "did you mean commit?"),
        ("[mount]\ntransprt = \"uring\"\n", 2, "did you mean transport?"),
        ("[mount]\nzzzzzzzzzzz = 1\n", 2, "known there are: "),
        ("[mount]\nreaders = \"x\"\n", 2, "readers cannot have this value"),
        ("[mount]\ntransport = \"pigeon\"\n", 2, "choose auto, uring or classic"),
        ("[mount]\ncommit = \"5,ro\"\n", 2, "comma"),
        ("[mount]\ncommit = -1\n", 2, "a number of seconds"),
        ("[mount]\nmetrics-public = 1\n", 2, "true or false"),
        ("[log]\nlevel = \"loud\"\n", 2, "one of: error, warn, info, debug"),
        ("[log]\nlevel = [1]\n", 2, "a text, a number, true or false"),
        ("commit = 5\n", 1, "there is no section commit"),
        ("mount = 5\n", 1, "is a section"),
        ("[mount]\ncommit = 5\ncommit = 6\n", 3, "duplicate"),
        ("[mount\n", 1, "line 1"),
        ("[volume.\"/srv/v\"]\nregon = \"x\"\n", 2, "did you mean region?"),
    ] {
        let failure = entries(text).unwrap_err();
        let shown = failure.to_string();
        assert!(
            shown.contains(&format!("covey.toml, line {line}: ")) && shown.contains(says),
            "{text}: {shown}"
        );
        assert!(failure.status == 2 && !failure.next.is_empty(), "{shown}");
    }
}

#[test]
fn a_credential_is_refused_and_not_repeated() {
    for text in [
        "[origin]\nsecret_access_key = \"hush-hush\"\n",
        "[origin]\naccess_key_id = \"hush-hush\"\n",
        "[mount]\n\"session-token\" = \"hush-hush\"\n",
        "[volume.\"/v\"]\npassword = \"hush-hush\"\n",
        "[origin]\nendpoint = \"http://user:hush-hush@host\"\n",
        "[origin]\nendpoint = \"http://host/?sig=hush-hush\"\n",
        "token = \"hush-hush\"\n",
        "[origin]\nendpoint = \"hush-hush\n",
    ] {
        let shown = entries(text).unwrap_err().to_string();
        assert!(!shown.contains("hush"), "{shown}");
        assert!(shown.contains("credential") || text.ends_with("hush-hush\n"), "{shown}");
    }
}

#[test]
fn a_file_gets_beneath_what_is_typed() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("c.toml");
    let text = "[mount]\nreaders = 3\ntransport = \"classic\"\ncommit = 4\nmetrics = \"127.0.0.1:0\"\n[log]\nlevel = \"debug\"\n";
    std::fs::write(&path, text).unwrap();
    let parse = |words: &[&str]| {
        let words: Vec<OsString> = [&["covey", "--config", path.to_str().unwrap()], words]
            .concat()
            .into_iter()
            .map(OsString::from)
            .collect();
        let typed = Cli::command().try_get_matches_from(&words).unwrap();
        let command = beneath(Cli::command(), &words, &typed).unwrap();
        command.map(|command| command.try_get_matches_from(&words).unwrap())
    };
    let matches = parse(&["mount", "--readers", "5", "v", "m"]).unwrap();
    let (_, mount) = matches.subcommand().unwrap();
    assert_eq!(mount.get_one::<usize>("readers"), Some(&5));
    assert_eq!(mount.get_one::<fuse::Transport>("transport"), Some(&fuse::Transport::Classic));
    assert_eq!(mount.get_one::<String>("metrics").unwrap(), "127.0.0.1:0");
    assert_eq!(mount.get_one::<String>(crate::args::CONFIGURED).unwrap(), "commit=4");
    assert_eq!(mount.get_one::<crate::args::Level>("log_level"), Some(&crate::args::Level::Debug));
    assert!(parse(&["umount", "m"]).is_none(), "a broken file must not be in the way of an unmount");
}

#[test]
fn the_example_is_what_it_shows() {
    let commented = crate::cmd::config::example();
    assert!(entries(&commented).unwrap().is_empty(), "all of it is commented out");
    let active: String = commented
        .lines()
        .map(|line| {
            line.strip_prefix("# ")
                .filter(|rest| rest.contains(" = ") || rest.starts_with('['))
                .unwrap_or(line)
                .to_owned()
                + "\n"
        })
        .collect();
    let entries = entries(&active).unwrap();
    assert!(entries.len() > 8, "{entries:?}");
}
