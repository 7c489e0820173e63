//! The README shows the example and the tables that the documentation of the crate has, where the example runs as
//! a test.

/// Returns the documentation of the crate's root.
fn documentation() -> String {
    let lines = include_str!("../src/lib.rs").lines();
    let lines = lines.map_while(|line| line.strip_prefix("//!"));
    let lines = lines.map(|line| line.strip_prefix(' ').unwrap_or(line));
    lines.fold(String::new(), |text, line| text + line + "\n")
}

/// The README, which a package of the crate has in another place.
const README: &str = include_str!("../../../README.md");

#[test]
fn the_readme_has_the_example() {
    let documentation = documentation();
    let (_, example) = documentation.split_once("```rust\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    assert!(README.contains(&format!("```rust\n{example}```\n")));
}

#[test]
fn the_readme_has_the_table_of_what_is_there() {
    let documentation = documentation();
    let (_, table) = documentation
        .split_once("# What is there\n\n")
        .expect("the table");
    let (table, _) = table.split_once("\n\n").expect("its end");
    assert!(table.lines().count() > 5);
    assert!(README.contains(&format!("\n{table}\n\n")));
}
