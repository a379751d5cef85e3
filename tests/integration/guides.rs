//! The commands of the README and of the guides run as they are written.
//!
//! A block fenced as `sh` runs line by line, each page in a home of its own, and every line must exit with 0.
//! `shoal join` and `shoal serve` stay up until the page ends; on a page's second `shoal join` another node starts, with
//! the code that `shoal invite` printed where the page writes `shoal1...`. Where a page leaves a value to its reader (a
//! model, an address) or a length that a test has no time for, `guides/stand_ins.rs` says what is typed instead. A block
//! fenced as `sh,needs=WORD` wants something that most machines lack or should not be used for (`guides/needs.rs`): it runs
//! where that is, and elsewhere its commands must parse and what they name must exist. What the pages mention in the text,
//! `--flags` included, must exist as well.

mod needs;
mod page;
mod reader;
mod stand_ins;

use std::{
    fs,
    path::{Path, PathBuf},
};

use harness::{Shoal, root};
use needs::Need;
use page::{OTHERS, README, blocks, of_shoal, pages, read, simple, spans};
use reader::Reader;

/// Runs the blocks of a page whose needs are here; gives how many commands.
fn follow(page: &str) -> usize {
    let mut reader = Reader::new();
    let mut ran = 0;
    let here = |needs: &Option<String>| needs.as_deref().is_none_or(|word| Need::of(word).is_here());
    for block in blocks(&read(page)).into_iter().filter(|block| here(&block.needs)) {
        for command in &block.commands {
            reader.does(command, &format!("{page}:{}", block.line));
            ran += 1;
        }
    }
    ran
}

/// As [`follow`], of a page that has something to run everywhere.
fn runs(page: &str) {
    assert!(follow(page) > 0, "{page} has no command that runs");
}

#[test]
fn the_readme_runs() {
    runs(README);
}

#[test]
fn the_guide_runs() {
    runs("node/docs/guide.md");
}

#[test]
fn operations_run() {
    runs("node/docs/operations.md");
}

#[test]
fn benchmarks_run() {
    runs("node/docs/benchmarks.md");
}

#[test]
fn the_smaller_pages_run() {
    let own = [README, "node/docs/guide.md", "node/docs/operations.md", "node/docs/benchmarks.md"];
    let rest = pages().into_iter().filter(|page| !own.contains(&page.as_str()));
    let ran: usize = rest.map(|page| follow(&page)).sum();
    assert!(ran > 8, "only {ran} commands");
}

/// What does not run everywhere is a tenth of all commands at most, and none of it names what does not exist.
#[test]
fn what_needs_more_than_a_machine_is_little_and_true() {
    let (mut all, mut left) = (0, 0);
    for page in pages() {
        for block in blocks(&read(&page)) {
            all += block.commands.len();
            let Some(word) = &block.needs else { continue };
            left += block.commands.len();
            assert_eq!(Need::of(word).word, word);
            for command in block.commands.iter().flat_map(|line| simple(line)) {
                needs::holds(&command, &format!("{page}:{}", block.line));
            }
        }
    }
    println!("{all} commands, {left} of them not everywhere");
    assert!(all > 120 && left * 4 < all, "{left} of {all} commands need something");
}

#[test]
fn what_the_pages_name_exists() {
    let shoal = Shoal::new();
    let folder = shoal.home().join("man");
    shoal.json(["man", "--json", folder.to_str().expect("UTF-8")], "");
    let manual =
        |name: &str| Some(fs::read_to_string(folder.join(format!("{name}.1"))).ok()?.replace('\\', ""));
    let all: String = fs::read_dir(&folder)
        .expect("the manual")
        .map(|entry| fs::read_to_string(entry.expect("a page").path()).expect("text").replace('\\', ""))
        .collect();
    // Flags of other programs that the pages speak of.
    let foreign = |page: &str, span: &str| {
        OTHERS.contains(&page)
            || !span.starts_with("shoal") && !span.starts_with("--")
            || span.starts_with("--uninstall")
            // Cargo's.
            || span.starts_with("--features")
    };
    let (mut flags, mut commands) = (0, 0);
    for page in pages() {
        let text = read(&page);
        for block in blocks(&text) {
            for command in block.commands.iter().flat_map(|line| simple(line)) {
                let Some(words) = of_shoal(&command) else { continue };
                let place = format!("{page}:{}", block.line);
                assert!(
                    node::cli::parses(words.iter().map(String::as_str)),
                    "{place}: {command:?} does not parse"
                );
                commands += 1;
            }
        }
        for span in spans(&text).iter().filter(|span| !foreign(&page, span)) {
            let words: Vec<&str> = span.split_whitespace().collect();
            // The longest command the span begins with has the page that must know its flags.
            let deepest = (1..=words.len().min(3)).rev().find_map(|n| manual(&words[..n].join("-")));
            let known = deepest.unwrap_or_else(|| all.clone());
            for flag in words.iter().filter_map(|word| word.trim_start_matches('[').strip_prefix("--")) {
                let end = flag.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(flag.len());
                let flag = &flag[..end];
                assert!(known.contains(&format!("--{flag}")), "{page}: `{span}`: no flag --{flag}");
                flags += usize::from(!flag.is_empty());
            }
        }
    }
    assert!(commands > 40 && flags > 30, "{commands} commands, {flags} flags");
}

/// Where a path of the map may be: from the root, or short for a file of a crate.
fn exists(path: &str) -> bool {
    const CRATES: [&str; 6] = ["node", "scheduler", "shard", "p2p", "api", "simulations"];
    // What a reader would add stands for its folder: `models/<family>.rs`.
    let path = path.split_once('<').map_or(path, |(folder, _)| folder);
    let mut places: Vec<PathBuf> = CRATES.iter().map(|name| root().join(name).join("src")).collect();
    places.extend([root().to_path_buf(), root().join("tests/integration")]);
    places.iter().any(|place| place.join(path).exists() || place.join(format!("{path}.rs")).is_file())
}

/// A newcomer finds what the map names, and to add one thing never takes more than three places.
#[test]
fn the_map_names_what_exists() {
    const MAP: &str = "node/ARCHITECTURE.md";
    let text = read(MAP);
    let is_path = |span: &&String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_./<>-".contains(c);
        let named = span.contains('/') && !span.starts_with("HOME/") || span.ends_with(".rs");
        named && span.chars().all(plain) && !span.starts_with(['/', '-', '~'])
    };
    let spans = spans(&text);
    let paths: Vec<&String> = spans.iter().filter(is_path).collect();
    for path in &paths {
        assert!(exists(path), "{MAP}: `{path}` does not exist");
    }
    let rows =
        text.split_once("## How to add").expect("the table").1.lines().filter(|line| line.starts_with("| a"));
    let mut seen = 0;
    for row in rows {
        let files = self::spans(row).iter().filter(is_path).count();
        assert!((1..=3).contains(&files), "{MAP}: {files} places: {row}");
        seen += 1;
    }
    assert!(paths.len() > 60 && seen > 8, "{} paths, {seen} rows", paths.len());
}

#[test]
fn every_link_of_the_pages_leads_somewhere() {
    let mut followed = 0;
    for page in pages() {
        let text = read(&page);
        let here = Path::new(&page).parent().expect("a folder");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") || file.contains(char::is_whitespace) {
                continue;
            }
            assert!(root().join(here).join(file).exists(), "{page}: {link} leads nowhere");
            followed += 1;
        }
    }
    assert!(followed > 20, "only {followed} links");
}

#[test]
fn lines_are_cut_as_the_shell_cuts_them() {
    let cut = |line: &str| simple(line).iter().map(|words| words.join("|")).collect::<Vec<_>>();
    assert_eq!(cut("shoal run \"a  b\" --seed 1   # why"), ["shoal|run|a  b|--seed|1"]);
    assert_eq!(cut("echo 'x # y' | shoal run - > out.txt"), ["echo|x # y", "shoal|run|-"]);
    let text = "```sh,needs=root\nshoal join \\\n  --yes\n\n# no\n```\n```text\nshoal x\n```\n```sh\nshoal why\n```\n";
    let found = blocks(text);
    assert_eq!(
        found.iter().map(|b| (b.line, b.needs.as_deref())).collect::<Vec<_>>(),
        [(1, Some("root")), (10, None)]
    );
    assert_eq!(simple(&found[0].commands[0])[0], ["shoal", "join", "--yes"]);
    assert!(!node::cli::parses(["join", "--yess"]) && node::cli::parses(["join", "--yes"]));
}

/// Each row of the table of security names the tests that hold it, and they are there.
#[test]
fn what_holds_a_row_of_the_security_table_exists() {
    let page = fs::read_to_string(root().join("node/docs/security.md")).unwrap();
    let rows: Vec<&str> =
        page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| from ")).collect();
    assert!(rows.len() > 25, "{} rows", rows.len());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let named: Vec<&str> = cells.last().unwrap().split('`').skip(1).step_by(2).collect();
        assert!(cells.len() == 4 && !named.is_empty(), "no test is named: {row}");
        for name in named {
            assert!(is_test(name), "{name} is no test: {row}");
        }
    }
}

/// Whether `file::test` names a test, by its attribute and its name, or `file` a target of the fuzzer.
fn is_test(name: &str) -> bool {
    let (file, test) = name.split_once("::").unwrap_or((name, ""));
    let Ok(text) = fs::read_to_string(root().join(file)) else { return false };
    if test.is_empty() {
        return file.starts_with("tests/fuzz/targets/") && text.contains("fuzz_target!");
    }
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_fn = |line: &str| {
        line.trim_start_matches("async ")
            .strip_prefix("fn ")
            .and_then(|rest| rest.strip_prefix(test))
            .is_some_and(|rest| rest.starts_with('('))
    };
    let declared = lines.iter().position(|line| is_fn(line));
    // Attributes stand right above it, and in a proptest there are no other functions.
    let marked = |at: usize| {
        let above =
            lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        above.into_iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    };
    declared.is_some_and(marked)
}

#[test]
fn a_test_is_found_by_its_name_only() {
    let here = "tests/integration/guides.rs";
    assert!(is_test(&format!("{here}::a_test_is_found_by_its_name_only")));
    assert!(
        !is_test(&format!("{here}::a_test_is_found_by_its_name")) && !is_test(&format!("{here}::is_test"))
    );
    assert!(
        !is_test(here) && is_test("tests/fuzz/targets/http.rs") && !is_test("tests/fuzz/targets/none.rs")
    );
}
