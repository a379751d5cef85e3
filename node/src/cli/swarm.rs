//! The commands of the swarm and their flags.

use std::{path::PathBuf, str::FromStr, time::Duration};

use api::swarm_records::Color;
use clap::{Args, Subcommand, ValueEnum};
use scheduler::{ExpertRange, LayerRange, NodeId};

use super::{EngineArgs, SamplingArgs, StateArgs};
use crate::control::{Mode, Shadow, Verify};

/// Where a node keeps its key, models and socket.
#[derive(Debug, Clone, Args)]
pub struct HomeArgs {
    /// Data folder of the node [default: the platform's]
    #[arg(long, env = "SHOAL_HOME", value_name = "DIR")]
    pub home: Option<PathBuf>,
}

/// Layers as the command line writes them: `1..4` or `1..4,6..8`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers(pub Vec<LayerRange>);

impl FromStr for Layers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = |part: &str| {
            let (start, end) = part.split_once("..")?;
            LayerRange::new(start.trim().parse().ok()?, end.trim().parse().ok()?)
        };
        let parsed: Option<Vec<_>> = text.split(',').map(range).collect();
        parsed
            .map(Self)
            .ok_or_else(|| format!("\"{text}\" is not like 2..6 or 0..2,6..8 (start included, end not)"))
    }
}

/// Experts as the command line writes them: `0..32`.
fn experts(text: &str) -> Result<ExpertRange, String> {
    let range = text
        .split_once("..")
        .and_then(|(start, end)| ExpertRange::new(start.trim().parse().ok()?, end.trim().parse().ok()?));
    range.ok_or_else(|| format!("\"{text}\" is not like 0..32 (start included, end not)"))
}

/// A model beside the first, as the command line writes it: `NAME` or `NAME=1..7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Also {
    /// A file, a name or an id.
    pub model: String,
    /// Layers to serve; `None` for those the swarm lacks most.
    pub layers: Option<Layers>,
}

impl FromStr for Also {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A file's name may have the sign, too: only what follows the last one can be layers.
        let (model, layers) = match text.rsplit_once('=') {
            Some((model, layers)) if layers.starts_with(|c: char| c.is_ascii_digit()) => {
                (model, Some(layers.parse()?))
            }
            _ => (text, None),
        };
        match model.is_empty() {
            true => Err("say which model: NAME or NAME=1..7".to_owned()),
            false => Ok(Self { model: model.to_owned(), layers }),
        }
    }
}

/// `shoal join`
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// A code from `shoal invite`, or its link shoal:CODE; without one the node finds others on the local network and waits to
    /// be found
    pub code: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: HomeArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub hold: HoldArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub caps: CapsArgs,
    /// A mirror of a model that is not here, beside the peers that have it (repeatable)
    #[arg(long, value_name = "URL")]
    pub from: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sources: super::SourceArgs,
    /// Fetch the first and the last layer of a model that is not here too, so that own prompts keep them on this machine
    #[arg(long)]
    pub ends: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub reach: ReachArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub state: StateArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub agree: AgreeArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub api: super::api::NodeApiArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub talk: TalkArgs,
}

/// How a node talks with what started it.
#[derive(Debug, Clone, Args)]
pub struct TalkArgs {
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors, and ask nothing: for programs that hold a node, and for services
    #[arg(short, long, conflicts_with_all = ["json", "ask"])]
    pub quiet: bool,
    /// Stop when standard input closes: for programs that start nodes
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// What is agreed to beforehand, and what is asked all the same.
#[derive(Debug, Clone, Args)]
pub struct AgreeArgs {
    /// Serve without asking, relay for members of this swarm within a budget where this node can be reached, and agree that
    /// prompts of this node run on other people's machines: in boomerang mode they can reconstruct much of the text, in open
    /// mode they get the text itself (see `shoal consent`; both are recorded)
    #[arg(short, long)]
    pub yes: bool,
    /// Say what the code leads to and ask before anything happens, even where --yes is in the settings: for codes that you did
    /// not type, such as links
    #[arg(long, requires = "code", conflicts_with_all = ["yes", "json"])]
    pub ask: bool,
}

/// What a node holds and serves.
#[derive(Debug, Clone, Args)]
pub struct HoldArgs {
    /// Layers to serve to others, as 2..6 or 0..2,6..8 [default: those the swarm lacks most]
    #[arg(long)]
    pub layers: Option<Layers>,
    /// Load only these experts of the layers, as 0..32, where they do not all fit: with --experts-from this node runs the layers,
    /// without it computes its experts for nodes that name it. Both load the named layers and no other: name the first and the
    /// last one too for own prompts
    #[arg(long, value_name = "EXPERTS", value_parser = experts, requires = "layers", conflicts_with = "ask_only")]
    pub experts: Option<ExpertRange>,
    /// A node that computes the experts that are not here, by its full name; what it computes wrong counts as this node's
    /// work (repeatable)
    #[arg(long, value_name = "NODE", value_parser = crate::node_names::full, requires = "experts")]
    pub experts_from: Vec<NodeId>,
    /// Serve at most this many layers
    #[arg(long, value_name = "N", conflicts_with_all = ["layers", "ask_only"])]
    pub max_layers: Option<u32>,
    /// Hold another model beside it, in a process of its own; NAME=1..7 serves those layers [default: those the swarm lacks
    /// most, as far as --weights goes] (repeatable)
    #[arg(long, value_name = "NAME[=LAYERS]")]
    pub also: Vec<Also>,
    /// Serve nothing, only ask
    #[arg(long, conflicts_with = "layers")]
    pub ask_only: bool,
    /// Hand the served models to no peer; without it those on the list of `shoal model list` are shared
    #[arg(long)]
    pub no_share: bool,
    /// Memory for sessions of others, of all models together, MiB
    #[arg(long, default_value_t = 512, value_name = "MIB")]
    pub memory: u64,
}

/// Which nodes a node meets, and how it reaches them.
#[derive(Debug, Clone, Args)]
pub struct ReachArgs {
    /// Address to listen on, as a multiaddress (repeatable) [default: any port, QUIC and TCP, IPv4 and IPv6]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<String>,
    /// Address that others reach this node at, as a multiaddress such as /dns4/node.example.org/tcp/4001: of a forwarded port, of
    /// the host of a container. Codes and announcements name it first (repeatable, or several with commas between)
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub announce: Vec<String>,
    /// Address of a node to start from, ending in /p2p/… (repeatable)
    #[arg(long, value_name = "ADDRESS")]
    pub peer: Vec<String>,
    /// Node to be reachable through, as an address ending in /p2p/… (repeatable) [default: found when needed]
    #[arg(long, value_name = "ADDRESS")]
    pub relay: Vec<String>,
    /// Carry connections of nodes that cannot reach each other even when this one talks to its own machine only
    #[arg(long, hide = true)]
    pub carry: bool,
    /// Keep relayed connections relayed: for tests
    #[arg(long, hide = true)]
    pub no_punch: bool,
    /// Only talk to nodes on this machine
    #[arg(long)]
    pub loopback: bool,
    /// Look for no nodes on the local network and ask its router for no port: others come by codes and --peer
    #[arg(long)]
    pub no_discovery: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub links: LinkArgs,
    /// Name of the swarm; only nodes that say the same name meet
    #[arg(long, default_value = "shoal", env = "SHOAL_SWARM")]
    pub swarm: String,
    /// A swarm of one's own: only nodes with an invite get in
    #[arg(long)]
    pub private: bool,
    /// Only let in nodes that this file lists, one full name a line and a remark behind it; it is read again when it changes, and
    /// who is no longer listed is let go
    #[arg(long, value_name = "FILE", env = "SHOAL_MEMBERS")]
    pub members: Option<PathBuf>,
}

/// What a node may take from its machine for others.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Caps")]
pub struct CapsArgs {
    /// Sessions and prompts of other people at a time
    #[arg(long, default_value_t = 4, value_name = "N", env = "SHOAL_SESSIONS")]
    pub sessions: usize,
    /// Most memory for the weights of all models, e.g. 4GiB; those of --model count, and are loaded in any case when the
    /// file is here [default: half of the machine's]
    #[arg(long, value_name = "SIZE", value_parser = super::model::size)]
    pub weights: Option<u64>,
    /// Most disk that all pulled models may take, e.g. 20GB [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = super::model::size, env = "SHOAL_DISK")]
    pub disk: Option<u64>,
    /// Send models to others at most so fast, bytes per second, e.g. 2MB
    #[arg(long, value_name = "SIZE", value_parser = super::model::size)]
    pub upload: Option<u64>,
    /// Fetch models at most so fast, bytes per second, e.g. 5MB
    #[arg(long, value_name = "SIZE", value_parser = super::model::size)]
    pub download: Option<u64>,
    /// Unload a model that neither this node's prompts nor others have needed for so long, e.g. 10m: its memory is free until it is
    /// needed, and others are told what loading it again takes [default: it stays]
    #[arg(long, value_name = "TIME", value_parser = super::keep::time)]
    pub unload_after: Option<Duration>,
}

/// How frames cross to neighbors.
#[derive(Debug, Clone, Default, Args)]
pub struct LinkArgs {
    /// What carries frames to neighbors of the same network: stream, datagram, kmod (datagrams by the kernel module of
    /// node/docs/kmod.md), or auto, which measures all that are here and keeps the stream within one machine
    #[arg(long, value_name = "LINK", default_value_t)]
    pub link: p2p::LinkMode,
    /// After a datagram look for the next one for so many microseconds without sleeping: answers come sooner, and one
    /// processor is busy for so long after each
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub spin: u32,
    /// Datagrams of a thousand that are lost on purpose: for tests
    #[arg(long, hide = true, value_name = "N", default_value_t = 0)]
    pub link_loss: u16,
    /// Frames to a neighbor after which the other link is used: for tests
    #[arg(long, hide = true, value_name = "N", default_value_t = 0)]
    pub link_turn: u16,
}

impl LinkArgs {
    /// An error where a flag would do nothing.
    pub fn check(&self) -> crate::error::Result<()> {
        if self.spin > 0 && self.link == p2p::LinkMode::Stream {
            return Err(crate::error::Error::usage(
                "--spin is for datagrams: add --link datagram or --link auto",
            ));
        }
        Ok(())
    }

    /// What a node is told.
    pub fn apply(&self, config: &mut p2p::Config) -> crate::error::Result<()> {
        self.check()?;
        config.links = p2p::LinkConfig {
            mode: self.link,
            spin: Duration::from_micros(self.spin.into()),
            loss: self.link_loss,
            turn: self.link_turn,
            within_host: false,
        };
        Ok(())
    }
}

/// `shoal up`
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Nodes on this machine
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=32))]
    pub local: u16,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub wire: super::WireArgs,
    /// The first node answers programs and browsers through the others [default address: 127.0.0.1:7435]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = super::api::LISTEN, conflicts_with = "run", value_parser = super::api::address)]
    pub api: Option<std::net::SocketAddr>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub links: LinkArgs,
    /// Answer this prompt through them and stop
    #[arg(long, value_name = "PROMPT")]
    pub run: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub route: RouteArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sampling: SamplingArgs,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// `shoal demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// The prompt
    #[arg(default_value = "Tell me a story about a fox who finds a lantern in the snow.")]
    pub prompt: String,
    /// Another model than the one inside the binary: a .gguf file of three layers or more, or a name from `shoal model list`
    #[arg(short, long)]
    pub model: Option<String>,
    /// Let everybody live
    #[arg(long)]
    pub no_kill: bool,
    /// Most tokens to generate
    #[arg(short = 'n', long, default_value_t = 160)]
    pub max_tokens: usize,
    /// One JSON object per line; the last one has killed, equal, stall_ms, tokens
    #[arg(long)]
    pub json: bool,
}

/// Who may compute a prompt.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Route")]
pub struct RouteArgs {
    /// Who may compute, named by who can read
    #[arg(long, value_parser = super::choice::mode())]
    pub mode: Option<Mode>,
    /// First layers that stay on this machine
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub head: u32,
    /// Last layers that stay on this machine
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub tail: u32,
    /// A peer that may compute in trusted mode, by its full name (repeatable)
    #[arg(long, value_name = "NODE")]
    pub trust: Vec<String>,
    /// How strangers are checked: strict shows a token once all that it follows from is
    #[arg(long, value_parser = super::choice::verify(), default_value = "sample")]
    pub verify: Verify,
    /// What another holder of each segment does in case its node fails: it computes along (all), keeps what it would need
    /// (lazy), or no node stands by (none)
    #[arg(long, value_parser = super::choice::shadow(), default_value = "all")]
    pub shadow: Shadow,
}

/// Where a prompt is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// Through the running node when there is one and it is faster, else here
    Auto,
    /// In this process
    Local,
    /// Through the running node's swarm
    Swarm,
}

/// Commands that only ask the running node.
#[derive(Debug, Args)]
pub struct AskArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: HomeArgs,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `shoal peers`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Path: direct, or through a relay where no direct way was found. Layers are counted from 0; 2..6 is 2, 3, 4 and 5."
)]
pub struct PeersArgs {
    /// What to do with one of them
    #[command(subcommand)]
    pub command: Option<PeersCommand>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub ask: AskArgs,
}

/// `shoal peers ...`
#[derive(Debug, Subcommand)]
pub enum PeersCommand {
    /// Call a node something, and give it a color, for this node's page and terminal
    #[command(
        after_help = "Names stay on this machine: no node hears what it is called here. The node need not run.

Examples:
  shoal peers name 1f2e3d4c attic --color teal
  shoal peers name me workshop                 this node itself
  shoal peers name attic --color none          the name stays
  shoal peers name attic --clear"
    )]
    Name(NameArgs),
}

/// `shoal peers name`
#[derive(Debug, Args)]
pub struct NameArgs {
    /// The beginning of its name of 64 hex digits, what it is called here, or "me"
    pub peer: String,
    /// What to call it, at most 32 letters [default: as now]
    #[arg(required_unless_present_any = ["color", "clear"])]
    pub name: Option<String>,
    /// Its color [default: as now]
    #[arg(long, value_parser = super::choice::color())]
    pub color: Option<Color>,
    /// Forget name and color
    #[arg(long, conflicts_with_all = ["name", "color"])]
    pub clear: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub ask: AskArgs,
}

/// `shoal pause`
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// Serve others again
    #[arg(long)]
    pub off: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: HomeArgs,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `shoal consent`
#[derive(Debug, Args)]
pub struct ConsentArgs {
    /// Agree to this mode
    #[arg(value_parser = super::choice::mode())]
    pub mode: Option<Mode>,
    /// Take it back
    #[arg(long, requires = "mode")]
    pub revoke: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: HomeArgs,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `shoal plan`
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The prompt
    pub prompt: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: HomeArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub route: RouteArgs,
    /// Which of the node's models, or without a node a .gguf file or a name from `shoal model list` [default: the one the
    /// node was started with]
    #[arg(short, long)]
    pub model: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub wire: super::WireArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub attention: super::AttentionArgs,
    /// Most tokens to generate
    #[arg(short = 'n', long, default_value_t = 128)]
    pub max_tokens: u32,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `shoal resume`
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// The beginning of an answer's name [default: the one that was interrupted last]
    pub session: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: HomeArgs,
    /// Show the interrupted answers
    #[arg(long)]
    pub list: bool,
    /// Delete them, or the one that is named, instead
    #[arg(long, conflicts_with = "list")]
    pub forget: bool,
    /// One JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// `shoal why`
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The beginning of a session's name [default: the last prompt]
    pub session: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub home: HomeArgs,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `shoal verify`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  shoal verify ~/.local/share/shoal/proofs/1f2e3d4c5b6a7988.proof")]
pub struct VerifyArgs {
    /// A .proof file, as a node keeps them in the folder `proofs` of its data folder
    pub proof: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::{Also, Layers};

    #[test]
    fn a_model_beside_may_say_its_layers() {
        let also = |text: &str| text.parse::<Also>().map(|also| (also.model, also.layers.map(|l| l.0.len())));
        assert_eq!(also("tiny"), Ok(("tiny".into(), None)));
        assert_eq!(also("tiny=1..3,5..7"), Ok(("tiny".into(), Some(2))));
        assert_eq!(also("/models/a=b.gguf"), Ok(("/models/a=b.gguf".into(), None)));
        assert!(also("tiny=7..3").is_err() && also("=1..3").is_err());
    }

    #[test]
    fn layers_are_half_open_ranges() {
        let layers: Layers = "0..2, 6..8".parse().unwrap();
        assert_eq!(
            layers.0.iter().map(|range| (range.start(), range.end())).collect::<Vec<_>>(),
            [(0, 2), (6, 8)]
        );
        for bad in ["", "3", "4..4", "5..2", "a..b", "1..2,"] {
            assert!(bad.parse::<Layers>().is_err(), "{bad}");
        }
    }
}
