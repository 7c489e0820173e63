//! The guide quotes examples as they are, and has no code that is not compiled.
//!
//! A line `<!-- quote: PATH -->` or `<!-- quote: PATH#NAME -->` stands before a block of code that is the file, or
//! the part of it between `ANCHOR: NAME` and `ANCHOR_END: NAME`. `UPOLL_UPDATE_QUOTES=1 cargo test -p upoll-guide
//! --test quotes` copies the sources into the guide.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn chapters() -> Vec<PathBuf> {
    files_in("docs/guide", "md")
}

fn files_in(folder: &str, extension: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(root().join(folder)).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let mut files: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    files
}

/// Returns the lines of the place that a quote names, without the lines that mark anchors and without common
/// indentation.
fn source(place: &str) -> Result<Vec<String>, String> {
    let (path, name) = place.split_once('#').unwrap_or((place, ""));
    let text = fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))?;
    let marks = |line: &str, mark: &str| {
        let line = line.trim_end_matches("*/").trim_end();
        line.split_once(mark)
            .is_some_and(|(_, found)| found == name)
    };
    let mut lines: Vec<&str> = text.lines().collect();
    if !name.is_empty() {
        let begin = lines.iter().position(|line| marks(line, "ANCHOR: "));
        let end = lines.iter().position(|line| marks(line, "ANCHOR_END: "));
        let (Some(begin), Some(end)) = (begin, end) else {
            return Err(format!("{path} has no part {name}"));
        };
        lines = lines[begin + 1..end].to_vec();
    }
    lines.retain(|line| !line.contains("ANCHOR: ") && !line.contains("ANCHOR_END: "));
    let indent = |line: &&str| line.len() - line.trim_start().len();
    let common = lines
        .iter()
        .filter(|line| !line.trim().is_empty())
        .map(indent)
        .min();
    let common = common.unwrap_or(0);
    Ok(lines
        .iter()
        .map(|line| line.get(common..).unwrap_or("").to_owned())
        .collect())
}

/// A block of code of a chapter.
struct Block {
    /// The text behind the fence.
    language: String,
    quote: Option<String>,
    lines: Vec<String>,
}

/// Calls `visit` with each block of code, which may change its lines. Returns the text with those lines.
fn visit_blocks(text: &str, mut visit: impl FnMut(&mut Block)) -> String {
    let mut out = String::new();
    let mut lines = text.lines();
    let mut quote = None;
    while let Some(line) = lines.next() {
        out += line;
        out.push('\n');
        if let Some(place) = line.strip_prefix("<!-- quote: ") {
            quote = place.strip_suffix(" -->").map(str::to_owned);
        } else if let Some(language) = line.strip_prefix("```") {
            let lines = lines.by_ref().take_while(|line| *line != "```");
            let lines = lines.map(str::to_owned).collect();
            let mut block = Block {
                language: language.to_owned(),
                quote: quote.take(),
                lines,
            };
            visit(&mut block);
            for line in block.lines {
                out += &line;
                out.push('\n');
            }
            out += "```\n";
        }
    }
    out
}

#[test]
fn each_quote_is_its_source() {
    let update = std::env::var_os("UPOLL_UPDATE_QUOTES").is_some();
    let mut wrong = Vec::new();
    for chapter in chapters() {
        let name = chapter.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&chapter).unwrap();
        let updated = visit_blocks(&text, |block| {
            let Some(place) = &block.quote else { return };
            match source(place) {
                Ok(lines) if lines == block.lines => {}
                Ok(lines) if update => block.lines = lines,
                Ok(_) => wrong.push(format!("{name}: {place} differs")),
                Err(error) => wrong.push(format!("{name}: {error}")),
            }
        });
        if update && updated != text {
            fs::write(&chapter, updated).unwrap();
        }
    }
    assert!(
        wrong.is_empty(),
        "{wrong:#?}\nUPOLL_UPDATE_QUOTES=1 updates the guide"
    );
}

/// `cargo test --doc` compiles blocks of Rust, and nothing else.
#[test]
fn code_that_documentation_tests_do_not_compile_is_quoted() {
    let mut wrong = Vec::new();
    for chapter in chapters() {
        visit_blocks(&fs::read_to_string(&chapter).unwrap(), |block| {
            let mut words = block.language.split(',');
            let is_compiled = match words.next() {
                Some("rust" | "") => !words.any(|word| word == "ignore"),
                Some("toml" | "sh" | "text") => true,
                _ => false,
            };
            if !is_compiled && block.quote.is_none() {
                wrong.push(format!("{}: {}", chapter.display(), block.lines.join("\n")));
            }
        });
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn each_example_is_quoted() {
    let mut quoted = BTreeSet::new();
    for chapter in chapters() {
        visit_blocks(&fs::read_to_string(&chapter).unwrap(), |block| {
            let place = block.quote.iter().flat_map(|place| place.split('#').next());
            quoted.extend(place.map(str::to_owned));
        });
    }
    let folders = [
        ("crates/upoll/examples", "rs"),
        ("crates/upoll-guide/examples", "rs"),
        ("examples/c", "c"),
    ];
    for (folder, extension) in folders {
        for example in files_in(folder, extension) {
            let name = example.file_name().unwrap().to_str().unwrap();
            assert!(
                quoted.contains(&format!("{folder}/{name}")),
                "{folder}/{name} is in no chapter"
            );
        }
    }
}

#[test]
fn each_chapter_is_in_the_index_and_compiled() {
    let index = fs::read_to_string(root().join("docs/guide/index.md")).unwrap();
    let library = fs::read_to_string(root().join("crates/upoll-guide/src/lib.rs")).unwrap();
    for chapter in chapters() {
        let name = chapter.file_name().unwrap().to_str().unwrap();
        assert!(
            name == "index.md" || index.contains(&format!("({name})")),
            "index.md lacks {name}"
        );
        assert!(
            library.contains(&format!("docs/guide/{name}\"")),
            "lib.rs lacks {name}"
        );
    }
}
