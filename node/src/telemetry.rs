//! What a node says of its work to those who operate it: log lines and, to a collector that `--otlp` names, traces.
//!
//! A prompt is a span (`prompt`: session, mode, wire, tokens, faults), and every frame's way through a stage is one
//! below it (`hop`: node, layers, epoch, first position, rows). A stage has its own trace of what it serves (`serve`:
//! session, requester), with its hops: what a session's nodes say is joined by its name, no identifier of a trace
//! travels.
//! Reports say when, how long, how much and who computed; never what. Text, token ids and logits are redacted by
//! type: whatever carries them prints only how much it carries (`Debug` of `control::Ask`, `worker::Prompt`,
//! `request::Progress` and the like, through [`Hidden`]); whose prompt a stage serves is [`Requester`], a name that
//! means nothing outside this process.
//!
//! A bare level (`--log debug`) is about Shoal's own code; libraries then only warn, because some of them print every
//! peer's address. Name them to hear more: `--log debug,libp2p_quic=trace`.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, IsTerminal},
    sync::OnceLock,
};

use scheduler::NodeId;
use tracing::Span;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::LevelFilter,
    fmt::{self as lines, writer::BoxMakeWriter},
    layer::SubscriberExt,
};

use crate::{Error, Result, cli::GlobalArgs, log_file::LogFile};

/// Code of ours, as log lines name it.
const OURS: [&str; 6] = ["shoal", "node", "p2p", "api", "shard", "scheduler"];
/// Hops of one session under way at a time; the oldest is dropped unreported when there are more.
const MAX_HOPS: usize = 64;

/// Reporting lasts as long as this lives; dropping it sends what is left.
#[derive(Debug, Default)]
pub struct Reporting {
    #[cfg(feature = "otlp")]
    traces: Option<otlp::Traces>,
}

/// Starts what the flags ask for; nothing without them.
///
/// # Errors
/// [`Error::Usage`] for a level or an address that cannot be read.
pub fn start(args: &GlobalArgs) -> Result<Reporting> {
    let mut layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> = Vec::new();
    let asked = args.log.as_deref().filter(|asked| !asked.trim().is_empty());
    let file = log_file(args)?;
    if let Some(asked) = asked.or(file.as_ref().map(|_| "info")) {
        let (writer, colors) = match file {
            None => (BoxMakeWriter::new(io::stderr), io::stderr().is_terminal()),
            Some(file) => (BoxMakeWriter::new(file), false),
        };
        let layer = lines::layer().with_writer(writer);
        let layer: Box<dyn Layer<Registry> + Send + Sync> = if args.log_format == "json" {
            Box::new(layer.json().with_filter(filter(asked)?))
        } else {
            Box::new(layer.with_ansi(colors).with_filter(filter(asked)?))
        };
        layers.push(layer);
    }
    #[allow(unused_mut)]
    let mut reporting = Reporting::default();
    #[cfg(feature = "otlp")]
    if let Some(url) = &args.otlp {
        let (traces, layer) = otlp::start(url)?;
        crate::confine::keep_network();
        reporting.traces = Some(traces);
        layers.push(Box::new(layer.with_filter(filter("debug")?)));
    }
    #[cfg(not(feature = "otlp"))]
    if let Some(url) = &args.otlp {
        return Err(Error::usage(format!(
            "--otlp {url}: this build sends no traces; build it with: cargo build --release --features otlp"
        )));
    }
    if !layers.is_empty() {
        tracing::subscriber::set_global_default(Registry::default().with(layers))
            .map_err(|e| Error::Failed(e.to_string()))?;
    }
    Ok(reporting)
}

/// The file to report into. One that is set for all commands stops none of them: people have settings, services write the files.
fn log_file(args: &GlobalArgs) -> Result<Option<LogFile>> {
    let Some(path) = args.log_file.as_ref().filter(|path| !path.is_empty()) else { return Ok(None) };
    let is_typed = std::env::args_os().any(|word| word.to_string_lossy().starts_with("--log-file"));
    match LogFile::open(path.as_ref()) {
        Ok(file) => Ok(Some(file)),
        Err(error) if is_typed => Err(Error::usage(format!("--log-file {}: {error}", path.display()))),
        Err(error) => {
            eprintln!("Nothing is reported into {}: {error}", path.display());
            Ok(None)
        }
    }
}

/// A node that is the first of its swarm knows no peer, which is no warning.
const QUIET: &str = "libp2p_kad::behaviour=error";

/// A bare level means our own code at that level and warnings of the rest; directives are taken as they are.
fn filter(asked: &str) -> Result<EnvFilter> {
    let directives: Vec<String> = asked
        .split(',')
        .map(str::trim)
        .map(|part| match part.parse::<LevelFilter>() {
            Ok(level) => {
                let rest = level.min(LevelFilter::WARN);
                let ours: Vec<String> = OURS.iter().map(|name| format!("{name}={level}")).collect();
                format!("{rest},{QUIET},{}", ours.join(","))
            }
            Err(_) => part.to_owned(),
        })
        .collect();
    EnvFilter::try_new(directives.join(",")).map_err(|e| {
        Error::usage(format!(
            "--log \"{asked}\" cannot be read ({e}); write error, warn, info, debug or trace, or e.g. p2p=debug,node=info"
        ))
    })
}

/// Something that must not be reported: prints how much of it there is.
pub struct Hidden(pub usize, pub &'static str);

impl Hidden {
    /// A text.
    pub fn text(text: &str) -> Self {
        Self(text.len(), "bytes")
    }

    /// Token ids, or anything made of them.
    pub fn ids<T>(ids: &[T]) -> Self {
        Self(ids.len(), "items")
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} {}>", self.0, self.1)
    }
}

/// Whose prompt it is, under a name that says nothing about the key and changes with every start of the process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Requester(pub NodeId);

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        static KEY: OnceLock<[u8; 32]> = OnceLock::new();
        let key = KEY.get_or_init(|| {
            let mut key = [0; 32];
            // Without randomness the name stays stable between starts, which is weaker and harms only this node.
            let _ = getrandom::fill(&mut key);
            key
        });
        let hash = blake3::keyed_hash(key, format!("{:?}", self.0).as_bytes());
        let [a, b, c, ..] = *hash.as_bytes();
        write!(f, "requester-{a:02x}{b:02x}{c:02x}")
    }
}

impl fmt::Debug for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hops under way, by the layer where they began and their first position. At most [`MAX_HOPS`].
#[derive(Debug, Default)]
pub struct Hops(BTreeMap<(u32, u32), Span>);

impl Hops {
    /// A frame is given to a stage; `span` makes the span that lasts until [`Hops::ended`].
    pub fn began(&mut self, layer: u32, from: u32, span: impl FnOnce() -> Span) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        if self.0.len() >= MAX_HOPS {
            self.0.pop_first();
        }
        self.0.insert((layer, from), span());
    }

    /// Its output is there.
    pub fn ended(&mut self, layer: u32, from: u32) {
        if let Some(span) = self.0.remove(&(layer, from)) {
            let _inside = span.enter();
            tracing::debug!("computed");
        }
    }
}

#[cfg(feature = "otlp")]
mod otlp {
    //! Spans to an OpenTelemetry collector, as protobuf over HTTP, from a thread of their own.

    use std::{
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    use opentelemetry::trace::TracerProvider;
    use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
    use opentelemetry_sdk::{
        Resource,
        error::OTelSdkResult,
        trace::{self as export, SdkTracer, SdkTracerProvider},
    };
    use tracing_opentelemetry::OpenTelemetryLayer;
    use tracing_subscriber::Registry;

    use crate::{Error, Result};

    /// The exporter; dropping it sends what is left.
    #[derive(Debug)]
    pub(super) struct Traces(SdkTracerProvider);

    impl Drop for Traces {
        fn drop(&mut self) {
            if let Err(error) = self.0.shutdown() {
                eprintln!("the last traces were not sent: {error}");
            }
        }
    }

    /// Sends, and says on standard error when the collector stops taking traces and when it takes them again.
    #[derive(Debug)]
    struct Loud {
        exporter: SpanExporter,
        failing: AtomicBool,
    }

    impl export::SpanExporter for Loud {
        async fn export(&self, batch: Vec<export::SpanData>) -> OTelSdkResult {
            let sent = self.exporter.export(batch).await;
            let failed = self.failing.swap(sent.is_err(), Ordering::Relaxed);
            match &sent {
                Err(error) if !failed => {
                    eprintln!("traces are lost, the collector does not take them: {error}")
                }
                Ok(()) if failed => eprintln!("the collector takes traces again"),
                _ => {}
            }
            sent
        }

        fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
            self.exporter.shutdown_with_timeout(timeout)
        }

        fn set_resource(&mut self, resource: &Resource) {
            self.exporter.set_resource(resource);
        }
    }

    pub(super) fn start(url: &str) -> Result<(Traces, OpenTelemetryLayer<Registry, SdkTracer>)> {
        let wrong = |why: String| {
            Error::usage(format!("--otlp {url}: {why}; write e.g. http://127.0.0.1:4318/v1/traces"))
        };
        let address = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        if address.is_none_or(|address| address.is_empty() || address.starts_with(['/', ':', '?', '#'])) {
            return Err(wrong("that is no address of a web server".into()));
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(url)
            .with_protocol(Protocol::HttpBinary)
            .build()
            .map_err(|e| wrong(e.to_string()))?;
        let resource = Resource::builder().with_service_name("shoal").build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_batch_exporter(Loud { exporter, failing: AtomicBool::new(false) })
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shoal"));
        Ok((Traces(provider), layer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "otlp")]
    #[test]
    fn an_address_that_is_none_is_refused() {
        for url in ["nonsense", "http://", "https://:4318", "ftp://127.0.0.1/", "http:///v1/traces", ""] {
            let error = otlp::start(url).map(drop).unwrap_err().to_string();
            assert!(error.contains("4318/v1/traces"), "{url}: {error}");
        }
    }

    #[test]
    fn a_bare_level_is_about_our_own_code() {
        let text = filter("debug").unwrap().to_string();
        assert!(text.contains("node=debug") && text.contains("warn"), "{text}");
        let text = filter("error").unwrap().to_string();
        assert!(text.contains("p2p=error") && !text.contains("warn"), "{text}");
        let text = filter("p2p=trace,libp2p_swarm=info").unwrap().to_string();
        assert!(text.contains("p2p=trace") && !text.contains("node="), "{text}");
        assert!(filter("node=loud").is_err());
    }

    #[test]
    fn a_requester_has_one_name_and_it_is_not_the_key() {
        let (a, b) = (NodeId::new([1; 32]), NodeId::new([2; 32]));
        assert_eq!(Requester(a).to_string(), format!("{:?}", Requester(a)));
        assert_ne!(Requester(a).to_string(), Requester(b).to_string());
        assert!(!Requester(a).to_string().contains(&a.to_string()));
    }

    #[test]
    fn hops_are_bounded() {
        let mut hops = Hops::default();
        let subscriber = tracing_subscriber::registry().with(LevelFilter::DEBUG);
        tracing::subscriber::with_default(subscriber, || {
            for from in 0..1000 {
                hops.began(3, from, || tracing::debug_span!("hop"));
            }
            assert_eq!(hops.0.len(), MAX_HOPS);
            hops.ended(3, 999);
            assert_eq!(hops.0.len(), MAX_HOPS - 1);
        });
    }
}
