//! What a model file's header says, for processes that hold keys and sockets and must not parse it.
//!
//! The daemon, `shoal up` and `shoal model` want to know how many layers a file has, where their bytes are and what they
//! cost. They open the file and start `shoal worker --header`, which confines itself as a worker does, takes little
//! processor time and memory, reads the header and ends. What comes back are numbers, checked here as those of a peer.
//!
//! ```text
//! parent: the file's length, u64, then its descriptor       child: `Said` as JSON, then the end of the stream
//! ```
//!
//! The embedded model is a part of the program and is read in place.
//!
//! Bounds: [`CPU_SECONDS`], [`MEMORY_BYTES`] and [`PATIENCE`] for one header, [`MAX_SAID`] for what is said of it,
//! [`MAX_LAYERS`] layers. One thread asks for one header at a time.
//!
//! Limits: without a filter of the system (outside Linux) the process has limits, but no sandbox.

use std::{
    io::{self, Read, Write},
    ops::Range,
    path::Path,
    time::{Duration, Instant},
};

use api::inference::ModelInfo;
use scheduler::{
    LayerRange,
    layer_cost::{LayerCost, LayerCosts},
};
use serde::{Deserialize, Serialize};
use shard::{
    executor::Ends,
    gguf::{Gguf, Layout, Part},
    models::{Blueprint, layer_costs},
};

use crate::{
    Error, Result,
    confine::{self, Purpose, child},
    inference::local,
    library::{self, Located},
    model,
    platform::{self, Handed, handed_files, streams},
    worker::ipc::{self, CostRun},
};

/// Layers of a model whose header is believed; the tallest known have some 130.
pub const MAX_LAYERS: u32 = 4_096;
/// Processor time of one header: the longest permitted takes a second in a debug build.
const CPU_SECONDS: u64 = 10;
/// Memory of one header beyond what the program takes and the file's mapping: twice the longest header, and stacks.
const MEMORY_BYTES: u64 = 512 << 20;
/// When a header is given up although its processor time is not used up: on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(40);
/// Longest answer: a span for each of 65,536 tensors, and a chat template of 1 MiB as JSON writes it.
const MAX_SAID: u64 = 16 << 20;

/// What a header says.
#[derive(Clone, Debug)]
pub struct Header {
    /// Bytes until the header ends.
    pub header_len: u64,
    /// Bytes of the file.
    pub file_len: u64,
    /// Bytes of all tensors that belong to layers, as they stand in the file.
    pub layer_bytes: u64,
    layout: Layout,
    described: Result<Described, Refused>,
}

/// What is known of a model that this build can compute.
#[derive(Clone, Debug)]
struct Described {
    /// As clients are told of it, with the context it was made for.
    info: ModelInfo,
    /// What its layers cost, where that can be.
    costs: Option<LayerCosts>,
    /// Layers in front of which it cannot be cut.
    uncut: Vec<u32>,
}

/// An error of the engine as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Refused {
    Malformed { field: String, why: String },
    Unsupported { what: String },
    Invalid { why: String },
}

impl From<shard::Error> for Refused {
    fn from(error: shard::Error) -> Self {
        match error {
            shard::Error::Malformed { field, why } => Self::Malformed { field, why },
            shard::Error::Unsupported { what } => Self::Unsupported { what },
            other => Self::Invalid { why: other.to_string() },
        }
    }
}

impl From<Refused> for shard::Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Malformed { field, why } => Self::Malformed { field, why },
            Refused::Unsupported { what } => Self::Unsupported { what },
            Refused::Invalid { why } => Self::Invalid { why },
        }
    }
}

/// What the child says.
#[derive(Serialize, Deserialize)]
enum Said {
    /// The file is no GGUF.
    Unread(Refused),
    /// What it is.
    Read(Box<Traveled>),
}

/// A header as it travels.
#[derive(Serialize, Deserialize)]
struct Traveled {
    header_len: u64,
    layer_bytes: u64,
    num_layers: u32,
    tied: bool,
    /// Layer, or what else a span belongs to ([`EMBEDDING`] and below), its start and its end.
    spans: Vec<(i64, u64, u64)>,
    described: Result<TraveledModel, Refused>,
}

/// What is known of a model, as it travels.
#[derive(Serialize, Deserialize)]
struct TraveledModel {
    info: ModelInfo,
    costs: Option<Vec<CostRun>>,
    uncut: Vec<u32>,
}

/// What a span belongs to that is no layer's.
const EMBEDDING: i64 = -1;
const HEAD: i64 = -2;
const WHOLE: i64 = -3;

impl Header {
    /// Reads the header of a file that is open, in a process that may die of it; `None` is the embedded model.
    ///
    /// # Errors
    /// Those of the engine for a file that is not sound, which name it; [`Error::Failed`] when the process ends without
    /// an answer.
    pub fn read(located: Option<&Located>) -> Result<Self> {
        let Some(located) = located else {
            return Ok(Self::of(&library::parse(None)?)?);
        };
        located.whole()?;
        let Located { file, bytes, path, .. } = located;
        let said = ask(Handed::read(file, path), *bytes)?;
        let said = serde_json::from_slice(&said).map_err(|_| {
            let limits = format!("{CPU_SECONDS} s and {} MiB", MEMORY_BYTES >> 20);
            Error::Failed(format!(
                "{}: reading its header takes more than {limits}, or ends the process that does it",
                path.display()
            ))
        })?;
        match said {
            Said::Read(traveled) => Ok(traveled.check(*bytes)?),
            Said::Unread(Refused::Malformed { field, why }) => {
                Err(shard::Error::malformed(format!("{}: {field}", path.display()), why).into())
            }
            Said::Unread(refused) => Err(shard::Error::from(refused).into()),
        }
    }

    /// As [`Self::read`], of the file at `path`.
    ///
    /// # Errors
    /// As for [`Self::read`], and [`Error::Usage`] when there is no such file.
    pub fn of_file(path: &Path) -> Result<Self> {
        Self::read(Some(&Located::open(path)?))
    }

    /// What this process read itself.
    fn of(gguf: &Gguf) -> shard::Result<Self> {
        let described = Blueprint::from_gguf(gguf).map(|blueprint| Described {
            info: local::info(gguf, &blueprint, blueprint.context, String::new()),
            costs: layer_costs(&blueprint, gguf).ok(),
            uncut: (0..blueprint.layers.len())
                .filter(|at| !blueprint.may_cut(*at))
                .filter_map(|at| u32::try_from(at).ok())
                .collect(),
        });
        Ok(Self {
            header_len: gguf.header_len(),
            file_len: gguf.file_len(),
            layer_bytes: model::layer_bytes(gguf),
            layout: Layout::of(gguf)?,
            described: described.map_err(Refused::from),
        })
    }

    /// Layers of the model.
    pub fn num_layers(&self) -> u32 {
        self.layout.num_layers()
    }

    /// The bytes needed to hold `layers` and `ends`. See [`Layout::byte_ranges`].
    ///
    /// # Errors
    /// As there.
    pub fn byte_ranges(&self, layers: LayerRange, ends: Ends) -> Result<Vec<Range<u64>>> {
        Ok(self.layout.byte_ranges(layers, ends)?)
    }

    /// Refuses layers that cannot be held without those around them.
    ///
    /// # Errors
    /// [`Error::Usage`] with what to do instead.
    pub fn check_cut(&self, layers: LayerRange) -> Result<()> {
        // What this build does not compute is refused when it is loaded.
        let Ok(described) = self.described() else { return Ok(()) };
        let Some(at) = described.uncut.iter().find(|at| [layers.start(), layers.end()].contains(at)) else {
            return Ok(());
        };
        let (name, all) = (&described.info.architecture, self.num_layers());
        Err(Error::usage(format!(
            "layers {layers}: a model of {name} is not cut before layer {at}, because layers behind it read the token itself or what \
             layers before it keep. Hold it whole: --layers 0..{all}, or answer alone with `shoal serve --via local`"
        )))
    }

    /// The model as clients are told of it, called `name`, for sessions of `context` positions.
    ///
    /// # Errors
    /// Those of the engine for a model that this build does not compute.
    pub fn info(&self, context: usize, name: String) -> Result<ModelInfo> {
        Ok(ModelInfo { context, name, ..self.described()?.info.clone() })
    }

    /// Positions a session may hold; see [`model::context`].
    ///
    /// # Errors
    /// As there.
    pub fn context(&self, asked: Option<usize>) -> Result<usize> {
        model::positions(self.trained()?, asked)
    }

    /// Positions the model was made for.
    ///
    /// # Errors
    /// Those of the engine for a model that this build does not compute.
    pub fn trained(&self) -> Result<usize> {
        Ok(self.described()?.info.context)
    }

    /// What its layers cost, where that is known.
    pub fn costs(&self) -> Option<&LayerCosts> {
        self.described.as_ref().ok()?.costs.as_ref()
    }

    /// What its layers weigh: as [`Self::costs`] says, else all alike, by their bytes in the file.
    pub fn weights(&self) -> Option<LayerCosts> {
        let even = || {
            let weight_bytes = (self.layer_bytes / u64::from(self.num_layers().max(1))).max(1);
            let layer = LayerCost {
                row_work: weight_bytes,
                weight_bytes,
                seen_work: 0,
                window: None,
                state_bytes: 0,
                position_bytes: 0,
            };
            LayerCosts::new(vec![layer; self.num_layers() as usize], 1).ok()
        };
        self.costs().cloned().or_else(even)
    }

    /// Bytes that the weights of `layers` take in memory.
    pub fn weight_bytes(&self, layers: &[LayerRange]) -> u64 {
        let weights = self.weights();
        let of = |range: &LayerRange| weights.as_ref().map_or(0, |weights| weights.weight_bytes(*range));
        layers.iter().map(of).fold(0, u64::saturating_add)
    }

    fn described(&self) -> shard::Result<&Described> {
        self.described.as_ref().map_err(|refused| refused.clone().into())
    }
}

impl Traveled {
    fn of(header: Header) -> Self {
        let spans = header.layout.spans().iter().map(|(part, range)| {
            let part = match part {
                Part::Layer(layer) => i64::from(*layer),
                Part::Embedding => EMBEDDING,
                Part::Head => HEAD,
                Part::Whole => WHOLE,
            };
            (part, range.start, range.end)
        });
        let costs = |costs: LayerCosts| costs.runs().into_iter().map(ipc::cost_run).collect();
        Self {
            header_len: header.header_len,
            layer_bytes: header.layer_bytes,
            num_layers: header.num_layers(),
            tied: header.layout.is_tied(),
            spans: spans.collect(),
            described: header.described.map(|described| TraveledModel {
                info: described.info,
                costs: described.costs.map(costs),
                uncut: described.uncut,
            }),
        }
    }

    /// The header of a file of `file_len` bytes, if it can be one.
    fn check(self, file_len: u64) -> shard::Result<Header> {
        let Self { header_len, layer_bytes, num_layers, tied, spans, described } = self;
        if !(1..=MAX_LAYERS).contains(&num_layers) {
            return Err(shard::Error::malformed(
                "block_count",
                format!("{num_layers} layers; at most {MAX_LAYERS}"),
            ));
        }
        let beyond = |(_, start, end): &(i64, u64, u64)| start > end || *end > file_len;
        if header_len > file_len || layer_bytes > file_len || spans.iter().any(beyond) {
            return Err(shard::Error::malformed("tensors", "lie beyond the end of the file"));
        }
        let spans = spans.into_iter().map(|(part, start, end)| {
            let part = match part {
                EMBEDDING => Part::Embedding,
                HEAD => Part::Head,
                layer => u32::try_from(layer).map_or(Part::Whole, Part::Layer),
            };
            (part, start..end)
        });
        let described = described.and_then(|TraveledModel { info, costs, uncut }| {
            if info.num_layers != num_layers as usize || info.file_bytes != file_len {
                return Err(Refused::Invalid { why: "what is said of the model contradicts itself".into() });
            }
            let hidden = u32::try_from(info.hidden).unwrap_or(u32::MAX);
            let costs = costs.and_then(|runs| ipc::costs(&runs, num_layers, hidden).ok());
            Ok(Described { info, costs, uncut })
        });
        let layout = Layout::new(num_layers, tied, spans);
        Ok(Header { header_len, file_len, layer_bytes, layout, described })
    }
}

/// What the child says of a file; nothing when it dies or takes too long.
fn ask(handed: Handed<'_>, bytes: u64) -> io::Result<Vec<u8>> {
    let until = Instant::now() + PATIENCE;
    let (mut child, mut ours) =
        streams::spawn(child::command(&platform::program()?, &["worker", "--header"]), false)?;
    let talk = || -> io::Result<Vec<u8>> {
        ours.write_all(&bytes.to_le_bytes())?;
        handed_files::send(&ours, &[handed])?;
        let (mut said, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            ours.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match ours.read(&mut piece)? {
                0 => return Ok(said),
                n if (said.len() + n) as u64 <= MAX_SAID => said.extend_from_slice(&piece[..n]),
                _ => return Ok(Vec::new()),
            }
        }
    };
    // A child that is gone reads nothing; that it said nothing tells.
    let said = { talk }().unwrap_or_default();
    let _ = child.kill();
    let _ = child.wait();
    Ok(said)
}

/// The child: `shoal worker --header`.
///
/// # Errors
/// When standard input is no socket, or what comes over it is no file.
pub fn run() -> Result<()> {
    let mut stream = child::to_parent()?;
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    let bytes = u64::from_le_bytes(bytes);
    let file = handed_files::receive(&stream)?.into_iter().next();
    let file = file.ok_or_else(|| Error::usage("the file was announced and did not come"))?;
    confine::begin_child();
    confine::limit_time(CPU_SECONDS);
    confine::limit_memory(bytes.saturating_add(MEMORY_BYTES));
    confine::enter(Purpose::Compute);
    let said = Gguf::of_file(&file, bytes, "").and_then(|gguf| Header::of(&gguf));
    let said = match said {
        Ok(header) => Said::Read(Box::new(Traveled::of(header))),
        Err(error) => Said::Unread(error.into()),
    };
    Ok(stream.write_all(&serde_json::to_vec(&said)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str) -> Header {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/families");
        let said = Header::of(&Gguf::open(folder.join(format!("{name}.gguf"))).unwrap()).unwrap();
        // As it comes out of the process that reads it.
        let bytes = serde_json::to_vec(&Traveled::of(said.clone())).unwrap();
        serde_json::from_slice::<Traveled>(&bytes).unwrap().check(said.file_len).unwrap()
    }

    #[test]
    fn layers_that_cannot_stand_alone_are_refused_with_what_to_do() {
        let range = |start, end| LayerRange::new(start, end).unwrap();
        let whole = header("gemma4_e");
        whole.check_cut(range(0, 6)).unwrap();
        for cut in [range(0, 1), range(2, 4), range(5, 6)] {
            let why = whole.check_cut(cut).unwrap_err().to_string();
            assert!(why.contains("read the token itself"), "{why}");
            assert!(why.contains("--layers 0..6") && why.contains(&cut.to_string()), "{why}");
        }
        header("gemma4").check_cut(range(1, 3)).unwrap();
    }
}
