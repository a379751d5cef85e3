//! Follows a page from top to bottom, as the person does it for whom the page was written.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use harness::{binary, node::Node};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    super::examples::example,
    page::simple,
    stand_ins::{self, LISTED, Site, WORDS},
};

/// Where the pages say that the API listens.
const API: &str = "http://127.0.0.1:7435";
/// The code of an invite, as the pages write it.
const CODE: &str = "shoal1...";

/// A process that ends with the page.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The reader of one page, with a home of its own.
pub(super) struct Reader {
    folder: TempDir,
    nodes: Vec<Node>,
    serving: Option<Serving>,
    site: Option<Site>,
    /// The last invite.
    code: String,
    /// Where the API really is.
    api: String,
}

impl Reader {
    pub(super) fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).expect("a folder");
        std::os::unix::fs::symlink(binary(), bin.join("shoal")).expect("a link");
        let api = API.to_owned();
        let reader =
            Self { folder, nodes: Vec::new(), serving: None, site: None, code: CODE.to_owned(), api };
        let data = reader.data(0);
        fs::create_dir_all(&data).expect("a folder");
        fs::set_permissions(&data, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("permissions");
        stand_ins::lay_out(&reader.home(), &data);
        reader
    }

    /// The working folder.
    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// The data folder of the first or of a further node, where the platform has it.
    fn data(&self, further: usize) -> PathBuf {
        let user = if further == 0 { "home".to_owned() } else { format!("friend-{further}") };
        self.folder.path().join(user).join(".local/share/shoal")
    }

    fn command(&self, program: &str) -> Command {
        let home = self.home();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .current_dir(&home)
            .env("PATH", format!("{}:{path}", self.folder.path().join("bin").display()))
            .env("HOME", &home)
            .env("SHOAL", binary())
            .env("SHOAL_HOME", self.data(0))
            .env("SHOAL_THREADS", "1")
            .env("CARGO_TARGET_DIR", home.join("target"))
            .env_remove("SHOAL_MODEL")
            .env_remove("SHOAL_ISA");
        if let Some(site) = &self.site {
            command.env("HF_ENDPOINT", site.url()).env("SHOAL_OLLAMA_REGISTRY", site.url());
        }
        command
    }

    /// The line as this reader types it.
    fn typed(&mut self, line: &str) -> String {
        let line = line.replace(CODE, &self.code).replace(API, &self.api);
        let typed = WORDS.iter().fold(line.clone(), |line, (written, typed)| line.replace(written, typed));
        let fetches = typed != line
            && ["story", "me/mine", "ollama://", "SITE", "ID"].iter().any(|w| typed.contains(w));
        if fetches && self.site.is_none() {
            self.site = Some(Site::start(&self.data(0)));
        }
        self.site.as_ref().map_or(typed.clone(), |site| site.told(&typed))
    }

    /// Does what a line says, and waits for its end unless it starts what stays up.
    pub(super) fn does(&mut self, line: &str, place: &str) {
        let Some(line) = built(&self.typed(line)) else { return };
        let commands = simple(&line);
        let words: Vec<&str> = commands[0].iter().map(String::as_str).collect();
        match words.as_slice() {
            ["shoal", "join", args @ ..] => self.joins(args),
            ["shoal", "serve", args @ ..] => self.serves(args, place),
            ["shoal", "status", args @ ..] if args.contains(&"--watch") => self.watches(&words, place),
            ["cc" | "curl" | "dpkg-deb", ..] if !is_installed(words[0]) => {}
            ["p2p/kmod/deb", ..] if !is_installed("dpkg-deb") => {}
            _ => {
                let output = harness::output(self.command("sh").args(["-c", &line])).expect("a shell");
                let said = String::from_utf8_lossy(&output.stdout);
                let error = String::from_utf8_lossy(&output.stderr);
                // `shoal doctor` ends with 1 where a check needs attention, as its page says.
                let attention = words.starts_with(&["shoal", "doctor"]) && output.status.code() == Some(1);
                assert!(output.status.success() || attention, "{place}: {line}\n{said}{error}");
                let code = said.split_whitespace().find(|word| word.starts_with("shoal1"));
                self.code = code.map_or_else(|| self.code.clone(), str::to_owned);
                if words == ["shoal", "leave"] {
                    self.nodes.clear();
                }
            }
        }
    }

    /// Starts a node; a second one and those after it find the first by its code, where the page does not give it.
    fn joins(&mut self, args: &[&str]) {
        let data = self.data(self.nodes.len());
        let mut args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        if !self.nodes.is_empty() && !args.iter().any(|arg| arg.starts_with("shoal1")) {
            args.insert(0, self.nodes[0].ask(&["invite"])["code"].as_str().expect("a code").to_owned());
        }
        self.lists(&args, &data);
        let mut command = self.command(binary().to_str().expect("UTF-8"));
        command.env_remove("SHOAL_THREADS");
        if args.iter().any(|arg| arg == "--log") {
            command.stderr(Stdio::null());
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let node = Node::launch(command, &data, &[&["--loopback"], &args[..]].concat());
        if let Some(first) = self.nodes.first() {
            first.meets(self.nodes.len());
        }
        self.nodes.push(node);
    }

    /// Puts the models on the list of the node at `data` that `args` name as if they were there.
    fn lists(&self, args: &[String], data: &PathBuf) {
        for name in LISTED.iter().filter(|name| args.iter().any(|arg| arg.split('=').next() == Some(name))) {
            let mut add = self.command("shoal");
            add.args(["model", "add", &format!("{name}.gguf"), "--name", name]).env("SHOAL_HOME", data);
            let added = harness::output(&mut add).expect("shoal starts");
            assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
        }
    }

    /// Starts a server in the place of the one before.
    fn serves(&mut self, args: &[&str], place: &str) {
        self.serving = None;
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
        self.serving = Some(serving);
    }

    /// Looks at a screen that does not end by itself, until its first line.
    fn watches(&self, words: &[&str], place: &str) {
        let mut command = self.command(words[0]);
        let child = command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut watching = Serving(child.spawn().expect("shoal starts"));
        let stdout = std::io::BufReader::new(watching.0.stdout.take().expect("it is piped"));
        let first = std::io::BufRead::lines(stdout).map_while(Result::ok).find(|line| !line.is_empty());
        let first = first.unwrap_or_else(|| panic!("{place}: it shows nothing"));
        let shows = first.contains(" peers ") || first.starts_with("{\"node\":");
        assert!(shows && !self.nodes.is_empty(), "{place}: {first}");
    }
}

/// The line with the program of an example in place of `cargo run ... --example NAME --`; `None` where it is not built.
fn built(line: &str) -> Option<String> {
    let Some((_, rest)) = line.split_once("--example ").filter(|_| line.starts_with("cargo run ")) else {
        return Some(line.to_owned());
    };
    let (name, args) = rest.split_once(" -- ").unwrap_or((rest, ""));
    Some(format!("{} {args}", example(name)?.display()))
}

/// Whether a tool is there that not every machine has.
fn is_installed(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|said| said.status.success());
    assert!(found || std::env::var_os("SHOAL_REQUIRE_TOOLS").is_none(), "{tool} is not installed");
    if !found {
        eprintln!("skipped: {tool} is not installed");
    }
    found
}
