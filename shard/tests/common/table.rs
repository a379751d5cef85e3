//! The table of families in `node/docs/models.md`, which says what was measured here.

use std::{collections::BTreeMap, fs, path::Path};

use shard::models::{ALL, Architecture};

/// Figures of each family's fixtures, by the family's name.
#[derive(Default)]
pub struct Figures(BTreeMap<String, Vec<String>>);

impl Figures {
    /// Notes `figure` of one of the fixtures of `family`.
    pub fn note(&mut self, family: &str, figure: String) {
        self.0.entry(family.to_owned()).or_default().push(figure);
    }

    /// Holds the table's rows of these families against the figures; `SHOAL_WRITE=1` writes the rows instead.
    pub fn hold(&self) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../node/docs/models.md");
        let page = fs::read_to_string(&path).expect("the page of families");
        let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
        let mut wrong = Vec::new();
        for (at, family) in ALL.iter().enumerate() {
            let Some(figures) = self.0.get(family.name) else { continue };
            let row = format!("{}{} | {} |", beginning(family), figures.join(", "), family.configurations);
            match lines.iter().position(|line| line.starts_with(&cell(family))) {
                Some(line) if lines[line] == row => {}
                found => {
                    wrong.push(row.clone());
                    write(&mut lines, found, ALL[..at].last(), row);
                }
            }
        }
        if std::env::var_os("SHOAL_WRITE").is_some() {
            fs::write(&path, lines.join("\n") + "\n").expect("the page is written");
        } else {
            assert!(
                wrong.is_empty(),
                "node/docs/models.md lacks (SHOAL_WRITE=1 writes them):\n{}",
                wrong.join("\n")
            );
        }
    }
}

fn cell(family: &Architecture) -> String {
    format!("| `{}` |", family.name)
}

fn beginning(family: &Architecture) -> String {
    format!("{} {} | ", cell(family), family.covers)
}

/// Puts `row` in the place of the line `found`, or behind the family `before`.
fn write(lines: &mut Vec<String>, found: Option<usize>, before: Option<&Architecture>, row: String) {
    match found {
        Some(line) => lines[line] = row,
        None => {
            let behind = before.and_then(|family| lines.iter().position(|l| l.starts_with(&cell(family))));
            let behind = behind.or_else(|| lines.iter().position(|line| line.starts_with("|---")));
            lines.insert(behind.expect("a table of families") + 1, row);
        }
    }
}
