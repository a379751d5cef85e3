//! What a page says: its blocks of commands, and the code spans of its text.

use std::fs;

use harness::root;

/// The first page that is read.
pub(super) const README: &str = "README.md";
/// Where the others are.
pub(super) const GUIDES: &str = "node/docs";
/// Pages outside of [`GUIDES`] that name commands.
pub(super) const OTHERS: [&str; 3] =
    ["node/ARCHITECTURE.md", ".github/CONTRIBUTING.md", ".github/CHANGELOG.md"];

/// A fenced block of shell commands.
pub(super) struct Block {
    /// The line of its fence, from 1.
    pub(super) line: usize,
    /// What it needs beyond a fresh machine.
    pub(super) needs: Option<String>,
    pub(super) commands: Vec<String>,
}

pub(super) fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|e| panic!("{page}: {e}"))
}

/// The pages with commands.
pub(super) fn pages() -> Vec<String> {
    let entries = fs::read_dir(root().join(GUIDES)).expect("the guides");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    let mut pages: Vec<String> = names.map(|name| format!("{GUIDES}/{name}")).collect();
    pages.sort();
    pages.splice(0..0, [README.to_owned()].into_iter().chain(OTHERS.map(str::to_owned)));
    pages
}

/// The shell blocks of a page; a line that ends in a backslash continues on the next one.
pub(super) fn blocks(text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let (mut fenced, mut shell) = (false, false);
    let mut begun = String::new();
    for (n, line) in text.lines().enumerate() {
        if let Some(info) = line.trim_start().strip_prefix("```") {
            let mut words = info.split(',');
            shell = !fenced && words.next() == Some("sh");
            fenced = !fenced;
            if shell {
                let needs = words.find_map(|word| word.strip_prefix("needs=").map(str::to_owned));
                found.push(Block { line: n + 1, needs, commands: Vec::new() });
            }
        } else if shell {
            let Some(part) = line.strip_suffix('\\') else {
                begun += line;
                let command = std::mem::take(&mut begun);
                if !command.trim().is_empty() && !command.trim_start().starts_with('#') {
                    found.last_mut().expect("it has begun").commands.push(command);
                }
                continue;
            };
            begun += part;
        }
    }
    assert!(!fenced, "a block is not closed");
    found
}

/// The simple commands of a line as the shell would cut it: words without quotes, comments and redirections.
pub(super) fn simple(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let (mut word, mut begun, mut redirected) = (String::new(), false, false);
    let mut quote = None;
    let chars = line.chars().chain(['\n']);
    for c in chars {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.push(c),
            (None, '"' | '\'') => (quote, begun) = (Some(c), true),
            (None, '#') if !begun => break,
            (None, _) if c.is_whitespace() || "|;&><".contains(c) => {
                if begun && !std::mem::take(&mut redirected) {
                    commands.last_mut().expect("one").push(std::mem::take(&mut word));
                }
                (word, begun) = (String::new(), false);
                match c {
                    '>' | '<' => redirected = true,
                    '|' | ';' | '&' => commands.push(Vec::new()),
                    _ => {}
                }
            }
            (None, _) => {
                word.push(c);
                begun = true;
            }
        }
    }
    commands.retain(|words| !words.is_empty());
    commands
}

/// What follows `shoal` in a command, or in `cargo run -- ...`.
pub(super) fn of_shoal(words: &[String]) -> Option<&[String]> {
    match words.first()?.as_str() {
        "shoal" => Some(&words[1..]),
        "cargo"
            if words.get(1).is_some_and(|word| word == "run") && !words.iter().any(|w| w == "--example") =>
        {
            words.iter().position(|word| word == "--").map(|at| &words[at + 1..])
        }
        _ => None,
    }
}

/// What a code span of the text says of `shoal`: the words of `` `shoal join --yes` ``, and the flags of any span.
pub(super) fn spans(text: &str) -> Vec<String> {
    let mut fenced = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    let joined = prose.collect::<Vec<_>>().join("\n");
    joined.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")).collect()
}
