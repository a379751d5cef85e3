//! An API over nothing: a fake model that types, and a fake swarm that loses a node now and then. For work on the page.
//!
//! `cargo run -p shoal-api --example fake [PORT]`; the token is `fake`.

#[path = "../tests/fake/mod.rs"]
mod fake;

use std::sync::Arc;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let port: u16 = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(8400);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let config = api::Config { token: Some("fake".into()), ..api::Config::default() };
    let fake = Arc::new(fake::Fake::new());
    tokio::spawn(fake.clone().live());
    let server = api::Server::new(fake, listener, config)?;
    println!("http://{}/#t={}   (token: fake)", server.address(), server.ticket());
    server.run(std::future::pending()).await;
    Ok(())
}
