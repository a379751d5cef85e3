//! `shoal convert`: safetensors to GGUF, a GGUF to one of another format, and the parts of a GGUF to one file.
//!
//! What a publisher's files say is parsed by `shoal worker --convert`, which is handed the open files and confines itself
//! first. This process opens them, shows how far it is, and gives the result its name once the other one is done.
//!
//! ```text
//! parent: `Task` as a line of JSON, then the descriptors: the output, the importance matrix if there is one, and the files in
//!         the task's order
//! child:  `Told` as lines of JSON, the last one `Done` or `Failed`
//! ```

use std::{
    cell::Cell,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use shard::{
    convert::{Converted, Folder, Options, Rule, convert_open, importance::Importance, requantize},
    gguf::{Gguf, split},
    kernels::threads::Pool,
    quant::{self, Format},
};

use crate::{
    Error, Result,
    cli::ConvertArgs,
    confine::{self, Purpose, child},
    output::{self, human_bytes, say},
    platform::{
        self, Handed, handed_files,
        streams::{self, BlockingStream},
    },
};

/// Longest line: the task names some thousand files at most, an error is a sentence.
const MAX_LINE: u64 = 1 << 20;
/// The format of the matrices where the user names none.
const DEFAULT_FORMAT: &str = "q8_0";
/// How often the child says how far it is.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// What the child is to do.
#[derive(Serialize, Deserialize)]
struct Task {
    /// What errors call the folder, or the part that was named.
    folder: PathBuf,
    /// What the model calls itself.
    name: Option<String>,
    /// Names and lengths of the files.
    files: Vec<(String, u64)>,
    /// Whether the files are a GGUF, in one or in several parts, instead of a folder.
    gguf: bool,
    /// The format of the matrices; `None` joins the parts of a GGUF as they are.
    format: Option<String>,
    /// Other formats for some of them, as [`Rule::parse`] reads them.
    rules: Vec<String>,
    /// The length of the importance matrix.
    importance_bytes: Option<u64>,
    /// The model ranks texts.
    ranks: bool,
    threads: usize,
}

/// What the child says.
#[derive(Serialize, Deserialize)]
enum Told {
    Progress { done: u64, total: u64 },
    Done { architecture: String, tensors: usize, bytes: u64, formats: Vec<(String, usize)> },
    Failed(Why),
}

/// An error of the engine as it travels.
#[derive(Serialize, Deserialize)]
enum Why {
    Malformed { field: String, why: String },
    Unsupported { what: String },
    Other { why: String },
}

/// A file under a passing name, removed unless it gets its own.
struct Unchecked(PathBuf);

impl Unchecked {
    fn beside(output: &Path) -> io::Result<(Self, File)> {
        let mut path = output.as_os_str().to_owned();
        path.push(".unchecked");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        Ok((Self(path.into()), file))
    }
}

impl Drop for Unchecked {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

pub(super) fn run(args: ConvertArgs) -> Result<()> {
    let parts = split::parts(&args.source);
    let gguf = parts.is_some() || args.source.is_file();
    if args.format.is_none() && args.threads.is_some() && gguf {
        return Err(Error::usage("the parts of a GGUF are joined as they are: leave out --threads"));
    }
    if args.rank && gguf {
        return Err(Error::usage("--rank is for folders: a GGUF says itself whether its model ranks texts"));
    }
    if args.format.is_none() && args.source.is_file() && parts.is_none() {
        return Err(Error::usage("a GGUF in one file needs --format, in which it is written again"));
    }
    let source_name = args.source.canonicalize().map_err(|e| shard::Error::io(&args.source, e))?;
    let source_name = source_name.file_name().map(|n| n.to_string_lossy().into_owned());
    let format = match (gguf, &args.format) {
        (true, None) => None,
        (_, named) => Some(format(named.as_deref().unwrap_or(DEFAULT_FORMAT))?),
    };
    args.tensor.iter().try_for_each(|rule| Rule::parse(rule).map(drop))?;
    let importance = args.imatrix.as_deref().map(open).transpose()?;
    let stem = source_name.as_deref().unwrap_or_default();
    let stem = if gguf { split::stem(stem) } else { stem };
    let output = args.output.unwrap_or_else(|| match format {
        Some(format) => format!("{stem}-{}.gguf", format.name).into(),
        None => format!("{stem}.gguf").into(),
    });
    if output.exists() && !args.force {
        return Err(Error::usage(format!("{} exists; --force replaces it", output.display())));
    }
    let threads = args.threads.map_or_else(Pool::physical_cores, usize::from);
    let started = Instant::now();
    let bar = output::progress(0, "converting", true);
    let (unchecked, file) = Unchecked::beside(&output).map_err(|e| shard::Error::io(&output, e))?;
    let files = match split::open_parts(&args.source)? {
        Some(parts) => parts.into_iter().map(|(file, bytes)| (String::new(), file, bytes)).collect(),
        None if gguf => {
            let (file, bytes) = open(&args.source)?;
            vec![(String::new(), file, bytes)]
        }
        None => Folder::open(&args.source)?.into_files(),
    };
    let task = Task {
        folder: args.source,
        name: source_name,
        files: files.iter().map(|(name, _, bytes)| (name.clone(), *bytes)).collect(),
        gguf,
        format: format.map(|format| format.name.to_owned()),
        rules: args.tensor,
        importance_bytes: importance.as_ref().map(|(_, bytes)| *bytes),
        ranks: args.rank,
        threads,
    };
    let paths = match split::parts(&task.folder) {
        Some(parts) => parts,
        None if gguf => vec![task.folder.clone()],
        None => files.iter().map(|(name, ..)| task.folder.join(name)).collect(),
    };
    let handed: Vec<Handed<'_>> = std::iter::once(Handed::write(&file, &unchecked.0))
        .chain(importance.iter().zip(&args.imatrix).map(|((file, _), path)| Handed::read(file, path)))
        .chain(files.iter().zip(&paths).map(|((_, file, _), path)| Handed::read(file, path)))
        .collect();
    let told = watch(&task, &handed, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    let (architecture, tensors, bytes, formats) = match told {
        Some(Told::Done { architecture, tensors, bytes, formats }) => (architecture, tensors, bytes, formats),
        Some(Told::Failed(why)) => {
            return Err(match why {
                Why::Malformed { field, why } => shard::Error::malformed(field, why).into(),
                Why::Unsupported { what } => shard::Error::unsupported(what).into(),
                Why::Other { why } => Error::Failed(why),
            });
        }
        _ => return Err(Error::Failed("the process that converts ended without a word".into())),
    };
    file.sync_all()
        .and_then(|()| fs::rename(&unchecked.0, &output))
        .map_err(|e| shard::Error::io(&output, e))?;
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        return output::json_line(&json!({
            "output": output.to_string_lossy(),
            "architecture": architecture,
            "format": format.map(|format| format.name),
            "tensors": tensors,
            "formats": formats.iter().map(|(name, n)| (name.clone(), json!(n))).collect::<Map<_, _>>(),
            "bytes": bytes,
            "seconds": seconds,
        }));
    }
    say!(
        "wrote {}: {architecture} with {tensors} tensors, {} in {seconds:.1} s",
        output.display(),
        human_bytes(bytes)
    );
    if let Some(format) = format {
        let others = formats.iter().filter(|(name, _)| name != format.name);
        let others: Vec<String> = others.map(|(name, n)| format!("{n} in {name}")).collect();
        if !others.is_empty() {
            say!(
                "not in {}: {} (vectors, the head, and rows that are no whole blocks)",
                format.name,
                others.join(", ")
            );
        }
    }
    match args.rank {
        true => say!("try: shoal serve --model {}, which answers POST /v1/rerank", output.display()),
        false => say!("try: shoal run --model {} \"Hello\"", output.display()),
    }
    Ok(())
}

/// A file and its length.
fn open(path: &Path) -> Result<(File, u64)> {
    let failed = |error| shard::Error::io(path, error);
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    Ok((file, bytes))
}

fn format(name: &str) -> Result<&'static Format> {
    quant::by_name(name).filter(|f| f.quantizer.is_some()).ok_or_else(|| {
        let names: Vec<_> = quant::ALL.iter().filter(|f| f.quantizer.is_some()).map(|f| f.name).collect();
        Error::usage(format!("cannot write \"{name}\"; formats that can be written: {}", names.join(", ")))
    })
}

/// Has a confined process do it; the last it says.
fn watch(task: &Task, files: &[Handed<'_>], progress: &mut dyn FnMut(u64, u64)) -> Result<Option<Told>> {
    // Ctrl-C at the terminal ends this process, and the other one with it.
    let (mut child, mut ours) =
        streams::spawn(child::command(&platform::program()?, &["worker", "--convert"]), false)?;
    let mut said = None;
    let mut talk = || -> Result<()> {
        writeln!(ours, "{}", serde_json::to_string(task)?)?;
        for some in files.chunks(handed_files::MAX_FILES) {
            handed_files::send(&ours, some)?;
        }
        let mut lines = BufReader::new(&ours);
        loop {
            let mut line = String::new();
            (&mut lines).take(MAX_LINE).read_line(&mut line)?;
            match serde_json::from_str(&line) {
                Ok(Told::Progress { done, total }) => progress(done, total),
                Ok(last) => {
                    said = Some(last);
                    return Ok(());
                }
                // It is gone.
                Err(_) => return Ok(()),
            }
        }
    };
    let talked = talk();
    let _ = child.kill();
    let _ = child.wait();
    // A child that died in the middle of the task reads no more of it, and has said nothing.
    talked.or_else(|error| if said.is_none() { Ok(()) } else { Err(error) })?;
    Ok(said)
}

/// The child: `shoal worker --convert`.
///
/// # Errors
/// When standard input is no socket, or what comes over it is no task.
pub(super) fn run_confined() -> Result<()> {
    let mut stream = child::to_parent()?;
    confine::begin_child_with(handed_files::MAX_FILES as u64 + shard::convert::MAX_PARTS as u64);
    let task: Task = serde_json::from_str(&line(&mut stream)?)?;
    let mut files = Vec::new();
    let others = 1 + usize::from(task.importance_bytes.is_some());
    while files.len() < task.files.len() + others {
        files.extend(handed_files::receive(&stream)?);
    }
    let output = files.remove(0);
    let importance = task.importance_bytes.map(|bytes| (files.remove(0), bytes));
    // The output is mapped to be checked: a weight of a checkpoint has two bytes at least, one of a GGUF an eighth of four.
    let larger = if task.gguf { 32 } else { 2 };
    let all = task.files.iter().map(|(_, bytes)| *bytes).chain(task.importance_bytes);
    let mapped = all.fold(0u64, u64::saturating_add).saturating_mul(larger);
    confine::limit_memory(mapped.saturating_add(confine::SLACK_BYTES));
    confine::enter(Purpose::Compute);
    let files: Vec<(String, File, u64)> =
        task.files.iter().zip(files).map(|((name, bytes), file)| (name.clone(), file, *bytes)).collect();
    let tell = |told: &Told| -> io::Result<()> {
        (&stream).write_all(format!("{}\n", serde_json::to_string(told)?).as_bytes())
    };
    let last = Cell::new(Instant::now());
    let progress = |done, total| {
        if last.get().elapsed() >= REPORT_EVERY {
            last.set(Instant::now());
            // A parent that is gone ends this process.
            let _ = tell(&Told::Progress { done, total });
        }
    };
    let made = make(&task, files, importance, &output, &progress);
    let told = match made {
        Ok(Converted { architecture, tensors, bytes, formats }) => {
            let formats = formats.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
            Told::Done { architecture, tensors, bytes, formats }
        }
        Err(shard::Error::Malformed { field, why }) => Told::Failed(Why::Malformed { field, why }),
        Err(shard::Error::Unsupported { what }) => Told::Failed(Why::Unsupported { what }),
        Err(other) => Told::Failed(Why::Other { why: other.to_string() }),
    };
    Ok(tell(&told)?)
}

/// What the task says, with what was handed over.
fn make(
    task: &Task,
    files: Vec<(String, File, u64)>,
    importance: Option<(File, u64)>,
    output: &File,
    progress: &dyn Fn(u64, u64),
) -> shard::Result<Converted> {
    let whole = || match &files[..] {
        [(_, file, bytes)] => Gguf::of_file(file, *bytes, &task.folder),
        parts => Gguf::of_parts(parts.iter().map(|(_, file, bytes)| (file, *bytes)), &task.folder),
    };
    let Some(name) = &task.format else { return joined(&whole()?, output, progress) };
    let importance = importance.map(|(file, bytes)| Importance::of_file(&file, bytes));
    let options = Options {
        format: quant::by_name(name).ok_or_else(|| shard::Error::unsupported(name.clone()))?,
        threads: task.threads,
        rules: task.rules.iter().map(|rule| Rule::parse(rule)).collect::<shard::Result<_>>()?,
        importance: importance.transpose()?,
        ranks: task.ranks,
    };
    if task.gguf {
        return requantize(&whole()?, output, &options, progress);
    }
    convert_open(&Folder::new(&task.folder, files), task.name.as_deref(), output, &options, progress)
}

/// The parts of a GGUF as one file.
fn joined(gguf: &Gguf, output: &File, progress: &dyn Fn(u64, u64)) -> shard::Result<Converted> {
    let bytes = split::join(gguf, output, progress)?;
    let architecture = gguf.metadata().architecture()?.to_owned();
    Ok(Converted { architecture, tensors: gguf.tensors().len(), bytes, formats: Vec::new() })
}

/// The task's line, read byte by byte: what follows it carries descriptors.
fn line(stream: &mut BlockingStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MAX_LINE as usize {
        stream.read_exact(&mut byte)?;
        if byte == *b"\n" {
            break;
        }
        line.push(byte[0]);
    }
    String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData.into())
}
