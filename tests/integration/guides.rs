//! The commands of the README and of the guides run as they are written.
//!
//! A block fenced as `sh` runs line by line, each page in a home of its own, and every line must exit with 0. A block
//! fenced as `sh,needs=WORD` wants something a test machine lacks (a model, root, the network, minutes): its `shoal`
//! commands must parse. `shoal join` and `shoal serve` stay up until the page ends; on a page's second `shoal join`
//! another node starts, with the code that `shoal invite` printed where the page writes `shoal1...`. What the pages
//! mention in the text, `--flags` included, must exist as well.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use harness::{Shoal, binary, node::Node, root};
use serde_json::Value;
use tempfile::TempDir;

const README: &str = "README.md";
const GUIDES: &str = "node/docs";
/// Pages outside of [`GUIDES`] that name commands; what needs a build is not run.
const OTHERS: [&str; 2] = ["node/ARCHITECTURE.md", ".github/CONTRIBUTING.md"];
/// Where the pages say that the API listens.
const API: &str = "http://127.0.0.1:7435";
/// The code of an invite, as the pages write it.
const CODE: &str = "shoal1...";

/// A fenced block of shell commands.
struct Block {
    /// The line of its fence, from 1.
    line: usize,
    /// What it needs beyond a fresh machine.
    needs: Option<String>,
    commands: Vec<String>,
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|e| panic!("{page}: {e}"))
}

/// The pages with commands.
fn pages() -> Vec<String> {
    let entries = fs::read_dir(root().join(GUIDES)).expect("the guides");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    let mut pages: Vec<String> = names.map(|name| format!("{GUIDES}/{name}")).collect();
    pages.sort();
    pages.splice(0..0, [README.to_owned()].into_iter().chain(OTHERS.map(str::to_owned)));
    pages
}

/// The shell blocks of a page; a line that ends in a backslash continues on the next one.
fn blocks(text: &str) -> Vec<Block> {
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
fn simple(line: &str) -> Vec<Vec<String>> {
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
fn of_shoal(words: &[String]) -> Option<&[String]> {
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

/// A server that ends with the page.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Follows a page from top to bottom, with a home of its own.
struct Reader {
    folder: TempDir,
    nodes: Vec<Node>,
    serving: Vec<Serving>,
    /// The last invite.
    code: String,
    /// Where the API really is.
    api: String,
}

impl Reader {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        fs::create_dir(folder.path().join("bin")).expect("a folder");
        std::os::unix::fs::symlink(binary(), folder.path().join("bin/shoal")).expect("a link");
        Self { folder, nodes: Vec::new(), serving: Vec::new(), code: CODE.to_owned(), api: API.to_owned() }
    }

    /// The data folder of the first or of a further node, where the platform has it.
    fn data(&self, further: usize) -> PathBuf {
        let user = if further == 0 { "home".to_owned() } else { format!("friend-{further}") };
        self.folder.path().join(user).join(".local/share/shoal")
    }

    fn command(&self, program: &str) -> Command {
        let data = self.data(0);
        let home = self.folder.path().join("home");
        fs::create_dir_all(&data).expect("a folder");
        fs::set_permissions(&data, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("permissions");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .current_dir(&home)
            .env("PATH", format!("{}:{path}", self.folder.path().join("bin").display()))
            .env("HOME", &home)
            .env("SHOAL_HOME", &data)
            .env("SHOAL_THREADS", "1")
            .env_remove("SHOAL_MODEL")
            .env_remove("SHOAL_ISA");
        command
    }

    /// Does what a line says, and waits for its end unless it starts a server.
    fn does(&mut self, line: &str, place: &str) {
        let line = line.replace(CODE, &self.code).replace(API, &self.api);
        let commands = simple(&line);
        let words: Vec<&str> = commands[0].iter().map(String::as_str).collect();
        match words.as_slice() {
            ["shoal", "join", args @ ..] => self.joins(args),
            ["shoal", "serve", args @ ..] => self.serves(args, place),
            ["curl", ..] if Command::new("curl").arg("--version").output().is_err() => {
                assert!(std::env::var_os("SHOAL_REQUIRE_TOOLS").is_none(), "curl is not installed");
                eprintln!("skipped: curl is not installed");
            }
            _ => {
                let output = harness::output(self.command("sh").args(["-c", &line])).expect("a shell");
                let said = String::from_utf8_lossy(&output.stdout);
                let error = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{place}: {line}\n{said}{error}");
                let code = said.split_whitespace().find(|word| word.starts_with("shoal1"));
                self.code = code.map_or_else(|| self.code.clone(), str::to_owned);
            }
        }
    }

    fn joins(&mut self, args: &[&str]) {
        let mut command = self.command(binary().to_str().expect("UTF-8"));
        command.env_remove("SHOAL_THREADS");
        let node = Node::launch(command, &self.data(self.nodes.len()), &[&["--loopback"], args].concat());
        if let Some(first) = self.nodes.first() {
            first.meets(1);
        }
        self.nodes.push(node);
    }

    fn serves(&mut self, args: &[&str], place: &str) {
        let mut command = self.command("shoal");
        let child = command.arg("serve").args(args).args(["--json", "--listen", "127.0.0.1:0"]);
        let child = child.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("shoal starts");
        let mut serving = Serving(child);
        let stdout = std::io::BufReader::new(serving.0.stdout.take().expect("it is piped"));
        let lines = std::io::BufRead::lines(stdout).map_while(Result::ok);
        let mut events = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        let listening = events.find(|event| event["event"] == "listening");
        let listening = listening.unwrap_or_else(|| panic!("{place}: it does not listen"));
        self.api = listening["url"].as_str().expect("an address").to_owned();
        assert!(events.any(|event| event["event"] == "ready"), "{place}: it is not ready");
        self.serving.push(serving);
    }
}

/// Runs the blocks of a page that need nothing.
fn follow(page: &str) {
    let mut reader = Reader::new();
    let mut ran = 0;
    for block in blocks(&read(page)).into_iter().filter(|block| block.needs.is_none()) {
        for command in &block.commands {
            reader.does(command, &format!("{page}:{}", block.line));
            ran += 1;
        }
    }
    assert!(ran > 0, "{page} has no command that runs");
}

#[test]
fn the_readme_runs() {
    follow(README);
}

#[test]
fn the_guide_runs() {
    follow("node/docs/guide.md");
}

#[test]
fn operations_run() {
    follow("node/docs/operations.md");
}

#[test]
fn the_smaller_pages_run() {
    let own = [README, "node/docs/guide.md", "node/docs/operations.md"];
    let rest = pages().into_iter().filter(|page| page.starts_with(GUIDES) && !own.contains(&page.as_str()));
    let with_commands = rest.filter(|page| blocks(&read(page)).iter().any(|block| block.needs.is_none()));
    let mut followed = 0;
    for page in with_commands {
        follow(&page);
        followed += 1;
    }
    assert!(followed > 2, "only {followed} pages");
}

/// What a code span of the text says of `shoal`: the words of `` `shoal join --yes` ``, and the flags of any span.
fn spans(text: &str) -> Vec<String> {
    let mut fenced = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    let joined = prose.collect::<Vec<_>>().join("\n");
    joined.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " ")).collect()
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
