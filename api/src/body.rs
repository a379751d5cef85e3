//! Request bodies: JSON and nothing else, read within bounds that hold before anything is built from them.
//!
//! A body is scanned as it comes: the first byte that breaks a bound ends the reading, so what is refused is never held
//! as a whole and never parsed. Routes that want the token read nothing before it was checked (`guard.rs`).
//!
//! Bounds, one place for each:
//!
//! | what | bound |
//! |---|---|
//! | bytes of a body | [`MAX_BODY_BYTES`], for `/session`, which wants no token, [`MAX_TICKET_BYTES`] |
//! | time from the head to the last byte | [`DEADLINE`], for `/session` [`TICKET_DEADLINE`] |
//! | bytes of all bodies that are being read or parsed | the door of [`Door::BodyBytes`] |
//! | nesting, values, members of objects | [`MAX_DEPTH`], [`MAX_VALUES`], [`MAX_MEMBERS`] |

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{FromRequest, Request},
    http::{
        HeaderMap,
        header::{CONTENT_LENGTH, CONTENT_TYPE},
    },
};
use futures::StreamExt;
use serde_json::Value;

use crate::{
    App,
    doors::{Door, Doors, Pass},
    error::{ApiError, Dialect, Kind},
    keys,
};

/// Longest body: the longest prompt a template may print, several times over.
pub const MAX_BODY_BYTES: usize = 32 << 20;
/// A ticket has 32 characters; the rest is room for white space and for members that later versions add.
pub const MAX_TICKET_BYTES: usize = 1 << 10;
/// Deepest nesting; the schemas of tools reach about ten.
pub const MAX_DEPTH: usize = 64;
/// Most values in a body, a million token ids among them. Each takes some 40 times its bytes in memory.
pub const MAX_VALUES: usize = 1 << 20;
/// Most members of all objects: 4096 messages with their parts, or a hundred tools with a hundred properties each. A member
/// costs an entry in a table and its name, several times what a number in a list costs.
pub const MAX_MEMBERS: usize = 1 << 16;
/// An honest client sends at once what it has: even the longest body takes a minute at 5 Mbit/s.
const DEADLINE: Duration = Duration::from_secs(60);
/// A ticket is one packet.
const TICKET_DEADLINE: Duration = Duration::from_secs(5);
/// A body that comes in small parts is accounted for by so many bytes ahead at most.
const MOST_AHEAD_BYTES: usize = 64 << 10;
/// When a client that met full accounts may try again: bodies are read in milliseconds.
const RETRY_AFTER_S: u32 = 1;

/// Bytes of one body that are accounted for, until this is dropped.
pub(crate) struct Held<'a> {
    doors: &'a dyn Doors,
    passes: Vec<Pass>,
    bytes: usize,
}

impl<'a> Held<'a> {
    pub(crate) fn new(doors: &'a dyn Doors) -> Self {
        Self { doors, passes: Vec::new(), bytes: 0 }
    }

    /// Accounts for so many bytes in all; at once, or not at all.
    pub(crate) fn reach(&mut self, bytes: usize) -> Result<(), ApiError> {
        if bytes <= self.bytes {
            return Ok(());
        }
        // By half at least, so that many small parts take few passes.
        let more = (bytes - self.bytes).max(self.bytes.min(MOST_AHEAD_BYTES));
        let holder = keys::holder();
        let pass = self.doors.take(Door::BodyBytes, holder.as_deref(), more as u64);
        self.passes.push(pass.map_err(|full| ApiError {
            retry_after_s: Some(RETRY_AFTER_S),
            ..ApiError::new(
                Kind::Busy,
                format!(
                    "the bodies that are being read have {} MiB together, which is the most; try again in {RETRY_AFTER_S} s",
                    full.most >> 20
                ),
            )
        })?);
        self.bytes += more;
        Ok(())
    }
}

/// A request that brought a secret: no page of another origin can have made it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Authorized;

/// A JSON body.
#[derive(Debug)]
pub(crate) struct JsonBody(pub Value);

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        // Ollama's documentation sends JSON with curl's default type. A page that tricks a browser cannot add the token, so
        // behind one the type protects nothing.
        let ollama = Dialect::of(request.uri().path()) == Dialect::Ollama;
        if !(ollama && request.extensions().get::<Authorized>().is_some()) {
            json_only(request.headers())?;
        }
        read(request, &*app.doors, MAX_BODY_BYTES, DEADLINE).await.map(JsonBody)
    }
}

/// The small JSON body of a route that wants no token.
#[derive(Debug)]
pub(crate) struct TicketBody(pub Value);

impl FromRequest<Arc<App>> for TicketBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        json_only(request.headers())?;
        read(request, &*app.doors, MAX_TICKET_BYTES, TICKET_DEADLINE).await.map(TicketBody)
    }
}

fn json_only(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let why = "the body must be JSON: send the header `Content-Type: application/json`";
    Err(ApiError::new(Kind::MediaType, why))
}

/// Reads a body of at most `most` bytes within `deadline`, and parses it.
async fn read(
    request: Request,
    doors: &dyn Doors,
    most: usize,
    deadline: Duration,
) -> Result<Value, ApiError> {
    let too_large = || {
        let (n, unit) = if most < 1 << 20 { (most >> 10, "KiB") } else { (most >> 20, "MiB") };
        ApiError::new(Kind::TooLarge, format!("the body has more than {n} {unit}"))
    };
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let declared: Option<u64> = declared.and_then(|length| length.parse().ok());
    if declared.is_some_and(|bytes| bytes > most as u64) {
        return Err(too_large());
    }
    let reading = async {
        let mut parts = request.into_body().into_data_stream();
        let (mut bytes, mut bounds, mut held) = (Vec::new(), Bounds::default(), Held::new(doors));
        while let Some(part) = parts.next().await {
            let part = part.map_err(|_| ApiError::new(Kind::Invalid, "the body could not be read"))?;
            if bytes.len() + part.len() > most {
                return Err(too_large());
            }
            bounds.scan(&part)?;
            held.reach(bytes.len() + part.len())?;
            bytes.extend_from_slice(&part);
        }
        Ok((bytes, held))
    };
    let late = |_| {
        let seconds = deadline.as_secs();
        ApiError::new(Kind::Timeout, format!("the body did not arrive within {seconds} s; send it at once"))
    };
    let (bytes, _held) = tokio::time::timeout(deadline, reading).await.map_err(late)??;
    from_json(&bytes)
}

/// Parses a body that is within the bounds.
fn from_json(bytes: &[u8]) -> Result<Value, ApiError> {
    // serde_json's message quotes field names at most; position is enough to find the fault.
    serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        ApiError::new(Kind::Invalid, format!("the body is not valid JSON (line {line}, column {column})"))
    })
}

/// Counts depth, values and members by brackets, commas and colons outside strings, part by part.
#[derive(Debug)]
struct Bounds {
    depth: usize,
    values: usize,
    members: usize,
    text: bool,
    escaped: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { depth: 0, values: 1, members: 0, text: false, escaped: false }
    }
}

impl Bounds {
    fn scan(&mut self, part: &[u8]) -> Result<(), ApiError> {
        for byte in part {
            if self.text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.text = true,
                b'[' | b'{' => {
                    self.depth += 1;
                    self.values += 1;
                }
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                b',' => self.values += 1,
                b':' => self.members += 1,
                _ => continue,
            }
            let broken = |why: String| Err(ApiError::new(Kind::Invalid, why));
            if self.depth > MAX_DEPTH {
                return broken(format!("the body nests deeper than {MAX_DEPTH} levels"));
            }
            if self.values > MAX_VALUES {
                return broken(format!("the body has more than {MAX_VALUES} values"));
            }
            if self.members > MAX_MEMBERS {
                return broken(format!("the objects of the body have more than {MAX_MEMBERS} members"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::Alone;

    fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
        Bounds::default().scan(bytes)?;
        from_json(bytes)
    }

    #[test]
    fn bounds_hold_before_parsing() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert!(parse(nested(MAX_DEPTH + 1).as_bytes()).is_err());
        let many = format!("[{}1]", "1,".repeat(MAX_VALUES));
        assert!(parse(many.as_bytes()).unwrap_err().message.contains("values"));
        let members = |n: usize| format!("{{{}\"a\":1}}", "\"a\":1,".repeat(n - 1));
        assert!(parse(members(MAX_MEMBERS).as_bytes()).is_ok());
        assert!(parse(members(MAX_MEMBERS + 1).as_bytes()).unwrap_err().message.contains("members"));
        assert!(parse(br#"{"a": "[[[[\"[[[:,"}"#).is_ok());
    }

    #[test]
    fn parts_are_counted_as_the_whole_is() {
        let text = br#"{"a\"[": ["[,:\\", {"b": [1, 2]}], "c": "\\\"{"}"#;
        let count = |parts: &mut dyn Iterator<Item = &[u8]>| {
            let mut bounds = Bounds::default();
            parts.for_each(|part| bounds.scan(part).unwrap());
            (bounds.depth, bounds.values, bounds.members, bounds.text)
        };
        let whole = count(&mut std::iter::once(&text[..]));
        assert_eq!(whole, (0, 8, 3, false));
        for size in 1..text.len() {
            assert_eq!(count(&mut text.chunks(size)), whole, "parts of {size} bytes");
        }
    }

    #[test]
    fn faults_are_placed_and_not_quoted() {
        let error = parse(b"{\"secret prompt\": tru}").unwrap_err();
        assert!(error.message.contains("line 1"), "{}", error.message);
        assert!(!error.message.contains("secret"));
    }

    #[test]
    fn bytes_held_are_bounded_and_come_back() {
        let doors = Alone::default();
        let all = doors.standing(Door::BodyBytes).most as usize;
        let used = || doors.standing(Door::BodyBytes).used as usize;
        let mut held = Held::new(&doors);
        for bytes in [1, 7, 800, 5_000, 300_000] {
            held.reach(bytes).unwrap();
            assert!((bytes..bytes + MOST_AHEAD_BYTES).contains(&used()), "{bytes}: {}", used());
        }
        let before = held.passes.len();
        (300_001..360_000).for_each(|bytes| held.reach(bytes).unwrap());
        assert_eq!(held.passes.len(), before + 1, "small parts share a pass");
        held.reach(all).unwrap();
        let refused = Held::new(&doors).reach(1).unwrap_err();
        assert_eq!((refused.kind, refused.retry_after_s), (Kind::Busy, Some(RETRY_AFTER_S)));
        drop(held);
        assert_eq!(used(), 0);
    }
}
