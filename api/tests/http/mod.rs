//! Requests as bytes over a socket, so that nothing between tidies them up.
#![allow(dead_code)]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::fake::Fake;

pub const TOKEN: &str = "the-token-of-the-tests";

/// A server over a fake, stopped with the runtime of the test.
pub struct Api {
    pub address: SocketAddr,
    pub fake: Arc<Fake>,
    pub ticket: String,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let line =
            self.head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
        Some(line[name.len() + 1..].trim())
    }

    /// The JSON of every `data:` line but `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        let text = self.text();
        let lines =
            text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|line| *line != "[DONE]");
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

pub async fn start(fake: Fake) -> Api {
    start_with(fake, api::Config { token: Some(TOKEN.into()), ..api::Config::default() }).await
}

pub async fn start_with(fake: Fake, config: api::Config) -> Api {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let fake = Arc::new(fake);
    let server = api::Server::new(fake.clone(), listener, config).unwrap();
    let (address, ticket) = (server.address(), server.ticket());
    tokio::spawn(server.run(std::future::pending()));
    Api { address, fake, ticket }
}

impl Api {
    /// Sends bytes and reads until the server closes.
    pub async fn raw(&self, bytes: &[u8]) -> Reply {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // A server that refuses a request need not read it to its end.
        let _ = stream.write_all(bytes).await;
        let mut all = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut all)).await;
        let _ = read.expect("the server closes the connection");
        let end = all.windows(4).position(|w| w == b"\r\n\r\n").map_or(all.len(), |at| at + 4);
        let head = String::from_utf8_lossy(&all[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        let body = all[end..].to_vec();
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        Reply { status, head, body: if chunked { dechunk(&body) } else { body } }
    }

    /// A request with exactly these headers beside those that end it.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut bytes = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n").into_bytes();
        for (name, value) in headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if !body.is_empty() || method == "POST" {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        self.raw(&bytes).await
    }

    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub async fn get(&self, path: &str) -> Reply {
        let bearer = format!("Bearer {TOKEN}");
        self.send("GET", path, &[("Host", &self.host()), ("Authorization", &bearer)], b"").await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        let bearer = format!("Bearer {TOKEN}");
        self.send("DELETE", path, &[("Host", &self.host()), ("Authorization", &bearer)], b"").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, body, &[]).await
    }

    pub async fn post_with(&self, path: &str, body: &Value, more: &[(&str, &str)]) -> Reply {
        self.post_bytes(path, body.to_string().as_bytes(), more).await
    }

    pub async fn post_bytes(&self, path: &str, body: &[u8], more: &[(&str, &str)]) -> Reply {
        let (host, bearer) = (self.host(), format!("Bearer {TOKEN}"));
        let mut headers = vec![
            ("Host", host.as_str()),
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
        ];
        headers.extend_from_slice(more);
        self.send("POST", path, &headers, body).await
    }
}

fn dechunk(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        out.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 4 + size..];
    }
    out
}
