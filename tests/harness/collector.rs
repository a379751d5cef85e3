//! A collector of traces, as `--otlp` expects one: OTLP over HTTP, protobuf.
//!
//! Bounds: [`MAX_CONNECTIONS`] connections, [`MAX_BODY`] bytes of one request. Whatever else comes ends the connection.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
};
use prost::Message;

/// Exporters keep one connection; more belong to other processes.
const MAX_CONNECTIONS: usize = 16;
/// A batch is at most 512 spans.
const MAX_BODY: usize = 16 << 20;

/// A span as it arrived.
#[derive(Debug)]
pub struct Span {
    /// Its name.
    pub name: String,
    /// Its own id, in hex.
    pub id: String,
    /// The id of the span it is below; empty for a trace's first.
    pub parent: String,
    /// The trace it belongs to.
    pub trace: String,
    /// Nanoseconds between begin and end.
    pub took_ns: u64,
    /// What it says, as text.
    pub attributes: BTreeMap<String, String>,
    /// What happened in it: all that is said of every event.
    pub events: Vec<BTreeMap<String, String>>,
}

/// A running collector.
pub struct Collector {
    /// What `--otlp` is to be given.
    pub url: String,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Default for Collector {
    fn default() -> Self {
        Self::new()
    }
}

impl Collector {
    /// One on a port of loopback.
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback is free");
        let url = format!("http://{}/v1/traces", listener.local_addr().expect("it has an address"));
        let bodies = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let kept = Arc::clone(&bodies);
        thread::spawn(move || {
            for stream in listener.incoming().take(MAX_CONNECTIONS).map_while(Result::ok) {
                let kept = Arc::clone(&kept);
                thread::spawn(move || receive(stream, &kept));
            }
        });
        Self { url, bodies }
    }

    /// All that came so far, as it came.
    pub fn bodies(&self) -> Vec<Vec<u8>> {
        self.bodies.lock().expect("no receiver panics").clone()
    }

    /// All spans that came so far, each with the service's name among its attributes.
    pub fn spans(&self) -> Vec<Span> {
        self.bodies().iter().flat_map(|body| decoded(body)).collect()
    }
}

/// Takes requests of one connection until it closes.
fn receive(stream: TcpStream, kept: &Mutex<Vec<Vec<u8>>>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut length = None;
        let mut protobuf = false;
        let mut line = String::new();
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let header = line.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().ok().filter(|length| *length <= MAX_BODY);
            }
            protobuf |= header == "content-type: application/x-protobuf";
        }
        let Some(length) = length.filter(|_| protobuf) else {
            return stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        };
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        kept.lock().expect("no receiver panics").push(body);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
    }
}

fn decoded(body: &[u8]) -> Vec<Span> {
    let request = ExportTraceServiceRequest::decode(body).expect("traces are sent as OTLP");
    let mut spans = Vec::new();
    for group in request.resource_spans {
        let resource = said(&group.resource.unwrap_or_default().attributes);
        for span in group.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let mut attributes = said(&span.attributes);
            attributes.extend(resource.clone());
            spans.push(Span {
                name: span.name,
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                trace: hex(&span.trace_id),
                took_ns: span.end_time_unix_nano.saturating_sub(span.start_time_unix_nano),
                attributes,
                events: span
                    .events
                    .iter()
                    .map(|event| {
                        let mut event_said = said(&event.attributes);
                        event_said.insert("name".into(), event.name.clone());
                        event_said
                    })
                    .collect(),
            });
        }
    }
    spans
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn said(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    attributes
        .iter()
        .map(|attribute| {
            let value = attribute.value.as_ref().and_then(|value| value.value.as_ref());
            let text = match value {
                Some(Value::StringValue(text)) => text.clone(),
                Some(Value::IntValue(number)) => number.to_string(),
                Some(other) => format!("{other:?}"),
                None => String::new(),
            };
            (attribute.key.clone(), text)
        })
        .collect()
}
