//! Requests to a node's API, without a library: one connection each.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::Value;

use crate::node::{Node, PATIENCE};

/// What an API answered.
#[derive(Debug)]
pub struct Answer {
    /// Its status code.
    pub status: u16,
    /// Its headers, in lower case.
    pub head: String,
    /// Its body.
    pub body: Value,
}

/// Asks the API of a node that was started with `--api`.
///
/// # Panics
///
/// When it does not answer, or not with JSON.
pub fn ask(node: &Node, method: &str, path: &str, body: &Value) -> Answer {
    let (url, token) = api(node);
    request(url, &token, method, path, body)
}

/// The figures that a node's API tells.
///
/// # Panics
///
/// As [`ask`].
pub fn metrics(node: &Node) -> String {
    let (url, token) = api(node);
    text(url, &token, "GET", "/metrics", &Value::Null).2
}

/// Where a node's API is, and its token.
///
/// # Panics
///
/// When the node has no API, or wants no token.
pub fn api(node: &Node) -> (&str, String) {
    let url = node.api["url"].as_str().expect("the node has an API");
    let file = node.api["token_file"].as_str().expect("it wants a token");
    (url, fs::read_to_string(file).expect("the token can be read"))
}

/// Asks the server that listens at `url`.
///
/// # Panics
///
/// As [`ask`].
pub fn request(url: &str, token: &str, method: &str, path: &str, body: &Value) -> Answer {
    let (status, head, body) = text(url, token, method, path, body);
    let body = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e} in {body:?}"));
    Answer { status, head, body }
}

/// What the server at `url` answers: its status, its headers in lower case, its body.
///
/// # Panics
///
/// When it does not answer.
pub fn text(url: &str, token: &str, method: &str, path: &str, body: &Value) -> (u16, String, String) {
    let host = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a bound");
    let body = body.to_string();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        token.trim(),
        body.len()
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("it speaks HTTP");
    let status = head.get(9..12).and_then(|code| code.parse().ok()).expect("a status");
    (status, head.to_lowercase(), body.to_owned())
}
