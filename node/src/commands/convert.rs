//! `shoal convert`: safetensors to GGUF, and the parts of a GGUF to one file.
//!
//! What a publisher's folder says is parsed by `shoal worker --convert`, which is handed the open files and confines itself
//! first. This process opens them, shows how far it is, and gives the result its name once the other one is done.
//!
//! ```text
//! parent: `Task` as a line of JSON, then the descriptors: the output, and the files in the task's order
//! child:  `Told` as lines of JSON, the last one `Done` or `Failed`
//! ```

use std::{
    cell::Cell,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use shard::{
    convert::{Converted, Folder, Options, convert_open},
    gguf::{Gguf, split},
    kernels::threads::Pool,
    quant::{self, Format},
};

use crate::{
    Error, Result,
    cli::ConvertArgs,
    confine::{self, Purpose, descriptors},
    output::{self, human_bytes, say},
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
    /// The format of the matrices; `None` joins the files, which are parts of a GGUF, as they are.
    format: Option<String>,
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
    if parts.is_some() && (args.format.is_some() || args.threads.is_some()) {
        return Err(Error::usage(
            "the parts of a GGUF are joined as they are: leave out --format and --threads",
        ));
    }
    let folder_name = args.source.canonicalize().map_err(|e| shard::Error::io(&args.source, e))?;
    let folder_name = folder_name.file_name().map(|n| n.to_string_lossy().into_owned());
    let format = match parts {
        Some(_) => None,
        None => Some(format(args.format.as_deref().unwrap_or(DEFAULT_FORMAT))?),
    };
    let stem = folder_name.as_deref().unwrap_or_default();
    let output = args.output.unwrap_or_else(|| match format {
        Some(format) => format!("{stem}-{}.gguf", format.name).into(),
        None => format!("{}.gguf", split::stem(stem)).into(),
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
        None => Folder::open(&args.source)?.into_files(),
    };
    let task = Task {
        folder: args.source,
        name: folder_name,
        files: files.iter().map(|(name, _, bytes)| (name.clone(), *bytes)).collect(),
        format: format.map(|format| format.name.to_owned()),
        threads,
    };
    let descriptors: Vec<&File> =
        std::iter::once(&file).chain(files.iter().map(|(_, file, _)| file)).collect();
    let told = watch(&task, &descriptors, &mut |done, total| {
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
    say!("try: shoal run --model {} \"Hello\"", output.display());
    Ok(())
}

fn format(name: &str) -> Result<&'static Format> {
    quant::by_name(name).filter(|f| f.quantize.is_some()).ok_or_else(|| {
        let names: Vec<_> = quant::ALL.iter().filter(|f| f.quantize.is_some()).map(|f| f.name).collect();
        Error::usage(format!("cannot write \"{name}\"; formats that can be written: {}", names.join(", ")))
    })
}

/// Has a confined process do it; the last it says.
fn watch(task: &Task, files: &[&File], progress: &mut dyn FnMut(u64, u64)) -> Result<Option<Told>> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "--convert"]).stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).env_clear();
    // Ctrl-C at the terminal ends this process, and the other one with it.
    command.process_group(0);
    let mut child = command.spawn()?;
    drop(command);
    let mut said = None;
    let mut talk = || -> Result<()> {
        writeln!(ours, "{}", serde_json::to_string(task)?)?;
        for some in files.chunks(descriptors::MAX_FILES) {
            descriptors::send(&ours, some)?;
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
    let mut stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    if stream.peer_addr().is_err() {
        return Err(Error::usage(
            "`shoal worker` is started by the daemon: standard input must be its socket",
        ));
    }
    confine::begin_child_with(descriptors::MAX_FILES as u64 + shard::convert::MAX_PARTS as u64);
    let task: Task = serde_json::from_str(&line(&mut stream)?)?;
    let mut files = Vec::new();
    while files.len() < task.files.len() + 1 {
        files.extend(descriptors::receive(&stream)?.into_iter().map(File::from));
    }
    let output = files.remove(0);
    // The output is mapped to be checked; no format takes more than the one it was read in.
    let mapped = task.files.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes)).saturating_mul(2);
    confine::limit_memory(mapped.saturating_add(confine::SLACK_BYTES));
    confine::enter(Purpose::Compute);
    let files = task.files.into_iter().zip(files).map(|((name, bytes), file)| (name, file, bytes));
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
    let made = match &task.format {
        None => joined(files.map(|(_, file, bytes)| (file, bytes)).collect(), &output, &progress),
        Some(name) => {
            let options = Options { format: format(name)?, threads: task.threads };
            convert_open(
                &Folder::new(&task.folder, files),
                task.name.as_deref(),
                &output,
                &options,
                &progress,
            )
        }
    };
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

/// The parts of a GGUF as one file.
fn joined(parts: Vec<(File, u64)>, output: &File, progress: &dyn Fn(u64, u64)) -> shard::Result<Converted> {
    let gguf = Gguf::of_parts(parts.iter().map(|(file, bytes)| (file, *bytes)), "")?;
    let bytes = split::join(&gguf, output, progress)?;
    let architecture = gguf.metadata().architecture()?.to_owned();
    Ok(Converted { architecture, tensors: gguf.tensors().len(), bytes, formats: Vec::new() })
}

/// The task's line, read byte by byte: what follows it carries descriptors.
fn line(stream: &mut UnixStream) -> io::Result<String> {
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
