//! Every published figure, one command each.

fn main() {}
