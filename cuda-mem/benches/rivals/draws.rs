//! The generator of the comparison matches its description, which programs in other languages follow.

#[path = "../common/draws.rs"]
mod draws;

use draws::Draws;

#[test]
fn the_first_draws_are_those_of_the_description() {
    let text = include_str!("README.md");
    let line = text
        .lines()
        .find(|line| line.starts_with("    1: "))
        .expect("a line with the draws of seed 1");
    let written: Vec<u64> = line["    1: ".len()..]
        .split(", ")
        .map(|number| number.parse().expect("a number"))
        .collect();
    let mut draws = Draws::new(1);
    let drawn: Vec<u64> = (0..written.len()).map(|_| draws.next()).collect();
    assert_eq!(written.len(), 10);
    assert_eq!(written, drawn);
}
