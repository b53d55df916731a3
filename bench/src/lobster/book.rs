//! A limit order book that changes at random: the source of synthetic order-book data.
//!
//! Orders wait at prices in the order of their arrival. Each event is one of LOBSTER's types. The mix of
//! events is calibrated to a liquid stock: nearly as many cancellations as new orders, few executions, sizes
//! that are mostly 100, a spread of some cents, and a price that stays within some per cent of its start.

use std::collections::{BTreeMap, VecDeque};

use base::dice::Dice;

/// One cent, in units of a ten-thousandth of a dollar.
pub const TICK: i64 = 100;
/// Levels that a side has at first, and below which only new orders arrive.
const DEEP: usize = 60;
/// Of a thousand events: new orders, deletions, partial cancellations, visible executions. The rest are
/// hidden executions.
const MIX: [u64; 4] = [480, 430, 10, 55];
/// The largest distance of a new order from the best price, in ticks.
const FAR: f64 = 120.0;

/// The side of an order, as LOBSTER writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Sell = -1,
    Buy = 1,
}

/// What happened. The numbers are LOBSTER's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    New = 1,
    Cancelled = 2,
    Deleted = 3,
    Executed = 4,
    ExecutedHidden = 5,
}

/// One row of a message file, without its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: Kind,
    /// 0 for a hidden order.
    pub order: u64,
    pub size: u64,
    /// In ten-thousandths of a dollar.
    pub price: i64,
    /// The side of the order that waited.
    pub side: Side,
}

/// The orders at one price.
#[derive(Clone, Debug, Default)]
struct Level {
    size: u64,
    orders: VecDeque<(u64, u64)>,
}

/// The book. Prices of buyers are negated in their map, so that both maps begin with the best price.
pub struct Book {
    dice: Dice,
    sells: BTreeMap<i64, Level>,
    buys: BTreeMap<i64, Level>,
    /// Waiting orders: number, side, price. Deletions choose among them.
    waiting: Vec<(u64, Side, i64)>,
    last_order: u64,
    /// Where the price began.
    centre: i64,
}

impl Book {
    /// A book around a price, in ten-thousandths of a dollar.
    pub fn new(seed: u64, centre: i64) -> Book {
        let mut book = Book {
            dice: Dice::new(seed),
            sells: BTreeMap::new(),
            buys: BTreeMap::new(),
            waiting: Vec::new(),
            last_order: 10_000_000,
            centre,
        };
        for side in [Side::Sell, Side::Buy] {
            let mut price = centre + if side == Side::Sell { 8 * TICK } else { -7 * TICK };
            for _ in 0..DEEP {
                let size = book.size();
                book.add(side, price, size);
                let gap = 1 + book.dice.below(3) as i64;
                price += gap * TICK * if side == Side::Sell { 1 } else { -1 };
            }
        }
        book
    }

    /// The best levels of a side: price and size.
    pub fn levels(&self, side: Side) -> impl Iterator<Item = (i64, u64)> {
        let sign = if side == Side::Buy { -1 } else { 1 };
        self.side(side).iter().map(move |(key, level)| (key * sign, level.size))
    }

    /// The next event, applied to the book.
    pub fn next(&mut self) -> Event {
        let short = [Side::Sell, Side::Buy].into_iter().find(|side| self.side(*side).len() < DEEP);
        if let Some(side) = short {
            return self.new_order(side);
        }
        let mut number = self.dice.below(1000) as u64;
        for (kind, share) in MIX.iter().enumerate() {
            if number < *share {
                return match kind {
                    0 => self.new_order_somewhere(),
                    1 => self.cancel(true),
                    2 => self.cancel(false),
                    _ => self.execute(),
                };
            }
            number -= share;
        }
        self.execute_hidden()
    }

    fn side(&self, side: Side) -> &BTreeMap<i64, Level> {
        if side == Side::Sell { &self.sells } else { &self.buys }
    }

    fn side_mut(&mut self, side: Side) -> &mut BTreeMap<i64, Level> {
        if side == Side::Sell { &mut self.sells } else { &mut self.buys }
    }

    /// The best price of a side. Both sides always have orders.
    fn best(&self, side: Side) -> i64 {
        self.levels(side).next().map_or(self.centre, |(price, _)| price)
    }

    /// Mostly 100, sometimes a multiple of it, sometimes any small number.
    fn size(&mut self) -> u64 {
        match self.dice.below(10) {
            0..=5 => 100,
            6 | 7 => 100 * (1 + self.dice.below(5) as u64),
            _ => 1 + self.dice.below(99) as u64,
        }
    }

    /// A side for a new order. The further the price is from where it began, the likelier is the side that
    /// pulls it back.
    fn new_order_somewhere(&mut self) -> Event {
        let middle = (self.best(Side::Sell) + self.best(Side::Buy)) / 2;
        let pull = ((middle - self.centre) as f64 / self.centre as f64 * 20.0).clamp(-0.4, 0.4);
        let side = if self.dice.unit() < 0.5 + pull { Side::Sell } else { Side::Buy };
        self.new_order(side)
    }

    fn new_order(&mut self, side: Side) -> Event {
        let (best, other) = match side {
            Side::Sell => (self.best(Side::Sell), self.best(Side::Buy)),
            Side::Buy => (self.best(Side::Buy), self.best(Side::Sell)),
        };
        let away = if side == Side::Sell { TICK } else { -TICK };
        let room = (best - other).abs() / TICK;
        let price = match self.dice.below(100) {
            // Within the spread, which then becomes narrower.
            0..=11 if room > 1 => other + away * (1 + self.dice.below(room as usize - 1) as i64),
            12..=35 => best,
            _ => best + away * (FAR.powf(self.dice.unit().powf(1.5)) as i64),
        };
        let size = self.size();
        let order = self.add(side, price, size);
        Event { kind: Kind::New, order, size, price, side }
    }

    fn add(&mut self, side: Side, price: i64, size: u64) -> u64 {
        self.last_order += 1 + self.dice.below(40) as u64;
        let order = self.last_order;
        let level = self.side_mut(side).entry(price * -(side as i64)).or_default();
        level.size += size;
        level.orders.push_back((order, size));
        self.waiting.push((order, side, price));
        order
    }

    /// Removes an order, or a part of it.
    fn cancel(&mut self, whole: bool) -> Event {
        let at = self.dice.below(self.waiting.len());
        let (order, side, price) = self.waiting[at];
        let unit = self.dice.unit();
        let level = self.side_mut(side).entry(price * -(side as i64)).or_default();
        let place = level.orders.iter().position(|(number, _)| *number == order).unwrap_or_default();
        let held = level.orders.get(place).map_or(0, |(_, size)| *size);
        if !whole && held > 1 {
            let part = 1 + (unit * (held - 1) as f64) as u64;
            level.size -= part;
            level.orders[place].1 -= part;
            return Event { kind: Kind::Cancelled, order, size: part, price, side };
        }
        level.size -= held;
        level.orders.remove(place);
        self.waiting.swap_remove(at);
        self.drop_if_empty(side, price);
        Event { kind: Kind::Deleted, order, size: held, price, side }
    }

    /// A trade with the first order at the best price.
    fn execute(&mut self) -> Event {
        let side = if self.dice.below(2) == 0 { Side::Sell } else { Side::Buy };
        let (price, wanted) = (self.best(side), self.size());
        let level = self.side_mut(side).entry(price * -(side as i64)).or_default();
        let Some((order, held)) = level.orders.front().copied() else { return self.execute_hidden() };
        let size = wanted.min(held);
        level.size -= size;
        if size == held {
            level.orders.pop_front();
            self.waiting.retain(|(number, ..)| *number != order);
            self.drop_if_empty(side, price);
        } else if let Some(front) = level.orders.front_mut() {
            front.1 -= size;
        }
        Event { kind: Kind::Executed, order, size, price, side }
    }

    /// A trade with a hidden order, within the spread.
    fn execute_hidden(&mut self) -> Event {
        let (low, high) = (self.best(Side::Buy), self.best(Side::Sell));
        let price = low + self.dice.below(((high - low) / TICK) as usize + 1) as i64 * TICK;
        let side = if self.dice.below(2) == 0 { Side::Sell } else { Side::Buy };
        Event { kind: Kind::ExecutedHidden, order: 0, size: self.size(), price, side }
    }

    fn drop_if_empty(&mut self, side: Side, price: i64) {
        let key = price * -(side as i64);
        if self.side(side).get(&key).is_some_and(|level| level.orders.is_empty()) {
            self.side_mut(side).remove(&key);
        }
    }
}
