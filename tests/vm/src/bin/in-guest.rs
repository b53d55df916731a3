//! What a test or a measurement runs in a guest: one static program.
fn main() {
    println!("{:?}", std::env::args().skip(1).collect::<Vec<_>>());
}
