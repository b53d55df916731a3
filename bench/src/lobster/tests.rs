//! The files are what LOBSTER's readers expect, and what the messages say is what the book shows.

use std::collections::BTreeMap;

use super::*;
use crate::lobster::book::Kind;

fn made(rows: u64, levels: usize) -> (Vec<String>, Vec<String>) {
    let to = tempfile::tempdir().unwrap();
    let args = Args {
        to: to.path().to_owned(),
        tickers: vec!["AAPL".to_owned()],
        days: 1,
        rows,
        levels,
        begin: 34_200,
        end: 37_800,
        seed: 1,
    };
    run(&args).unwrap();
    let lines = |what: &str| {
        let name = format!("AAPL_2012-01-01_34200000_37800000_{what}_{levels}.csv");
        let text = fs::read_to_string(to.path().join(name)).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    (lines("message"), lines("orderbook"))
}

fn numbers(line: &str) -> Vec<i64> {
    line.split(',').map(|number| number.parse().unwrap()).collect()
}

#[test]
fn rows_and_prices_are_those_of_a_sound_book() {
    let (messages, books) = made(20_000, 50);
    assert_eq!((messages.len(), books.len()), (20_000, 20_000));
    let mut before = 34_200.0;
    let mut kinds = BTreeMap::new();
    for line in &messages {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), 6, "{line}");
        let time: f64 = fields[0].parse().unwrap();
        assert!(time >= before && time < 37_800.0, "times ascend: {line}");
        before = time;
        *kinds.entry(fields[1].to_owned()).or_insert(0) += 1;
        let price: i64 = fields[4].parse().unwrap();
        assert!(price > 0 && price % book::TICK == 0, "{line}");
    }
    assert_eq!(kinds.keys().collect::<Vec<_>>(), ["1", "2", "3", "4", "5"], "{kinds:?}");
    for line in &books {
        let row = numbers(line);
        assert_eq!(row.len(), 200);
        let (asks, bids): (Vec<i64>, Vec<i64>) = row.chunks(4).map(|level| (level[0], level[2])).unzip();
        assert!(asks.is_sorted_by(|a, b| a < b) && bids.is_sorted_by(|a, b| a > b), "{line}");
        assert!(asks[0] > bids[0], "no buyer pays more than a seller wants: {line}");
        assert!(row.chunks(4).all(|level| level[1] > 0 && level[3] > 0), "{line}");
        let middle = (asks[0] + bids[0]) / 2;
        assert!((5_400_000..6_200_000).contains(&middle), "the price stays near where it began: {middle}");
    }
    assert_eq!(made(300, 10), made(300, 10), "the same arguments give the same bytes");
}

/// A second book that applies only the messages ends with the same levels.
#[test]
fn the_messages_explain_the_book() {
    let mut book = Book::new(7, 5_800_000);
    let mut sizes: BTreeMap<(i8, i64), i64> = BTreeMap::new();
    for side in [Side::Sell, Side::Buy] {
        sizes.extend(book.levels(side).map(|(price, size)| ((side as i8, price), size as i64)));
    }
    for _ in 0..30_000 {
        let event = book.next();
        let change = match event.kind {
            Kind::New => event.size as i64,
            Kind::ExecutedHidden => 0,
            _ => -(event.size as i64),
        };
        *sizes.entry((event.side as i8, event.price)).or_default() += change;
        sizes.retain(|_, size| *size != 0);
    }
    let mut shown: BTreeMap<(i8, i64), i64> = BTreeMap::new();
    for side in [Side::Sell, Side::Buy] {
        shown.extend(book.levels(side).map(|(price, size)| ((side as i8, price), size as i64)));
    }
    assert_eq!(sizes, shown);
}

#[test]
fn wrong_arguments_are_refused() {
    let args = |change: &dyn Fn(&mut Args)| {
        let mut args = Args {
            to: PathBuf::from("unused"),
            tickers: vec!["A".to_owned()],
            days: 1,
            rows: 1,
            levels: 1,
            begin: 1,
            end: 2,
            seed: 1,
        };
        change(&mut args);
        check(&args)
    };
    assert!(args(&|_| ()).is_ok());
    assert!(args(&|args| args.tickers = vec!["../x".to_owned()]).is_err());
    assert!(args(&|args| args.levels = 0).is_err());
    assert!(args(&|args| args.rows = 0).is_err());
    assert!(args(&|args| args.end = 1).is_err());
    assert!(args(&|args| args.days = u64::MAX).is_err());
}
